package offload

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// present returns the names of the given programs, maps and links that the kernel still holds.
//
// It does not open maps, as bpftool does. If a map of programs is closed again while the kernel handles its close by
// the last process, Linux 6.18 never frees the map.
func (o objects) present() (list []string) {
	for id, name := range o.Programs {
		if next, err := ebpf.ProgramGetNextID(id - 1); err == nil && next == id {
			list = append(list, name)
		}
	}
	for id, name := range o.Maps {
		if next, err := ebpf.MapGetNextID(id - 1); err == nil && next == id {
			list = append(list, name)
		}
	}
	links := new(link.Iterator)
	defer links.Close()
	for links.Next() {
		if info, err := links.Link.Info(); err == nil && o.Programs[info.Program] != "" {
			list = append(list, "link")
		}
	}
	slices.Sort(list)
	return list
}

// left waits until the kernel holds only objects with the given names. The kernel removes objects some time after their
// last use.
func left(t *testing.T, o objects, want ...string) {
	t.Helper()
	within(t, fmt.Sprintf("the kernel holds %q", want), func() bool { return slices.Equal(o.present(), want) })
}

// filters returns the names of the filters at the interface of the clients.
func (w *topology) filters(t *testing.T) (list []string) {
	t.Helper()
	for _, parent := range []string{"ingress", "egress"} {
		shown := w.relay.run(t, "tc filter show dev client %s", parent)
		for _, m := range regexp.MustCompile(`stunnerd-offload-\w+`).FindAllString(shown, -1) {
			list = append(list, parent+" "+m)
		}
	}
	return list
}

func eachIPv4(t *testing.T, c relayConfig, f func(t *testing.T, w *topology, r *relayProcess, p *path)) {
	t.Helper()
	eachOf(t, setups(), c, f)
}

func eachOf(t *testing.T, all []setup, c relayConfig, f func(t *testing.T, w *topology, r *relayProcess, p *path)) {
	t.Helper()
	for _, s := range all {
		t.Run(s.name, func(t *testing.T) { s.in(t, c, f) })
	}
}

// eachWaiting is eachIPv4 for tests that mostly wait.
func eachWaiting(t *testing.T, c relayConfig, f func(t *testing.T, w *topology, r *relayProcess, p *path)) {
	t.Helper()
	for _, s := range setups() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			s.in(t, c, f)
		})
	}
}

func (s setup) in(t *testing.T, c relayConfig, f func(t *testing.T, w *topology, r *relayProcess, p *path)) {
	t.Helper()
	w, b := s.topology(t), binding(false)
	c.Engine, c.Mechanisms, c.XDPMode, c.Bindings = s.Engine, s.Mechanisms, s.XDPMode, []relayBinding{b}
	f(t, w, w.start(t, c), w.path(t, b))
}

// Media in one direction only is forwarded in the kernel. If the address of the relay is unknown, media of the peer is
// forwarded only after a packet to the peer.
func TestMediaInOneDirectionIsOffloaded(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	for _, c := range []struct {
		name         string
		relay        string
		up, down     bool
		kernelServes bool
	}{
		{"up", "10.77.2.1:30000", true, false, true},
		{"down", "10.77.2.1:30000", false, true, true},
		{"up, wildcard relay", "0.0.0.0:30000", true, false, true},
		{"down, wildcard relay", "0.0.0.0:30000", false, true, false},
		{"both, wildcard relay", "0.0.0.0:30000", true, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := binding(false)
			b.Relay = at(c.relay)
			r := w.start(t, relayConfig{Engine: EngineTC, Bindings: []relayBinding{b}})
			defer r.kill()
			p := w.path(t, b)
			defer func() { _, _ = p.client.Close(), p.peer.Close() }()
			p.Relay = at("10.77.2.1:30000")
			for range 10 {
				if c.up && p.up([]byte("up"), timeout) == nil || c.down && p.down([]byte("down"), timeout) == nil {
					t.Fatal("lost")
				}
			}
			s := r.do(t, "state")
			up, down := c.up && c.kernelServes, c.down && c.kernelServes
			if (s.Kernel.Up.Packets >= 5) != up || (s.Kernel.Down.Packets >= 5) != down {
				t.Errorf("%+v", s)
			}
		})
	}
}

