package offload

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
)

// At an interface that does not support XDP, or that has the program of another process, TC is used.
func TestXDPReplaced(t *testing.T) {
	w := newTopology(t)
	b := binding(false)
	if s := w.start(t, relayConfig{Engine: EngineXDP}).do(t, "state").Status; s.Mechanism != mechanisms()[0] ||
		!strings.Contains(s.Reason, "interface client: TC is used instead of XDP: veth interfaces are not supported") {
		t.Errorf("veth: %+v", s)
	}
	generic := relayConfig{Engine: EngineXDP, XDPMode: link.XDPGenericMode}
	if s := w.start(t, generic).do(t, "state").Status; s.Mechanism != XDP || s.Reason != "" {
		t.Errorf("first process: %+v", s)
	}
	generic.Bindings = []relayBinding{b}
	r := w.start(t, generic)
	if s := r.do(t, "state").Status; s.Mechanism != mechanisms()[0] ||
		!strings.Contains(s.Reason, "interface client: TC is used instead of XDP: it has another XDP program") {
		t.Errorf("second process: %+v", s)
	}
	w.path(t, b).warm(t, r)
}

// An interface without XDP causes no warning while another one has XDP: besides its network card, a node has interfaces
// of pods.
func TestXDPAtSomeInterfaces(t *testing.T) {
	w := newTopology(t)
	w.relay.addXDP(t, "peer")
	generic := relayConfig{Engine: EngineXDP, XDPMode: link.XDPGenericMode}
	if s := w.start(t, generic).do(t, "state").Status; s.Mechanism != mechanisms()[0] || s.Reason != "" {
		t.Errorf("%+v", s)
	}
}

// The XDP program forwards packets with complete checksums between hosts behind one interface. About once a second it
// passes a packet to the program behind it, to renew its Ethernet headers. That program forwards the packets whose
// checksums a network card must complete.
func TestXDPForwards(t *testing.T) {
	statistics(t)
	for _, s := range xdpSetups() {
		for _, v6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s IPv6=%t", s.name, v6), func(t *testing.T) {
				w, b := s.topology(t), binding(v6)
				c := s.relayConfig
				c.Bindings = []relayBinding{b}
				r, p := w.start(t, c), w.path(t, b)
				for _, offload := range []string{"off", "on"} {
					for _, host := range []*space{w.client, w.peer} {
						host.run(t, "ethtool -K eth0 tx %s", offload)
					}
					p.warm(t, r)
					before, begun := r.do(t, "state"), time.Now()
					const packets = 300
					for n := range packets {
						if p.up(media(n+1), timeout) == nil || p.down(media(n+1), timeout) == nil {
							t.Fatal("lost")
						}
					}
					after := r.do(t, "state")
					kernel, passed := after.Kernel.minus(before.Kernel), int(after.Runs-before.Runs)
					// Packets of neighbour protocols pass the programs too.
					few := 20 + 2*int(time.Since(begun).Seconds())
					if kernel.Up.Packets+kernel.Down.Packets+3 < 2*packets || (passed > few) != (offload == "on" && !w.complete) {
						t.Errorf("tx %s: kernel %+v, %d packets have passed the XDP program", offload, kernel, passed)
					}
				}
			})
		}
	}
}

// The XDP program passes the packets between hosts behind two interfaces to the programs of TC, which forward them. It
// follows a peer that moves from one interface to another and back.
func TestXDPBetweenInterfaces(t *testing.T) {
	statistics(t)
	w, b := newTapTopology(t), binding(false)
	r, p := w.start(t, relayConfig{Engine: EngineXDP, Bindings: []relayBinding{b}}), w.path(t, b)
	forwards := func(where string, xdp bool) {
		t.Helper()
		time.Sleep(3 * changeInterval)
		p.warm(t, r)
		const packets = 50
		before := r.do(t, "state")
		for range packets {
			if p.up(media(160), timeout) == nil || p.down(media(160), timeout) == nil {
				t.Fatal("lost")
			}
		}
		after := r.do(t, "state")
		kernel, passed := after.Kernel.minus(before.Kernel), int(after.Runs-before.Runs)
		if kernel.Up.Packets != packets || kernel.Down.Packets != packets || (passed < packets) != xdp {
			t.Errorf("%s: kernel %+v, %d packets have passed the XDP program: %+v", where, kernel, passed, after.Status)
		}
	}
	forwards("behind one interface", true)
	w.link(t, "other", 3, w.peer, "eth1")
	within(t, "attach to a new interface", func() bool { return len(r.do(t, "state").Status.Interfaces) == 2 })
	if s := r.do(t, "state").Status; s.Mechanism == XDP || s.Reason != "" {
		t.Errorf("with a veth interface: %+v", s)
	}
	w.relay.run(t, "ip route add 10.77.2.2/32 via 10.77.3.2")
	w.peer.run(t, "ip route add 10.77.2.1/32 via 10.77.3.1")
	forwards("behind two interfaces", false)
	w.relay.run(t, "ip link delete other")
	within(t, "remove the interface", func() bool { return len(r.do(t, "state").Status.Interfaces) == 1 })
	forwards("behind one interface again", true)
}

// When a host gets another Ethernet address, the XDP program uses it about a second after the neighbour table of the
// relay has it.
func TestXDPFollowsTheNeighbours(t *testing.T) {
	for _, s := range xdpSetups() {
		t.Run(s.name, func(t *testing.T) {
			w, b := s.topology(t), binding(false)
			s.Bindings = []relayBinding{b}
			r, p := w.start(t, s.relayConfig), w.path(t, b)
			for _, host := range []*space{w.client, w.peer} {
				host.run(t, "ethtool -K eth0 tx off")
			}
			for n, host := range []*space{w.client, w.peer, w.client} {
				p.warm(t, r)
				address := fmt.Sprintf("02:00:00:00:00:%02x", n)
				host.run(t, "ip link set eth0 address %s", address)
				ip := b.Client.Addr()
				if host == w.peer {
					ip = b.Peer.Addr()
				}
				w.relay.run(t, "ip neighbour replace %s lladdr %s dev client", ip, address)
				within(t, "packets to the new address", func() bool {
					return p.up([]byte("up"), 50*time.Millisecond) != nil && p.down([]byte("down"), 50*time.Millisecond) != nil
				})
				before := r.do(t, "state")
				for range 100 {
					if p.up([]byte("up"), timeout) == nil || p.down([]byte("down"), timeout) == nil {
						t.Fatal("lost")
					}
				}
				if after := r.do(t, "state"); after.User != before.User {
					t.Errorf("in user space: %+v, before %+v", after.User, before.User)
				}
			}
		})
	}
}
