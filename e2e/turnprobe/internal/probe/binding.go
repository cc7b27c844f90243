package probe

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/stunner-gateway/stunner/e2e/turnprobe/internal/wire"
)

var binding = []Check{
	{ID: "S-01 address", RFC: "8489 §6.3.1", Says: "the response to a Binding request has the request's source address",
		Run: func(t *Trial) {
			c := t.Client()
			if got, want := c.Ask(wire.Binding).OK().address(wire.XORMappedAddress), c.local(); got != want {
				t.Failf("XOR-MAPPED-ADDRESS is %s, want %s", got, want)
			}
		}},
	{ID: "S-01 source", RFC: "8489 §6.3.1.1", On: onlyUDP,
		Says: "the response comes from the address that the request was sent to",
		Run:  func(t *Trial) { answersFrom(t, t.Server) }},
	{ID: "S-01 retransmission", RFC: "8489 §6.3.1", On: datagrams,
		Says: "a retransmitted request gets the same response", Run: repeatedBinding},
	{ID: "S-02 Binding", RFC: "8489 §14.7",
		Says: "a request with FINGERPRINT gets a response with FINGERPRINT as the last attribute",
		Run:  func(t *Trial) { fingerprinted(t.Client().answer(wire.Fingerprint(req(wire.Binding))).OK()) }},
	{ID: "S-02 challenge", RFC: "8489 §14.7", Says: "a 401 to a request with FINGERPRINT has FINGERPRINT",
		Run: func(t *Trial) {
			fingerprinted(t.Client().answer(wire.Fingerprint(req(wire.Allocate, t.plain()...))).Refused(401))
		}},
	{ID: "S-02 Allocate", RFC: "8489 §14.7",
		Says: "an authenticated request with FINGERPRINT gets a response with FINGERPRINT",
		Run: func(t *Trial) {
			c := t.Client()
			c.challenge()
			a := c.answer(wire.Fingerprint(c.sign(req(wire.Allocate, t.plain()...)))).OK()
			c.note(a)
			fingerprinted(a.Signed())
		}},
	{ID: "S-03 Binding", RFC: "8489 §6.3", Says: "a request with a wrong FINGERPRINT is discarded",
		Run: func(t *Trial) {
			t.Client().Ignored(spoiled(wire.Fingerprint(req(wire.Binding))), "Binding request with a wrong FINGERPRINT")
		}},
	{ID: "S-03 Allocate", RFC: "8489 §6.3", Says: "FINGERPRINT is checked before the credentials",
		Run: func(t *Trial) {
			c := t.Client()
			c.challenge()
			request := wire.Fingerprint(c.sign(req(wire.Allocate, t.plain()...)))
			c.Ignored(spoiled(request), "Allocate request with a wrong FINGERPRINT")
		}},
	{ID: "S-04 Binding", RFC: "8489 §6.3.1", Says: "an unknown required attribute in a request gives 420 and is listed",
		Run: func(t *Trial) { t.Client().Ask(wire.Binding, wire.Uint32(0x7777, 1)).Refused(420).Unknown(0x7777) }},
	{ID: "S-04 two", RFC: "8489 §6.3.1", Says: "a 420 lists every unknown required attribute, and no optional one",
		Run: func(t *Trial) {
			t.Client().Ask(
				wire.Binding, wire.Uint32(0x7778, 1), wire.Uint32(0xF777, 1), wire.Uint32(0x7777, 1),
			).Refused(420).Unknown(0x7777, 0x7778)
		}},
	{ID: "S-04 Allocate", RFC: "8489 §6.3.1",
		Says: "an unknown required attribute in an authenticated request gives 420",
		Run:  func(t *Trial) { t.Client().Allocate(wire.Uint32(0x7777, 1)).Refused(420).Unknown(0x7777) }},
	{ID: "S-04 Refresh", RFC: "8489 §6.3.1",
		Says: "a Refresh with an unknown required attribute gives 420, and changes nothing",
		Run: func(t *Trial) {
			c := t.Allocated()
			c.Do(wire.Refresh, wire.Uint32(wire.Lifetime, 0), wire.Uint32(0x7777, 1)).Refused(420).Unknown(0x7777)
			c.Refresh(600).OK()
		}},
	{ID: "S-04 after the credentials", RFC: "8489 §6.3",
		Says: "credentials are checked before unknown attributes: an unauthenticated request gets 401",
		Run:  func(t *Trial) { t.Client().Ask(wire.Allocate, t.plain(wire.Uint32(0x7777, 1))...).Refused(401) }},
	{ID: "S-04 Send", RFC: "8489 §6.3.2", Says: "a Send indication with an unknown required attribute is discarded",
		Run: func(t *Trial) {
			c, p := t.Permitted()
			c.SendTo(p.addr, []byte("unknown"), wire.Uint32(0x7777, 1))
			c.SendTo(p.addr, []byte("known"))
			p.Gets(c.relay, []byte("known"))
		}},
	{ID: "S-05 Binding", RFC: "8489 §6.3", Says: "an unknown optional attribute is ignored",
		Run: func(t *Trial) { t.Client().Ask(wire.Binding, wire.Uint32(0xF777, 1)).OK() }},
	{ID: "S-05 Allocate", RFC: "8489 §6.3", Says: "an unknown optional attribute in an Allocate request is ignored",
		Run: func(t *Trial) { t.Allocated(wire.Text(0xF777, "odd")) }},
	{ID: "S-05 repeated", RFC: "8489 §14", Says: "of a duplicate attribute, the first counts",
		Run: func(t *Trial) {
			c := t.Allocated()
			lasts(t, c.Do(wire.Refresh, wire.Uint32(wire.Lifetime, 1800), wire.Uint32(wire.Lifetime, 0)), 1800)
			c.Refresh(600).OK()
		}},
	{ID: "S-06 Binding", RFC: "8489 §6.3.2", Says: "a Binding indication is not answered",
		Run: func(t *Trial) {
			t.Client().Ignored(wire.New(wire.Indication, wire.Binding).Bytes(), "Binding indication")
		}},
	{ID: "S-06 Allocate", RFC: "8489 §6.3.2",
		Says: "an indication with a method that has no indications is not answered",
		Run: func(t *Trial) {
			t.Client().Ignored(wire.New(wire.Indication, wire.Allocate, t.plain()...).Bytes(), "Allocate indication")
		}},
	{ID: "S-06 unknown attribute", RFC: "8489 §6.3.2",
		Says: "an indication with an unknown required attribute is not answered",
		Run: func(t *Trial) {
			t.Client().Ignored(
				wire.New(wire.Indication, wire.Binding, wire.Uint32(0x7777, 1)).Bytes(),
				"Binding indication with attribute 0x7777",
			)
		}},
	{ID: "S-07 top bits 01", RFC: "8656 §12.6", Says: "a message that begins with 01 is not processed as STUN",
		Run: func(t *Trial) { topBits(t, 0x40) }},
	{ID: "S-07 top bits 10", RFC: "8489 §5", Says: "a message that begins with 10 is discarded",
		Run: func(t *Trial) { topBits(t, 0x80) }},
	{ID: "S-07 top bits 11", RFC: "8489 §5", Says: "a message that begins with 11 is discarded",
		Run: func(t *Trial) { topBits(t, 0xC0) }},
	{ID: "S-07 odd length", RFC: "8489 §5", Says: "a message whose length is not a multiple of four is discarded",
		Run: func(t *Trial) {
			b := append(req(wire.Binding), 0x80, 0x22)
			b[3] = 2
			t.Client().Ignored(b, "Binding request with length 2")
		}},
	{ID: "S-07 length beyond the datagram", RFC: "8489 §6.3", On: datagrams,
		Says: "a message with a length beyond its datagram is discarded",
		Run: func(t *Trial) {
			b := req(wire.Binding)
			b[3] = 64
			t.Client().Ignored(b, "Binding request with length 64 in 20 bytes")
		}},
	{ID: "S-07 half a header", RFC: "8489 §5", On: datagrams, Says: "a datagram shorter than a header is discarded",
		Run: func(t *Trial) {
			for n := range 20 {
				t.Client().transmit(req(wire.Binding)[:n])
			}
			t.Client().Ignored(req(wire.Binding)[:19], "19 bytes of a Binding request")
		}},
	{ID: "S-07 attribute past the end", RFC: "8489 §6.3",
		Says: "a message with an attribute that is longer than the message is discarded, or answered with 400",
		Run:  attributePastTheEnd},
	{ID: "S-07 attribute header cut", RFC: "8489 §6.3", Says: "an attribute that exceeds the message is not processed",
		Run: func(t *Trial) {
			b := wire.Append(req(wire.Allocate, t.plain()...), wire.Empty(wire.Username))
			b[len(b)-1] = 0xFF
			discardedOr400(t, b, "Allocate request whose last attribute has no bytes left")
		}},
	{ID: "S-08 unknown method", RFC: "8489 §6.3.1", Says: "a request of an unknown method never succeeds",
		Run: func(t *Trial) {
			c := t.Client()
			if m, ok := c.exchange(req(0x0F5)); ok && m.Class != wire.Error {
				t.Failf("got %s", m)
			}
			t.alive("unknown method")
		}},
	{ID: "S-08 unknown method, signed", RFC: "8489 §6.3.1",
		Says: "an authenticated request of an unknown method never succeeds, and the allocation stays",
		Run: func(t *Trial) {
			c := t.Allocated()
			if m, ok := c.exchange(c.sign(req(0x0F5))); ok && m.Class != wire.Error {
				t.Failf("got %s", m)
			}
			c.Refresh(600).OK()
		}},
	{ID: "S-09 change address", RFC: "5780 §7",
		Says: "a server that cannot answer from another address gives 420 for CHANGE-REQUEST",
		Run:  func(t *Trial) { changeRequest(t, 6) }},
	{ID: "S-09 change nothing", RFC: "5780 §7",
		Says: "a server that cannot answer from another address gives 420 for CHANGE-REQUEST without flags",
		Run:  func(t *Trial) { changeRequest(t, 0) }},
	{ID: "S-12 other address", RFC: "8489 §6.3.1.1", On: onlyUDP,
		Says: "a host with several addresses answers from the one that the request was sent to",
		Run: func(t *Trial) {
			t.onLoopback4(t.Server.Addr())
			answersFrom(t, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 1, 2, 3}), t.Server.Port()))
		}},
	{ID: "S-13 Binding", RFC: "policy", Says: "SOFTWARE contains no version",
		Run: func(t *Trial) { discreet(t.Client().Ask(wire.Binding).OK()) }},
	{ID: "S-13 challenge", RFC: "policy", Says: "SOFTWARE in a 401 contains no version",
		Run: func(t *Trial) { discreet(t.Client().Ask(wire.Allocate, t.plain()...).Refused(401)) }},
	{ID: "N-04 no other address", RFC: "5780 §7.4", Says: "a server with one address sends no OTHER-ADDRESS",
		Run: func(t *Trial) {
			if a := t.Client().Ask(wire.Binding).OK(); a.Has(wire.OtherAddress) {
				t.Failf("the response has OTHER-ADDRESS")
			}
		}},
	{ID: "N-07 first bytes", RFC: "7983 §7", On: datagrams,
		Says: "datagrams whose first byte is neither STUN nor a channel are dropped", Run: firstBytes},
}

