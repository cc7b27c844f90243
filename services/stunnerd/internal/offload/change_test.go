package offload

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A call stays in the kernel while the network changes continuously, as on a node with many pods. Changes that concern
// neither client nor peer have no effect. Changes that may concern both have an effect at most once a calmInterval.
func TestContinuousChanges(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		everything bool // the change may concern both
		kind       uint16
		each       func(other uint32, n byte) [][]byte // the parts of change n
	}{
		{"other addresses", false, unix.RTM_NEWADDR, func(other uint32, n byte) [][]byte {
			local := attribute(unix.IFA_LOCAL, []byte{10, 88, 0, n})
			return [][]byte{{unix.AF_INET, 32, 0, unix.RT_SCOPE_UNIVERSE}, word(other), local}
		}},
		{"other routes", false, unix.RTM_NEWROUTE, func(other uint32, n byte) [][]byte {
			header := make([]byte, unix.SizeofRtMsg)
			copy(header, []byte{
				unix.AF_INET, 24, 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_STATIC, unix.RT_SCOPE_LINK, unix.RTN_UNICAST,
			})
			to := attribute(unix.RTA_DST, []byte{10, 89, n, 0})
			return [][]byte{header, to, attribute(unix.RTA_OIF, word(other))}
		}},
		{"another interface", false, unix.RTM_SETLINK, func(other uint32, n byte) [][]byte {
			header := slices.Concat(word(unix.AF_UNSPEC), word(other), word(0), word(0))
			return [][]byte{header, attribute(unix.IFLA_MTU, word(1400+uint32(n)))}
		}},
		{"rules", true, unix.RTM_NEWRULE, func(_ uint32, n byte) [][]byte {
			header := []byte{unix.AF_INET, 0, 32, 0, unix.RT_TABLE_MAIN, 0, 0, unix.FR_ACT_TO_TBL, 0, 0, 0, 0}
			return [][]byte{header, attribute(unix.FRA_SRC, []byte{10, 90, 0, n})}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newTopology(t)
			w.link(t, "other", 3, w.peer, "eth1")
			change, other := w.relay.dial(t), w.relay.index(t, "other")
			b := binding(false)
			r := w.start(t, relayConfig{Engine: EngineTC, Bindings: []relayBinding{b}})
			p := w.path(t, b)
			p.warm(t, r)
			before, started := r.do(t, "state"), time.Now()
			const packets, pace = 60, 20 * time.Millisecond
			tick := time.NewTicker(pace)
			defer tick.Stop()
			for n := range byte(packets) {
				<-tick.C
				err := change.request(c.kind, unix.NLM_F_CREATE|unix.NLM_F_EXCL, c.each(other, 1+n)...)
				if err != nil {
					t.Fatalf("change %d: %v", n, err)
				}
				if p.up([]byte("up"), timeout) == nil || p.down([]byte("down"), timeout) == nil {
					t.Error("lost")
				}
			}
			effects := 1 // the report of the interfaces of the test may be late
			if c.everything {
				effects += 1 + int(time.Since(started)/calmInterval)
			}
			// For each effect the programs learn the path twice, from two packets of each direction.
			most := uint64(2 * 2 * effects)
			user := r.do(t, "state").User.minus(before.User)
			t.Logf("%d changes, %d packets up and %d down of %d in user space, at most %d are expected",
				packets, user.Up.Packets, user.Down.Packets, packets, most)
			if user.Up.Packets > most || user.Down.Packets > most {
				t.Errorf("%v of %d packets in user space, want at most %d", user, packets, most)
			}
		})
	}
}

// message returns a netlink message. The parts are the parts of its payload.
func message(kind uint16, parts ...[]byte) []byte {
	payload := slices.Concat(parts...)
	m := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(payload)))
	m = binary.NativeEndian.AppendUint16(m, kind)
	m = append(m, make([]byte, unix.SizeofNlMsghdr-len(m))...)
	return append(m, payload...)
}

