package offload

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/testroot"
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

// topology is three hosts: clients behind the interface client of the relay, peers behind its interface peer.
//
//	client 10.77.1.2, fd77:1::2  --  10.77.1.1, fd77:1::1  relay  10.77.2.1, fd77:2::1  --  10.77.2.2, fd77:2::2  peer
//
// With one arm, the relay has one interface for both networks, whose names are client and peer. A bridge connects this
// interface to the two hosts.
type topology struct {
	relay, client, peer *space
	oneArm              bool
	complete            bool // the interface of the relay receives complete checksums only
}

func newTopology(t testing.TB) *topology {
	t.Helper()
	w := hosts(t)
	w.link(t, "client", 1, w.client, "eth0")
	w.link(t, "peer", 2, w.peer, "eth0")
	w.route(t)
	return w
}

func hosts(t testing.TB) *topology {
	t.Helper()
	testroot.Need(t, "network namespaces and BPF programs")
	w := &topology{relay: newSpace(t), client: newSpace(t), peer: newSpace(t)}
	w.relay.run(t, "ip link set lo up")
	return w
}

// newArmTopology returns a topology with one arm of veth.
func newArmTopology(t testing.TB) *topology {
	t.Helper()
	return armTopology(t, pair)
}

// newNativeTopology is newArmTopology for an XDP program in the driver of veth. A veth interface receives the frames
// that an XDP program at its other end returns only if it has an XDP program too. That program disables segmentation
// offload.
func newNativeTopology(t testing.TB) *topology {
	t.Helper()
	return armTopology(t, func(t testing.TB, relay, lan *space) {
		pair(t, relay, lan)
		lan.addXDP(t, "port0")
	})
}

// newTapTopology returns a topology with one arm of TAP, whose driver supports XDP without conditions.
func newTapTopology(t testing.TB) *topology {
	t.Helper()
	w := armTopology(t, func(t testing.TB, relay, lan *space) {
		a, b := relay.tap(t, "client"), lan.tap(t, "port0")
		go cable(a, b)
	})
	w.complete = true
	return w
}

// cards is the flag of make kernels, whose machine has two network cards.
var cards = flag.Bool("cards", false, "also test XDP with the network cards eth0 and eth1 of this host, which a cable connects")

var cardsInUse sync.Mutex

// newCardTopology returns a topology with one arm of two network cards.
func newCardTopology(t testing.TB) *topology {
	t.Helper()
	cardsInUse.Lock()
	t.Cleanup(cardsInUse.Unlock)
	w := armTopology(t, func(t testing.TB, relay, lan *space) {
		move := func(s *space, card, name string) {
			run(t, "ip link set %s netns %d name %s", card, s.thread, name)
			t.Cleanup(func() {
				s.do(func() { _, _ = try("ip link property del dev client altname peer") })
				s.run(t, "ip link set %s down", name)
				s.run(t, "ip link set %s netns 1 name %s", name, card)
			})
		}
		move(relay, "eth0", "client")
		move(lan, "eth1", "port0")
	})
	w.complete = true
	return w
}

// pair makes the interface client of the relay and the port of the bridge.
func pair(t testing.TB, relay, lan *space) {
	t.Helper()
	relay.run(t, "ip link add client type veth peer name port0 netns %d", lan.thread)
}

func armTopology(t testing.TB, connect func(t testing.TB, relay, lan *space)) *topology {
	t.Helper()
	w := hosts(t)
	w.oneArm = true
	lan := newSpace(t)
	lan.run(t, "ip link add br0 type bridge")
	// A bridge whose packets pass iptables removes the padding of frames, and a port with txvlan keeps VLAN tags
	// outside of them.
	for _, call := range []string{"iptables", "ip6tables"} {
		lan.do(func() { off(t, "/proc/sys/net/bridge/bridge-nf-call-"+call) })
	}
	lan.run(t, "ip link set br0 up")
	connect(t, w.relay, lan)
	w.client.run(t, "ip link add eth0 type veth peer name port1 netns %d", lan.thread)
	w.peer.run(t, "ip link add eth0 type veth peer name port2 netns %d", lan.thread)
	for port := range 3 {
		name := fmt.Sprint("port", port)
		var out string
		if lan.do(func() { out, _ = try("ethtool -k " + name) }); !strings.Contains(out, "tx-vlan-offload: off") {
			lan.run(t, "ethtool -K %s txvlan off", name)
		}
		lan.run(t, "ip link set %s master br0", name)
		lan.run(t, "ip link set %s up", name)
	}
	w.relay.run(t, "ip link set client addrgenmode none")
	w.client.run(t, "ip link set eth0 addrgenmode none")
	w.peer.run(t, "ip link set eth0 addrgenmode none")
	w.relay.run(t, "ip link property add dev client altname peer")
	w.at(t, "client", 1, w.client, "eth0")
	w.at(t, "client", 2, w.peer, "eth0")
	w.route(t)
	return w
}

