package gate

import (
	"crypto/hmac"
	"crypto/sha1"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/cluster"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

const sharedSecret = "a shared secret of the gateway"

// media returns a view of two routes: media/a to the first endpoints, and media/b to the others.
func media(a []string, b ...string) *cluster.View {
	return cluster.NewView([]config.Cluster{
		{Name: "media/a", Type: config.Static, Endpoints: a}, {Name: "media/b", Type: config.Static, Endpoints: b},
	}, []string{"media/a", "media/b"})
}

// ofGateway returns a policy with a shared secret, for the gateway turn/edge.
func ofGateway() *Policy {
	p := policy()
	p.Authority.SharedSecret, p.Gateway = sharedSecret, "turn/edge"
	return p
}

// newMediaFixture returns a fixture with route media/a to 127.0.0.1 and 127.0.0.3, and media/b to 127.0.0.2 and
// 127.0.0.3.
func newMediaFixture(t testing.TB) fixture {
	b := newFixture(t)
	b.Update(ofGateway(), media([]string{"127.0.0.1", "127.0.0.3"}, "127.0.0.2", "127.0.0.3"))
	return b
}

// signedName returns the credential with the given user name.
func signedName(name string) credential.Credential {
	mac := hmac.New(sha1.New, []byte(sharedSecret))
	mac.Write([]byte(name))
	return credential.Credential{
		Username: name, Password: credential.Secret(base64.StdEncoding.EncodeToString(mac.Sum(nil))),
	}
}

// named returns the credential of ann with caveats in their text form. It expires in 2100, so that it is the same in
// each call.
func named(caveats string) credential.Credential {
	return signedName(fmt.Sprint(time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC).Unix(), ":ann", caveats))
}

// with makes a request with the given credential.
func (b fixture) with(c *client, cred credential.Credential, m stun.Method, attrs ...stun.Setter) *stun.Message {
	b.t.Helper()
	return b.send(c, b.signed(c, cred.Username, string(cred.Password), m, attrs...))
}

// allocates requires that a client gets an allocation with a credential.
func (b fixture) allocates(c *client, cred credential.Credential) {
	b.t.Helper()
	if got := codeOf(b.with(c, cred, stun.MethodAllocate, udp)); got != 0 {
		b.t.Fatalf("allocate with %s: %d", cred.Username, got)
	}
}

func (b fixture) refused(why meter.Reason) uint64 { return b.meter.Refusals()[why.String()] }
func (b fixture) dropped(why meter.Reason) uint64 { return b.meter.Drops()[why.String()] }

func TestCaveatsOfAnAllocate(t *testing.T) {
	in := func(d time.Duration) string { return fmt.Sprint(":~1~N", time.Now().Add(d).Unix()) }
	for _, c := range []struct {
		caveats string
		want    stun.ErrorCode
		reason  meter.Reason
	}{
		{"", 0, 0},
		{":~1~Rmedia_a", 0, 0},
		{":~1~Gturn_edge", 0, 0},
		{":~1~Gturn_edge~Rmedia_a~A1~S1~B1", 0, 0},
		{in(-time.Hour), 0, 0},
		{in(4 * time.Second), 0, 0}, // within the leeway
		{in(time.Minute), 401, meter.CaveatNotBefore},
		{":~1~Gturn_other", 401, meter.CaveatGateway},
		{":~1~Gother_edge", 401, meter.CaveatGateway},
		{":~1~A0", 401, meter.CaveatMalformed},
		{":~1~A1~A1", 401, meter.CaveatMalformed},
		{":~1~B18446744073709551617", 401, meter.CaveatMalformed},
		{":~1~A1:~1~Rmedia_a", 401, meter.CaveatMalformed},
		{":~1~X1", 403, meter.CaveatUnknown},
		{":~2~A1", 403, meter.CaveatUnknown},
		{":~1~X1~Gturn_other", 403, meter.CaveatUnknown},
	} {
		b, client := newMediaFixture(t), newClient("192.0.2.1:1000")
		cred := named(c.caveats)
		answer := b.with(client, cred, stun.MethodAllocate, udp)
		if got := codeOf(answer); got != c.want || c.want != 0 && b.refused(c.reason) != 1 {
			t.Errorf("%q: %d, refusals %v; want %d %s", c.caveats, got, b.meter.Refusals(), c.want, c.reason)
		}
		// A client verifies any answer but a 401 (RFC 8489 §9.2.5).
		key := stun.NewLongTermIntegrity(cred.Username, realm, string(cred.Password))
		if signed := key.Check(answer) == nil; signed != (c.want != 401) {
			t.Errorf("%q: answer with MESSAGE-INTEGRITY: %v", c.caveats, signed)
		}
		if s := b.table.All(); c.want == 0 && (len(s) != 1 || s[0].UserID != "ann") {
			t.Errorf("%q: sessions %v", c.caveats, s)
		}
		// If the password is wrong, the answer does not disclose the error in the caveats.
		if got := codeOf(b.with(newClient("192.0.2.2:1000"), credential.Credential{
			Username: cred.Username, Password: "guess",
		}, stun.MethodAllocate, udp)); got != 401 || b.refused(meter.WrongPassword) != 1 {
			t.Errorf("%q with a wrong password: %d, %v", c.caveats, got, b.meter.Refusals())
		}
	}
}