// Messages of the kernel concern the interfaces and the prefixes in them, or everything if the kernel changes routes
// without a message.
func TestChanges(t *testing.T) {
	linkMessage := func(kind uint16, index, flags uint32) []byte {
		return message(kind, make([]byte, 4), word(index), word(flags), make([]byte, 4))
	}
	address := func(kind uint16, family, scope byte, a string) []byte {
		local := attribute(unix.IFA_ADDRESS, netip.MustParseAddr(a).AsSlice())
		return message(kind, []byte{family, 24, 0, scope}, word(7), local)
	}
	route := func(family byte, prefix string) []byte {
		header := make([]byte, unix.SizeofRtMsg)
		header[0] = family
		if prefix == "" {
			return message(unix.RTM_NEWROUTE, header)
		}
		p := netip.MustParsePrefix(prefix)
		header[1] = byte(p.Bits())
		return message(unix.RTM_DELROUTE, header, attribute(unix.RTA_DST, p.Addr().AsSlice()))
	}
	other := route(unix.AF_INET, "10.78.0.0/16")
	const global = unix.RT_SCOPE_UNIVERSE
	const up = unix.IFF_UP | unix.IFF_RUNNING | unix.IFF_LOWER_UP
	// The client is behind interface 7, which was down, and the peer behind interface 8, which was up.
	client, peer := netip.MustParseAddr("10.77.1.2"), netip.MustParseAddr("fd77:2::2")
	for name, c := range map[string]struct {
		messages     []byte
		client, peer bool // whether the change concerns the client and the peer
	}{
		"interface without its carrier":   {linkMessage(unix.RTM_NEWLINK, 8, unix.IFF_UP), false, true},
		"interface that is lost":          {linkMessage(unix.RTM_NEWLINK, 8, 0), false, true},
		"interface that becomes usable":   {linkMessage(unix.RTM_NEWLINK, 7, up), true, true},
		"unchanged interface":             {linkMessage(unix.RTM_NEWLINK, 8, up|unix.IFF_PROMISC), false, false},
		"port of a bridge":                {message(unix.RTM_DELLINK, []byte{unix.AF_BRIDGE, 0, 0, 0}, word(7), word(0), word(0)), false, false},
		"new interface":                   {linkMessage(unix.RTM_NEWLINK, 9, up), false, false},
		"removed interface":               {linkMessage(unix.RTM_DELLINK, 7, 0), true, false},
		"new IPv4 address":                {address(unix.RTM_NEWADDR, unix.AF_INET, global, "10.77.1.9"), true, false},
		"removed IPv4 address":            {address(unix.RTM_DELADDR, unix.AF_INET, global, "10.77.1.9"), true, true},
		"new IPv6 address":                {address(unix.RTM_NEWADDR, unix.AF_INET6, global, "fd77:1::8"), true, true},
		"prolonged IPv6 address":          {address(unix.RTM_NEWADDR, unix.AF_INET6, global, "fd77:1::9"), false, false},
		"removed IPv6 address":            {address(unix.RTM_DELADDR, unix.AF_INET6, global, "fd77:1::9"), true, true},
		"removed IPv6 link-local address": {address(unix.RTM_DELADDR, unix.AF_INET6, unix.RT_SCOPE_LINK, "fe80::1"), true, false},
		"default route":                   {route(unix.AF_INET, ""), true, false},
		"default route of IPv6":           {route(unix.AF_INET6, ""), false, true},
		"route to the client":             {route(unix.AF_INET, "10.77.0.0/16"), true, false},
		"route to the peer":               {route(unix.AF_INET6, "fd77:2::2/128"), false, true},
		"another route":                   {other, false, false},
		"two routes":                      {slices.Concat(other, route(unix.AF_INET6, "fd77::/16")), false, true},
		"more routes than are compared":   {slices.Repeat(other, maxPrefixes+1), true, true},
		"rule":                            {message(unix.RTM_NEWRULE, make([]byte, 12)), true, true},
		"next hop":                        {message(unix.RTM_NEWNEXTHOP, make([]byte, 8)), true, true},
		"message without its header":      {message(unix.RTM_NEWROUTE), true, true},
		"lost messages":                   {nil, true, true},
	} {
		observed := newChanges()
		observed.observe(slices.Concat(linkMessage(unix.RTM_NEWLINK, 7, 0), linkMessage(unix.RTM_NEWLINK, 8, up),
			address(unix.RTM_NEWADDR, unix.AF_INET6, global, "fd77:1::9")))
		observed.take(true)
		observed.observe(c.messages)
		limited := observed.take(false)
		if limited.everything {
			t.Errorf("%s: everything is concerned before its time", name)
		}
		rest := observed.take(true)
		concerned := func(index uint32, a netip.Addr) bool {
			return limited.concerns(index, a.As16()) || rest.concerns(index, a.As16())
		}
		if client, peer := concerned(7, client), concerned(8, peer); client != c.client || peer != c.peer {
			t.Errorf("%s: concerns the client %t, the peer %t", name, client, peer)
		}
		if again := observed.take(true); !again.empty() {
			t.Errorf("%s: is handled twice", name)
		}
	}

	// After lost messages, there may have been a change even if the state equals the last one.
	observed := newChanges()
	observed.observe(linkMessage(unix.RTM_NEWLINK, 8, up))
	observed.observe(nil)
	observed.take(true)
	observed.observe(linkMessage(unix.RTM_NEWLINK, 8, up))
	if c := observed.take(true); !c.everything {
		t.Error("a state after lost messages is ignored")
	}
}
