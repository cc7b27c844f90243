package gate

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/stunmsg"
)

// T-12: beyond the capacity of the process an Allocate gets 508.
func TestSessionsAreBounded(t *testing.T) {
	b := newFixture(t)
	b.table.SetBounds(session.Bounds{Capacity: session.Amounts{session.RelayPorts: 2}})
	for i, want := range []stun.ErrorCode{0, 0, 508} {
		c := newClient(fmt.Sprintf("192.0.2.1:%d", 1000+i))
		if got := codeOf(b.send(c, b.signed(c, username, password, stun.MethodAllocate, udp))); got != want {
			t.Errorf("allocation %d: %d, want %d", i, got, want)
		}
	}
}

// T-A4: a retransmitted Allocate gets the same relayed address and creates no second session.
func TestRepeatedAllocateGetsTheSameAnswer(t *testing.T) {
	b, c := newFixture(t), newClient("192.0.2.1:1000")
	raw := b.signed(c, username, password, stun.MethodAllocate, udp)
	first, second := b.send(c, raw), b.send(c, raw)
	a, _ := first.Get(stun.AttrXORRelayedAddress)
	z, _ := second.Get(stun.AttrXORRelayedAddress)
	if codeOf(second) != 0 || string(a) != string(z) || b.table.Len() != 1 {
		t.Errorf("T-A4: %v, %d sessions", codeOf(second), b.table.Len())
	}
}

