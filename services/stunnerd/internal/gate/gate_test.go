package gate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/pion/stun/v2"
	"go.uber.org/goleak"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/cluster"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/engine/pionturn"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/limit"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/nonce"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/stunmsg"
)

// G-02: no test of the package leaves a goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// client is a transport that keeps what it is sent.
type client struct {
	addr   netip.AddrPort
	frames chan []byte
	// meanwhile happens while the next frame is on its way.
	meanwhile func()
}

func newClient(addr string) *client {
	return &client{addr: netip.MustParseAddrPort(addr), frames: make(chan []byte, 64)}
}

func (c *client) Send(frame []byte) error {
	if f := c.meanwhile; f != nil {
		c.meanwhile = nil
		f()
	}
	c.frames <- append([]byte(nil), frame...)
	return nil
}

func (c *client) Addr() netip.AddrPort { return c.addr }
func (c *client) Connected() bool      { return false }
func (c *client) Admitted() error      { return nil }
func (c *client) Released()            {}

// bed is a gate with one route, to 127.0.0.1:<4000-4999>.
type bed struct {
	*Gate
	t testing.TB
}

const (
	username = "ann"
	password = "first"
	realm    = "test.example"
)

func newBed(t testing.TB) bed {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	engine, err := pionturn.New(1, log)
	if err != nil {
		t.Fatal(err)
	}
	nonces, err := nonce.New()
	if err != nil {
		t.Fatal(err)
	}
	held := relay.NewReservations()
	g := New("test", config.TURNUDP, Shared{Engine: engine, Nonces: nonces, Network: relay.Kernel{}, Held: held, Limits: limit.NewProcess(), Table: session.NewTable(), Meter: meter.New(), Log: log})
	g.Update(policy(), routes("127.0.0.1:<4000-4999>"))
	t.Cleanup(func() {
		g.Close()
		if err := errors.Join(held.Close(), engine.Close()); err != nil {
			t.Error(err)
		}
	})
	return bed{g, t}
}

func policy() *Policy {
	return &Policy{
		Authority:  credential.Authority{Realm: realm, Username: username, Password: password},
		RelayAddrs: []netip.Addr{netip.MustParseAddr("127.0.0.1")},
	}
}

func routes(endpoints ...string) *cluster.View {
	return cluster.NewView([]config.Cluster{{Name: "c", Type: config.Static, Endpoints: endpoints}}, []string{"c"})
}

// send passes raw bytes through the gate and returns the answer, nil for silence. The gate answers before Receive returns.
func (b bed) send(c *client, raw []byte) *stun.Message {
	b.t.Helper()
	b.Receive(raw, c)
	select {
	case frame := <-c.frames:
		m := &stun.Message{Raw: frame}
		if err := m.Decode(); err != nil {
			b.t.Fatalf("answer does not parse: %v", err)
		}
		return m
	default:
		return nil
	}
}

func (b bed) build(setters ...stun.Setter) []byte {
	b.t.Helper()
	m, err := stun.Build(append([]stun.Setter{stun.TransactionID}, setters...)...)
	if err != nil {
		b.t.Fatal(err)
	}
	return m.Raw
}

func request4(method stun.Method) stun.MessageType { return stun.NewType(method, stun.ClassRequest) }

// nonce gets a nonce from a challenge.
func (b bed) nonce(c *client) stun.Nonce {
	b.t.Helper()
	challenge := b.send(c, b.build(request4(stun.MethodAllocate), udp))
	nonce, err := challenge.Get(stun.AttrNonce)
	if err != nil {
		b.t.Fatal(err)
	}
	return nonce
}

// signed builds a request with a user's credential.
func (b bed) signed(c *client, user, pass string, method stun.Method, attrs ...stun.Setter) []byte {
	b.t.Helper()
	setters := append([]stun.Setter{request4(method)}, attrs...)
	setters = append(setters, stun.NewUsername(user), stun.NewRealm(realm), b.nonce(c),
		stun.NewLongTermIntegrity(user, realm, pass), stun.Fingerprint)
	return b.build(setters...)
}

func (b bed) allocate(c *client) {
	b.t.Helper()
	if got := b.send(c, b.signed(c, username, password, stun.MethodAllocate, udp)); codeOf(got) != 0 {
		b.t.Fatalf("allocate: %v", codeOf(got))
	}
}