// The relay of a wildcard socket follows a change of its source address.
func TestSourceAddress(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	b := binding(false)
	b.Relay = at("0.0.0.0:30000")
	r := w.start(t, relayConfig{Engine: EngineTC, Bindings: []relayBinding{b}})
	p := w.path(t, b)
	p.Relay = at("10.77.2.1:30000")
	p.warm(t, r)
	w.relay.run(t, "ip address add 10.77.2.9/24 dev peer")
	w.relay.run(t, "ip route replace 10.77.2.2/32 dev peer src 10.77.2.9")
	time.Sleep(3 * changeInterval)
	p.Relay = at("10.77.2.9:30000")
	p.warm(t, r)
	seen := w.peer.capture(t)
	before := r.do(t, "state")
	if p.up([]byte("from the new address"), timeout) == nil {
		t.Error("lost")
	}
	_, _, got, err := seen.take(1)
	if after := r.do(t, "state"); after.Kernel == before.Kernel || err != nil || got.from != at("10.77.2.9:30000") {
		t.Errorf("from %v, %v, %+v", got.from, err, after)
	}
}

// Invalidate ends all entries at once. The next packet goes through user space, which arms the entry again.
func TestInvalidate(t *testing.T) {
	t.Parallel()
	eachIPv4(t, relayConfig{}, func(t *testing.T, w *topology, r *relayProcess, p *path) {
		p.warm(t, r)
		for range 5 {
			before := r.do(t, "invalidate")
			for range 10 {
				if p.up([]byte("after a change of the routes"), timeout) == nil {
					t.Fatal("lost")
				}
			}
			after := r.do(t, "state")
			kernel, user := after.Kernel.minus(before.Kernel), after.User.minus(before.User)
			// A packet may arrive before user space has armed the entry.
			if user.Up.Packets < 1 || user.Up.Packets > 3 || kernel.Up.Packets+user.Up.Packets != 10 ||
				after.Status.Bindings != 1 {
				t.Errorf("kernel %+v, user space %+v, %+v", kernel, user, after.Status)
			}
		}
	})
}

// A channel binding ends when its lifetime is over, unless it is refreshed. Media in one direction only is forwarded
// too.
func TestExpiry(t *testing.T) {
	t.Parallel()
	eachWaiting(t, relayConfig{Lifetime: time.Second}, func(t *testing.T, w *topology, r *relayProcess, p *path) {
		p.warm(t, r)
		const lifetime, tick = 3 * time.Second, 10 * time.Millisecond // tick is the largest resolution of the clock of the programs
		requested := time.Now()
		r.do(t, "renew %s", lifetime)
		renewed := time.Now()
		before := r.do(t, "state")
		sent, last := time.Now(), renewed // sent is when the packet is sent, last when the last arriving packet was sent
		for p.up([]byte("until the end"), 500*time.Millisecond) != nil {
			sent, last = time.Now(), sent
			if sent.Sub(renewed) > 5*time.Second {
				t.Fatal("the channel does not end")
			}
		}
		lost := time.Now()
		after := r.do(t, "state")
		if last.Sub(renewed) > lifetime+tick || lost.Sub(requested) < lifetime {
			t.Errorf("the channel ended between %v and %v after it was refreshed, want %v",
				last.Sub(renewed), lost.Sub(requested), lifetime)
		}
		if user := after.User.minus(before.User); user != (Counters{}) {
			t.Errorf("forwarded in user space: %+v", user)
		}
		if p.down([]byte("too late"), 50*time.Millisecond) != nil || r.do(t, "state").Kernel != after.Kernel {
			t.Error("a packet of the peer is forwarded after the end")
		}
	})
}

// Packets of the client extend the permission of the peer. Packets of the peer do not.
func TestPermission(t *testing.T) {
	t.Parallel()
	eachWaiting(t, relayConfig{Permission: 2 * time.Second}, func(t *testing.T, w *topology, r *relayProcess, p *path) {
		p.warm(t, r)
		send := func(d time.Duration, up bool) (n Counters, inUserSpace Counters) {
			before := r.do(t, "state")
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
				if up && p.up([]byte("of the client"), timeout) == nil ||
					!up && p.down([]byte("of the peer"), timeout) == nil {
					t.Fatal("lost")
				}
			}
			after := r.do(t, "state")
			return after.Kernel.minus(before.Kernel), after.User.minus(before.User)
		}
		if _, user := send(3*time.Second, true); user != (Counters{}) {
			t.Errorf("packets of the client in user space: %+v", user)
		}
		if kernel, user := send(500*time.Millisecond, false); user != (Counters{}) || kernel.Down.Packets == 0 {
			t.Errorf("in the time of the permission: kernel %+v, user space %+v", kernel, user)
		}
		time.Sleep(2 * time.Second)
		if kernel, _ := send(50*time.Millisecond, false); kernel.Down.Packets != 0 {
			t.Errorf("after the end of the permission: kernel %+v", kernel)
		}
	})
}