// With a credential, only the peers of its routes are reachable: by permissions, channels and Send indications.
func TestCaveatOfRoutes(t *testing.T) {
	for _, c := range []struct {
		caveats string
		// reached are the peers at 127.0.0.x that the credential reaches.
		reached string
	}{
		{"", "1 2 3"}, {":~1~A9", "1 2 3"}, {":~1~Rmedia_a", "1 3"}, {":~1~Rmedia_b", "2 3"},
		{":~1~Rmedia_a~Rmedia_b", "1 2 3"}, {":~1~Rmedia_c", ""}, {":~1~Rother_a", ""},
		{":~1~Rmedia_c~Rmedia_b", "2 3"},
	} {
		b, client := newMediaFixture(t), newClient("192.0.2.1:1000")
		cred := named(c.caveats)
		b.allocates(client, cred)
		for i := range uint32(4) {
			host := fmt.Sprint("127.0.0.", i+1)
			reached := strings.Contains(c.reached, fmt.Sprint(i+1))
			want, why := stun.ErrorCode(0), meter.CaveatRoute
			if !reached {
				want = 403
			}
			if i == 3 { // no route
				why = meter.PeerDenied
			}
			before := b.refused(why)
			if got := codeOf(b.with(client, cred, stun.MethodCreatePermission, peerAt(host+":4000"))); got != want {
				t.Errorf("%q: permission for %s: %d, want %d", c.caveats, host, got, want)
			}
			bind := []stun.Setter{channel(0x4000 + i), peerAt(host + ":4000")}
			if got := codeOf(b.with(client, cred, stun.MethodChannelBind, bind...)); got != want {
				t.Errorf("%q: channel to %s: %d, want %d", c.caveats, host, got, want)
			}
			if got := b.refused(why) - before; !reached && got != 2 {
				t.Errorf("%q: %s: %d refusals with reason %s", c.caveats, host, got, why)
			}
			sent := b.flow(client.addr).Traffic.Tx.Packets.Load()
			b.sends(client, peerAt(host+":4000"), data("x"))
			if got := b.flow(client.addr).Traffic.Tx.Packets.Load() - sent; (got == 1) != reached {
				t.Errorf("%q: %d datagrams to %s", c.caveats, got, host)
			}
			if !reached && b.dropped(why) == 0 {
				t.Errorf("%q: drops %v", c.caveats, b.meter.Drops())
			}
		}
		// The list of denied peers is about routes. It does not contain peers that a caveat denies.
		for _, d := range b.table.Denied(time.Time{}, time.Now()) {
			if d.Peer.Addr() != netip.MustParseAddr("127.0.0.4") {
				t.Errorf("%q: denied %v", c.caveats, d.Peer)
			}
		}
	}
}