// codeOf is the error code of an answer, 0 for success and -1 for silence.
func codeOf(m *stun.Message) stun.ErrorCode {
	if m == nil {
		return -1
	}
	var code stun.ErrorCodeAttribute
	if code.GetFrom(m) != nil {
		return 0
	}
	return code.Code
}

var udp = number(stun.AttrRequestedTransport, 17<<24)

func peerAt(addr string) stunmsg.Address {
	return addressAttr(stun.AttrXORPeerAddress, netip.MustParseAddrPort(addr))
}

func number(t stun.AttrType, n uint32) stunmsg.Number { return stunmsg.Number{Type: t, Value: n} }

func addressAttr(t stun.AttrType, a netip.AddrPort) stunmsg.Address {
	return stunmsg.Address{Type: t, Addr: a}
}

func channel(n uint32) stunmsg.Number { return number(stun.AttrChannelNumber, n<<16) }

// S-04, T-A2, T-A3, T-A5, T-A8, T-A9, T-A10, T-A11, T-A12, T-A14: each rule of admit.go for Allocate and Refresh has its error code.
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
		"allocate":                          {none, stun.MethodAllocate, []stun.Setter{udp}, 0},
		"allocate without transport":        {none, stun.MethodAllocate, nil, 400},
		"allocate over TCP to the peer":     {none, stun.MethodAllocate, []stun.Setter{number(stun.AttrRequestedTransport, 6<<24)}, 442},
		"allocate over nothing known":       {none, stun.MethodAllocate, []stun.Setter{number(stun.AttrRequestedTransport, 99<<24)}, 442},
		"allocate without fragments":        {none, stun.MethodAllocate, []stun.Setter{udp, stun.RawAttribute{Type: stun.AttrDontFragment}}, 420},
		"allocate an IPv6 relay":            {none, stun.MethodAllocate, []stun.Setter{udp, number(stun.AttrRequestedAddressFamily, 2<<24)}, 440},
		"allocate an IPv4 relay":            {none, stun.MethodAllocate, []stun.Setter{udp, number(stun.AttrRequestedAddressFamily, 1<<24)}, 0},
		"allocate a second time":            {some, stun.MethodAllocate, []stun.Setter{udp}, 437},
		"unknown attribute":                 {none, stun.MethodAllocate, []stun.Setter{udp, number(0x7777, 0)}, 420},
		"refresh without allocation":        {none, stun.MethodRefresh, nil, 437},
		"refresh":                           {some, stun.MethodRefresh, nil, 0},
		"refresh for another family":        {some, stun.MethodRefresh, []stun.Setter{number(stun.AttrRequestedAddressFamily, 2<<24)}, 443},
		"permission without allocation":     {none, stun.MethodCreatePermission, []stun.Setter{peer}, 437},
		"permission":                        {some, stun.MethodCreatePermission, []stun.Setter{peer}, 0},
		"permission on a port off route":    {some, stun.MethodCreatePermission, []stun.Setter{peerAt("127.0.0.1:9")}, 0},
		"permission without peer":           {some, stun.MethodCreatePermission, nil, 400},
		"permission without route":          {some, stun.MethodCreatePermission, []stun.Setter{denied}, 403},
		"permission, one of two denied":     {some, stun.MethodCreatePermission, []stun.Setter{peer, denied}, 403},
		"permission of another family":      {some, stun.MethodCreatePermission, []stun.Setter{peerAt("[2001:db8::1]:4000")}, 443},
		"permission in IPv6 clothes":        {some, stun.MethodCreatePermission, []stun.Setter{disguised("127.0.0.1", 4000)}, 443},
		"channel without allocation":        {none, stun.MethodChannelBind, []stun.Setter{channel(0x4000), peer}, 437},
		"channel":                           {some, stun.MethodChannelBind, []stun.Setter{channel(0x4000), peer}, 0},
		"channel number of RFC 5766":        {some, stun.MethodChannelBind, []stun.Setter{channel(0x7FFF), peer}, 0},
		"channel number too low":            {some, stun.MethodChannelBind, []stun.Setter{channel(0x3FFF), peer}, 400},
		"channel number too high":           {some, stun.MethodChannelBind, []stun.Setter{channel(0x8000), peer}, 400},
		"channel without number":            {some, stun.MethodChannelBind, []stun.Setter{peer}, 400},
		"channel without peer":              {some, stun.MethodChannelBind, []stun.Setter{channel(0x4000)}, 400},
		"channel without route":             {some, stun.MethodChannelBind, []stun.Setter{channel(0x4000), denied}, 403},
		"channel to a port outside routes":  {some, stun.MethodChannelBind, []stun.Setter{channel(0x4000), peerAt("127.0.0.1:9")}, 403},
		"token with even port":              {none, stun.MethodAllocate, []stun.Setter{udp, evenPort, token}, 400},
		"token that was never given":        {none, stun.MethodAllocate, []stun.Setter{udp, token}, 508},
		"additional family without meaning": {none, stun.MethodAllocate, []stun.Setter{udp, number(stunmsg.AttrAdditionalFamily, 1<<24)}, 400},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			b, c := newBed(t), newClient("192.0.2.1:1000")
			if tc.allocated {
				b.allocate(c)
			}
			answer := b.send(c, b.signed(c, username, password, tc.method, tc.attrs...))
			if got := codeOf(answer); got != tc.want {
				t.Fatalf("code %d, want %d", got, tc.want)
			}
			// Whoever is known gets signed answers (RFC 8489 §9.2.4).
			if stun.NewLongTermIntegrity(username, realm, password).Check(answer) != nil {
				t.Error("answer is not signed")
			}
			if stun.Fingerprint.Check(answer) != nil {
				t.Error("answer to a request with FINGERPRINT has none, or a wrong one")
			}
		})
	}
}

