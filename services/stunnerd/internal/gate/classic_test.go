package gate

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/limit"
)

// classicRequest builds a request of RFC 3489: a transaction ID of 128 bits in place of the magic cookie and the
// transaction ID of 96 bits.
func (b fixture) classicRequest(method stun.Method, attrs ...stun.Setter) []byte {
	raw := b.build(append([]stun.Setter{request4(method)}, attrs...)...)
	copy(raw[4:], "\x01\x02\x03\x04")
	return raw
}

// classicAnswer passes a request of RFC 3489 to the gate. It returns the type of the answer and its attributes with
// their values. It checks the transaction ID and the length of the answer.
func (b fixture) classicAnswer(client interface {
	receive([]byte, *Gate) []byte
}, raw []byte) (uint16, map[stun.AttrType]string) {
	b.t.Helper()
	answer := client.receive(raw, b.Gate)
	if answer == nil {
		return 0, nil
	}
	if !bytes.Equal(answer[4:20], raw[4:20]) || int(binary.BigEndian.Uint16(answer[2:])) != len(answer)-20 {
		b.t.Fatalf("% x is answered with % x", raw, answer)
	}
	attrs := map[stun.AttrType]string{}
	for rest := answer[20:]; len(rest) > 0; {
		size := int(binary.BigEndian.Uint16(rest[2:]))
		if size%4 != 0 { // RFC 3489 §11.2 has no padding in attributes
			b.t.Fatalf("% x has an attribute of %d bytes", answer, size)
		}
		attrs[stun.AttrType(binary.BigEndian.Uint16(rest))] = string(rest[4 : 4+size])
		rest = rest[4+size:]
	}
	return binary.BigEndian.Uint16(answer), attrs
}

func (c *client) receive(raw []byte, g *Gate) []byte {
	g.Receive(raw, c)
	return c.taken()
}

func (w wire) receive(raw []byte, g *Gate) []byte {
	g.Receive(raw, w)
	return w.taken()
}

func (c *client) taken() []byte {
	select {
	case frame := <-c.frames:
		return frame
	default:
		return nil
	}
}

// S-10, S-14: a Binding request without the magic cookie is answered over UDP in the form of RFC 3489: with the whole
// transaction ID and MAPPED-ADDRESS. A change of the address, a response to another address and any other method are
// not offered. The answer is at most 1.6 times as long as the request.
func TestRequestsOfRFC3489(t *testing.T) {
	const success, failure = 0x0101, 0x0111
	v4 := string([]byte{0, 1, 0x03, 0xE8, 192, 0, 2, 1})
	elsewhere := stun.RawAttribute{Type: 0x0002, Value: []byte{0, 1, 0, 9, 203, 0, 113, 9}}
	for name, tc := range map[string]struct {
		from   string
		method stun.Method
		attrs  []stun.Setter
		want   uint16
		has    map[stun.AttrType]string
	}{
		"Binding": {"192.0.2.1:1000", stun.MethodBinding, nil, success, map[stun.AttrType]string{1: v4}},
		"Binding over IPv6": {"[2001:db8::1]:1000", stun.MethodBinding, nil, success, map[stun.AttrType]string{
			1: "\x00\x02\x03\xe8" + string(netip.MustParseAddr("2001:db8::1").AsSlice()),
		}},
		"CHANGE-REQUEST without a change": {
			"192.0.2.1:1000", stun.MethodBinding, []stun.Setter{number(3, 0)}, success, map[stun.AttrType]string{1: v4},
		},
		"CHANGE-REQUEST": {
			"192.0.2.1:1000", stun.MethodBinding, []stun.Setter{number(3, 6)}, failure,
			map[stun.AttrType]string{9: "\x00\x00\x04\x14", 10: "\x00\x03\x00\x03"},
		},
		"RESPONSE-ADDRESS and CHANGE-REQUEST": {
			"192.0.2.1:1000", stun.MethodBinding, []stun.Setter{elsewhere, number(3, 2)}, failure,
			map[stun.AttrType]string{9: "\x00\x00\x04\x14", 10: "\x00\x02\x00\x03"},
		},
		"optional attribute": {
			"192.0.2.1:1000", stun.MethodBinding, []stun.Setter{number(0x8020, 0)}, success, map[stun.AttrType]string{1: v4},
		},
		"Shared Secret":    {"192.0.2.1:1000", 2, nil, 0, nil},
		"Allocate":         {"192.0.2.1:1000", stun.MethodAllocate, []stun.Setter{udp}, 0, nil},
		"with FINGERPRINT": {"192.0.2.1:1000", stun.MethodBinding, []stun.Setter{stun.Fingerprint}, 0, nil},
		"Binding, malformed": {"192.0.2.1:1000", stun.MethodBinding, []stun.Setter{setter(func(m *stun.Message) error {
			m.Raw = append(m.Raw, 0, 6, 0, 200)
			m.Length += 4
			m.WriteLength()
			return nil
		})}, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			b, c := newFixture(t), newClient(tc.from)
			raw := b.classicRequest(tc.method, tc.attrs...)
			kind, attrs := b.classicAnswer(c, raw)
			if kind != tc.want || len(attrs) != len(tc.has) {
				t.Fatalf("answer %#x with %q, want %#x with %q", kind, attrs, tc.want, tc.has)
			}
			for attr, value := range tc.has {
				if attrs[attr] != value {
					t.Errorf("attribute %#x is %q, want %q", uint16(attr), attrs[attr], value)
				}
			}
			if drops := sum(b.meter.Drops()); kind == 0 && drops != 1 {
				t.Errorf("%d drops are counted, want 1", drops)
			}
		})
	}
}

