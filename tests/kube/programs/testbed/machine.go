package main

import (
	"flag"
	"io"
	"net"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// runMachineInit is the first process of a machine's PID namespace: it collects what others leave, and when it is killed
// the kernel ends everything else in there. Its network and mount namespaces last as long as it does.
func runMachineInit() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	for range ended {
		for {
			pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			if err == syscall.EINTR {
				continue
			}
			if err != nil || pid <= 0 {
				break
			}
		}
	}
}

// runPortForward passes connections to a port of this network namespace on into another namespace. The listener is
// inherited as standard input, so that whoever chose the port never lets go of it.
func runPortForward() {
	namespace := flag.String("namespace", "", "file of the network namespace to connect in")
	target := flag.String("target", "", "address to connect to, such as 10.96.0.1:443")
	flag.Parse()
	inside, err := os.Open(*namespace)
	if err != nil {
		fail("port-forward: %v", err)
	}
	listener, err := net.FileListener(os.Stdin)
	if err != nil {
		fail("port-forward: standard input: %v", err)
	}
	dial := dialer(inside, *target)
	for {
		client, err := listener.Accept()
		if err != nil {
			fail("port-forward: %v", err)
		}
		go func() {
			defer client.Close()
			server, err := dial()
			if err != nil {
				return
			}
			defer server.Close()
			go copyUntilEnd(server, client)
			copyUntilEnd(client, server)
		}()
	}
}

// dialer returns a function that connects from within the namespace. A thread that has been there is thrown away: it
// stays locked, and ends with its goroutine.
func dialer(namespace *os.File, target string) func() (net.Conn, error) {
	type outcome struct {
		connection net.Conn
		err        error
	}
	return func() (net.Conn, error) {
		done := make(chan outcome, 1)
		go func() {
			runtime.LockOSThread()
			if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
				done <- outcome{err: err}
				return
			}
			connection, err := net.Dial("tcp4", target)
			done <- outcome{connection, err}
		}()
		result := <-done
		return result.connection, result.err
	}
}

func copyUntilEnd(to, from net.Conn) {
	// The other direction sees the end of the connection; there is nobody to tell of an error.
	_, _ = io.Copy(to, from)
	if half, ok := to.(*net.TCPConn); ok {
		_ = half.CloseWrite()
	}
}