var (
	evenPort = stun.RawAttribute{Type: stun.AttrEvenPort, Length: 1, Value: []byte{0}}
	token    = stun.RawAttribute{Type: stun.AttrReservationToken, Length: 8, Value: []byte("12345678")}
)

// disguised is an IPv4 address written as IPv6, which pion/stun would undo.
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

// C-02: a number that is bound to another peer gives 400, and so does a peer that is bound to another number; the same pair is a success.
func TestChannelsAreOneToOne(t *testing.T) {
	b, c := newBed(t), newClient("192.0.2.1:1000")
	b.allocate(c)
	bind := func(n uint32, peer string) stun.ErrorCode {
		return codeOf(b.send(c, b.signed(c, username, password, stun.MethodChannelBind, channel(n), peerAt(peer))))
	}
	for _, step := range []struct {
		n    uint32
		peer string
		want stun.ErrorCode
	}{
		{0x4000, "127.0.0.1:4000", 0}, {0x4000, "127.0.0.1:4000", 0},
		{0x4000, "127.0.0.1:4001", 400}, {0x4001, "127.0.0.1:4000", 400}, {0x4001, "127.0.0.1:4001", 0},
	} {
		if got := bind(step.n, step.peer); got != step.want {
			t.Errorf("bind %#x to %s: %d, want %d", step.n, step.peer, got, step.want)
		}
	}
}

// T-12: an allocation holds so many permissions and no more.
func TestPermissionsAreBounded(t *testing.T) {
	b, c := newBed(t), newClient("192.0.2.1:1000")
	b.Update(policy(), routes("10.0.0.0/8"))
	b.allocate(c)
	permit := func(i int) stun.ErrorCode {
		return codeOf(b.send(c, b.signed(c, username, password, stun.MethodCreatePermission, peerAt(tenNet(i).String()))))
	}
	for i := range MaxPermissions {
		if got := permit(i); got != 0 {
			t.Fatalf("permission %d: %d", i, got)
		}
	}
	if got := permit(MaxPermissions); got != 508 {
		t.Errorf("one more: %d, want 508", got)
	}
	if got := permit(7); got != 0 {
		t.Errorf("refresh of a permission: %d", got)
	}
}

func tenNet(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 1)
}

