package probe

import (
	"encoding/binary"
	"net/netip"

	"github.com/stunner-gateway/stunner/e2e/turnprobe/internal/wire"
)

// classic are requests of RFC 3489, which have no magic cookie.
var classic = []Check{
	{ID: "S-14 Binding", RFC: "5389 §12.2", On: onlyUDP,
		Says: "a Binding request without magic cookie gets its transaction ID of 128 bits and MAPPED-ADDRESS alone",
		Run: func(t *Trial) {
			c := t.Client()
			a := c.askClassic(wire.Binding).OK()
			if got, want := plain(a.Value(wire.MappedAddress)), c.local(); got != want || len(a.Attrs) != 1 {
				t.Failf("MAPPED-ADDRESS is %s, want %s, among %d attributes", got, want, len(a.Attrs))
			}
		}},
	{ID: "S-14 no change", RFC: "3489 §11.2.4", On: onlyUDP,
		Says: "a CHANGE-REQUEST without flags in a request without magic cookie is ignored",
		Run: func(t *Trial) {
			c := t.Client()
			a := c.askClassic(wire.Binding, wire.Uint32(wire.ChangeRequest, 0)).OK()
			if got, want := plain(a.Value(wire.MappedAddress)), c.local(); got != want {
				t.Failf("MAPPED-ADDRESS is %s, want %s", got, want)
			}
		}},
	{ID: "S-14 change address", RFC: "5389 §12.2", On: onlyUDP,
		Says: "CHANGE-REQUEST and RESPONSE-ADDRESS in a request without magic cookie give 420",
		Run: func(t *Trial) {
			t.Client().askClassic(wire.Binding, wire.Uint32(wire.ChangeRequest, 6)).Refused(420).Unknown(wire.ChangeRequest)
			elsewhere := wire.Attr{Type: wire.ResponseAddress, Value: []byte{0, 1, 0, 9, 192, 0, 2, 9}}
			t.Client().askClassic(wire.Binding, elsewhere).Refused(420).Unknown(wire.ResponseAddress)
		}},
	{ID: "S-14 amplification", RFC: "policy", On: onlyUDP,
		Says: "the response to a Binding request without magic cookie is at most 2.5 times as long",
		Run: func(t *Trial) {
			if a := t.Client().askClassic(wire.Binding); len(a.Raw) > 50 {
				t.Failf("%d bytes for 20", len(a.Raw))
			}
		}},
	{ID: "S-10 other method", RFC: "3489 §9.1", On: onlyUDP,
		Says: "requests of other methods without magic cookie are dropped",
		Run: func(t *Trial) {
			t.Client().Ignored(withoutCookie(req(wire.SharedSecret)), "Shared Secret request of RFC 3489")
			t.Client().Ignored(withoutCookie(req(wire.Allocate, t.plain()...)), "Allocate request without magic cookie")
		}},
	{ID: "S-10 stream", RFC: "5389 §12", On: streams,
		Says: "a message without magic cookie is dropped: RFC 3489 uses UDP only",
		Run: func(t *Trial) {
			t.Client().Ignored(withoutCookie(req(wire.Binding)), "Binding request of RFC 3489")
		}},
	{ID: "S-10 DTLS", RFC: "8489 §11", On: onlyDTLS, Says: "a request without magic cookie gives 500",
		Run: func(t *Trial) {
			t.Client().askClassic(wire.Binding).Refused(500)
			t.Client().askClassic(wire.Allocate, t.plain()...).Refused(500)
		}},
	{ID: "S-10 indication", RFC: "3489 §11.1", Says: "an indication without magic cookie is dropped",
		Run: func(t *Trial) {
			b := withoutCookie(wire.New(wire.Indication, wire.Binding).Bytes())
			t.Client().Ignored(b, "Binding indication without magic cookie")
		}},
}

// askClassic sends a request of RFC 3489 and parses the response, which repeats the transaction ID of 128 bits.
func (c *Client) askClassic(method wire.Method, attrs ...wire.Attr) Answer {
	request := withoutCookie(req(method, attrs...))
	for range 3 {
		c.transmit(request)
		frame, ok := c.take(c.trial.Answer/3, answers(request))
		if !ok {
			continue
		}
		copy(frame[4:], req(method)[4:8])
		m, err := wire.Parse(frame)
		c.trial.must(err, "read the response")
		return Answer{m, c}
	}
	c.trial.Failf("%s without magic cookie: no response within %s", method, c.trial.Answer)
	return Answer{}
}

// withoutCookie replaces the magic cookie.
func withoutCookie(b []byte) []byte {
	copy(b[4:], "\x01\x02\x03\x04")
	return b
}

// plain decodes the value of an address attribute that is not XOR'ed (RFC 3489 §11.2.1).
func plain(v []byte) netip.AddrPort {
	if len(v) != 8 && len(v) != 20 {
		return netip.AddrPort{}
	}
	addr, _ := netip.AddrFromSlice(v[4:])
	return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(v[2:]))
}
