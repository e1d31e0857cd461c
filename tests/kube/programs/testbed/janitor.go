package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// Names the folder of its machine or cluster in the environment of every process that the test bed starts.
	folderVariable = "POLLUX_TESTBED"
	cgroups        = "/sys/fs/cgroup"
	giveUpAfter    = 30 * time.Second
)

// runJanitor waits until its standard input is closed, which also happens when whoever holds the other end dies. Then it
// removes what is below a folder of the test bed: processes, cgroups and files. Mounts and network devices are in
// namespaces, which end with their processes.
func runJanitor() {
	folder := flag.String("folder", "", "folder of the cluster or machine to remove")
	group := flag.String("cgroup", "", "its path below every cgroup hierarchy")
	flag.Parse()
	if !filepath.IsAbs(*folder) || !filepath.IsAbs(*group) || filepath.Clean(*group) == "/" {
		fail("janitor: -folder %q -cgroup %q: expected absolute paths, the second not the root", *folder, *group)
	}
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		fail("janitor: standard input: %v", err)
	}
	limit := time.Now().Add(giveUpAfter)
	for _, step := range []func() error{
		func() error { return endProcesses(*folder) },
		func() error { return removeCgroups(*group) },
		func() error { return os.RemoveAll(*folder) },
	} {
		for {
			err := step()
			if err == nil {
				break
			}
			if time.Now().After(limit) {
				fail("janitor: %v", err)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// endProcesses kills what belongs to the folder and waits until it is gone. Whoever it finds may have started others
// meanwhile, so that only a call that finds nobody succeeds.
func endProcesses(folder string) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	var killed []unix.PollFd
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		// The handle comes first: if the process of that number belongs to the folder after that, so does the handle.
		handle, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		defer unix.Close(handle)
		if !belongs(pid, folder) {
			continue
		}
		if err := unix.PidfdSendSignal(handle, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("process %d: %w", pid, err)
		}
		killed = append(killed, unix.PollFd{Fd: int32(handle), Events: unix.POLLIN})
	}
	for i := range killed {
		if n, err := unix.Poll(killed[i:i+1], int(giveUpAfter.Milliseconds())); n == 0 && err == nil {
			return errors.New("a process does not end")
		}
	}
	if len(killed) > 0 {
		return fmt.Errorf("%d processes were there", len(killed))
	}
	return nil
}

// A process that has ended has no environment, whether or not its parent has noticed.
func belongs(pid int, folder string) bool {
	environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return false
	}
	for _, variable := range bytes.Split(environment, []byte{0}) {
		if value, found := strings.CutPrefix(string(variable), folderVariable+"="); found {
			return value == folder || strings.HasPrefix(value, folder+"/")
		}
	}
	return false
}

// removeCgroups removes the group and those below it from every hierarchy. A group with processes cannot be removed.
func removeCgroups(group string) error {
	hierarchies, err := filepath.Glob(cgroups + "/*")
	if err != nil {
		return err
	}
	for _, hierarchy := range hierarchies {
		var folders []string
		err := filepath.WalkDir(filepath.Join(hierarchy, group), func(path string, entry fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err == nil && entry.IsDir() {
				folders = append(folders, path)
			}
			return err
		})
		if err != nil {
			return err
		}
		for i := len(folders) - 1; i >= 0; i-- {
			if err := os.Remove(folders[i]); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}
