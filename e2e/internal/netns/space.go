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
	lan    *Switch // lan is the switch of the Space, or nil
}

// New makes a network namespace with a loopback interface, until the end of the test. The name becomes the name of the
// interface that Link adds to the namespace of the test.
func New(t *testing.T, name string) *Space {
	t.Helper()
	s, err := Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// Open makes a network namespace with a loopback interface, until Close.
func Open(name string) (*Space, error) {
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
		// The thread must not end: the kernel would end the processes of the test that the thread has started
		// (harness.Command.Death). Only a thread that cannot leave the namespace ends.
		defer func() {
			if err == nil && unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
				runtime.UnlockOSThread()
			}
		}()
		s.serve()
	}()
	if err := <-entered; err != nil {
		close(s.work)
		return nil, fmt.Errorf("make a network namespace: %w: run the test as root", err)
	}
	if _, err := s.Exec("ip link set lo up"); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// serve calls the functions of Do. A function that ends its test ends the goroutine (runtime.Goexit). A deferred call
// then continues on the same thread, so that the namespace exists until the cleanups of the test have run.
func (s *Space) serve() {
	closed := false
	defer func() {
		if p := recover(); p != nil {
			panic(p)
		}
		if !closed {
			s.serve()
		}
	}()
	for f := range s.work {
		f()
	}
	closed = true
}

// Close ends the namespace, unless a process or socket is left in it.
func (s *Space) Close() { close(s.work) }

// Do calls f in the namespace. Sockets that f opens and processes that it starts stay in the namespace. If f ends the
// test, as t.Fatal does, Do ends the calling goroutine.
func (s *Space) Do(f func()) {
	returned := make(chan bool, 1)
	s.work <- func() {
		ended := true
		defer func() { returned <- !ended }()
		f()
		ended = false
	}
	if !<-returned {
		runtime.Goexit()
	}
}

// Dial connects from the namespace to an IP address and a port.
func (s *Space) Dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	s.Do(func() { conn, err = new(net.Dialer).DialContext(ctx, network, address) })
	return conn, err
}

// Run runs a command in the namespace and returns its output. An error ends the test.
func (s *Space) Run(t *testing.T, command string) string {
	t.Helper()
	out, err := s.Exec(command)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Exec runs a command in the namespace and returns its output.
func (s *Space) Exec(command string) (string, error) {
	words := strings.Fields(command)
	var out []byte
	var err error
	s.Do(func() { out, err = exec.Command(words[0], words[1:]...).CombinedOutput() })
	if err != nil {
		return "", fmt.Errorf("%s: %s: %w: %s", s.name, command, err, out)
	}
	return string(out), nil
}

// Link connects the namespace to the one of the test, by a veth pair or by the switch of the Space. The local end is
// named after the Space and has the first address. The other end is eth0, has the second address, and is the default
// route of the Space.
func (s *Space) Link(t *testing.T, here, there netip.Prefix) {
	t.Helper()
	if s.lan != nil {
		s.lan.link(t, s)
	} else {
		Run(t, fmt.Sprintf("ip link add %s type veth peer name eth0 netns %d", s.name, s.thread))
	}
	Run(t, addressCommand(here, s.name))
	Run(t, fmt.Sprintf("ip link set %s up", s.name))
	s.Run(t, addressCommand(there, "eth0"))
	s.Run(t, "ip link set eth0 up")
	s.Run(t, fmt.Sprintf("ip route add default via %s", here.Addr()))
}

// Thread returns the id of the thread in the namespace, by which commands such as ip name it.
func (s *Space) Thread() int { return s.thread }
