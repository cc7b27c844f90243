package host

import (
	"net"
	"os"
	"strconv"
	"testing"
)

func TestBoundPortsAreThoseOfTheProcess(t *testing.T) {
	want := map[Port]bool{}
	for _, address := range []string{"127.0.0.1:0", "[::]:0"} {
		udp, err := net.ListenPacket("udp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer udp.Close()
		tcp, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer tcp.Close()
		want[Port{"udp", udp.LocalAddr().(*net.UDPAddr).Port}] = true
		want[Port{"tcp", tcp.Addr().(*net.TCPAddr).Port}] = true
	}
	bound := boundPorts("/proc/self")
	for port := range want {
		if !bound[port] {
			t.Errorf("%v is missing in %v", port, bound)
		}
	}
	parent := boundPorts("/proc/" + strconv.Itoa(os.Getppid()))
	for port := range want {
		if parent[port] {
			t.Errorf("%v is a port of another process too", port)
		}
	}
}
