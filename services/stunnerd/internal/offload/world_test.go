package offload

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// space is a network namespace. It exists as long as the thread that entered it.
type space struct {
	thread int
	work   chan func()
}

func newSpace(t testing.TB) *space {
	t.Helper()
	s := &space{work: make(chan func())}
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
	return s
}

// do calls f in the namespace. Sockets that f opens and processes that it starts stay in the namespace.
func (s *space) do(f func()) {
	done := make(chan struct{})
	s.work <- func() { defer close(done); f() }
	<-done
}

func (s *space) run(t testing.TB, format string, arguments ...any) string {
	t.Helper()
	var out string
	s.do(func() { out = run(t, format, arguments...) })
	return out
}

func run(t testing.TB, format string, arguments ...any) string {
	t.Helper()
	command := fmt.Sprintf(format, arguments...)
	out, err := try(command)
	if err != nil {
		t.Errorf("%s: %v: %s: .ci/install installs the programs", command, err, out)
	}
	return out
}

func try(command string) (string, error) {
	words := strings.Fields(command)
	out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
	return string(out), err
}

// world is three hosts: clients behind the interface client of the relay, peers behind its interface peer.
//
//	client 10.77.1.2, fd77:1::2  --  10.77.1.1, fd77:1::1  relay  10.77.2.1, fd77:2::1  --  10.77.2.2, fd77:2::2  peer
type world struct {
	relay, client, peer *space
}

func newWorld(t testing.TB) *world {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("network namespaces and BPF programs need root")
	}
	w := &world{newSpace(t), newSpace(t), newSpace(t)}
	w.relay.run(t, "ip link set lo up")
	w.link(t, "client", 1, w.client, "eth0")
	w.link(t, "peer", 2, w.peer, "eth0")
	for _, there := range []struct {
		space *space
		net   int
	}{{w.client, 1}, {w.peer, 2}} {
		there.space.run(t, "ip route add default via 10.77.%d.1", there.net)
		there.space.run(t, "ip route add default via fd77:%d::1", there.net)
	}
	return w
}

// link connects the relay to another host by two interfaces, here and there.
func (w *world) link(t testing.TB, here string, net int, host *space, there string) {
	t.Helper()
	w.relay.run(t, "ip link add %s type veth peer name %s netns %d", here, there, host.thread)
	// A link-local address is announced after a second, which makes the programs learn again during a test.
	w.relay.run(t, "ip link set %s addrgenmode none", here)
	w.relay.run(t, "ip address add 10.77.%d.1/24 dev %s", net, here)
	w.relay.run(t, "ip address add fd77:%d::1/64 dev %s nodad", net, here)
	w.relay.run(t, "ip link set %s up", here)
	host.run(t, "ip address add 10.77.%d.2/24 dev %s", net, there)
	host.run(t, "ip address add fd77:%d::2/64 dev %s nodad", net, there)
	host.run(t, "ip link set %s up", there)
	// The change of the state is another report that makes the programs learn again.
	within(t, "carrier", func() bool { return strings.Contains(w.relay.run(t, "ip link show %s", here), "state UP") })
}

// start starts a relay process with the two capabilities.
func (w *world) start(t testing.TB, c relayConfig) *relayProcess {
	t.Helper()
	return w.startWith(t, c, capabilities)
}

func (w *world) startWith(t testing.TB, c relayConfig, caps []uintptr) *relayProcess {
	t.Helper()
	var p *relayProcess
	var err error
	w.relay.do(func() { p, err = startRelay(c, caps) })
	if err != nil {
		t.Fatalf("start relay process: %v", err)
	}
	t.Cleanup(p.kill)
	p.do(t, "state")
	return p
}

// path is one binding with the sockets of its client and its peer.
type path struct {
	relayBinding
	client, peer *net.UDPConn
}

const testChannel = 0x4001

var at = netip.MustParseAddrPort

func binding(v6 bool) relayBinding {
	if v6 {
		return relayBinding{
			at("[fd77:1::2]:40000"),
			at("[fd77:1::1]:3478"),
			at("[fd77:2::2]:50000"),
			at("[fd77:2::1]:30000"),
			testChannel,
		}
	}
	return relayBinding{
		at("10.77.1.2:40000"),
		at("10.77.1.1:3478"),
		at("10.77.2.2:50000"),
		at("10.77.2.1:30000"),
		testChannel,
	}
}

func (w *world) path(t testing.TB, b relayBinding) *path {
	t.Helper()
	p := &path{relayBinding: b, client: w.client.socket(t, b.Client), peer: w.peer.socket(t, b.Peer)}
	return p
}

func (s *space) socket(t testing.TB, at netip.AddrPort) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	var err error
	s.do(func() { c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at)) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// frame returns ChannelData.
func frame(channel uint16, payload []byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, channel)
	b = binary.BigEndian.AppendUint16(b, uint16(len(payload)))
	return append(b, payload...)
}

// media returns a payload like that of an RTP packet (RFC 3550 §5.1). STUN messages begin with another byte.
func media(size int) []byte { return bytes.Repeat([]byte{0x80}, size) }

// receive returns the next datagram, or nil.
func receive(c *net.UDPConn, within time.Duration) []byte {
	b := make([]byte, 65536)
	_ = c.SetReadDeadline(time.Now().Add(within))
	n, _, err := c.ReadFromUDPAddrPort(b)
	if err != nil {
		return nil
	}
	return b[:n]
}

const patience = 2 * time.Second

// up sends a payload from the client and returns what the peer receives.
func (p *path) up(payload []byte, within time.Duration) []byte {
	_, _ = p.client.WriteToUDPAddrPort(frame(p.Channel, payload), p.Listener)
	return receive(p.peer, within)
}

// down sends a payload from the peer and returns what the client receives.
func (p *path) down(payload []byte, within time.Duration) []byte {
	_, _ = p.peer.WriteToUDPAddrPort(payload, p.Relay)
	return receive(p.client, within)
}

// warm sends packets until the kernel forwards both directions, also packets with payloads of usual.
func (p *path) warm(t testing.TB, r *relayProcess) {
	t.Helper()
	p.warmUp(t, r, usual)
}

// usual is a length of payloads that fit into an MTU of 1,500 bytes, with the headers of IPv6 and of ChannelData.
const usual = 1440

func (p *path) warmUp(t testing.TB, r *relayProcess, size int) {
	t.Helper()
	payload := media(size)
	for range 10 {
		before := r.do(t, "state")
		if p.up(payload, patience) == nil || p.down(payload, patience) == nil {
			t.Fatalf("packets are lost: %+v", r.do(t, "state"))
		}
		after := r.do(t, "state")
		if after.Kernel.Up.Packets > before.Kernel.Up.Packets &&
			after.Kernel.Down.Packets > before.Kernel.Down.Packets {
			return
		}
	}
	t.Fatalf("the kernel does not forward: %+v", r.do(t, "state"))
}

// dial returns a netlink socket of the namespace.
func (s *space) dial(t testing.TB) (c conn) {
	t.Helper()
	var err error
	s.do(func() { c, err = dial() })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)
	return c
}

// index returns the index of an interface.
func (s *space) index(t testing.TB, name string) uint32 {
	t.Helper()
	var i *net.Interface
	var err error
	s.do(func() { i, err = net.InterfaceByName(name) })
	if err != nil {
		t.Fatal(err)
	}
	return uint32(i.Index)
}
