package gate

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/stunmsg"
)

// S-04, T-A2, T-A3, T-A5, T-A8, T-A9, T-A10, T-A11, T-A12, T-A14: each rule of admit.go for Allocate and Refresh has
// its error code.
// P-01, P-02, P-04, T-04, C-01, C-03: each rule of admit.go for permissions and channels has its error code.
// A-08, S-02: each answer to an authenticated request has MESSAGE-INTEGRITY, and FINGERPRINT when the request has it.
func TestEveryRefusalHasItsCode(t *testing.T) {
	const none, some = false, true
	peer, denied := peerAt("127.0.0.1:4000"), peerAt("10.0.0.1:4000")
	cases := map[string]struct {
		allocated bool
		method    stun.Method
		attrs     []stun.Setter
		want      stun.ErrorCode
	}{
		"allocate":                   {none, stun.MethodAllocate, []stun.Setter{udp}, 0},
		"allocate without transport": {none, stun.MethodAllocate, nil, 400},
		"allocate over TCP to the peer": {
			none, stun.MethodAllocate, []stun.Setter{number(stun.AttrRequestedTransport, 6<<24)}, 442,
		},
		"allocate over nothing known": {
			none, stun.MethodAllocate, []stun.Setter{number(stun.AttrRequestedTransport, 99<<24)}, 442,
		},
		"allocate without fragments": {
			none, stun.MethodAllocate, []stun.Setter{udp, stun.RawAttribute{Type: stun.AttrDontFragment}}, 0,
		},
		"allocate an IPv6 relay": {
			none, stun.MethodAllocate, []stun.Setter{udp, number(stun.AttrRequestedAddressFamily, 2<<24)}, 440,
		},
		"allocate an IPv4 relay": {
			none, stun.MethodAllocate, []stun.Setter{udp, number(stun.AttrRequestedAddressFamily, 1<<24)}, 0,
		},
		"allocate a second time":     {some, stun.MethodAllocate, []stun.Setter{udp}, 437},
		"unknown attribute":          {none, stun.MethodAllocate, []stun.Setter{udp, number(0x7777, 0)}, 420},
		"refresh without allocation": {none, stun.MethodRefresh, nil, 437},
		"refresh":                    {some, stun.MethodRefresh, nil, 0},
		"refresh for another family": {
			some, stun.MethodRefresh, []stun.Setter{number(stun.AttrRequestedAddressFamily, 2<<24)}, 443,
		},
		"permission without allocation": {none, stun.MethodCreatePermission, []stun.Setter{peer}, 437},
		"permission":                    {some, stun.MethodCreatePermission, []stun.Setter{peer}, 0},
		"permission on a port off route": {
			some, stun.MethodCreatePermission, []stun.Setter{peerAt("127.0.0.1:9")}, 0,
		},
		"permission without peer":       {some, stun.MethodCreatePermission, nil, 400},
		"permission without route":      {some, stun.MethodCreatePermission, []stun.Setter{denied}, 403},
		"permission, one of two denied": {some, stun.MethodCreatePermission, []stun.Setter{peer, denied}, 403},
		"permission of another family": {
			some, stun.MethodCreatePermission, []stun.Setter{peerAt("[2001:db8::1]:4000")}, 443,
		},
		"permission in IPv6 clothes": {
			some, stun.MethodCreatePermission, []stun.Setter{disguised("127.0.0.1", 4000)}, 443,
		},
		"channel without allocation": {none, stun.MethodChannelBind, []stun.Setter{channel(0x4000), peer}, 437},
		"channel":                    {some, stun.MethodChannelBind, []stun.Setter{channel(0x4000), peer}, 0},
		"channel number of RFC 5766": {some, stun.MethodChannelBind, []stun.Setter{channel(0x7FFF), peer}, 0},
		"channel number too low":     {some, stun.MethodChannelBind, []stun.Setter{channel(0x3FFF), peer}, 400},
		"channel number too high":    {some, stun.MethodChannelBind, []stun.Setter{channel(0x8000), peer}, 400},
		"channel without number":     {some, stun.MethodChannelBind, []stun.Setter{peer}, 400},
		"channel without peer":       {some, stun.MethodChannelBind, []stun.Setter{channel(0x4000)}, 400},
		"channel without route": {
			some, stun.MethodChannelBind, []stun.Setter{channel(0x4000), denied}, 403,
		},
		"channel to a port outside routes": {
			some, stun.MethodChannelBind, []stun.Setter{channel(0x4000), peerAt("127.0.0.1:9")}, 403,
		},
		"token with even port":       {none, stun.MethodAllocate, []stun.Setter{udp, evenPort, token}, 400},
		"token that was never given": {none, stun.MethodAllocate, []stun.Setter{udp, token}, 508},
		"additional family without meaning": {
			none, stun.MethodAllocate, []stun.Setter{udp, number(stunmsg.AttrAdditionalFamily, 1<<24)}, 400,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			b, c := newFixture(t), newClient("192.0.2.1:1000")
			if tc.allocated {
				b.allocate(c)
			}
			answer := b.send(c, b.signed(c, username, password, tc.method, tc.attrs...))
			if got := codeOf(answer); got != tc.want {
				t.Fatalf("code %d, want %d", got, tc.want)
			}
			// Answers to authenticated requests are signed (RFC 8489 §9.2.4).
			if stun.NewLongTermIntegrity(username, realm, password).Check(answer) != nil {
				t.Error("answer is not signed")
			}
			if stun.Fingerprint.Check(answer) != nil {
				t.Error("answer to a request with FINGERPRINT has none, or a wrong one")
			}
		})
	}
}