// When the endpoints of the named route change, media stops in both directions, even if another route gets these
// endpoints. It continues when the endpoints are restored.
func TestCaveatOfRoutesWhenEndpointsChange(t *testing.T) {
	peer, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	address := peer.LocalAddr().(*net.UDPAddr).AddrPort()
	b, c := newMediaFixture(t), newClient("192.0.2.1:1000")
	cred := named(":~1~Rmedia_a")
	b.allocates(c, cred)
	if got := codeOf(b.with(c, cred, stun.MethodChannelBind, channel(0x4000), peerAt(address.String()))); got != 0 {
		t.Fatalf("channel: %d", got)
	}
	r := b.Relay(c.addr)
	frame := []byte{0x40, 0, 0, 1, 'x'}
	// passes reports whether a datagram of the client arrives, and whether a datagram of the peer is counted as
	// received.
	passes := func() (up, down bool) {
		t.Helper()
		sent := r.Session().Traffic.Tx.Packets.Load()
		r.FromClient(frame)
		up = r.Session().Traffic.Tx.Packets.Load() == sent+1
		received, refused := r.Session().Traffic.Rx.Packets.Load(), b.dropped(meter.CaveatRoute)
		if _, err := peer.WriteToUDPAddrPort([]byte("y"), r.Session().Relay); err != nil {
			t.Fatal(err)
		}
		for range 1000 {
			if r.Session().Traffic.Rx.Packets.Load() > received {
				return up, true
			}
			if b.dropped(meter.CaveatRoute) > refused {
				return up, false
			}
			time.Sleep(5 * time.Millisecond) // the counters have no event to wait for
		}
		t.Fatalf("the datagram of the peer is neither delivered nor dropped: %v", b.meter.Drops())
		return up, false
	}
	for i, step := range []struct {
		routes *cluster.View
		pass   bool
	}{
		{media([]string{"127.0.0.1"}, "127.0.0.2"), true},
		{media([]string{"127.0.0.9"}, "127.0.0.1"), false},
		{media([]string{"127.0.0.1"}, "127.0.0.1"), true},
		{media(nil, "127.0.0.1"), false},
		{media([]string{"127.0.0.1"}), true},
	} {
		b.Update(ofGateway(), step.routes)
		if up, down := passes(); up != step.pass || down != step.pass {
			t.Errorf("step %d: up %v, down %v, want %v", i, up, down, step.pass)
		}
	}
}

// A session keeps its caveats: another credential of its user is refused, whether it has fewer or more.
func TestSessionKeepsItsCaveats(t *testing.T) {
	b, c := newMediaFixture(t), newClient("192.0.2.1:1000")
	first := named(":~1~Rmedia_a")
	b.allocates(c, first)
	for _, caveats := range []string{"", ":~1~A9", ":~1~Rmedia_a~Rmedia_b", ":~1~Rmedia_a~A1", ":~1~Rmedia_b"} {
		other := named(caveats)
		for method, attrs := range map[stun.Method][]stun.Setter{
			stun.MethodRefresh:          nil,
			stun.MethodCreatePermission: {peerAt("127.0.0.2:4000")},
			stun.MethodChannelBind:      {channel(0x4000), peerAt("127.0.0.2:4000")},
		} {
			if got := codeOf(b.with(c, other, method, attrs...)); got != 441 {
				t.Errorf("%s with %q: %d, want 441", method, caveats, got)
			}
		}
		if got := b.flow(c.addr).Caveats; !reflect.DeepEqual(got, credential.Caveats{Routes: []string{"media/a"}}) {
			t.Fatalf("caveats %+v", got)
		}
		if got := codeOf(b.with(c, first, stun.MethodCreatePermission, peerAt("127.0.0.2:4000"))); got != 403 {
			t.Errorf("after %q the first credential gets %d", caveats, got)
		}
	}
	if got := codeOf(b.with(c, first, stun.MethodRefresh)); got != 0 {
		t.Errorf("refresh: %d", got)
	}
}

