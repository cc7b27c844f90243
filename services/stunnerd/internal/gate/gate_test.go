package gate

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"testing"

	"github.com/pion/stun/v2"
	"go.uber.org/goleak"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/cluster"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/engine/pionturn"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/limit"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/nonce"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay/relaytest"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/stunmsg"
)

// G-02: no test of the package leaves a goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// client is a transport that stores the sent frames.
type client struct {
	addr   netip.AddrPort
	frames chan []byte
	// meanwhile is called once, before the next frame is stored.
	meanwhile func()
	away      bool // uses another pod
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

func (c *client) Addr() netip.AddrPort  { return c.addr }
func (c *client) Connected() bool       { return false }
func (c *client) Local() netip.AddrPort { return netip.AddrPort{} }
func (c *client) Released()             {}

func (c *client) SendAll(packets []datagram.Packet) {
	for i := range packets {
		packets[i].Err = c.Send(packets[i].Payload)
	}
}

// fixture is a gate with one route, to 127.0.0.1:<4000-4999>.
type fixture struct {
	*Gate
	t testing.TB
}

const (
	username = "ann"
	password = "first"
	realm    = "test.example"
)

func newFixture(t testing.TB) fixture {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	engine, err := pionturn.New(1, log)
	if err != nil {
		t.Fatal(err)
	}
	nonces, err := nonce.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	held := relay.NewReservations()
	g := New("test", config.TURNUDP, Shared{
		Engine: engine, Nonces: nonces, Network: relaytest.NewKernel(t), Reservations: held, Limits: limit.NewProcess(),
		Table: session.NewTable(), Meter: meter.New(), Log: log,
	})
	g.Update(policy(), routes("127.0.0.1:<4000-4999>"))
	t.Cleanup(func() {
		g.Close()
		if err := errors.Join(held.Close(), engine.Close()); err != nil {
			t.Error(err)
		}
	})
	return fixture{g, t}
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

// send passes a message to the gate and returns the answer, or nil. The gate answers before Receive returns.
func (b fixture) send(c *client, raw []byte) *stun.Message {
	b.t.Helper()
	b.Receive(raw, c)
	b.stored()
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

// stored waits until the journal has stored all changes, and their answers are sent.
func (b fixture) stored() {
	if b.journal != nil {
		written := make(chan struct{})
		b.journal.After(func() { close(written) })
		<-written
	}
}

func (b fixture) build(setters ...stun.Setter) []byte {
	b.t.Helper()
	m, err := stun.Build(append([]stun.Setter{stun.TransactionID}, setters...)...)
	if err != nil {
		b.t.Fatal(err)
	}
	return m.Raw
}

func request4(method stun.Method) stun.MessageType { return stun.NewType(method, stun.ClassRequest) }

func (b fixture) nonce(c *client) stun.Nonce {
	b.t.Helper()
	challenge := b.send(c, b.build(request4(stun.MethodAllocate), udp))
	nonce, err := challenge.Get(stun.AttrNonce)
	if err != nil {
		b.t.Fatal(err)
	}
	return nonce
}

// signed builds a request with a user's credential.
func (b fixture) signed(c *client, user, pass string, method stun.Method, attrs ...stun.Setter) []byte {
	b.t.Helper()
	setters := append([]stun.Setter{request4(method)}, attrs...)
	setters = append(setters, stun.NewUsername(user), stun.NewRealm(realm), b.nonce(c),
		stun.NewLongTermIntegrity(user, realm, pass), stun.Fingerprint)
	return b.build(setters...)
}

func (b fixture) allocate(c *client) {
	b.t.Helper()
	if got := b.send(c, b.signed(c, username, password, stun.MethodAllocate, udp)); codeOf(got) != 0 {
		b.t.Fatalf("allocate: %v", codeOf(got))
	}
}

// codeOf returns the error code of an answer, 0 for success and -1 for no answer.
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

// S-01: a Binding request gets its source address.
func TestBindingNeedsNoCredential(t *testing.T) {
	b, c := newFixture(t), newClient("192.0.2.1:1000")
	answer := b.send(c, b.build(request4(stun.MethodBinding), stun.Fingerprint))
	var mapped stun.XORMappedAddress
	if err := mapped.GetFrom(answer); err != nil || !mapped.IP.Equal(net.IPv4(192, 0, 2, 1)) || mapped.Port != 1000 {
		t.Errorf("S-01: %v, %v", mapped, err)
	}
}

// S-03, S-06, S-07, S-08, S-10, T-11: a message that must not be answered gets no answer.
func TestMessagesThatGetNoAnswer(t *testing.T) {
	b, c := newFixture(t), newClient("192.0.2.1:1000")
	binding := b.build(request4(stun.MethodBinding), stun.Fingerprint)
	broken := func(change func([]byte) []byte) []byte { return change(append([]byte(nil), binding...)) }
	cases := map[string][]byte{
		"S-03 wrong fingerprint": broken(func(m []byte) []byte { m[len(m)-1] ^= 1; return m }),
		"S-06 indication":        b.build(stun.NewType(stun.MethodBinding, stun.ClassIndication)),
		"S-07 top bits":          broken(func(m []byte) []byte { m[0] |= 0x80; return m }),
		"S-07 length":            broken(func(m []byte) []byte { m[3] += 4; return m }),
		"S-07 trailing bytes":    append(append([]byte(nil), binding...), 0, 0, 0, 0),
		"S-10 no magic cookie":   broken(func(m []byte) []byte { m[4] = 0; return m }),
		"T-11 response":          b.build(stun.NewType(stun.MethodBinding, stun.ClassSuccessResponse)),
		"T-11 error response": b.build(
			stun.NewType(stun.MethodAllocate, stun.ClassErrorResponse), stun.CodeUnauthorized,
		),
		"unknown method": b.build(request4(0x0FF)),
		"send without allocation": b.build(
			stun.NewType(stun.MethodSend, stun.ClassIndication), peerAt("127.0.0.1:4000"),
			stun.RawAttribute{Type: stun.AttrData, Length: 1, Value: []byte("x")},
		),
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
	b, c := newFixture(t), newClient("192.0.2.1:1000")
	b.Update(&Policy{RelayAddrs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}, routes())
	if got := codeOf(b.send(c, b.build(request4(stun.MethodAllocate), udp))); got != 403 {
		t.Errorf("allocate: %d, want 403", got)
	}
	if got := codeOf(b.send(c, b.build(request4(stun.MethodBinding)))); got != 0 {
		t.Errorf("binding: %d", got)
	}
}