// T-A11, P-10: if the kernel fragments every datagram, DONT-FRAGMENT is an unknown attribute: Allocate gets 420, and a
// Send indication is dropped. Otherwise a Send indication with DONT-FRAGMENT needs a permission of either kind, as any
// other Send indication.
func TestDontFragment(t *testing.T) {
	for _, fragments := range []bool{false, true} {
		virtually(t, func(v *virtual) {
			v.net.Fragments = fragments
			c, peer := newClient("192.0.2.1:1000"), v.net.Peer(netip.MustParseAddrPort("127.0.0.1:4000"))
			whole := stun.RawAttribute{Type: stun.AttrDontFragment}
			answer := v.send(c, v.signed(c, username, password, stun.MethodAllocate, udp, whole))
			var unknown []byte
			if fragments {
				unknown = []byte{0x00, 0x1A}
				v.allocate(c)
			}
			if got, _ := answer.Get(stun.AttrUnknownAttributes); !bytes.Equal(got, unknown) || (codeOf(answer) == 420) != fragments {
				t.Errorf("Allocate gets %d with % x, fragments: %t", codeOf(answer), got, fragments)
			}
			send := func() (arrived bool) {
				v.Receive(v.build(stun.NewType(stun.MethodSend, stun.ClassIndication), peerAt("127.0.0.1:4000"), whole,
					stun.RawAttribute{Type: stun.AttrData, Value: []byte("whole")}), c)
				got := peer.Got()
				return len(got) == 1 && got[0].Whole && got[0].Payload == "whole"
			}
			if send() {
				t.Error("a datagram leaves without a permission")
			}
			v.must(c, stun.MethodCreatePermission, peerAt("127.0.0.1:4000"))
			if send() == fragments {
				t.Errorf("with a permission a whole datagram leaves: %t", !fragments)
			}
			time.Sleep(301 * time.Second) // the permission has expired
			v.must(c, stun.MethodChannelBind, channel(0x4000), peerAt("127.0.0.1:4000"))
			if send() == fragments {
				t.Errorf("with a channel a whole datagram leaves: %t", !fragments)
			}
		})
	}
}

var (
	evenPort = stun.RawAttribute{Type: stun.AttrEvenPort, Length: 1, Value: []byte{0}}
	token    = stun.RawAttribute{Type: stun.AttrReservationToken, Length: 8, Value: []byte("12345678")}
)

// disguised is an XOR-PEER-ADDRESS with an IPv4-mapped IPv6 address, which pion/stun writes as IPv4.
func disguised(ip string, port uint16) stun.Setter {
	return setter(func(m *stun.Message) error {
		a := netip.MustParseAddr(ip).As16()
		v := []byte{0, stunmsg.FamilyIPv6, byte(port>>8) ^ 0x21, byte(port) ^ 0x12}
		mask := append([]byte{0x21, 0x12, 0xA4, 0x42}, m.TransactionID[:]...)
		for i, x := range a {
			v = append(v, x^mask[i])
		}
		m.Add(stun.AttrXORPeerAddress, v)
		return nil
	})
}

type setter func(*stun.Message) error

func (s setter) AddTo(m *stun.Message) error { return s(m) }

