package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	plugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	resources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

const (
	kubeletFolder = "/var/lib/kubelet"
	pluginSocket  = "fake-gpus.sock"
	// Names the allocation in the environment of every process of a container that has fake GPUs.
	allocationVariable = "FAKE_GPU_ALLOCATION"
	lookEvery          = 200 * time.Millisecond
)

// An event is one line of the record. A test proves from the record that no GPU was given twice, without asking the
// scheduler or the API server.
type event struct {
	AtMs int64 `json:"at_ms"`
	// allocated: the kubelet asked for these devices. held: it says that a container has them. released: it says so no
	// more, and no process has them either.
	Event   string   `json:"event"`
	Devices []string `json:"devices"`
	// Of allocated.
	Allocation string `json:"allocation,omitempty"`
	// Allocations of one of the devices that still have processes.
	Running []string `json:"running,omitempty"`
	// Of held and released.
	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`
	Container string `json:"container,omitempty"`
}

type fakeGPUs struct {
	plugin.UnimplementedDevicePluginServer
	count     int
	resource  string
	unhealthy string
	started   int64

	lock   sync.Mutex
	record *os.File
	serial int
	held   map[string]event
}

func runFakeGPUs() {
	gpus := &fakeGPUs{started: time.Now().UnixMilli(), held: map[string]event{}}
	flag.IntVar(&gpus.count, "count", 4, "how many GPUs the node has")
	flag.StringVar(&gpus.resource, "resource", "nvidia.com/gpu", "the name they are requested by")
	flag.StringVar(&gpus.unhealthy, "unhealthy", "", "file with the ids of broken GPUs, one in a line")
	record := flag.String("record", "", "file to which every allocation and release is appended")
	flag.Parse()
	file, err := os.OpenFile(*record, os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		fail("fake-gpus: %v", err)
	}
	gpus.record = file
	if err := gpus.resume(*record); err != nil {
		fail("fake-gpus: %v", err)
	}
	go gpus.watchPods()
	for {
		if err := gpus.serve(); err != nil {
			log.Print(err)
		}
		time.Sleep(lookEvery)
	}
}

// resume reads who held what when the last plugin of this node ended.
func (g *fakeGPUs) resume(record string) error {
	lines, err := os.ReadFile(record)
	if err != nil {
		return err
	}
	for number, line := range bytes.Split(bytes.TrimSpace(lines), []byte("\n")) {
		if len(line) == 0 {
			continue
		}
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			return fmt.Errorf("%s, line %d: %w", record, number+1, err)
		}
		switch e.Event {
		case "held":
			g.held[e.key()] = e
		case "released":
			delete(g.held, e.key())
		}
	}
	return nil
}

// serve registers with the kubelet and answers it until the kubelet starts anew, which empties the folder of sockets.
func (g *fakeGPUs) serve() error {
	folder := filepath.Join(kubeletFolder, "device-plugins")
	own, kubelet := filepath.Join(folder, pluginSocket), filepath.Join(folder, "kubelet.sock")
	known, err := os.Stat(kubelet)
	if err != nil {
		return err
	}
	if err := os.Remove(own); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", own)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	plugin.RegisterDevicePluginServer(server, g)
	go server.Serve(listener)
	defer server.Stop()
	if err := g.register(kubelet); err != nil {
		return err
	}
	log.Printf("registered %d devices of %s", g.count, g.resource)
	for {
		time.Sleep(lookEvery)
		now, err := os.Stat(kubelet)
		if err != nil || !os.SameFile(known, now) {
			return errors.New("the kubelet went away")
		}
		if _, err := os.Stat(own); err != nil {
			return errors.New("the kubelet removed the plugin's socket")
		}
	}
}

func (g *fakeGPUs) register(kubelet string) error {
	connection, err := dialUnix(kubelet)
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err = plugin.NewRegistrationClient(connection).Register(ctx, &plugin.RegisterRequest{
		Version: plugin.Version, Endpoint: pluginSocket, ResourceName: g.resource,
	})
	return err
}

func (g *fakeGPUs) GetDevicePluginOptions(context.Context, *plugin.Empty) (*plugin.DevicePluginOptions, error) {
	return &plugin.DevicePluginOptions{}, nil
}

func (g *fakeGPUs) ListAndWatch(_ *plugin.Empty, stream plugin.DevicePlugin_ListAndWatchServer) error {
	var told []string
	for first := true; ; first = false {
		broken := g.broken()
		if first || !slices.Equal(broken, told) {
			told = broken
			if err := stream.Send(&plugin.ListAndWatchResponse{Devices: g.devices(broken)}); err != nil {
				return err
			}
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-time.After(lookEvery):
		}
	}
}

func (g *fakeGPUs) broken() []string {
	// No file: no GPU is broken.
	text, _ := os.ReadFile(g.unhealthy)
	return strings.Fields(string(text))
}

func (g *fakeGPUs) devices(broken []string) []*plugin.Device {
	devices := make([]*plugin.Device, g.count)
	for i := range devices {
		devices[i] = &plugin.Device{ID: fmt.Sprintf("GPU-%d", i), Health: plugin.Healthy}
		if slices.Contains(broken, devices[i].ID) {
			devices[i].Health = plugin.Unhealthy
		}
	}
	return devices
}

func (g *fakeGPUs) Allocate(_ context.Context, request *plugin.AllocateRequest) (*plugin.AllocateResponse, error) {
	// First what the kubelet has released since the last look, so that the record is in order.
	if err := g.look(); err != nil {
		log.Print(err)
	}
	running, err := runningAllocations()
	if err != nil {
		return nil, err
	}
	g.lock.Lock()
	defer g.lock.Unlock()
	response := &plugin.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		g.serial++
		devices := slices.Sorted(slices.Values(container.DevicesIds))
		allocation := fmt.Sprintf("%d.%d/%s", g.started, g.serial, strings.Join(devices, ","))
		err := g.write(event{
			Event: "allocated", Devices: devices, Allocation: allocation, Running: sharing(running, devices),
		})
		if err != nil {
			return nil, err
		}
		response.ContainerResponses = append(response.ContainerResponses, &plugin.ContainerAllocateResponse{
			Envs: map[string]string{
				allocationVariable:       allocation,
				"NVIDIA_VISIBLE_DEVICES": strings.Join(devices, ","),
			},
		})
	}
	return response, nil
}

// runningAllocations finds the allocations that processes of this machine still have, whatever the kubelet thinks.
func runningAllocations() ([]string, error) {
	folders, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var allocations []string
	for _, folder := range folders {
		// What has ended meanwhile, or is no process, has no environment.
		environment, _ := os.ReadFile(filepath.Join("/proc", folder.Name(), "environ"))
		for _, variable := range bytes.Split(environment, []byte{0}) {
			name, value, _ := strings.Cut(string(variable), "=")
			if name == allocationVariable && !slices.Contains(allocations, value) {
				allocations = append(allocations, value)
			}
		}
	}
	return allocations, nil
}

func sharing(allocations, devices []string) []string {
	var found []string
	for _, allocation := range allocations {
		_, theirs, _ := strings.Cut(allocation, "/")
		if slices.ContainsFunc(strings.Split(theirs, ","), func(id string) bool { return slices.Contains(devices, id) }) {
			found = append(found, allocation)
		}
	}
	return found
}

func (g *fakeGPUs) watchPods() {
	for {
		// While the kubelet is away nothing is known, and nothing changes hands.
		_ = g.look()
		time.Sleep(lookEvery)
	}
}

// look asks the kubelet which containers have which devices and writes down what changed.
func (g *fakeGPUs) look() error {
	g.lock.Lock()
	defer g.lock.Unlock()
	connection, err := dialUnix(filepath.Join(kubeletFolder, "pod-resources", "kubelet.sock"))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	answer, err := resources.NewPodResourcesListerClient(connection).List(ctx, &resources.ListPodResourcesRequest{})
	if err != nil {
		return err
	}
	now := g.holders(answer)
	running, err := runningAllocations()
	if err != nil {
		return err
	}
	for key, before := range g.held {
		if _, still := now[key]; still {
			continue
		}
		// A kubelet that was started anew, or was told to delete a pod by force, has forgotten what still runs.
		if len(sharing(running, before.Devices)) > 0 {
			now[key] = before
		} else if err := g.write(before.as("released")); err != nil {
			return err
		}
	}
	for key, holder := range now {
		if _, already := g.held[key]; !already {
			if err := g.write(holder); err != nil {
				return err
			}
		}
	}
	g.held = now
	return nil
}

func (g *fakeGPUs) holders(answer *resources.ListPodResourcesResponse) map[string]event {
	now := map[string]event{}
	for _, pod := range answer.PodResources {
		for _, container := range pod.Containers {
			holder := event{Event: "held", Namespace: pod.Namespace, Pod: pod.Name, Container: container.Name}
			for _, devices := range container.Devices {
				if devices.ResourceName == g.resource {
					holder.Devices = append(holder.Devices, devices.DeviceIds...)
				}
			}
			if len(holder.Devices) > 0 {
				slices.Sort(holder.Devices)
				now[holder.key()] = holder
			}
		}
	}
	return now
}

func (e event) key() string {
	return strings.Join(append([]string{e.Namespace, e.Pod, e.Container}, e.Devices...), "/")
}

func (e event) as(kind string) event {
	e.Event = kind
	return e
}

// write appends one line in one call, so that a reader never sees half of it followed by another.
func (g *fakeGPUs) write(e event) error {
	e.AtMs = time.Now().UnixMilli()
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	_, err = g.record.Write(append(line, '\n'))
	return err
}

func dialUnix(path string) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
}
