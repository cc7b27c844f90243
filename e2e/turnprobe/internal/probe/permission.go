package probe

import (
	"net/netip"
	"time"

	"github.com/stunner-gateway/stunner/e2e/turnprobe/internal/wire"
)

var permission = []Check{
	{ID: "P-01 no peer", RFC: "8656 §10.2", Says: "a CreatePermission without XOR-PEER-ADDRESS gives 400",
		Run: func(t *Trial) { t.Allocated().Do(wire.CreatePermission).Refused(400) }},
	{ID: "P-01 malformed peer", RFC: "8656 §10.2", Says: "an XOR-PEER-ADDRESS of the wrong length gives 400",
		Run: func(t *Trial) {
			t.Allocated().Do(
				wire.CreatePermission, wire.Attr{Type: wire.XORPeerAddress, Value: []byte{0, 1, 2, 3, 4, 5}},
			).Refused(400)
		}},
	{ID: "P-01 unknown family", RFC: "8656 §10.2", Says: "an XOR-PEER-ADDRESS of an unknown family is refused",
		Run: func(t *Trial) {
			t.Allocated().Do(
				wire.CreatePermission, wire.Attr{Type: wire.XORPeerAddress, Value: []byte{0, 5, 2, 3, 4, 5, 6, 7}},
			).Refused(400, 443)
		}},
	{ID: "P-02 CreatePermission", RFC: "8656 §10.2", Says: "a permission for a peer that is not allowed gives 403",
		Run: func(t *Trial) { t.Allocated().Permit(t.denied()).Refused(403) }},
	{ID: "P-02 ChannelBind", RFC: "8656 §12.2", Says: "a channel to a peer that is not allowed gives 403",
		Run: func(t *Trial) { t.Allocated().Bind(0x4000, t.denied()).Refused(403) }},
	{ID: "P-03 all or none", RFC: "8656 §10.2", Says: "when one of several peers is refused, none gets a permission",
		Run: allOrNone},
	{ID: "P-03 several", RFC: "8656 §10.2", Says: "one request installs permissions for several peers",
		Run: severalPeers},
	{ID: "P-04 CreatePermission", RFC: "8656 §10.2", Says: "a permission for a peer of the other family gives 443",
		Run: func(t *Trial) {
			c := t.Allocated()
			c.Permit(otherPeer(c.relay)).Refused(443)
		}},
	{ID: "P-04 ChannelBind", RFC: "8656 §12.2", Says: "a channel to a peer of the other family gives 443",
		Run: func(t *Trial) {
			c := t.Allocated()
			c.Bind(0x4000, otherPeer(c.relay)).Refused(443)
		}},
	{ID: "P-05 all ports", RFC: "8656 §9", Says: "a permission for an address covers all its ports",
		Run: func(t *Trial) {
			c, p, neighbour := t.Allocated(), t.Peer(), t.Peer()
			c.Permit(p.addr).OK()
			c.SendTo(neighbour.addr, []byte("other port"))
			neighbour.Gets(c.relay, []byte("other port"))
			neighbour.Send(c.relay, []byte("and back"))
			c.GetsData(neighbour.addr, []byte("and back"))
		}},
	{ID: "P-06 again", RFC: "8656 §9", Says: "a permission can be refreshed",
		Run: func(t *Trial) {
			c, p := t.Permitted()
			c.Permit(p.addr).OK()
		}},
	{ID: "P-06 expiry", RFC: "8656 §9", Pace: Long, Says: "a permission lasts 300 s", Run: permissionExpiry},
	{ID: "P-07 to the peer", RFC: "8656 §11.2", Says: "without a permission nothing is relayed to a peer",
		Run: func(t *Trial) {
			c, p := t.Allocated(), t.Peer()
			c.SendTo(p.addr, []byte("no permission"))
			p.Quiet("Send indication without permission")
		}},
	{ID: "P-07 from the peer", RFC: "8656 §9", Says: "without a permission nothing is relayed from a peer",
		Run: func(t *Trial) {
			c, p := t.Allocated(), t.Peer()
			p.Send(c.relay, []byte("no permission"))
			c.Quiet("datagram of a peer without permission")
		}},
	{ID: "P-07 other address", RFC: "8656 §9", Says: "a permission does not cover other addresses", Run: otherAddress},
	{ID: "P-07 other allocation", RFC: "8656 §9", Says: "a permission does not cover other allocations",
		Run: func(t *Trial) {
			with, without, p := t.Allocated(), t.Allocated(), t.Peer()
			with.Permit(p.addr).OK()
			without.SendTo(p.addr, []byte("not mine"))
			p.Send(without.relay, []byte("not mine"))
			p.Quiet("permission of another allocation")
			without.Quiet("permission of another allocation")
			with.Quiet("data for another allocation")
		}},
	{ID: "P-08 Send", RFC: "8656 §11.2", Says: "a Send indication reaches the peer from the relay address",
		Run: func(t *Trial) {
			c, p := t.Permitted()
			for _, text := range []string{"a", "ab", "abc", "abcd", "abcde"} {
				c.SendTo(p.addr, []byte(text))
				p.Gets(c.relay, []byte(text))
			}
		}},
	{ID: "P-08 Data", RFC: "8656 §11.3", Says: "a peer's datagram arrives as a Data indication with address and data",
		Run: func(t *Trial) {
			c, p := t.Permitted()
			for _, text := range []string{"a", "ab", "abc", "abcd", "abcde"} {
				p.Send(c.relay, []byte(text))
				c.GetsData(p.addr, []byte(text))
			}
		}},
	{ID: "P-08 no DATA", RFC: "8656 §11.2", Says: "a Send indication without DATA is dropped",
		Run: func(t *Trial) {
			c, p := t.Permitted()
			c.Indicate(wire.Send, wire.Address(wire.XORPeerAddress, p.addr))
			p.Quiet("Send indication without DATA")
		}},
	{ID: "P-08 no peer", RFC: "8656 §11.2", Says: "a Send indication without XOR-PEER-ADDRESS is dropped",
		Run: func(t *Trial) {
			c, p := t.Permitted()
			c.Indicate(wire.Send, wire.Text(wire.DataAttr, "to whom"))
			c.SendTo(p.addr, []byte("to you"))
			p.Gets(c.relay, []byte("to you"))
		}},
	{ID: "P-09 Send", RFC: "8656 §11.2", Says: "empty DATA reaches the peer as an empty datagram",
		Run: func(t *Trial) {
			c, p := t.Permitted()
			c.SendTo(p.addr, nil)
			p.Gets(c.relay, nil)
		}},
	{ID: "P-09 Data", RFC: "8656 §11.3", Says: "a peer's empty datagram arrives as a Data indication with empty DATA",
		Run: func(t *Trial) {
			c, p := t.Permitted()
			p.Send(c.relay, nil)
			c.GetsData(p.addr, nil)
		}},
	{ID: "P-10 DONT-FRAGMENT", RFC: "8656 §11.2",
		Says: "DONT-FRAGMENT in a Send indication is honoured, or the indication is dropped", Run: dontFragment},
	{ID: "C-10 ICMP", RFC: "8656 §11.5", Says: "an ICMP error of a peer arrives as a Data indication with ICMP",
		Run: icmp},
}

