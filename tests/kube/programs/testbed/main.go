// What the test cluster needs beside Kubernetes, chosen by the name the binary is called by. Apart from Kubernetes, whose
// binary takes long to start and much memory.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	switch name := filepath.Base(os.Args[0]); name {
	case "fake-gpus":
		runFakeGPUs()
	case "janitor":
		runJanitor()
	case "machine-init":
		runMachineInit()
	case "port-forward":
		runPortForward()
	default:
		fail("called as %s: expected a link named fake-gpus, janitor, machine-init, port-forward", name)
	}
}

func fail(format string, values ...any) {
	fmt.Fprintf(os.Stderr, "error: "+format+"\n", values...)
	os.Exit(1)
}