// The end of a binding stops its packets. The channel can be bound again, with another slot.
func TestEndOfABinding(t *testing.T) {
	t.Parallel()
	eachIPv4(t, relayConfig{}, func(t *testing.T, w *topology, r *relayProcess, p *path) {
		for range 3 {
			p.warm(t, r)
			before := r.do(t, "end")
			_, _ = p.client.WriteToUDPAddrPort(frame(p.Channel, []byte("ended")), p.Listener)
			_, _ = p.peer.WriteToUDPAddrPort([]byte("ended"), p.Relay)
			within(t, "both packets are in user space", func() bool { return r.do(t, "state").Ended == before.Ended+2 })
			if after := r.do(t, "restart"); after.Kernel != before.Kernel || after.Status.Bindings != 0 {
				t.Errorf("after the end: %+v, before it %+v", after, before)
			}
		}
	})
}

// A killed process leaves no program, map or link, and forwards nothing. The filters of clsact remain, with two
// programs that do nothing, until the next process starts.
func TestKilledProcessLeavesNothing(t *testing.T) {
	eachIPv4(t, relayConfig{}, func(t *testing.T, w *topology, r *relayProcess, p *path) {
		p.warm(t, r)
		filters := r.config.Mechanisms[0] == Clsact
		held := r.do(t, "state").Objects
		if got := held.present(); len(got) < 10 || slices.Contains(got, "link") != (!filters || r.config.Engine == EngineXDP) {
			t.Fatalf("the kernel holds %q", got)
		}
		killed := time.Now()
		r.kill()
		last := time.Duration(0)
		for range 20 {
			if p.up([]byte("after the kill"), 10*time.Millisecond) != nil {
				last = time.Since(killed)
			}
		}
		t.Logf("forwarded until %v after the kill", last)
		if last > 50*time.Millisecond {
			t.Errorf("forwarded until %v after the kill", last)
		}
		if filters {
			left(t, held, "enter_in", "enter_out", "programs")
		} else {
			left(t, held)
		}

		again := w.start(t, r.config)
		p.warm(t, again)
		var want []string
		if filters {
			want = []string{"ingress", "egress"}
		}
		if got := w.filters(t); len(got) != len(want) {
			t.Errorf("filters %q", got)
		}
		held = again.do(t, "state").Objects
		again.do(t, "close")
		if p.up([]byte("after close"), timeout) == nil {
			t.Error("user space does not forward after Close")
		}
		left(t, held)
		if got := w.relay.run(t, "tc qdisc show dev client"); strings.Contains(got, "clsact") {
			t.Errorf("qdiscs after Close: %s", got)
		}
		again.kill()
	})
}

// A process does not remove the filters of another running process.
func TestTwoProcesses(t *testing.T) {
	for _, m := range mechanisms() {
		t.Run(string(m), func(t *testing.T) {
			w := newTopology(t)
			one := binding(false)
			two := one
			two.Client, two.Listener, two.Relay = at("10.77.1.2:40001"), at("10.77.1.1:3479"), at("10.77.2.1:30001")
			first := w.start(
				t,
				relayConfig{Engine: EngineTC, Mechanisms: []Mechanism{m}, Bindings: []relayBinding{one}},
			)
			second := w.start(
				t,
				relayConfig{Engine: EngineTC, Mechanisms: []Mechanism{m}, Bindings: []relayBinding{two}},
			)
			time.Sleep(3 * changeInterval)
			p, q := w.path(t, one), &path{relayBinding: two}
			q.client, q.peer = w.client.socket(t, two.Client), p.peer
			p.warm(t, first)
			q.warm(t, second)
			p.warm(t, first)
			held := second.do(t, "state").Objects
			second.do(t, "close")
			left(t, held)
			p.warm(t, first)
			held = first.do(t, "state").Objects
			first.do(t, "close")
			left(t, held)
			if got := w.relay.run(t, "tc qdisc show dev client"); strings.Contains(got, "clsact") {
				t.Errorf("qdiscs after Close: %s", got)
			}
		})
	}
}

