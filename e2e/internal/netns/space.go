package netns

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Space is an additional network namespace for other hosts of a test, such as clients or peers. The kernel removes the
// namespace and its links when the thread that entered it leaves it at the end of the test, and when the process is
// killed.
type Space struct {
	name   string
	thread int
	work   chan func()
	lan    *Switch // or nil
	port   string  // of the switch
}

// New makes a network namespace with a loopback interface. The name becomes the name of the interface that Link adds to
// the namespace of the test.
func New(t *testing.T, name string) *Space {
	t.Helper()
	s := &Space{name: name, work: make(chan func())}
	entered := make(chan error)
	go func() {
		runtime.LockOSThread()
		home, err := os.Open("/proc/thread-self/ns/net")
		if err == nil {
			defer home.Close()
			err = unix.Unshare(unix.CLONE_NEWNET)
		}
		s.thread = unix.Gettid()
		entered <- err
		for f := range s.work {
			f()
		}
		// The thread must not end: it may have started a process of the test, and the kernel ends that process with the
		// thread (bed.Command.Death). A thread that cannot leave the namespace must end.
		if err == nil && unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
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

// Link connects the namespace to the one of the test, by a veth pair or by the switch of the Space. The local end is named
// after the Space and has the first address. The other end is eth0, has the second address, and is the default route of
// the Space.
func (s *Space) Link(t *testing.T, here, there netip.Prefix) {
	t.Helper()
	if s.lan != nil {
		s.port = s.lan.link(t, s)
	} else {
		Run(t, fmt.Sprintf("ip link add %s type veth peer name eth0 netns %d", s.name, s.thread))
	}
	Run(t, fmt.Sprintf("ip address add %s dev %s", here, s.name))
	Run(t, fmt.Sprintf("ip link set %s up", s.name))
	s.Run(t, fmt.Sprintf("ip address add %s dev eth0", there))
	s.Run(t, "ip link set eth0 up")
	s.Run(t, fmt.Sprintf("ip route add default via %s", here.Addr()))
}

// Shape sets the queueing discipline of the interface that sends to the Space: the local end of its link, or the port of
// the switch.
func (s *Space) Shape(t *testing.T, discipline string) {
	t.Helper()
	if s.lan != nil {
		s.lan.lan.Run(t, fmt.Sprintf("tc qdisc add dev %s root %s", s.port, discipline))
		return
	}
	Run(t, fmt.Sprintf("tc qdisc add dev %s root %s", s.name, discipline))
}
