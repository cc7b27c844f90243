// Package testport finds ports for the listeners of tests.
//
// A port that the kernel assigns for ":0" may be taken by an outgoing connection before the test uses it. The ports of
// this package are below the range from which the kernel assigns ports. Each test process starts at another port. A
// mark, an abstract Unix socket, reserves a port until the end of the test, because packages that are tested at the
// same time may search the same ports, and a port is bound some time after it was found.
package testport

import (
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"testing"
)

const (
	first = 10000
	count = 8000
	// stride is the distance between the first ports of two processes with consecutive process ids.
	stride = 100
)

var next atomic.Uint32

// Free returns a port on which no program listens, over UDP and TCP, on any address. No other test gets it meanwhile.
func Free(t testing.TB) int {
	t.Helper()
	for range count {
		port := first + (os.Getpid()*stride+int(next.Add(1)))%count
		if claim(t, port) {
			return port
		}
	}
	t.Fatal("no free port: end some of the programs that listen on this host")
	return 0
}

// Range returns the first of n consecutive ports on which no program listens. The first port is even. The ports are
// above the ports of Free.
func Range(t testing.TB, n int) int {
	t.Helper()
	for range count {
		start := first + count + (os.Getpid()*stride+int(next.Add(1))*n)%count&^1
		all := true
		for port := start; port < start+n && all; port++ {
			all = claim(t, port)
		}
		if all {
			return start
		}
	}
	t.Fatalf("no %d free ports in a row: end some of the programs that listen on this host", n)
	return 0
}

// claim reserves a port for a test if it is free. e2e/internal/harness has the same marks.
func claim(t testing.TB, port int) bool {
	t.Helper()
	mark, err := net.Listen("unix", fmt.Sprint("@stunner-port-", port))
	if err != nil {
		return false
	}
	t.Cleanup(func() { _ = mark.Close() })
	return free(port)
}

func free(port int) bool {
	udp, err := net.ListenPacket("udp", fmt.Sprint(":", port))
	if err != nil {
		return false
	}
	defer udp.Close()
	tcp, err := net.Listen("tcp", fmt.Sprint(":", port))
	if err != nil {
		return false
	}
	return tcp.Close() == nil
}