// The lower of user_quota and the caveat applies. Reserved ports count.
func TestCaveatOfAllocations(t *testing.T) {
	for _, c := range []struct {
		caveats string
		quota   int
		want    int
		reason  meter.Reason
	}{
		{":~1~A2", 0, 2, meter.CaveatAllocations},
		{":~1~A2", 3, 2, meter.CaveatAllocations},
		{":~1~A3", 2, 2, meter.Quota},
		{":~1~A2", 2, 2, meter.Quota},
		{"", 3, 3, meter.Quota},
	} {
		b := newMediaFixture(t)
		b.table.SetBounds(session.Bounds{UserSessions: c.quota})
		cred := named(c.caveats)
		for i := range c.want {
			b.allocates(newClient(fmt.Sprint("192.0.2.1:", 1000+i)), cred)
		}
		last := newClient("192.0.2.1:2000")
		if got := codeOf(b.with(last, cred, stun.MethodAllocate, udp)); got != 486 || b.refused(c.reason) != 1 {
			t.Errorf("%q with quota %d: %d, %v", c.caveats, c.quota, got, b.meter.Refusals())
		}
		if got := codeOf(b.with(newClient("192.0.2.1:1000"), cred, stun.MethodRefresh, lifetime(0))); got != 0 {
			t.Fatalf("end: %d", got)
		}
		b.allocates(last, cred)
	}
	b, wide, narrow := newMediaFixture(t), named(""), named(":~1~A2")
	c := newClient("192.0.2.1:1000")
	answer := b.with(c, wide, stun.MethodAllocate, udp, stun.RawAttribute{Type: stun.AttrEvenPort, Value: []byte{0x80}})
	reserved, err := answer.Get(stun.AttrReservationToken)
	if err != nil {
		t.Fatal(err)
	}
	b.allocates(newClient("192.0.2.1:1001"), wide)
	token := stun.RawAttribute{Type: stun.AttrReservationToken, Value: reserved}
	if got := codeOf(b.with(newClient("192.0.2.1:1002"), narrow, stun.MethodAllocate, udp, token)); got != 486 {
		t.Errorf("a third allocation, with a reserved port: %d, want 486", got)
	}
}

// All sessions of a credential share its bytes, in both directions. The datagram that exceeds them is dropped, its
// session ends, and no further session begins.
func TestCaveatOfBytes(t *testing.T) {
	b, cred, other := newMediaFixture(t), named(":~1~B1000"), named(":~1~B1001")
	first, second := newClient("192.0.2.1:1000"), newClient("192.0.2.1:1001")
	for _, c := range []*client{first, second} {
		b.allocates(c, cred)
		if got := codeOf(b.with(c, cred, stun.MethodChannelBind, channel(0x4000), peerAt("127.0.0.1:4000"))); got != 0 {
			t.Fatalf("channel: %d", got)
		}
	}
	frame := append([]byte{0x40, 0, 1, 0x90}, make([]byte, 400)...)
	one, two := b.Relay(first.addr), b.Relay(second.addr)
	one.FromClient(frame)
	two.FromClient(frame)
	if got := one.Session().Traffic.Tx.Bytes.Load() + two.Session().Traffic.Tx.Bytes.Load(); got != 800 {
		t.Fatalf("%d bytes sent, want 800", got)
	}
	var o relay.Outbox // one batch: the datagrams that fit are sent before the session ends
	o.Add(one, append([]byte{0x40, 0, 0, 200}, make([]byte, 200)...), time.Now())
	o.Add(one, []byte{0x40, 0, 0, 1, 'x'}, time.Now())
	o.Flush(time.Now())
	if got := one.Session().Traffic.Tx.Bytes.Load(); got != 600 || !one.Closed() || two.Closed() {
		t.Errorf("%d bytes, ended: %v and %v", got, one.Closed(), two.Closed())
	}
	two.FromClient(frame)
	if !two.Closed() || b.dropped(meter.CaveatBytes) != 2 || b.table.Len() != 0 {
		t.Errorf("drops %v, %d sessions", b.meter.Drops(), b.table.Len())
	}
	if got := codeOf(b.with(first, cred, stun.MethodRefresh)); got != 437 {
		t.Errorf("refresh: %d, want 437", got)
	}
	if got := codeOf(b.with(first, cred, stun.MethodAllocate, udp)); got != 486 || b.refused(meter.CaveatBytes) != 1 {
		t.Errorf("allocate again: %d, %v", got, b.meter.Refusals())
	}
	b.allocates(first, other)
}