// wrong credentials get 401, incomplete credentials get 400, and a nonce of another address
// gets 438.
func TestCredentials(t *testing.T) {
	b, c := newFixture(t), newClient("192.0.2.1:1000")
	wrong := b.send(c, b.signed(c, username, "wrong", stun.MethodAllocate, udp))
	unknown := b.send(c, b.signed(c, "bob", password, stun.MethodAllocate, udp))
	empty := b.send(c, b.signed(c, "bob", "", stun.MethodAllocate, udp))
	for _, answer := range []*stun.Message{wrong, unknown, empty} {
		if codeOf(answer) != 401 || !answer.Contains(stun.AttrNonce) || !answer.Contains(stun.AttrRealm) ||
			len(answer.Raw) != len(wrong.Raw) {
			t.Errorf("A-02: %v, %d bytes", codeOf(answer), len(answer.Raw))
		}
	}
	if got := codeOf(
		b.send(c, b.build(request4(stun.MethodAllocate), udp, stun.NewLongTermIntegrity(username, realm, password))),
	); got != 400 {
		t.Errorf("A-03: MESSAGE-INTEGRITY alone: %d", got)
	}
	if got := codeOf(b.send(c, b.signed(c, strings.Repeat("x", 508), password, stun.MethodAllocate, udp))); got != 401 {
		t.Errorf("A-09: longest user name: %d", got)
	}
	other := newClient("192.0.2.2:1000")
	stale := b.send(c, b.build(request4(stun.MethodAllocate), udp, stun.NewUsername(username), stun.NewRealm(
		realm,
	), b.nonce(other),
		stun.NewLongTermIntegrity(username, realm, password)))
	if codeOf(stale) != 438 || !stale.Contains(stun.AttrNonce) {
		t.Errorf("A-06: nonce of another address: %v", codeOf(stale))
	}
	if b.table.Len() != 0 {
		t.Error("a refused client left a session")
	}
}

// T-A15: a Refresh of another user gets 441, and the allocation stays.
func TestAnotherUserCannotTouchAnAllocation(t *testing.T) {
	b, c := newFixture(t), newClient("192.0.2.1:1000")
	p := policy()
	p.Authority.SharedSecret = "shared"
	b.Update(p, routes("127.0.0.1:<4000-4999>"))
	b.allocate(c)
	other, err := p.Authority.Mint("eve", time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	zero := number(stun.AttrLifetime, 0)
	if got := codeOf(
		b.send(c, b.signed(c, other.Username, string(other.Password), stun.MethodRefresh, zero)),
	); got != 441 {
		t.Errorf("T-A15: %d, want 441", got)
	}
	if b.table.Len() != 1 {
		t.Error("the allocation is gone")
	}
}

// T-13: an allocation needs a valid credential. A session may be refreshed with an expired one until the end of the
// grace.
func TestExpiredCredentialRefreshesOnlyWithinTheGrace(t *testing.T) {
	for grace, want := range map[time.Duration]stun.ErrorCode{0: 401, time.Second: 401, time.Hour: 0} {
		b, c := newFixture(t), newClient("192.0.2.1:1000")
		p := policy()
		p.Authority.SharedSecret, p.SessionGrace = "shared", grace
		b.Update(p, routes("127.0.0.1"))
		good, err := p.Authority.Mint("ann", time.Minute, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		old, err := p.Authority.Mint("ann", time.Second, time.Now().Add(-time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		if got := codeOf(
			b.send(c, b.signed(c, old.Username, string(old.Password), stun.MethodAllocate, udp)),
		); got != 401 {
			t.Errorf("allocate with an expired credential: %d", got)
		}
		if got := codeOf(
			b.send(c, b.signed(c, good.Username, string(good.Password), stun.MethodAllocate, udp)),
		); got != 0 {
			t.Fatalf("allocate: %d", got)
		}
		// The credential of the session has expired meanwhile.
		b.flow(c.addr).Username = old.Username
		if got := codeOf(b.send(c, b.signed(c, old.Username, string(old.Password), stun.MethodRefresh))); got != want {
			t.Errorf("refresh a minute after the end, grace %s: %d, want %d", grace, got, want)
		}
	}
}

// a credential is valid for the leeway after its expiry. The leeway is for an auth service whose clock is behind.
func TestExpiryHasLeeway(t *testing.T) {
	virtually(t, func(v *virtual) {
		p := policy()
		p.Authority.SharedSecret = "shared"
		v.Update(p, routes("127.0.0.1"))
		for after, want := range map[time.Duration]stun.ErrorCode{leeway: 0, leeway + time.Second: 401} {
			cred, err := p.Authority.Mint("ann", time.Minute, time.Now().Add(-time.Minute-after))
			if err != nil {
				t.Fatal(err)
			}
			c := newClient("192.0.2.1:" + fmt.Sprint(int(after.Seconds())))
			if got := codeOf(
				v.send(c, v.signed(c, cred.Username, string(cred.Password), stun.MethodAllocate, udp)),
			); got != want {
				t.Errorf("allocate %s after the end: %d, want %d", after, got, want)
			}
		}
	})
}
