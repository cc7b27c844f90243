package probe

import (
	"net/netip"
	"slices"
	"time"

	"github.com/stunner-gateway/stunner/e2e/turnprobe/internal/wire"
)

var allocate = []Check{
	{ID: "T-A1 attributes", RFC: "8656 §7.2",
		Says: "a success response has XOR-RELAYED-ADDRESS, LIFETIME, XOR-MAPPED-ADDRESS and MESSAGE-INTEGRITY",
		Run: func(t *Trial) {
			a := t.Client().Allocate().OK().Signed()
			for _, attr := range []wire.AttrType{wire.XORRelayedAddress, wire.Lifetime, wire.XORMappedAddress} {
				if !a.Has(attr) {
					t.Failf("the success has no %s", attr)
				}
			}
		}},
	{ID: "T-A1 mapped address", RFC: "8656 §7.2", Says: "XOR-MAPPED-ADDRESS is the client's address",
		Run: func(t *Trial) {
			c := t.Client()
			if got, want := c.Allocate().OK().address(wire.XORMappedAddress), c.local(); got != want {
				t.Failf("XOR-MAPPED-ADDRESS is %s, want %s", got, want)
			}
		}},
	{ID: "T-A1 relay address", RFC: "8656 §7.2",
		Says: "the relayed address is reachable, and its port is not a well-known one",
		Run: func(t *Trial) {
			c, p := t.Allocated(), t.Peer()
			if c.relay.Port() < 1024 || c.relay.Addr().IsUnspecified() {
				t.Failf("XOR-RELAYED-ADDRESS is %s", c.relay)
			}
			c.Permit(p.addr).OK()
			p.Send(c.relay, []byte("here"))
			c.GetsData(p.addr, []byte("here"))
		}},
	{ID: "T-A2 absent", RFC: "8656 §7.2", Says: "an Allocate without REQUESTED-TRANSPORT gives 400",
		Run: func(t *Trial) { t.Client().Do(wire.Allocate).Refused(400) }},
	{ID: "T-A2 malformed", RFC: "8656 §7.2", Says: "REQUESTED-TRANSPORT of the wrong length gives 400",
		Run: func(t *Trial) {
			t.Client().Do(
				wire.Allocate, wire.Attr{Type: wire.RequestedTransport, Value: []byte{protocolUDP}},
			).Refused(400)
		}},
	{ID: "T-A2 unknown", RFC: "8656 §7.2", Says: "REQUESTED-TRANSPORT 99 gives 442",
		Run: func(t *Trial) { t.Client().Do(wire.Allocate, wire.Byte(wire.RequestedTransport, 99)).Refused(442) }},
	{ID: "T-A3 TCP", RFC: "8656 §7.2", Says: "a server without RFC 6062 answers REQUESTED-TRANSPORT TCP with 442",
		Run: func(t *Trial) {
			t.Client().Do(wire.Allocate, wire.Byte(wire.RequestedTransport, protocolTCP)).Refused(442, 400)
		}},
	{ID: "N-01 Connect", RFC: "6062 §4.3", Says: "a server without RFC 6062 does not connect to peers",
		Run: func(t *Trial) {
			c := t.Allocated()
			request := wire.New(wire.Request, wire.Connect, wire.Address(wire.XORPeerAddress, t.Peer().addr))
			if m, ok := c.exchange(c.sign(request.Bytes())); ok && m.Class == wire.Success {
				t.Failf("got %s", m)
			}
		}},
	{ID: "T-A4 retransmission", RFC: "8489 §6.3.1", On: datagrams,
		Says: "a retransmitted Allocate gets the same relayed address", Run: repeatedAllocate},
	{ID: "T-A4 at once", RFC: "8489 §6.3.1", On: datagrams,
		Says: "retransmissions of an Allocate in quick succession make one allocation", Run: copiedAllocate},
	{ID: "T-A5 second", RFC: "8656 §7.2",
		Says: "a second Allocate on a 5-tuple gives 437 and leaves the allocation unchanged",
		Run: func(t *Trial) {
			c, p := t.Allocated(), t.Peer()
			c.Allocate().Refused(437)
			c.Permit(p.addr).OK()
			c.SendTo(p.addr, []byte("first"))
			p.Gets(c.relay, []byte("first"))
		}},
	{ID: "T-A6 default", RFC: "8656 §7.2", Says: "without LIFETIME an allocation lasts 600 s",
		Run: func(t *Trial) { lasts(t, t.Client().Allocate(), 600) }},
	{ID: "T-A6 short", RFC: "8656 §7.2", Says: "LIFETIME below the default gives the default",
		Run: func(t *Trial) { lasts(t, t.Client().Allocate(wire.Uint32(wire.Lifetime, 10)), 600) }},
	{ID: "T-A6 zero", RFC: "8656 §7.2", Says: "LIFETIME 0 in an Allocate gives the default",
		Run: func(t *Trial) { lasts(t, t.Client().Allocate(wire.Uint32(wire.Lifetime, 0)), 600) }},
	{ID: "T-A6 middle", RFC: "8656 §7.2", Says: "LIFETIME between default and maximum is granted",
		Run: func(t *Trial) { lasts(t, t.Client().Allocate(wire.Uint32(wire.Lifetime, 1800)), 1800) }},
	{ID: "T-A6 long", RFC: "8656 §7.2", Says: "LIFETIME above the maximum gives the maximum, 3600 s",
		Run: func(t *Trial) { lasts(t, t.Client().Allocate(wire.Uint32(wire.Lifetime, 1<<32-1)), 3600) }},
	{ID: "T-A7 even", RFC: "8656 §7.2", Says: "EVEN-PORT gives an even port, and no token",
		Run: func(t *Trial) {
			c := t.Client()
			a := c.Allocate(wire.Even(false)).OK()
			if c.relay.Port()%2 != 0 || a.Has(wire.ReservationToken) {
				t.Failf("relay port is %d, RESERVATION-TOKEN: %v", c.relay.Port(), a.Has(wire.ReservationToken))
			}
		}},
	{ID: "T-A7 pair", RFC: "8656 §7.2",
		Says: "EVEN-PORT with R gives a token, and an Allocate with the token gets the next port",
		Run: func(t *Trial) {
			first, token := reserved(t)
			second := t.Client()
			second.Do(wire.Allocate, overUDP(), token).OK()
			if want := netip.AddrPortFrom(first.relay.Addr(), first.relay.Port()+1); second.relay != want {
				t.Failf("the token gives %s, want %s", second.relay, want)
			}
		}},
	{ID: "T-A7 token once", RFC: "8656 §7.2", Says: "a token that was used before gives 508",
		Run: func(t *Trial) {
			_, token := reserved(t)
			t.Client().Do(wire.Allocate, overUDP(), token).OK()
			t.Client().Do(wire.Allocate, overUDP(), token).Refused(508)
		}},
	{ID: "T-A7 unknown token", RFC: "8656 §7.2", Says: "a token that was never issued gives 508",
		Run: func(t *Trial) {
			t.Client().Do(wire.Allocate, overUDP(), wire.Text(wire.ReservationToken, "invented")).Refused(508)
		}},
	{ID: "T-A8 token and EVEN-PORT", RFC: "8656 §7.2", Says: "RESERVATION-TOKEN with EVEN-PORT gives 400",
		Run: func(t *Trial) {
			t.Client().Do(
				wire.Allocate, overUDP(), wire.Text(wire.ReservationToken, "invented"), wire.Even(false),
			).Refused(400)
		}},
	{ID: "T-A8 token and family", RFC: "8656 §7.2", Says: "RESERVATION-TOKEN with REQUESTED-ADDRESS-FAMILY gives 400",
		Run: func(t *Trial) {
			t.Client().Do(wire.Allocate, overUDP(), wire.Text(wire.ReservationToken, "invented"),
				wire.Byte(wire.RequestedAddressFamily, wire.IPv4)).Refused(400)
		}},
	{ID: "T-A8 token and second family", RFC: "8656 §7.2",
		Says: "RESERVATION-TOKEN with ADDITIONAL-ADDRESS-FAMILY gives 400",
		Run: func(t *Trial) {
			t.Client().Do(wire.Allocate, overUDP(), wire.Text(wire.ReservationToken, "invented"),
				wire.Byte(wire.AdditionalAddressFamily, wire.IPv6)).Refused(400)
		}},
	{ID: "T-A9 absent", RFC: "8656 §7.2",
		Says: "without REQUESTED-ADDRESS-FAMILY the relay is IPv4, or the response is 440",
		Run:  func(t *Trial) { family(t, 0, netip.Addr.Is4) }},
	{ID: "T-A9 IPv4", RFC: "8656 §7.2", Says: "a request for IPv4 gives an IPv4 relay or 440",
		Run: func(t *Trial) { family(t, wire.IPv4, netip.Addr.Is4) }},
	{ID: "T-A9 IPv6", RFC: "8656 §7.2", Says: "a request for IPv6 gives an IPv6 relay or 440",
		Run: func(t *Trial) { family(t, wire.IPv6, netip.Addr.Is6) }},
	{ID: "T-A9 unknown", RFC: "8656 §7.2", Says: "a request for an unknown family gives 440",
		Run: func(t *Trial) {
			t.Client().Do(wire.Allocate, overUDP(), wire.Byte(wire.RequestedAddressFamily, 5)).Refused(440)
		}},
	{ID: "T-A10 IPv4", RFC: "8656 §7.2", Says: "ADDITIONAL-ADDRESS-FAMILY IPv4 gives 400",
		Run: func(t *Trial) {
			t.Client().Do(wire.Allocate, overUDP(), wire.Byte(wire.AdditionalAddressFamily, wire.IPv4)).Refused(400)
		}},
	{ID: "T-A10 both", RFC: "8656 §7.2", Says: "ADDITIONAL-ADDRESS-FAMILY with REQUESTED-ADDRESS-FAMILY gives 400",
		Run: func(t *Trial) {
			t.Client().Do(wire.Allocate, overUDP(), wire.Byte(wire.RequestedAddressFamily, wire.IPv4),
				wire.Byte(wire.AdditionalAddressFamily, wire.IPv6)).Refused(400)
		}},
	{ID: "T-A10 with a pair", RFC: "8656 §7.2", Says: "ADDITIONAL-ADDRESS-FAMILY with EVEN-PORT and R gives 400",
		Run: func(t *Trial) {
			t.Client().Do(wire.Allocate, overUDP(), wire.Even(true),
				wire.Byte(wire.AdditionalAddressFamily, wire.IPv6)).Refused(400)
		}},
	{ID: "T-A10 IPv6", RFC: "8656 §7.2",
		Says: "ADDITIONAL-ADDRESS-FAMILY IPv6 gives two relays, or one and ADDRESS-ERROR-CODE", Run: dualAllocate},
	{ID: "T-A11 DONT-FRAGMENT", RFC: "8656 §7.2", Says: "DONT-FRAGMENT is supported, or gives a 420 that lists it",
		Run: func(t *Trial) {
			if a := t.Client().Allocate(wire.Empty(wire.DontFragment)); a.Class != wire.Success {
				a.Refused(420).Unknown(wire.DontFragment)
			}
		}},
	{ID: "T-A16 random ports", RFC: "6056 §3", Says: "relay ports are not predictable from earlier ones",
		Run: randomPorts},
	{ID: "T-A16 freed ports", RFC: "8656 §8.2", Says: "allocations can be made and deleted repeatedly on a 5-tuple",
		Run: func(t *Trial) {
			c := t.Client()
			for range 20 {
				c.Allocate().OK()
				c.Refresh(0).OK()
			}
		}},
	{ID: "T-A17 quota", RFC: "8656 §7.2",
		Says: "a user at the quota gets 486, and gets another allocation after deleting one", Run: quota},
	{ID: "N-02 ticket", RFC: "8016 §3.1", Says: "a client that does not request mobility gets no MOBILITY-TICKET",
		Run: func(t *Trial) {
			if a := t.Client().Allocate().OK(); a.Has(wire.MobilityTicket) {
				t.Failf("the success has MOBILITY-TICKET")
			}
		}},
	{ID: "N-02 stolen ticket", RFC: "8016 §3.2", Says: "an invented MOBILITY-TICKET moves no allocation",
		Run: func(t *Trial) {
			t.Client().Do(wire.Refresh, wire.Text(wire.MobilityTicket, "an invented ticket")).Denied()
		}},
}

