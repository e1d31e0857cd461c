package main

import (
	"context"
	"flag"
	"net"
	"net/netip"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/clientcmd"
)

const clusterDomain = ".svc.cluster.local."

// names knows the addresses of services, and of the pods behind those that have none.
type names struct {
	services corelisters.ServiceLister
	slices   discoverylisters.EndpointSliceLister
}

// runClusterDNS answers for SERVICE.NAMESPACE.svc.cluster.local, over UDP. It knows nothing else, and asks nobody.
func runClusterDNS() {
	kubeconfig := flag.String("kubeconfig", "", "how to reach the API server")
	address := flag.String("address", "", "where to listen, such as 10.96.0.10:53")
	flag.Parse()
	configuration, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		fail("cluster-dns: %v", err)
	}
	client, err := kubernetes.NewForConfig(configuration)
	if err != nil {
		fail("cluster-dns: %v", err)
	}
	socket, err := net.ListenPacket("udp4", *address)
	if err != nil {
		fail("cluster-dns: %v", err)
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	known := names{factory.Core().V1().Services().Lister(), factory.Discovery().V1().EndpointSlices().Lister()}
	factory.Start(context.Background().Done())
	factory.WaitForCacheSync(context.Background().Done())
	buffer := make([]byte, 1500)
	for {
		size, sender, err := socket.ReadFrom(buffer)
		if err != nil {
			fail("cluster-dns: %v", err)
		}
		// Whoever gets no answer asks again.
		if answer, err := known.answer(buffer[:size]); err == nil {
			_, _ = socket.WriteTo(answer, sender)
		}
	}
}

func (n names) answer(query []byte) ([]byte, error) {
	var message dnsmessage.Message
	if err := message.Unpack(query); err != nil {
		return nil, err
	}
	message.Response, message.Authoritative = true, true
	message.Answers, message.Authorities, message.Additionals = nil, nil, nil
	message.RCode = dnsmessage.RCodeNameError
	for _, question := range message.Questions {
		addresses, found := n.find(question.Name.String())
		if !found {
			continue
		}
		// A name that has no address of the kind that is asked for exists all the same.
		message.RCode = dnsmessage.RCodeSuccess
		for _, address := range addresses {
			if question.Type == dnsmessage.TypeA && address.Is4() {
				message.Answers = append(message.Answers, dnsmessage.Resource{
					Header: dnsmessage.ResourceHeader{Name: question.Name, Class: dnsmessage.ClassINET, TTL: 1},
					Body:   &dnsmessage.AResource{A: address.As4()},
				})
			}
		}
	}
	return message.Pack()
}

func (n names) find(name string) ([]netip.Addr, bool) {
	path, inside := strings.CutSuffix(strings.ToLower(name), clusterDomain)
	service, namespace, _ := strings.Cut(path, ".")
	if !inside {
		return nil, false
	}
	found, err := n.services.Services(namespace).Get(service)
	if err != nil {
		return nil, false
	}
	if found.Spec.ClusterIP != core.ClusterIPNone {
		return parse([]string{found.Spec.ClusterIP}), true
	}
	slices, err := n.slices.EndpointSlices(namespace).List(labels.Set{discovery.LabelServiceName: service}.AsSelector())
	if err != nil {
		return nil, false
	}
	var addresses []netip.Addr
	for _, slice := range slices {
		for _, endpoint := range slice.Endpoints {
			if endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready {
				addresses = append(addresses, parse(endpoint.Addresses)...)
			}
		}
	}
	return addresses, true
}

func parse(texts []string) []netip.Addr {
	var addresses []netip.Addr
	for _, text := range texts {
		if address, err := netip.ParseAddr(text); err == nil {
			addresses = append(addresses, address)
		}
	}
	return addresses
}