// T-12: an expired permission does not count against the bound of an allocation.
func TestExpiredPermissionsMakeRoom(t *testing.T) {
	var p permissions
	now := time.Now()
	for i := range MaxPermissions {
		p.grant([]netip.AddrPort{tenNet(i)}, now)
	}
	more := []netip.AddrPort{tenNet(MaxPermissions)}
	if p.room(more, now.Add(permissionLifetime)) {
		t.Error("a permission made room before it expired")
	}
	if !p.room(more, now.Add(permissionLifetime+1)) {
		t.Error("an expired permission makes no room")
	}
}

// T-12: a process that carries as much as it can says so.
func TestSessionsAreBounded(t *testing.T) {
	b := newBed(t)
	b.table.SetBounds(session.Bounds{Capacity: 2})
	for i, want := range []stun.ErrorCode{0, 0, 508} {
		c := newClient(fmt.Sprintf("192.0.2.1:%d", 1000+i))
		if got := codeOf(b.send(c, b.signed(c, username, password, stun.MethodAllocate, udp))); got != want {
			t.Errorf("allocation %d: %d, want %d", i, got, want)
		}
	}
}

// wrong credentials get 401, incomplete ones 400, and a nonce of another address gets 438.
func TestCredentials(t *testing.T) {
	b, c := newBed(t), newClient("192.0.2.1:1000")
	wrong := b.send(c, b.signed(c, username, "wrong", stun.MethodAllocate, udp))
	unknown := b.send(c, b.signed(c, "bob", password, stun.MethodAllocate, udp))
	empty := b.send(c, b.signed(c, "bob", "", stun.MethodAllocate, udp))
	for _, answer := range []*stun.Message{wrong, unknown, empty} {
		if codeOf(answer) != 401 || !answer.Contains(stun.AttrNonce) || !answer.Contains(stun.AttrRealm) || len(answer.Raw) != len(wrong.Raw) {
			t.Errorf("A-02: %v, %d bytes", codeOf(answer), len(answer.Raw))
		}
	}
	if got := codeOf(b.send(c, b.build(request4(stun.MethodAllocate), udp, stun.NewLongTermIntegrity(username, realm, password)))); got != 400 {
		t.Errorf("A-03: MESSAGE-INTEGRITY alone: %d", got)
	}
	if got := codeOf(b.send(c, b.signed(c, strings.Repeat("x", 508), password, stun.MethodAllocate, udp))); got != 401 {
		t.Errorf("A-09: longest user name: %d", got)
	}
	other := newClient("192.0.2.2:1000")
	stale := b.send(c, b.build(request4(stun.MethodAllocate), udp, stun.NewUsername(username), stun.NewRealm(realm), b.nonce(other),
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
	b, c := newBed(t), newClient("192.0.2.1:1000")
	p := policy()
	p.Authority.SharedSecret = "shared"
	b.Update(p, routes("127.0.0.1:<4000-4999>"))
	b.allocate(c)
	other, err := p.Authority.Mint("eve", time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	zero := number(stun.AttrLifetime, 0)
	if got := codeOf(b.send(c, b.signed(c, other.Username, string(other.Password), stun.MethodRefresh, zero))); got != 441 {
		t.Errorf("T-A15: %d, want 441", got)
	}
	if b.table.Len() != 1 {
		t.Error("the allocation is gone")
	}
}

// T-13: an expired credential begins nothing; what it began goes on for the grace and no longer.
func TestExpiredCredentialBeginsNothingAndMayEndLater(t *testing.T) {
	for grace, want := range map[time.Duration]stun.ErrorCode{0: 401, time.Second: 401, time.Hour: 0} {
		b, c := newBed(t), newClient("192.0.2.1:1000")
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
		if got := codeOf(b.send(c, b.signed(c, old.Username, string(old.Password), stun.MethodAllocate, udp))); got != 401 {
			t.Errorf("allocate with an expired credential: %d", got)
		}
		if got := codeOf(b.send(c, b.signed(c, good.Username, string(good.Password), stun.MethodAllocate, udp))); got != 0 {
			t.Fatalf("allocate: %d", got)
		}
		// The session began with the credential that is old by now.
		b.flow(c.addr).Username = old.Username
		if got := codeOf(b.send(c, b.signed(c, old.Username, string(old.Password), stun.MethodRefresh))); got != want {
			t.Errorf("refresh a minute after the end, grace %s: %d, want %d", grace, got, want)
		}
	}
}

// whose clock is a little behind may still begin.
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
			if got := codeOf(v.send(c, v.signed(c, cred.Username, string(cred.Password), stun.MethodAllocate, udp))); got != want {
				t.Errorf("allocate %s after the end: %d, want %d", after, got, want)
			}
		}
	})
}