func repeatedAllocate(t *Trial) {
	c := t.Client()
	c.challenge()
	request := c.sign(req(wire.Allocate, t.plain()...))
	first := c.answer(request).OK()
	c.note(first)
	second := c.answer(request).OK().Signed()
	if again := second.address(wire.XORRelayedAddress); again != c.relay {
		t.Failf("first %s, then %s", c.relay, again)
	}
}

func copiedAllocate(t *Trial) {
	const copies = 5
	c := t.Client()
	c.challenge()
	request := c.sign(req(wire.Allocate, t.plain()...))
	for range copies - 1 {
		c.transmit(request)
	}
	c.note(c.answer(request).OK())
	for range copies - 1 {
		frame, ok := c.take(t.Silence, answers(request))
		if !ok {
			return // a server need not answer each retransmission
		}
		m, err := wire.Parse(frame)
		t.must(err, "read the response")
		if a := (Answer{m, c}); a.OK().address(wire.XORRelayedAddress) != c.relay {
			t.Failf("one retransmission gives %s, another %s", c.relay, a.address(wire.XORRelayedAddress))
		}
	}
}

func lasts(t *Trial, a Answer, want uint32) {
	if got := a.OK().lifetime(); got != want {
		t.Failf("LIFETIME is %d, want %d", got, want)
	}
}