// otherPeer returns a peer address of the other family than the relay's.
func otherPeer(relay netip.AddrPort) netip.AddrPort {
	if relay.Addr().Is4() {
		return netip.MustParseAddrPort("[2001:db8::7]:40000")
	}
	return netip.MustParseAddrPort("192.0.2.7:40000")
}

func allOrNone(t *Trial) {
	denied := t.denied()
	c, p := t.Allocated(), t.Peer()
	c.Permit(p.addr, denied).Refused(403)
	c.Permit(denied, p.addr).Refused(403)
	c.SendTo(p.addr, []byte("half a permission"))
	p.Send(c.relay, []byte("half a permission"))
	p.Quiet("CreatePermission with one refused peer")
	c.Quiet("CreatePermission with one refused peer")
}

func severalPeers(t *Trial) {
	c, p, other := t.Allocated(), t.Peer(), t.Peer()
	c.Permit(p.addr, other.addr).OK()
	for _, peer := range []*Peer{p, other} {
		c.SendTo(peer.addr, []byte("both"))
		peer.Gets(c.relay, []byte("both"))
	}
}

func otherAddress(t *Trial) {
	t.onLoopback4(t.PeerAddr)
	c, p := t.Allocated(), t.Peer()
	other := t.peerAt(netip.AddrFrom4([4]byte{127, 9, 9, 9}))
	c.Permit(p.addr).OK()
	other.Send(c.relay, []byte("from elsewhere"))
	c.Quiet("datagram from another address than the permitted one")
	c.SendTo(other.addr, []byte("to elsewhere"))
	other.Quiet("Send indication to another address than the permitted one")
}