// tap adds a TAP interface. Reads and writes of its file block.
func (s *space) tap(t testing.TB, name string) (file int) {
	t.Helper()
	var err error
	s.do(func() {
		if file, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
			return
		}
		var request *unix.Ifreq
		if request, err = unix.NewIfreq(name); err != nil {
			return
		}
		request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(file, unix.TUNSETIFF, request)
	})
	if err != nil {
		t.Fatalf("add TAP interface: %v", err)
	}
	// Closing the descriptor does not end a blocked read, but deleting the interface does.
	t.Cleanup(func() { s.do(func() { _, _ = try("ip link delete " + name) }) })
	return file
}

// cable connects two TAP interfaces until both are deleted.
func cable(a, b int) {
	var both sync.WaitGroup
	both.Go(func() { pump(a, b) })
	both.Go(func() { pump(b, a) })
	both.Wait()
	_, _ = unix.Close(a), unix.Close(b) // not earlier, because another file could get the number
}

// pump sends the frames of one TAP interface to another TAP interface until the first is deleted.
func pump(from, to int) {
	b := make([]byte, 65536)
	for {
		n, err := unix.Read(from, b)
		switch {
		case err == nil:
			_, _ = unix.Write(to, b[:n]) // fails while the other interface is down
		case !errors.Is(err, unix.EINTR):
			return
		}
	}
}

// off sets a parameter of the network namespace to 0, if the kernel has the parameter.
func off(t testing.TB, parameter string) {
	t.Helper()
	if err := os.WriteFile(parameter, []byte("0"), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// addXDP adds an XDP program without effect to an interface.
func (s *space) addXDP(t testing.TB, name string) {
	t.Helper()
	s.do(func() {
		program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Type: ebpf.XDP, Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}, // XDP_PASS
		})
		if err != nil {
			t.Error(err)
			return
		}
		defer program.Close()
		i, err := net.InterfaceByName(name)
		if err != nil {
			t.Error(err)
			return
		}
		l, err := link.AttachXDP(link.XDPOptions{Program: program, Interface: i.Index, Flags: link.XDPDriverMode})
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { _ = l.Close() })
	})
}

// route makes the relay the router of the two hosts.
func (w *topology) route(t testing.TB) {
	t.Helper()
	for _, there := range []struct {
		space *space
		net   int
	}{{w.client, 1}, {w.peer, 2}} {
		there.space.run(t, "ip route add default via 10.77.%d.1", there.net)
		there.space.run(t, "ip route add default via fd77:%d::1", there.net)
	}
}

// link connects the relay to another host by two interfaces, one at each of them.
func (w *topology) link(t testing.TB, here string, net int, host *space, there string) {
	t.Helper()
	w.relay.run(t, "ip link add %s type veth peer name %s netns %d", here, there, host.thread)
	// A link-local address is announced after a second. The programs would learn again during a test.
	w.relay.run(t, "ip link set %s addrgenmode none", here)
	w.at(t, here, net, host, there)
}

// at gives two interfaces the addresses of a network.
func (w *topology) at(t testing.TB, here string, net int, host *space, there string) {
	t.Helper()
	w.relay.run(t, "ip address add 10.77.%d.1/24 dev %s", net, here)
	w.relay.run(t, "ip address add fd77:%d::1/64 dev %s nodad", net, here)
	w.relay.run(t, "ip link set %s up", here)
	host.run(t, "ip address add 10.77.%d.2/24 dev %s", net, there)
	host.run(t, "ip address add fd77:%d::2/64 dev %s nodad", net, there)
	host.run(t, "ip link set %s up", there)
	// After the report of the new state, the programs would learn again.
	within(t, "carrier", func() bool {
		state := w.relay.run(t, "ip link show %s", here)
		return strings.Contains(state, "state UP") || strings.Contains(state, "state UNKNOWN") // of TAP
	})
}

// start starts a relay process with the two capabilities.
func (w *topology) start(t testing.TB, c relayConfig) *relayProcess {
	t.Helper()
	return w.startWith(t, c, capabilities)
}

func (w *topology) startWith(t testing.TB, c relayConfig, caps []uintptr) *relayProcess {
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

func (w *topology) path(t testing.TB, b relayBinding) *path {
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

// buffers hold datagrams of any size. In some tests, allocating a new buffer for each datagram would take most of the
// time.
var buffers = sync.Pool{New: func() any { return new([65536]byte) }}

// receive returns the next datagram, or nil.
func receive(c *net.UDPConn, within time.Duration) []byte {
	b := buffers.Get().(*[65536]byte)
	defer buffers.Put(b)
	_ = c.SetReadDeadline(time.Now().Add(within))
	n, _, err := c.ReadFromUDPAddrPort(b[:])
	if err != nil {
		return nil
	}
	return append([]byte{}, b[:n]...) // not nil if it is empty
}

// timeout limits the wait for an event, also on a busy machine.
const timeout = 30 * time.Second

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

// usual is a payload length that fits into an MTU of 1,500 bytes, with the headers of IPv6 and of ChannelData.
const usual = 1440

func (p *path) warmUp(t testing.TB, r *relayProcess, size int) {
	t.Helper()
	payload := media(size)
	for range 10 {
		before := r.do(t, "state")
		if p.up(payload, timeout) == nil || p.down(payload, timeout) == nil {
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
