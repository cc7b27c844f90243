package netns

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// Space is an additional network namespace for other hosts of a test, such as clients or peers. It exists as long as
// the thread that entered it: the kernel removes the namespace and its links when the test ends, also when the process
// is killed.
type Space struct {
	name   string
	thread int
	work   chan func()
}

// New makes a network namespace with a loopback interface. The name becomes the name of the interface that Link adds to
// the namespace of the test.
func New(t *testing.T, name string) *Space {
	t.Helper()
	s := &Space{name: name, work: make(chan func())}
	entered := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread must end with the goroutine
		err := syscall.Unshare(syscall.CLONE_NEWNET)
		s.thread = syscall.Gettid()
		entered <- err
		for f := range s.work {
			f()
		}
	}()
	if err := <-entered; err != nil {
		close(s.work)
		t.Fatalf("make a network namespace: %v: run the test as root", err)
	}
	t.Cleanup(func() { close(s.work) })
	s.Run(t, "ip link set lo up")
	return s
}

// Do calls f in the namespace. Sockets that f opens and processes that it starts stay in the namespace.
func (s *Space) Do(f func()) {
	done := make(chan struct{})
	s.work <- func() { defer close(done); f() }
	<-done
}

// Dial connects from the namespace to an IP address and a port.
func (s *Space) Dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	s.Do(func() { conn, err = new(net.Dialer).DialContext(ctx, network, address) })
	return conn, err
}

// Run runs a command in the namespace and returns its output. An error ends the test.
func (s *Space) Run(t *testing.T, command string) string {
	t.Helper()
	words := strings.Fields(command)
	var out []byte
	var err error
	s.Do(func() { out, err = exec.Command(words[0], words[1:]...).CombinedOutput() })
	if err != nil {
		t.Fatalf("%s: %s: %v: %s", s.name, command, err, out)
	}
	return string(out)
}

// Link connects the namespace to the one of the test by a veth pair. The local end is named after the Space and has the
// first address. The other end is eth0, has the second address, and is the default route of the Space.
func (s *Space) Link(t *testing.T, here, there netip.Prefix) {
	t.Helper()
	Run(t, fmt.Sprintf("ip link add %s type veth peer name eth0 netns %d", s.name, s.thread))
	Run(t, fmt.Sprintf("ip address add %s dev %s", here, s.name))
	Run(t, fmt.Sprintf("ip link set %s up", s.name))
	s.Run(t, fmt.Sprintf("ip address add %s dev eth0", there))
	s.Run(t, "ip link set eth0 up")
	s.Run(t, fmt.Sprintf("ip route add default via %s", here.Addr()))
}
