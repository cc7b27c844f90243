package offload

import (
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// bridge makes the interface peer a port of the bridge br0, which has its addresses from then on.
func (w *world) bridge(t testing.TB) {
	t.Helper()
	w.relay.run(t, "ip link add br0 type bridge forward_delay 0")
	w.relay.run(t, "ip link set br0 addrgenmode none")
	w.relay.run(t, "ip address flush dev peer")
	w.relay.run(t, "ip link set peer master br0")
	w.relay.run(t, "ip address add 10.77.2.1/24 dev br0")
	w.relay.run(t, "ip address add fd77:2::1/64 dev br0 nodad")
	w.relay.run(t, "ip link set br0 up")
	within(t, "carrier", func() bool { return strings.Contains(w.relay.run(t, "ip link show br0"), "state UP") })
}

// Packets to a peer behind a bridge pass the bridge and then its port. The kernel forwards at the bridge, in both
// directions, and not at the port, where no address of the peer resolves.
func TestBridge(t *testing.T) {
	t.Parallel()
	for _, m := range mechanisms() {
		for _, v6 := range []bool{false, true} {
			w := newWorld(t)
			w.bridge(t)
			b := binding(v6)
			r := w.start(t, relayConfig{Engine: EngineTC, Mechanisms: []Mechanism{m}, Bindings: []relayBinding{b}})
			p := w.path(t, b)
			p.warm(t, r)
			before := r.do(t, "state")
			for range 20 {
				if p.up([]byte("up"), patience) == nil || p.down([]byte("down"), patience) == nil {
					t.Fatalf("%s IPv6=%t: lost: %+v", m, v6, r.do(t, "state"))
				}
			}
			if after := r.do(t, "state"); after.User != before.User || after.Status.Reason != "" ||
				!slices.Equal(after.Status.Interfaces, []string{"br0", "client"}) {
				t.Errorf("%s IPv6=%t: %+v, before %+v", m, v6, after, before)
			}
		}
	}
}

// A port of a bridge that is in the list of interfaces is not used, and the reason has the remedy.
func TestNamedPort(t *testing.T) {
	w := newWorld(t)
	w.bridge(t)
	b := binding(false)
	r := w.start(t, relayConfig{
		Engine: EngineTC, Interfaces: []string{"client", "peer"}, Bindings: []relayBinding{b},
	})
	const reason = "interface peer: it is a port of the bridge br0: " +
		"name the interface that has the IP addresses in offload_interfaces"
	if s := r.do(t, "state").Status; !slices.Equal(s.Interfaces, []string{"client"}) || s.Reason != reason {
		t.Errorf("%+v, want the reason %q", s, reason)
	}
	p := w.path(t, b)
	for range 5 {
		if p.up([]byte("up"), patience) == nil || p.down([]byte("down"), patience) == nil {
			t.Error("a packet is lost")
		}
	}
	// An interface that becomes a port later is removed, and added when it is no longer one.
	w.relay.run(t, "ip link set peer nomaster")
	within(t, "attach to a former port", func() bool { return len(r.do(t, "state").Status.Interfaces) == 2 })
	w.relay.run(t, "ip link set peer master br0")
	within(t, "remove a port", func() bool { return r.do(t, "state").Status.Reason == reason })
}

// upper adds a device on top of the interface peer, which has its address from then on.
func (w *world) upper(t testing.TB) {
	t.Helper()
	w.relay.run(t, "ip address flush dev peer")
	w.relay.run(t, "ip link add link peer name upper type macvlan mode private")
	w.relay.run(t, "ip link set upper addrgenmode none")
	w.relay.run(t, "ip address add 10.77.2.1/24 dev upper")
	w.relay.run(t, "ip link set upper up")
	within(t, "carrier", func() bool { return strings.Contains(w.relay.run(t, "ip link show upper"), "state UP") })
}

// A packet to a device on top of another one passes the hooks of both. The kernel forwards at the upper device.
func TestStackedInterfaces(t *testing.T) {
	t.Parallel()
	for _, m := range mechanisms() {
		w := newWorld(t)
		w.upper(t)
		b := binding(false)
		r := w.start(t, relayConfig{Engine: EngineTC, Mechanisms: []Mechanism{m}, Bindings: []relayBinding{b}})
		p := w.path(t, b)
		p.warm(t, r)
		before := r.do(t, "state")
		for range 20 {
			if p.up([]byte("up"), patience) == nil || p.down([]byte("down"), patience) == nil {
				t.Fatalf("%s: lost: %+v", m, r.do(t, "state"))
			}
		}
		if after := r.do(t, "state"); after.User != before.User ||
			!slices.Equal(after.Status.Interfaces, []string{"client", "peer", "upper"}) {
			t.Errorf("%s: %+v, before %+v", m, after, before)
		}
		if lower := w.relay.run(t, "ip neighbour show dev peer"); lower != "" {
			t.Errorf("%s: neighbours at the lower device: %s", m, lower)
		}
	}
}

// If another program removes the mark between the two devices, packets to the peer stay in user space.
func TestLostMark(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.upper(t)
	b := binding(false)
	r := w.start(t, relayConfig{Engine: EngineTC, Bindings: []relayBinding{b}})
	const tcIndex = 44 // offset in struct __sk_buff (linux/bpf.h)
	w.relay.do(func() { onEgress(t, "peer", asm.StoreImm(asm.R1, tcIndex, 0, asm.Word)) })
	p := w.path(t, b)
	for range 10 {
		if p.up([]byte("up"), patience) == nil || p.down([]byte("down"), patience) == nil {
			t.Fatalf("lost: %+v", r.do(t, "state"))
		}
	}
	if s := r.do(t, "state"); s.Kernel.Up.Packets != 0 || s.Kernel.Down.Packets == 0 {
		t.Errorf("%+v", s)
	}
}

// The program learns nothing of a packet with a VLAN tag: on the interface below that of the VLAN, no address resolves.
func TestTaggedPackets(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := binding(false)
	r := w.start(t, relayConfig{Engine: EngineTC, Bindings: []relayBinding{b}})
	w.relay.do(func() {
		onEgress(t, "peer",
			asm.Mov.Imm(asm.R2, int32(htons(unix.ETH_P_8021Q))),
			asm.Mov.Imm(asm.R3, 5), // the identifier of the VLAN
			asm.FnSkbVlanPush.Call(),
		)
	})
	w.relay.run(t, "ip neighbour replace %s lladdr 02:00:00:00:00:02 dev peer", b.Peer.Addr())
	p := w.path(t, b)
	for n := range uint64(5) { // the peer does not receive tagged packets
		_, _ = p.client.WriteToUDPAddrPort(frame(p.Channel, []byte("up")), p.Listener)
		within(t, "forward in user space", func() bool {
			s := r.do(t, "state")
			return s.User.Up.Packets == n+1 && s.Status.Bindings == 1
		})
	}
	if s := r.do(t, "state"); s.Kernel != (Counters{}) {
		t.Errorf("%+v", s)
	}
}

// onEgress executes instructions on the packets that leave by an interface, before the other programs.
func onEgress(t *testing.T, name string, instructions ...asm.Instruction) {
	t.Helper()
	i, err := net.InterfaceByName(name)
	if err != nil {
		t.Fatal(err)
	}
	const next = -1 // TCX_NEXT
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type:         ebpf.SchedCLS,
		Instructions: append(instructions, asm.Mov.Imm(asm.R0, next), asm.Return()),
	})
	if err != nil {
		t.Fatal(err)
	}
	l, err := link.AttachTCX(link.TCXOptions{
		Interface: i.Index, Program: program, Attach: ebpf.AttachTCXEgress, Anchor: link.Head(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = l.Close(), program.Close() })
}