// dontFragment first tests whether the server supports DONT-FRAGMENT in Allocate. If not, it must drop a Send
// indication with it.
func dontFragment(t *Trial) {
	supported := t.Client().Allocate(wire.Empty(wire.DontFragment)).Class == wire.Success
	c, p := t.Permitted()
	c.SendTo(p.addr, []byte("whole"), wire.Empty(wire.DontFragment))
	if supported {
		p.Gets(c.relay, []byte("whole"))
	} else {
		p.Quiet("Send indication with DONT-FRAGMENT, which the server does not support")
	}
}

// icmp sends to a closed port, up to three times, because a server may read the ICMP error only with the next datagram.
func icmp(t *Trial) {
	c, p := t.Permitted()
	p.conn.Close()
	for range 3 {
		c.SendTo(p.addr, []byte("nobody there"))
		frame, ok := c.take(t.Silence, anything)
		if !ok {
			continue
		}
		m, err := wire.Parse(frame)
		t.must(err, "read the indication")
		checkICMP(t, m, p.addr)
		return
	}
	t.Failf("three datagrams to a closed port: no Data indication with ICMP")
}

func checkICMP(t *Trial, m wire.Message, peer netip.AddrPort) {
	kind, code := byte(3), byte(3) // destination unreachable, port unreachable
	if peer.Addr().Is6() {
		kind, code = 1, 4
	}
	from, err := m.GetAddress(wire.XORPeerAddress)
	t.must(err, m.String())
	v, ok := m.Get(wire.ICMP)
	if m.Method != wire.Data || m.Class != wire.Indication || !ok || len(v) != 8 || m.Has(wire.DataAttr) {
		t.Failf("want a Data indication with ICMP and without DATA, got %s", m)
	}
	// Type and code follow two reserved bytes. The code has the low nine bits of both (RFC 8656 §18.13).
	if from != peer || v[2]>>1 != kind || v[3] != code || v[2]&1 != 0 {
		t.Failf("ICMP % x for %s, want type %d code %d for %s", v, from, kind, code, peer)
	}
}

// permissionExpiry lets one permission expire and refreshes another. ChannelData does not refresh a permission (RFC
// 8656 §12.6).
func permissionExpiry(t *Trial) {
	c, p := t.Allocated(wire.Uint32(wire.Lifetime, 1800)), t.Peer()
	c.Permit(p.addr).OK()
	t.pause(295 * time.Second)
	p.Send(c.relay, []byte("295"))
	c.GetsData(p.addr, []byte("295"))
	t.pause(11 * time.Second)
	p.Send(c.relay, []byte("306"))
	c.Quiet("datagram of a peer 306 s after its permission")
}

// pause waits for a timer of the server.
func (t *Trial) pause(d time.Duration) { <-time.After(d) }