// Bytes of Send indications and of datagrams of peers count too.
func TestCaveatOfBytesCountsBothDirections(t *testing.T) {
	peer, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	address := peer.LocalAddr().(*net.UDPAddr).AddrPort()
	for name, bind := range map[string]bool{"channel": true, "data indications": false} {
		t.Run(name, func(t *testing.T) {
			b, c, cred := newMediaFixture(t), newClient("192.0.2.1:1000"), named(":~1~B500")
			b.allocates(c, cred)
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				for changed := b.table.Changed(); b.table.Len() > 0; changed = b.table.Changed() {
					<-changed
				}
			}()
			method, attrs := stun.MethodCreatePermission, []stun.Setter{peerAt(address.String())}
			if bind {
				method, attrs = stun.MethodChannelBind, append(attrs, channel(0x4000))
			}
			if got := codeOf(b.with(c, cred, method, attrs...)); got != 0 {
				t.Fatalf("%s: %d", method, got)
			}
			s := b.Relay(c.addr).Session()
			b.sends(c, peerAt(address.String()), data(strings.Repeat("x", 300)))
			for range 3 {
				if _, err := peer.WriteToUDPAddrPort(make([]byte, 100), s.Relay); err != nil {
					t.Fatal(err)
				}
			}
			<-ended
			if tx, rx := s.Traffic.Tx.Bytes.Load(), s.Traffic.Rx.Bytes.Load(); tx != 300 || rx != 200 {
				t.Errorf("%d bytes to the peer and %d from it, want 300 and 200", tx, rx)
			}
			if got := b.dropped(meter.CaveatBytes); got != 1 {
				t.Errorf("drops %v", b.meter.Drops())
			}
		})
	}
}

// The lower one of session_byte_rate and the caveat applies, for each direction.
func TestCaveatOfRate(t *testing.T) {
	virtually(t, func(v *virtual) {
		for _, c := range []struct {
			caveats string
			rate    int64
			want    uint64 // in 10 s, with a burst of 250 ms
			reason  meter.Reason
		}{
			{":~1~S10000", 0, 10_000, meter.CaveatRate}, {":~1~S10000", 50_000, 10_000, meter.CaveatRate},
			{":~1~S10000", 5_000, 5_000, meter.ByteRate},
		} {
			p := ofGateway()
			v.Update(p, media([]string{"127.0.0.1"}))
			v.table.SetBounds(session.Bounds{SessionRate: c.rate})
			client, cred := newClient("192.0.2.1:1000"), named(c.caveats)
			v.allocates(client, cred)
			if got := codeOf(v.with(client, cred, stun.MethodCreatePermission, peerAt("127.0.0.1:4000"))); got != 0 {
				t.Fatalf("permission: %d", got)
			}
			s := v.Relay(client.addr).Session()
			for range 1000 {
				v.sends(client, peerAt("127.0.0.1:4000"), data(strings.Repeat("x", 300)))
				time.Sleep(10 * time.Millisecond) // virtual
			}
			got, most := s.Traffic.Tx.Bytes.Load()/10, c.want+c.want/20
			if got < c.want*95/100 || got > most || v.dropped(c.reason) == 0 {
				t.Errorf("%s with %d: %d bytes a second, %v", c.caveats, c.rate, got, v.meter.Drops())
			}
			v.Disconnected(client)
		}
	})
}

// Sessions with a byte limit are not forwarded in the kernel.
func TestCaveatsOfBytesKeepASessionInUserSpace(t *testing.T) {
	for caveats, want := range map[string]bool{
		"": false, ":~1~Rmedia_a": false, ":~1~A1": false, ":~1~S1": true, ":~1~B1": true,
	} {
		b, c := newMediaFixture(t), newClient("192.0.2.1:1000")
		b.allocates(c, named(caveats))
		if got := b.flow(c.addr).BytesLimited(); got != want {
			t.Errorf("%q: %v, want %v", caveats, got, want)
		}
	}
}