// T-A4, T-A15: a retransmitted Allocate is authenticated. Another user gets 441 without the relayed address, and a
// wrong password gets one 401.
func TestRepeatedAllocateOfAnotherUser(t *testing.T) {
	b, c := newFixture(t), newClient("192.0.2.1:1000")
	p := policy()
	p.Authority.SharedSecret = "sixteen bytes are"
	b.Update(p, routes())
	raw := b.signed(c, username, password, stun.MethodAllocate, udp)
	if code := codeOf(b.send(c, raw)); code != 0 {
		t.Fatal(code)
	}
	other, err := p.Authority.Mint("eve", time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	nonce := b.nonce(c)
	same := setter(func(m *stun.Message) error {
		copy(m.TransactionID[:], raw[8:20])
		m.WriteTransactionID()
		return nil
	})
	for _, tc := range []struct {
		user, pass string
		want       stun.ErrorCode
	}{{other.Username, string(other.Password), 441}, {username, "wrong", 401}, {username, password, 0}} {
		before := b.meter.Refusals()["wrong_password"]
		answer := b.send(c, b.build(same, request4(stun.MethodAllocate), udp, stun.NewUsername(tc.user), stun.NewRealm(
			realm,
		), nonce,
			stun.NewLongTermIntegrity(tc.user, realm, tc.pass)))
		if codeOf(answer) != tc.want || answer.Contains(stun.AttrXORRelayedAddress) != (tc.want == 0) {
			t.Errorf("%s: %d, want %d", tc.user, codeOf(answer), tc.want)
		}
		if n := b.meter.Refusals()["wrong_password"] - before; n > 1 {
			t.Errorf("%s: counted %d times", tc.user, n)
		}
	}
}

// T-12: reserved ports count against the quota of their user, have a quota of their own, and are closed with the
// allocation that requested them.
func TestReservedPortsGoWithTheirAllocation(t *testing.T) {
	virtually(t, func(v *virtual) {
		pair := stun.RawAttribute{Type: stun.AttrEvenPort, Length: 1, Value: []byte{0x80}}
		for i := range 50 {
			c := newClient(fmt.Sprint("192.0.2.1:", 1000+i))
			v.must(c, stun.MethodAllocate, udp, pair)
			v.must(c, stun.MethodRefresh, number(stun.AttrLifetime, 0))
		}
		if n := v.net.Len(); n != 0 {
			t.Errorf("a user without an allocation holds %d ports", n)
		}
		for i := range session.MaxReserved + 1 {
			code := stun.ErrorCode(0)
			if i == session.MaxReserved {
				code = 508
			}
			v.expect(code, newClient(fmt.Sprint("192.0.2.1:", 2000+i)), stun.MethodAllocate, udp, pair)
		}
		if n := v.net.Len(); n != 2*session.MaxReserved {
			t.Errorf("%d ports for %d allocations with a reserved one each", n, session.MaxReserved)
		}
		v.table.SetBounds(session.Bounds{UserSessions: 2 * session.MaxReserved})
		v.expect(486, newClient("192.0.2.1:3000"), stun.MethodAllocate, udp)
	})
}

// A RESERVATION-TOKEN is valid only for the user to which it was given (RFC 8656 §7.2).
func TestReservedPortIsForItsUser(t *testing.T) {
	virtually(t, func(v *virtual) {
		p := policy()
		p.Authority.SharedSecret = "sixteen bytes are"
		v.Update(p, routes())
		pair := stun.RawAttribute{Type: stun.AttrEvenPort, Length: 1, Value: []byte{0x80}}
		first, second := newClient("192.0.2.1:1000"), newClient("192.0.2.1:1001")
		value, err := v.send(first, v.signed(first, username, password, stun.MethodAllocate, udp, pair)).Get(
			stun.AttrReservationToken,
		)
		if err != nil {
			t.Fatal(err)
		}
		held := stun.RawAttribute{Type: stun.AttrReservationToken, Length: 8, Value: value}
		eve, err := p.Authority.Mint("eve", time.Hour, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if code := codeOf(
			v.send(second, v.signed(second, eve.Username, string(eve.Password), stun.MethodAllocate, udp, held)),
		); code != 508 {
			t.Errorf("another user: %d, want 508", code)
		}
		v.table.SetBounds(session.Bounds{UserSessions: 2})
		v.must(second, stun.MethodAllocate, udp, held) // the reserved port already counts as the second session
		if n := v.net.Len(); n != 2 {
			t.Errorf("%d ports, want 2", n)
		}
	})
}

// T-A7: EVEN-PORT gives an even port, with R=1 also a token. The token gives the next port, once.
func TestEvenPortAndReservation(t *testing.T) {
	b := newFixture(t)
	port := func(m *stun.Message) int {
		var a stun.XORMappedAddress
		if err := a.GetFromAs(m, stun.AttrXORRelayedAddress); err != nil {
			t.Fatal(err)
		}
		return a.Port
	}
	even := func(r byte) stun.Setter {
		return stun.RawAttribute{Type: stun.AttrEvenPort, Length: 1, Value: []byte{r}}
	}
	ask := func(c *client, attrs ...stun.Setter) *stun.Message {
		return b.send(c, b.signed(c, username, password, stun.MethodAllocate, append(attrs, udp)...))
	}
	alone := ask(newClient("192.0.2.1:1"), even(0))
	if codeOf(alone) != 0 || port(alone)%2 != 0 || alone.Contains(stun.AttrReservationToken) {
		t.Errorf("even port: %v", alone)
	}
	first := ask(newClient("192.0.2.1:2"), even(0x80))
	token, err := first.Get(stun.AttrReservationToken)
	if err != nil {
		t.Fatal("no token for R=1")
	}
	attr := stun.RawAttribute{Type: stun.AttrReservationToken, Length: 8, Value: token}
	if second := ask(newClient("192.0.2.1:3"), attr); codeOf(second) != 0 || port(second) != port(first)+1 {
		t.Errorf("reserved port: %v", second)
	}
	if third := ask(newClient("192.0.2.1:4"), attr); codeOf(third) != 508 {
		t.Errorf("token used twice: %v", codeOf(third))
	}
}

// T-A6: the granted lifetime of an allocation is between 600 s and 3,600 s.
func TestLifetimesAreClamped(t *testing.T) {
	for asked, want := range map[uint32]uint32{10: 600, 600: 600, 1800: 1800, 3600: 3600, 1 << 31: 3600} {
		b, c := newFixture(t), newClient("192.0.2.1:1000")
		answer := b.send(c, b.signed(c, username, password, stun.MethodAllocate, udp, number(stun.AttrLifetime, asked)))
		v, err := answer.Get(stun.AttrLifetime)
		if err != nil || binary.BigEndian.Uint32(v) != want {
			t.Errorf("T-A6: asked for %d: % x, %v", asked, v, err)
		}
	}
}

// T-A9, T-A10: a relay is available for the families of RelayAddrs, and for no other.
func TestRelayFamilies(t *testing.T) {
	v4, v6 := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1")
	wants := func(family byte) stun.Setter {
		return number(stun.AttrRequestedAddressFamily, uint32(family)<<24)
	}
	additional := number(stunmsg.AttrAdditionalFamily, stunmsg.FamilyIPv6<<24)
	cases := []struct {
		have []netip.Addr
		ask  stun.Setter
		code stun.ErrorCode
		want netip.Addr
	}{
		{[]netip.Addr{v4}, wants(stunmsg.FamilyIPv4), 0, v4}, {[]netip.Addr{v4}, wants(stunmsg.FamilyIPv6), 440, v6},
		{[]netip.Addr{v4}, wants(7), 440, v4},
		{[]netip.Addr{v4, v6}, wants(stunmsg.FamilyIPv6), 0, v6}, {[]netip.Addr{v4, v6}, udp, 0, v4},
		{[]netip.Addr{v6, v4}, udp, 0, v6},
		{[]netip.Addr{v6}, wants(stunmsg.FamilyIPv4), 440, v4}, {[]netip.Addr{v4, v6}, additional, 0, v4},
	}
	for i, tc := range cases {
		b, c := newFixture(t), newClient("192.0.2.1:1000")
		p := policy()
		p.RelayAddrs = tc.have
		b.Update(p, routes("127.0.0.1", "::1"))
		answer := b.send(c, b.signed(c, username, password, stun.MethodAllocate, udp, tc.ask))
		if codeOf(answer) != tc.code {
			t.Errorf("case %d: %d, want %d", i, codeOf(answer), tc.code)
			continue
		}
		if tc.code != 0 {
			continue
		}
		var got stun.XORMappedAddress
		if err := got.GetFromAs(answer, stun.AttrXORRelayedAddress); err != nil || !got.IP.Equal(tc.want.AsSlice()) {
			t.Errorf("case %d: relay %v, %v, want %s", i, got.IP, err, tc.want)
		}
		if tc.ask == additional && !answer.Contains(0x8001) {
			t.Errorf("case %d: no word about the second family", i)
		}
		peer := netip.AddrPortFrom(tc.want, 4000).String()
		if code := codeOf(
			b.send(c, b.signed(c, username, password, stun.MethodChannelBind, channel(0x4000), peerAt(peer))),
		); code != 0 {
			t.Errorf("case %d: channel to %s: %d", i, peer, code)
		}
	}
}
