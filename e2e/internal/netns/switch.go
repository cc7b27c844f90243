package netns

import (
	"fmt"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// Switch is an Ethernet switch between one interface of the test and other hosts. The interface is a TAP interface,
// because its driver supports XDP, as the driver of a network card does.
type Switch struct {
	lan   *Space
	name  string
	ports int
}

// NewSwitch makes a switch and the interface of the test, which gets the name.
func NewSwitch(t *testing.T, name string) *Switch {
	t.Helper()
	w := &Switch{lan: New(t, "switch"), name: name}
	w.lan.Run(t, "ip link add br0 type bridge")
	w.lan.Run(t, "ip link set br0 up")
	card := newTAP(t, name)
	Run(t, fmt.Sprintf("ip link set %s up", name))
	var port *os.File
	w.lan.Do(func() { port = newTAP(t, "card") })
	w.plug(t, "card")
	for from, to := range map[*os.File]*os.File{card: port, port: card} {
		go func() { _, _ = io.Copy(to, struct{ io.Reader }{from}) }() // ends when the test closes both files
	}
	return w
}

// newTAP is tap for an interface that exists until the end of the test.
func newTAP(t *testing.T, name string) *os.File {
	t.Helper()
	file, err := tap(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	return file
}

// tap adds a TAP interface to the network namespace of the calling thread. A read or write of the file is one frame.
func tap(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("add TAP interface %s: %w", name, err)
	}
	request, err := unix.NewIfreq(name)
	if err == nil {
		request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("add TAP interface %s: %w", name, err)
	}
	// The file is opened only now: if epoll gets the file before it has an interface, it reports no events.
	return os.NewFile(uintptr(fd), name), nil
}

// plug connects an interface to the switch.
func (w *Switch) plug(t *testing.T, port string) {
	t.Helper()
	w.lan.Run(t, fmt.Sprintf("ip link set %s master br0", port))
	w.lan.Run(t, fmt.Sprintf("ip link set %s up", port))
}

// New makes a network namespace as the function New does. Space.Link connects the namespace to the test through the
// switch, and its name becomes another name of the interface of the test. If w is nil, the namespace has a link of its
// own.
func (w *Switch) New(t *testing.T, name string) *Space {
	t.Helper()
	s := New(t, name)
	s.lan = w
	return s
}

func (w *Switch) link(t *testing.T, s *Space) {
	t.Helper()
	port := fmt.Sprint("port", w.ports)
	w.ports++
	w.lan.Run(t, fmt.Sprintf("ip link add %s type veth peer name eth0 netns %d", port, s.thread))
	w.plug(t, port)
	Run(t, fmt.Sprintf("ip link property add dev %s altname %s", w.name, s.name))
}