// A restored session has the caveats of its user name. A session with caveats that this release does not accept is not
// restored.
func TestRestoredSessionKeepsItsCaveats(t *testing.T) {
	withJournal(t, func(s *stored) {
		s.Update(ofGateway(), media([]string{"127.0.0.1"}, "127.0.0.2"))
		c, cred := newClient("192.0.2.1:1000"), named(":~1~Rmedia_a~A1")
		s.allocates(c, cred)
		if got := codeOf(s.with(c, cred, stun.MethodChannelBind, channel(0x4000), peerAt("127.0.0.1:4000"))); got != 0 {
			t.Fatalf("channel: %d", got)
		}
		s = s.killed(c)
		s.Update(ofGateway(), media([]string{"127.0.0.1"}, "127.0.0.2"))
		f := s.flow(c.addr)
		if f == nil || f.UserID != "ann" || f.Caveats.String() != "~1~Rmedia_a~A1" {
			t.Fatalf("restored: %+v", f)
		}
		for _, r := range []struct {
			method stun.Method
			peer   string
			want   stun.ErrorCode
		}{
			{stun.MethodCreatePermission, "127.0.0.1:4000", 0}, {stun.MethodCreatePermission, "127.0.0.2:4000", 403},
		} {
			if got := codeOf(s.with(c, cred, r.method, peerAt(r.peer))); got != r.want {
				t.Errorf("%s %s: %d, want %d", r.method, r.peer, got, r.want)
			}
		}
		if got := codeOf(s.with(newClient("192.0.2.1:1001"), cred, stun.MethodAllocate, udp)); got != 486 {
			t.Errorf("second allocation: %d, want 486", got)
		}
	})
	for name, want := range map[string]error{
		"2000000000:ann:~1~Rmedia_a:x": credential.ErrCaveatMalformed, "2000000000:ann:~1~X1": credential.ErrCaveatUnknown,
		"2000000000:ann:~1~Rmedia_a": nil, "2000000000:ann": nil, "static": nil,
	} {
		// In the journal of a release without caveats, the user id is everything after the expiry.
		id := strings.TrimPrefix(name, "2000000000:")
		got, err := nameOf(&session.Record{Username: name, UserID: id})
		if !errors.Is(err, want) || err == nil && got.UserID != strings.Split(id, ":")[0] {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	const static = "2000000000:ann:~1~Rmedia_a" // a static user name is not split
	if got, err := nameOf(&session.Record{Username: static, UserID: static}); err != nil || !got.Caveats.IsZero() ||
		got.UserID != static {
		t.Errorf("static name: %+v, %v", got, err)
	}
}

var marker = regexp.MustCompile(`(^|:)~[0-9]+~`)

// mayReachB is the model: a user name reaches route media/b if no field begins a caveat, or if its last field names
// media/b or no route.
func mayReachB(name string) bool {
	if !marker.MatchString(name) {
		return true
	}
	last := name[strings.LastIndex(name, ":")+1:]
	return regexp.MustCompile(`^~1~(.*~)?Rmedia_b(~|$)`).MatchString(last) || !strings.Contains(last, "~R")
}

// 10,000 randomly changed and signed user names reach no peer that the model does not allow.
func TestMutatedNamesDoNotWiden(t *testing.T) {
	b, r := newMediaFixture(t), rand.New(rand.NewPCG(3, 4))
	b.Update(ofGateway(), media([]string{"127.0.0.1"}, "127.0.0.2"))
	parts := []string{"~", ":", "_", "~1~", ":~1~", "~R", "~A9", "b", "0", "9", "a", "A", "/", "é", "-", ".", "media_", "~X1"}
	accepted, limited := 0, 0
	for i := range 10_000 {
		name := fmt.Sprint(time.Now().Add(time.Hour).Unix(), ":ann:~1~Rmedia_a~A9")
		for range r.IntN(5) {
			at := r.IntN(len(name) + 1)
			name = name[:at] + parts[r.IntN(len(parts))] + name[min(len(name), at+r.IntN(4)):]
		}
		if strings.ContainsRune(name, 0) || len(name) == 0 {
			continue
		}
		c := newClient(fmt.Sprintf("198.18.%d.%d:1000", i/250, i%250))
		cred := signedName(name)
		if codeOf(b.with(c, cred, stun.MethodAllocate, udp)) != 0 {
			continue
		}
		accepted++
		want := mayReachB(name)
		if !want {
			limited++
		}
		got := codeOf(b.with(c, cred, stun.MethodCreatePermission, peerAt("127.0.0.2:4000")))
		if got != 0 && got != 403 || got == 0 && !want {
			t.Errorf("%q: permission for a peer of media/b: %d", name, got)
		}
		if id := b.flow(c.addr).UserID; !want && marker.MatchString(id) {
			t.Errorf("%q: user id %q", name, id)
		}
		b.Disconnected(c)
	}
	if accepted < 1000 || limited < 500 {
		t.Errorf("the test shows little: %d names accepted, %d of them limited", accepted, limited)
	}
}