// T-A4: a retransmitted Allocate gets the same relayed address and makes no second session.
func TestRepeatedAllocateGetsTheSameAnswer(t *testing.T) {
	b, c := newBed(t), newClient("192.0.2.1:1000")
	raw := b.signed(c, username, password, stun.MethodAllocate, udp)
	first, second := b.send(c, raw), b.send(c, raw)
	a, _ := first.Get(stun.AttrXORRelayedAddress)
	z, _ := second.Get(stun.AttrXORRelayedAddress)
	if codeOf(second) != 0 || string(a) != string(z) || b.table.Len() != 1 {
		t.Errorf("T-A4: %v, %d sessions", codeOf(second), b.table.Len())
	}
}

// T-A4, T-A15: a repeated Allocate asks whose it is: another user gets 441 and no word about the relay, a wrong password 401, once.
func TestRepeatedAllocateOfAnotherUser(t *testing.T) {
	b, c := newBed(t), newClient("192.0.2.1:1000")
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
		answer := b.send(c, b.build(same, request4(stun.MethodAllocate), udp, stun.NewUsername(tc.user), stun.NewRealm(realm), nonce,
			stun.NewLongTermIntegrity(tc.user, realm, tc.pass)))
		if codeOf(answer) != tc.want || answer.Contains(stun.AttrXORRelayedAddress) != (tc.want == 0) {
			t.Errorf("%s: %d, want %d", tc.user, codeOf(answer), tc.want)
		}
		if n := b.meter.Refusals()["wrong_password"] - before; n > 1 {
			t.Errorf("%s: counted %d times", tc.user, n)
		}
	}
}

// T-12: reserved ports count against their user, are few, and go with the allocation that asked for them.
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

// A token is of use to the user who has got it, and to nobody else (RFC 8656 §7.2).
func TestReservedPortIsForItsUser(t *testing.T) {
	virtually(t, func(v *virtual) {
		p := policy()
		p.Authority.SharedSecret = "sixteen bytes are"
		v.Update(p, routes())
		pair := stun.RawAttribute{Type: stun.AttrEvenPort, Length: 1, Value: []byte{0x80}}
		first, second := newClient("192.0.2.1:1000"), newClient("192.0.2.1:1001")
		value, err := v.send(first, v.signed(first, username, password, stun.MethodAllocate, udp, pair)).Get(stun.AttrReservationToken)
		if err != nil {
			t.Fatal(err)
		}
		held := stun.RawAttribute{Type: stun.AttrReservationToken, Length: 8, Value: value}
		eve, err := p.Authority.Mint("eve", time.Hour, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if code := codeOf(v.send(second, v.signed(second, eve.Username, string(eve.Password), stun.MethodAllocate, udp, held))); code != 508 {
			t.Errorf("another user: %d, want 508", code)
		}
		v.table.SetBounds(session.Bounds{UserSessions: 2})
		v.must(second, stun.MethodAllocate, udp, held) // the reserved port is the second place already
		if n := v.net.Len(); n != 2 {
			t.Errorf("%d ports, want 2", n)
		}
	})
}

// T-A7: EVEN-PORT gives an even port, with R=1 also a token; the token gives the next port, once.
func TestEvenPortAndReservation(t *testing.T) {
	b := newBed(t)
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
		b, c := newBed(t), newClient("192.0.2.1:1000")
		answer := b.send(c, b.signed(c, username, password, stun.MethodAllocate, udp, number(stun.AttrLifetime, asked)))
		v, err := answer.Get(stun.AttrLifetime)
		if err != nil || binary.BigEndian.Uint32(v) != want {
			t.Errorf("T-A6: asked for %d: % x, %v", asked, v, err)
		}
	}
}