// Without capabilities, everything is forwarded in user space, and the status has the reason.
func TestWithoutCapabilities(t *testing.T) {
	w := newTopology(t)
	b := binding(false)
	only := func(name string) relayConfig { return relayConfig{Engine: EngineTC, Interfaces: []string{name}} }
	for name, c := range map[string]struct {
		config relayConfig
		caps   []uintptr
		reason string
	}{
		"no capability":     {relayConfig{Engine: EngineTC}, nil, "CAP_BPF and CAP_NET_ADMIN"},
		"no CAP_NET_ADMIN":  {relayConfig{Engine: EngineTC}, capabilities[1:], "CAP_BPF and CAP_NET_ADMIN"},
		"no CAP_BPF":        {relayConfig{Engine: EngineTC}, capabilities[:1], "CAP_BPF and CAP_NET_ADMIN"},
		"None":              {relayConfig{Engine: EngineNone}, capabilities, ""},
		"unknown engine":    {relayConfig{Engine: "AF_XDP"}, capabilities, `"AF_XDP" is unknown: use None, TC, XDP or Auto`},
		"unknown interface": {only("eth7"), capabilities, "interface eth7 does not exist"},
		"loopback":          {only("lo"), capabilities, "interface lo: not an Ethernet interface"},
	} {
		t.Run(name, func(t *testing.T) {
			c.config.Bindings = []relayBinding{b}
			r := w.startWith(t, c.config, c.caps)
			defer r.kill()
			p := w.path(t, b)
			defer func() { _, _ = p.client.Close(), p.peer.Close() }()
			for range 5 {
				if p.up([]byte("up"), timeout) == nil || p.down([]byte("down"), timeout) == nil {
					t.Error("a packet is lost")
				}
			}
			s := r.do(t, "state")
			if s.Status.Mechanism != None || s.User.Up.Packets != 5 || s.Kernel != (Counters{}) ||
				!strings.Contains(s.Status.Reason, c.reason) ||
				(c.reason == "") != (s.Status.Reason == "") {
				t.Errorf("%+v", s)
			}
		})
	}
}

// The programs follow interfaces that disappear and appear, and routes that change.
func TestNetworkChanges(t *testing.T) {
	t.Parallel()
	eachOf(t, hookSetups(), relayConfig{}, func(t *testing.T, w *topology, r *relayProcess, p *path) {
		p.warm(t, r)
		w.link(t, "other", 3, w.peer, "eth1")
		within(t, "attach to a new interface", func() bool { return len(r.do(t, "state").Status.Interfaces) == 3 })
		w.relay.run(t, "ip route add 10.77.2.2/32 via 10.77.3.2")
		w.peer.run(t, "ip route add 10.77.2.1/32 via 10.77.3.1")
		time.Sleep(3 * changeInterval)
		p.warm(t, r)
		before := r.do(t, "state")
		for range 20 {
			if p.up([]byte("by the other interface"), timeout) == nil ||
				p.down([]byte("by the other interface"), timeout) == nil {
				t.Fatal("lost")
			}
		}
		if after := r.do(t, "state"); after.User != before.User {
			t.Errorf("in user space after a change of the route: %+v, before %+v", after, before)
		}
		w.relay.run(t, "ip link delete other")
		within(t, "forward by the first interface", func() bool {
			return p.up([]byte("by the first interface"), 50*time.Millisecond) != nil
		})
		within(t, "remove the interface", func() bool { return len(r.do(t, "state").Status.Interfaces) == 2 })
		time.Sleep(3 * changeInterval)
		p.warm(t, r)
		w.relay.run(t, "ip link set peer down") // before Linux 6.2 the name of an interface changes only while it is down
		w.relay.run(t, "ip link set peer name pair")
		w.relay.run(t, "ip link set pair up")
		within(t, "follow the new name", func() bool {
			return slices.Equal(r.do(t, "state").Status.Interfaces, []string{"client", "pair"})
		})
	})
}

func within(t testing.TB, what string, done func() bool) {
	t.Helper()
	for late := time.Now().Add(timeout); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("not within %v: %s", timeout, what)
		}
	}
}
