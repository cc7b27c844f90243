// Package testport finds ports for the listeners of tests.
//
// A port that the kernel hands out for ":0" may be taken by any outgoing connection between the look and the use. These
// ports lie below the range from which the kernel does that, and every test process begins elsewhere, so that packages
// tested at the same time do not meet.
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
	// stride is how many ports a process has before it comes upon the next one's.
	stride = 100
)

var next atomic.Uint32

// Free returns a port that nobody listens on, over UDP and TCP, on any address. It returns none twice.
func Free(t testing.TB) int {
	t.Helper()
	for range count {
		port := first + (os.Getpid()*stride+int(next.Add(1)))%count
		if free(port) {
			return port
		}
	}
	t.Fatal("no free port: end some of the programs that listen on this host")
	return 0
}

// Range returns the first of n ports in a row, an even one, on which nobody listens. They lie above those of Free.
func Range(t testing.TB, n int) int {
	t.Helper()
	for range count {
		start := first + count + (os.Getpid()*stride+int(next.Add(1))*n)%count&^1
		all := true
		for port := start; port < start+n && all; port++ {
			all = free(port)
		}
		if all {
			return start
		}
	}
	t.Fatalf("no %d free ports in a row: end some of the programs that listen on this host", n)
	return 0
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
