package offload

import (
	"flag"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// bridge makes the interface peer a port of the bridge br0, and moves its addresses to the bridge.
func (w *topology) bridge(t testing.TB) {
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

// Packets to a peer behind a bridge leave through the bridge and then through a port of it. In both directions, the
// programs at the bridge forward them, and the programs at the port do not: at the port the address of the peer does
// not resolve.
func TestBridge(t *testing.T) {
	t.Parallel()
	for _, m := range mechanisms() {
		for _, v6 := range []bool{false, true} {
			w := newTopology(t)
			w.bridge(t)
			b := binding(v6)
			r := w.start(t, relayConfig{Engine: EngineTC, Mechanisms: []Mechanism{m}, Bindings: []relayBinding{b}})
			p := w.path(t, b)
			p.warm(t, r)
			before := r.do(t, "state")
			for range 20 {
				if p.up([]byte("up"), timeout) == nil || p.down([]byte("down"), timeout) == nil {
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
	w := newTopology(t)
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
		if p.up([]byte("up"), timeout) == nil || p.down([]byte("down"), timeout) == nil {
			t.Error("a packet is lost")
		}
	}
	// If an interface becomes a port, the programs are removed from it. If it is no longer a port, they are added
	// again.
	w.relay.run(t, "ip link set peer nomaster")
	within(t, "attach to a former port", func() bool { return len(r.do(t, "state").Status.Interfaces) == 2 })
	w.relay.run(t, "ip link set peer master br0")
	within(t, "remove a port", func() bool { return r.do(t, "state").Status.Reason == reason })
}

// everyDevice is set by make kernels, which runs a kernel that has all modules.
var everyDevice = flag.Bool("every-device", false, "fail if the kernel lacks a kind of stacked device")

// device is a kind of device on top of the interface peer. It gets the address of that interface.
type device struct {
	kind, add string
	stacked   []string // commands at the relay, after add
	peer      []string // commands at the host of the peer
	programs  []string // the interfaces that get the programs
	unmarked  bool     // the lower interface does not learn unmarked packets either
}

var devices = []device{
	{
		kind: "macvlan", add: "ip link add link peer name upper type macvlan mode private",
		programs: []string{"client", "peer", "upper"},
	},
	{
		kind: "vlan", add: "ip link add link peer name upper type vlan id 5",
		peer: []string{
			"ip address flush dev eth0",
			"ip link add link eth0 name tagged type vlan id 5",
			"ip address add 10.77.2.2/24 dev tagged",
			"ip link set tagged up",
			"ip route add default via 10.77.2.1",
		},
		programs: []string{"client", "peer", "upper"},
		unmarked: true, // packets at this device have a VLAN tag
	},
	{
		kind: "bond", add: "ip link add name upper type bond mode active-backup",
		stacked:  []string{"ip link set peer down", "ip link set peer master upper"},
		programs: []string{"client", "upper"},
		unmarked: true, // a port has no programs
	},
}

// presentDevices returns the kinds of devices that this kernel supports.
func presentDevices(t *testing.T) (present []device) {
	t.Helper()
	w := newTopology(t)
	var missing []string
	for _, d := range devices {
		var out string
		w.relay.do(func() { out, _ = try(d.add) })
		if strings.Contains(out, "Unknown device type") {
			missing = append(missing, d.kind)
			continue
		}
		w.relay.run(t, "ip link delete upper")
		present = append(present, d)
	}
	if missing != nil {
		t.Logf("the kernel lacks the devices %q, which are not tested", missing)
	}
	if *everyDevice && missing != nil {
		t.Fatal("-every-device wants all of them: load their modules")
	}
	return present
}

// onDevices calls f for the present devices and the mechanisms. The relay has one binding.
func onDevices(t *testing.T, f func(t *testing.T, d device, m Mechanism, w *topology, r *relayProcess, p *path)) {
	t.Helper()
	for _, d := range presentDevices(t) {
		for _, m := range mechanisms() {
			t.Run(d.kind+" "+string(m), func(t *testing.T) {
				w := newTopology(t)
				w.stack(t, d)
				b := binding(false)
				r := w.start(t, relayConfig{Engine: EngineTC, Mechanisms: []Mechanism{m}, Bindings: []relayBinding{b}})
				f(t, d, m, w, r, w.path(t, b))
			})
		}
	}
}

func (w *topology) stack(t testing.TB, d device) {
	t.Helper()
	w.relay.run(t, "ip address flush dev peer")
	for _, command := range append([]string{d.add}, d.stacked...) {
		w.relay.run(t, "%s", command)
	}
	for _, command := range d.peer {
		w.peer.run(t, "%s", command)
	}
	w.relay.run(t, "ip link set upper addrgenmode none")
	w.relay.run(t, "ip address add 10.77.2.1/24 dev upper")
	w.relay.run(t, "ip link set upper up")
	within(t, "carrier", func() bool { return strings.Contains(w.relay.run(t, "ip link show upper"), "state UP") })
}

// A packet to a device on top of another device passes the hooks of both. The kernel forwards at the upper device.
func TestStackedInterfaces(t *testing.T) {
	t.Parallel()
	onDevices(t, func(t *testing.T, d device, _ Mechanism, w *topology, r *relayProcess, p *path) {
		p.warm(t, r)
		before := r.do(t, "state")
		for range 20 {
			if p.up([]byte("up"), timeout) == nil || p.down([]byte("down"), timeout) == nil {
				t.Fatalf("lost: %+v", r.do(t, "state"))
			}
		}
		if after := r.do(t, "state"); after.User != before.User ||
			!slices.Equal(after.Status.Interfaces, d.programs) {
			t.Errorf("%+v, before %+v", after, before)
		}
		if lower := w.relay.run(t, "ip neighbour show dev peer"); lower != "" {
			t.Errorf("neighbours at the lower device: %s", lower)
		}
	})
}

// If another program removes the mark between the two devices, packets to the peer stay in user space. An exception is
// a lower device at which the programs never learn packets.
func TestMarkRemovedByAnotherProgram(t *testing.T) {
	t.Parallel()
	onDevices(t, func(t *testing.T, d device, m Mechanism, w *topology, r *relayProcess, p *path) {
		const tcIndex = 44 // offset in struct __sk_buff (linux/bpf.h)
		w.relay.onEgress(t, m, "peer",
			asm.Mov.Imm(asm.R2, 0), // before Linux 6.4 a program stores only registers there
			asm.StoreMem(asm.R1, tcIndex, asm.R2, asm.Word),
		)
		for range 10 {
			if p.up([]byte("up"), timeout) == nil || p.down([]byte("down"), timeout) == nil {
				t.Fatalf("lost: %+v", r.do(t, "state"))
			}
		}
		s := r.do(t, "state")
		if (s.Kernel.Up.Packets != 0) != d.unmarked || s.Kernel.Down.Packets == 0 {
			t.Errorf("%+v", s)
		}
	})
}

// The program does not learn from packets with a VLAN tag, because no address can be resolved on the interface below
// the VLAN.
func TestTaggedPackets(t *testing.T) {
	t.Parallel()
	eachOf(t, hookSetups(), relayConfig{}, func(t *testing.T, w *topology, r *relayProcess, p *path) {
		w.relay.onEgress(t, r.do(t, "state").Status.Mechanism, "peer",
			asm.Mov.Imm(asm.R2, int32(htons(unix.ETH_P_8021Q))),
			asm.Mov.Imm(asm.R3, 5), // the identifier of the VLAN
			asm.FnSkbVlanPush.Call(),
		)
		w.relay.run(t, "ip neighbour replace %s lladdr 02:00:00:00:00:02 dev peer", p.Peer.Addr())
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
	})
}

// onEgress executes instructions on the packets that leave by an interface, before the other programs of a mechanism.
func (s *space) onEgress(t *testing.T, m Mechanism, name string, instructions ...asm.Instruction) {
	t.Helper()
	const next = -1 // TCX_NEXT and TC_ACT_UNSPEC
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type:         ebpf.SchedCLS,
		Instructions: append(instructions, asm.Mov.Imm(asm.R0, next), asm.Return()),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = program.Close() })
	attach := map[Mechanism]func(*testing.T, int, *ebpf.Program) error{TCX: headOfTCX, Clsact: headOfClsact}[m]
	s.do(func() {
		var i *net.Interface
		if i, err = net.InterfaceByName(name); err == nil {
			err = attach(t, i.Index, program)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

func headOfTCX(t *testing.T, index int, program *ebpf.Program) error {
	l, err := link.AttachTCX(link.TCXOptions{
		Interface: index, Program: program, Attach: ebpf.AttachTCXEgress, Anchor: link.Head(),
	})
	if err == nil {
		t.Cleanup(func() { _ = l.Close() })
	}
	return err
}

// headOfClsact adds a filter, which exists as long as the interface.
func headOfClsact(_ *testing.T, index int, program *ebpf.Program) error {
	c, err := dial()
	if err != nil {
		return err
	}
	defer c.close()
	if _, err := c.addQdisc(index); err != nil {
		return err
	}
	const first = 1 << 16 // priority 1, as encoded in the info of a filter
	return c.addFilter(index, egress, first|everyProtocol, program.FD(), "test")
}