// reserved makes an allocation that reserves the next port.
func reserved(t *Trial) (*Client, wire.Attr) {
	c := t.Client()
	a := c.Allocate(wire.Even(true))
	if a.Code() == 508 {
		t.Pointless("the server reserves no ports")
	}
	token, ok := a.OK().Get(wire.ReservationToken)
	if !ok || len(token) != 8 {
		t.Failf("RESERVATION-TOKEN is % x", token)
	}
	return c, wire.Attr{Type: wire.ReservationToken, Value: token}
}

// family requests an address family, 0 for none, and checks that the relayed address has the right one.
func family(t *Trial, want byte, right func(netip.Addr) bool) {
	c := t.Client()
	attrs := []wire.Attr{overUDP()}
	if want != 0 {
		attrs = append(attrs, wire.Byte(wire.RequestedAddressFamily, want))
	}
	a := c.Do(wire.Allocate, attrs...)
	if a.Class == wire.Success && !right(c.relay.Addr()) {
		t.Failf("the relay address is %s", c.relay)
	}
	if a.Class != wire.Success {
		a.Refused(440)
	}
}

func dualAllocate(t *Trial) {
	a := t.Client().Do(wire.Allocate, overUDP(), wire.Byte(wire.AdditionalAddressFamily, wire.IPv6))
	if t.PeerAddr.Is6() && a.Code() == 440 {
		return // the server has no IPv4 relays, which RFC 8656 §7.2 checks first
	}
	relays, err := a.OK().GetAddresses(wire.XORRelayedAddress)
	t.must(err, a.String())
	reason, partial := a.Get(wire.AddressErrorCode)
	switch {
	case len(relays) == 2 && relays[0].Addr().Is4() != relays[1].Addr().Is4() && !partial:
	case len(relays) == 1 && partial && len(reason) >= 4:
		absent := byte(wire.IPv6)
		if relays[0].Addr().Is6() {
			absent = wire.IPv4
		}
		if code := int(reason[2]&7)*100 + int(reason[3]); reason[0] != absent || code != 440 && code != 508 {
			t.Failf("relay %s, ADDRESS-ERROR-CODE is for family %d with code %d", relays[0], reason[0], code)
		}
	default:
		t.Failf("relays %v, ADDRESS-ERROR-CODE: %v", relays, partial)
	}
}

// randomPorts makes allocations until two consecutive ports are more than a small step apart.
func randomPorts(t *Trial) {
	const count = 8
	var ports []int
	for range count {
		ports = append(ports, int(t.Allocated().relay.Port()))
	}
	small := 0
	for i := range count - 1 {
		if step := ports[i+1] - ports[i]; -16 < step && step < 16 {
			small++
		}
	}
	slices.Sort(ports)
	if small > 2 || len(slices.Compact(ports)) != count {
		t.Failf("relay ports in a row: %v", ports)
	}
}

func quota(t *Trial) {
	if t.Quota == 0 {
		t.Skipf("needs the maximum number of allocations per user: give -quota")
	}
	user := t.ephemeralUser(time.Hour)
	var clients []*Client
	open := func() Answer {
		c := t.Client()
		c.login = user
		clients = append(clients, c)
		return c.Allocate()
	}
	for range t.Quota {
		open().OK()
	}
	open().Refused(486).Signed()
	clients[0].Refresh(0).OK()
	open().OK()
	open().Refused(486)
}