// S-10: RFC 3489 has no connections, so its requests get no answer over TCP and TLS, and 500 over DTLS (RFC 8489 §11).
func TestRequestsOfRFC3489OverConnections(t *testing.T) {
	for protocol, want := range map[config.Protocol]string{
		config.TURNTCP: "", config.TURNTLS: "", config.TURNDTLS: "\x00\x00\x05\x00",
	} {
		for _, method := range []stun.Method{stun.MethodBinding, stun.MethodAllocate} {
			b := newFixture(t)
			b.protocol = protocol
			_, attrs := b.classicAnswer(wire{newClient("192.0.2.1:1000"), true}, b.classicRequest(method))
			if attrs[stun.AttrErrorCode] != want || want == "" && attrs != nil {
				t.Errorf("%s over %s is answered with %q, want error %q", method, protocol, attrs, want)
			}
		}
	}
}

// S-14, T-10: the answers to requests of RFC 3489 have the limit of other Binding answers.
func TestRequestsOfRFC3489AreLimited(t *testing.T) {
	virtually(t, func(v *virtual) {
		c, answers := newClient("203.0.113.7:1"), 0
		for range 10_000 {
			if c.receive(v.classicRequest(stun.MethodBinding), v.Gate) != nil {
				answers++
			}
		}
		if want := limit.TupleBurst * limit.Binding; answers != want {
			t.Errorf("%d answers to 10,000 requests at once, want %d", answers, want)
		}
	})
}

// T-10, A-01: a request without attributes is challenged like any other request without MESSAGE-INTEGRITY. Its
// challenge is the shortest.
func TestShortestChallenge(t *testing.T) {
	b, c := newFixture(t), newClient("192.0.2.1:1000")
	first := b.send(c, b.build(request4(stun.MethodAllocate), udp))
	for _, method := range []stun.Method{
		stun.MethodAllocate, stun.MethodRefresh, stun.MethodCreatePermission, stun.MethodChannelBind,
	} {
		bare := b.send(c, b.build(request4(method)))
		if codeOf(bare) != 401 || !bare.Contains(stun.AttrNonce) || !bare.Contains(stun.AttrRealm) {
			t.Fatalf("%s without attributes gets %v, want 401 with REALM and NONCE", method, bare)
		}
		if len(bare.Raw) >= len(first.Raw) {
			t.Errorf("%s without attributes gets %d bytes, want less than the %d of Allocate", method, len(bare.Raw), len(first.Raw))
		}
	}
	t.Logf("20 bytes get %d, 28 bytes get %d", len(b.send(c, b.build(request4(stun.MethodAllocate))).Raw), len(first.Raw))
}