// answersFrom sends a Binding request to an address from an unconnected socket, which receives responses from any
// address.
func answersFrom(t *Trial, server netip.AddrPort) {
	conn, err := net.ListenUDP("udp", nil)
	t.must(err, "open a socket")
	defer conn.Close()
	request := req(wire.Binding)
	buf := make([]byte, 1500)
	for range 3 {
		_, err = conn.WriteToUDPAddrPort(request, server)
		t.must(err, "send")
		conn.SetReadDeadline(time.Now().Add(t.Answer / 4))
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			continue
		}
		if from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port()); from != server || !answers(request)(buf[:n]) {
			t.Failf("request to %s, response %s from %s", server, describe(buf[:n]), from)
		}
		return
	}
	if server != t.Server {
		t.Pointless("the server does not listen on " + server.String())
	}
	t.Failf("no response from %s", server)
}

func repeatedBinding(t *Trial) {
	c := t.Client()
	request := req(wire.Binding)
	first, second := c.answer(request).OK(), c.answer(request).OK()
	if string(first.Raw) != string(second.Raw) {
		t.Failf("first % x, then % x", first.Raw, second.Raw)
	}
}

// fingerprinted checks that FINGERPRINT is present. Parsing has verified its position and value.
func fingerprinted(a Answer) {
	if !a.Has(wire.FingerprintAttr) {
		a.client.trial.Failf("%s has no FINGERPRINT", a)
	}
}