// T-A9, T-A10: every family that there is an address of, and none that there is not.
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
		{[]netip.Addr{v4}, wants(stunmsg.FamilyIPv4), 0, v4}, {[]netip.Addr{v4}, wants(stunmsg.FamilyIPv6), 440, v6}, {[]netip.Addr{v4}, wants(7), 440, v4},
		{[]netip.Addr{v4, v6}, wants(stunmsg.FamilyIPv6), 0, v6}, {[]netip.Addr{v4, v6}, udp, 0, v4}, {[]netip.Addr{v6, v4}, udp, 0, v6},
		{[]netip.Addr{v6}, wants(stunmsg.FamilyIPv4), 440, v4}, {[]netip.Addr{v4, v6}, additional, 0, v4},
	}
	for i, tc := range cases {
		b, c := newBed(t), newClient("192.0.2.1:1000")
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
		if code := codeOf(b.send(c, b.signed(c, username, password, stun.MethodChannelBind, channel(0x4000), peerAt(peer)))); code != 0 {
			t.Errorf("case %d: channel to %s: %d", i, peer, code)
		}
	}
}

// S-01: a Binding request gets the address that it came from.
func TestBindingNeedsNoCredential(t *testing.T) {
	b, c := newBed(t), newClient("192.0.2.1:1000")
	answer := b.send(c, b.build(request4(stun.MethodBinding), stun.Fingerprint))
	var mapped stun.XORMappedAddress
	if err := mapped.GetFrom(answer); err != nil || !mapped.IP.Equal(net.IPv4(192, 0, 2, 1)) || mapped.Port != 1000 {
		t.Errorf("S-01: %v, %v", mapped, err)
	}
}

// S-03, S-06, S-07, S-08, S-10, T-11: a message that must not be answered gets no answer.
func TestWhatDeservesSilenceGetsIt(t *testing.T) {
	b, c := newBed(t), newClient("192.0.2.1:1000")
	binding := b.build(request4(stun.MethodBinding), stun.Fingerprint)
	broken := func(change func([]byte) []byte) []byte { return change(append([]byte(nil), binding...)) }
	cases := map[string][]byte{
		"S-03 wrong fingerprint":   broken(func(m []byte) []byte { m[len(m)-1] ^= 1; return m }),
		"S-06 indication":          b.build(stun.NewType(stun.MethodBinding, stun.ClassIndication)),
		"S-07 top bits":            broken(func(m []byte) []byte { m[0] |= 0x80; return m }),
		"S-07 length":              broken(func(m []byte) []byte { m[3] += 4; return m }),
		"S-07 trailing bytes":      append(append([]byte(nil), binding...), 0, 0, 0, 0),
		"S-10 no magic cookie":     broken(func(m []byte) []byte { m[4] = 0; return m }),
		"T-11 response":            b.build(stun.NewType(stun.MethodBinding, stun.ClassSuccessResponse)),
		"T-11 error response":      b.build(stun.NewType(stun.MethodAllocate, stun.ClassErrorResponse), stun.CodeUnauthorized),
		"unknown method":           b.build(request4(0x0FF)),
		"send without allocation":  b.build(stun.NewType(stun.MethodSend, stun.ClassIndication), peerAt("127.0.0.1:4000"), stun.RawAttribute{Type: stun.AttrData, Length: 1, Value: []byte("x")}),
		"empty":                    {},
		"header cut":               binding[:12],
		"attribute beyond the end": broken(func(m []byte) []byte { m[23] = 200; return m }),
	}
	for name, raw := range cases {
		before := sum(b.meter.Drops())
		if answer := b.send(c, raw); answer != nil {
			t.Errorf("%s: answered with %v", name, answer)
		}
		if name != "S-06 indication" && sum(b.meter.Drops()) != before+1 {
			t.Errorf("%s: not counted", name)
		}
	}
}

func sum(counts map[string]uint64) (n uint64) {
	for _, c := range counts {
		n += c
	}
	return n
}

func TestSTUNOnlyListenerRefusesAllocations(t *testing.T) {
	b, c := newBed(t), newClient("192.0.2.1:1000")
	b.Update(&Policy{RelayAddrs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}, routes())
	if got := codeOf(b.send(c, b.build(request4(stun.MethodAllocate), udp))); got != 403 {
		t.Errorf("allocate: %d, want 403", got)
	}
	if got := codeOf(b.send(c, b.build(request4(stun.MethodBinding)))); got != 0 {
		t.Errorf("binding: %d", got)
	}
}
