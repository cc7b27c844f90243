package offload

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
)

// mechanisms returns the mechanisms of this kernel. It decides by the version of the kernel, so that a mechanism that
// does not work fails the tests and is not skipped.
var mechanisms = sync.OnceValue(func() []Mechanism {
	version, err := features.LinuxVersionCode()
	if err != nil {
		panic(err)
	}
	const tcxSince = 6<<16 | 6<<8
	if version < tcxSince {
		return []Mechanism{Clsact}
	}
	return []Mechanism{TCX, Clsact}
})

// setup is a mechanism with a topology in which it forwards packets.
type setup struct {
	Mechanism
	name     string
	topology func(testing.TB) *topology
	relayConfig
}

// hookSetups returns the setups with traffic control hooks.
func hookSetups() (all []setup) {
	for _, m := range mechanisms() {
		all = append(all, setup{m, string(m), newTopology, relayConfig{Engine: EngineTC, Mechanisms: []Mechanism{m}}})
	}
	return all
}

// xdpSetups returns the setups of XDP: in the kernel, in the driver of veth, and, as in stunnerd, in a driver without
// conditions.
func xdpSetups() []setup {
	c := relayConfig{Engine: EngineXDP, Mechanisms: mechanisms()[:1], XDPMode: link.XDPGenericMode}
	native := c
	native.XDPMode = link.XDPDriverMode
	usual := c
	usual.XDPMode = 0
	all := []setup{
		{XDP, "generic XDP", newArmTopology, c}, {XDP, "native XDP", newNativeTopology, native},
		{XDP, "XDP", newTapTopology, usual},
	}
	if *cards {
		all = append(all, setup{XDP, "XDP of network cards", newCardTopology, usual})
	}
	return all
}

func setups() []setup { return append(hookSetups(), xdpSetups()...) }

// each calls f for all setups and both address families. The relay has one binding of each family, and the kernel
// forwards it.
func each(t *testing.T, f func(t *testing.T, w *topology, r *relayProcess, p *path)) {
	eachIn(t, setups(), f)
}

// eachIn uses one topology for both families, because creating one takes longer than many tests. f must restore the
// topology.
func eachIn(t *testing.T, all []setup, f func(t *testing.T, w *topology, r *relayProcess, p *path)) {
	for _, s := range all {
		t.Run(s.name, func(t *testing.T) {
			w, c := s.topology(t), s.relayConfig
			c.Bindings = []relayBinding{binding(false), binding(true)}
			r := w.start(t, c)
			if got := r.do(t, "state").Status; got.Mechanism != s.Mechanism || got.Reason != "" {
				t.Fatalf("status %+v", got)
			}
			for _, b := range c.Bindings {
				t.Run(fmt.Sprintf("IPv6=%t", b.Client.Addr().Is6()), func(t *testing.T) {
					p := w.path(t, b)
					p.warm(t, r)
					f(t, w, r, p)
				})
			}
		})
	}
}

// everySize is set in CI by FRESH, and by make kernels.
var everySize = flag.Bool("every-size", os.Getenv("FRESH") != "", "send every size with each setting of checksums")

// sizesOf returns the payload sizes for a setting, the longest first: every size if everySize is set; otherwise the
// shortest, the longest and a quarter of the others, a different quarter for each of four settings.
func sizesOf(setting, most int) (sizes []int) {
	for n := most; n >= 0; n-- {
		if *everySize || setting < 0 || n < 64 || n > most-64 || n%4 == setting%4 {
			sizes = append(sizes, n)
		}
	}
	return sizes
}

// Payloads of all sizes arrive unchanged and with valid checksums, whether the sender, the relay or a network card
// computes the checksums. veth has no network card, so without its checksum offload the kernel computes them.
func TestPayloadsAreForwardedUnchanged(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *topology, r *relayProcess, p *path) {
		const (
			mtu    = 1500
			shorts = 4 // a datagram with less than the header of ChannelData stays in user space
		)
		headers := 20 + 8 + 4
		if p.Client.Addr().Is6() {
			headers = 40 + 8 + 4
		}
		atClient, atPeer := w.client.capture(t), w.peer.capture(t)
		const every = -1
		for _, set := range []struct {
			name              string
			ours, theirs, gro string
			partial           bool
			sizes             int
		}{
			{"offloaded", "on", "on", "off", true, every},
			{"off at the relay", "off", "on", "off", false, 0},
			{"off at the senders", "on", "off", "off", false, 1},
			{"off everywhere", "off", "off", "off", false, every},
			{"offloaded, with GRO", "on", "on", "on", true, 2},
			{"off everywhere, with GRO", "off", "off", "on", false, 3},
		} {
			w.relay.run(t, "ethtool -K client tx %s gro %s", set.ours, set.gro)
			w.relay.run(t, "ethtool -K peer tx %s gro %s", set.ours, set.gro)
			w.client.run(t, "ethtool -K eth0 tx %s gro %s", set.theirs, set.gro)
			w.peer.run(t, "ethtool -K eth0 tx %s gro %s", set.theirs, set.gro)
			time.Sleep(3 * changeInterval) // after the change of the interface, the programs learn twice
			p.warm(t, r)
			before := r.do(t, "state")
			payload, random := make([]byte, mtu), rand.NewChaCha8([32]byte{})
			all := sizesOf(set.sizes, mtu-headers+4)
			sizes := len(all)
			for _, n := range all { // a packet that is longer than all earlier packets stays in user space
				_, _ = random.Read(payload[:n])
				payload[0] |= 0x80 // no STUN message
				if got := p.up(payload[:n], timeout); !bytes.Equal(got, payload[:n]) {
					t.Fatalf("%s: %d bytes up: got %d bytes", set.name, n, len(got))
				}
				if got := p.down(payload[:n], timeout); !bytes.Equal(got, frame(p.Channel, payload[:n])) {
					t.Fatalf("%s: %d bytes down: got %d bytes", set.name, n, len(got))
				}
			}
			after := r.do(t, "state")
			kernel, user := after.Kernel.minus(before.Kernel), after.User.minus(before.User)
			// Sizes that do not fit into a packet with the header of ChannelData are sent in fragments in one
			// direction. After a late report of a change, the programs learn again.
			fits, late := uint64(sizes-4), uint64(20)
			if kernel.Up.Packets+late < fits || kernel.Down.Packets+late < fits-shorts ||
				kernel.Up.Packets+user.Up.Packets != uint64(
					sizes,
				) || kernel.Down.Packets+user.Down.Packets != uint64(sizes) {
				t.Errorf("%s: kernel %+v, user space %+v", set.name, kernel, user)
			}
			for name, c := range map[string]*capture{"client": atClient, "peer": atPeer} {
				full, partial, _, err := c.take(sizes - 4)
				if err != nil {
					t.Errorf("%s: at the %s: %v", set.name, name, err)
				}
				other := uint64(full) // packets of user space have the other kind of checksums
				if !set.partial || w.complete {
					other = uint64(partial)
				}
				if uint64(full+partial) < fits || other > late {
					t.Errorf("%s: at the %s: %d complete checksums, %d partial ones", set.name, name, full, partial)
				}
			}
		}
	})
}