// spoiled flips a bit of the last byte.
func spoiled(b []byte) []byte {
	b[len(b)-1] ^= 1
	return b
}

// topBits sends a Binding request with other first bits. The length of its body makes it a valid frame of a stream as
// well.
func topBits(t *Trial, bits byte) {
	b := wire.New(wire.Request, wire.Binding, wire.Text(wire.Software, "sixteen bytes :)")).Bytes()
	b[0] |= bits
	t.Client().Ignored(b, "Binding request with other first bits")
}

func attributePastTheEnd(t *Trial) {
	b := req(wire.Binding, wire.Text(wire.Software, "abcd"))
	b[23] = 200
	discardedOr400(t, b, "Binding request with an attribute of 200 bytes in 24")
}

func discardedOr400(t *Trial, b []byte, what string) {
	c := t.Client()
	c.transmit(b)
	if frame, ok := c.take(t.Silence, anything); ok {
		if m, err := wire.Parse(frame); err != nil || m.Code() != 400 {
			t.Failf("%s: got %s", what, describe(frame))
		}
	}
	t.alive(what)
}

func changeRequest(t *Trial, flags uint32) {
	t.Client().Ask(wire.Binding, wire.Uint32(wire.ChangeRequest, flags)).Refused(420).Unknown(wire.ChangeRequest)
}

// discreet checks that SOFTWARE contains no digits, as a version would.
func discreet(a Answer) {
	if v, ok := a.Get(wire.Software); ok && strings.ContainsAny(string(v), "0123456789") {
		a.client.trial.Failf("SOFTWARE is %q", v)
	}
}

func firstBytes(t *Trial) {
	c := t.Client()
	ours := func(b int) bool { return b < 4 || b >= 64 && b < 80 }
	for b := range 256 {
		if ours(b) || t.Transport == DTLS && b < 64 {
			continue
		}
		c.transmit(slices.Concat([]byte{byte(b)}, req(wire.Binding)[1:]))
	}
	c.Quiet("all first bytes")
	t.alive("all first bytes")
}
