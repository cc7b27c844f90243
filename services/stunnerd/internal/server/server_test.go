package server

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/pion/dtls/v3"
	"github.com/pion/logging"
	"github.com/pion/turn/v3"
	"go.uber.org/goleak"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/testport"
)

// G-02, D-19: a closed server leaves no goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture is a server with one listener of each transport and an echo peer.
type fixture struct {
	*Server
	t      *testing.T
	config config.Config
	peer   netip.AddrPort
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	b := newEmptyFixture(t)
	b.apply(b.config)
	return b
}

// newEmptyFixture returns a fixture whose config is not applied yet.
func newEmptyFixture(t *testing.T, changes ...func(*Options)) *fixture {
	t.Helper()
	o := Options{
		HostAddresses: []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1")},
		Log:           slog.New(slog.DiscardHandler),
	}
	for _, change := range changes {
		change(&o)
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	b := &fixture{Server: s, t: t, peer: echo(t)}
	b.config = config.Config{
		Version: config.Version,
		Admin:   config.Admin{Name: "test/gateway"},
		Auth: config.Auth{Type: config.AuthStatic, Realm: "test.example", Credentials: map[string]credential.Secret{
			config.KeyUsername: "ann", config.KeyPassword: "first",
		}},
		Listeners: []config.Listener{
			{Name: "test/gateway/udp", Protocol: config.TURNUDP, Port: testport.Free(
				t,
			), Address: "127.0.0.1", Routes: []string{"test/echo"}},
			{Name: "test/gateway/tcp", Protocol: config.TURNTCP, Port: testport.Free(
				t,
			), Address: "127.0.0.1", Routes: []string{"test/echo"}},
			{Name: "test/gateway/tls", Protocol: config.TURNTLS, Port: testport.Free(
				t,
			), Address: "127.0.0.1", Routes: []string{"test/echo"}},
			{Name: "test/gateway/dtls", Protocol: config.TURNDTLS, Port: testport.Free(
				t,
			), Address: "127.0.0.1", Routes: []string{"test/echo"}},
		},
		Clusters: []config.Cluster{{
			Name: "test/echo", Type: config.Static,
			Endpoints: []string{fmt.Sprintf("127.0.0.1:<%d-%d>", b.peer.Port(), b.peer.Port())},
		}},
	}
	b.show(&b.config, newIdentity(t, "first"))
	b.config.Default()
	return b
}

func (b *fixture) apply(c config.Config) Plan {
	b.t.Helper()
	if err := c.Validate(); err != nil {
		b.t.Fatal(err)
	}
	plan, err := b.Apply(c)
	if err != nil {
		b.t.Fatal(err)
	}
	return plan
}

func (b *fixture) port(name string) int {
	for _, l := range b.Running().Listeners {
		if strings.HasSuffix(l.Name, "/"+name) {
			return l.Port
		}
	}
	b.t.Fatalf("no listener %s", name)
	return 0
}

// call is a client with an allocation.
type call struct {
	t      *testing.T
	client *turn.Client
	relay  net.PacketConn
	peer   netip.AddrPort
}

// dial makes an allocation at the listener that is named after a transport, or TRANSPORT-second. It returns an error
// instead of failing the test.
func (b *fixture) dial(transport, user, password string) (*call, error) {
	b.t.Helper()
	server := fmt.Sprintf("127.0.0.1:%d", b.port(transport))
	transport, _, _ = strings.Cut(transport, "-")
	conn, err := connect(transport, server)
	if err != nil {
		return nil, err
	}
	client, err := turn.NewClient(&turn.ClientConfig{
		STUNServerAddr: server, TURNServerAddr: server, Conn: conn,
		Username: user, Password: password, LoggerFactory: logging.NewDefaultLoggerFactory(),
	})
	if err == nil {
		err = client.Listen()
	}
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = conn.Close() })
	b.t.Cleanup(client.Close)
	relay, err := client.Allocate()
	if err != nil {
		return nil, err
	}
	b.t.Cleanup(func() { _ = relay.Close() })
	return &call{t: b.t, client: client, relay: relay, peer: b.peer}, nil
}

// connect opens a client connection of a transport.
func connect(transport, server string) (net.PacketConn, error) {
	var conn net.Conn
	var err error
	switch transport {
	case "tcp":
		conn, err = net.Dial("tcp4", server)
	case "tls":
		conn, err = tls.Dial("tcp4", server, &tls.Config{InsecureSkipVerify: true})
	case "dtls":
		var addr *net.UDPAddr
		if addr, err = net.ResolveUDPAddr("udp4", server); err == nil {
			conn, err = dtls.DialWithOptions("udp4", addr, dtls.WithInsecureSkipVerify(true))
		}
	}
	if err != nil {
		return nil, err
	}
	if conn == nil { // all other listeners use UDP
		return net.ListenPacket("udp4", "127.0.0.1:0")
	}
	return turn.NewSTUNConn(conn), nil
}

func (b *fixture) mustDial(transport, user, password string) *call {
	b.t.Helper()
	c, err := b.dial(transport, user, password)
	if err != nil {
		b.t.Fatalf("allocate over %s: %v", transport, err)
	}
	return c
}

// echo sends a text to the peer and waits for the same text.
func (c *call) echo(text string) error {
	if _, err := c.relay.WriteTo([]byte(text), net.UDPAddrFromAddrPort(c.peer)); err != nil {
		return err
	}
	if err := c.relay.SetReadDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return err
	}
	buf := make([]byte, 70_000)
	n, _, err := c.relay.ReadFrom(buf)
	if err != nil {
		return err
	}
	if string(buf[:n]) != text {
		return fmt.Errorf("%d bytes came back, %d were sent", n, len(text))
	}
	return nil
}

// echo answers every datagram with the same datagram.
func echo(t *testing.T) netip.AddrPort {
	t.Helper()
	return echoAt(t, netip.MustParseAddr("127.0.0.1"))
}

func echoAt(t *testing.T, addr netip.Addr) netip.AddrPort {
	t.Helper()
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: addr.AsSlice()})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 70_000)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			_, _ = conn.WriteToUDPAddrPort(buf[:n], from)
		}
	}()
	t.Cleanup(func() { _ = conn.Close(); <-done })
	return conn.LocalAddr().(*net.UDPAddr).AddrPort()
}

func within(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(timeout); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", timeout, what)
		}
	}
}

// timeout limits operations that take milliseconds on an idle machine.
const timeout = 30 * time.Second

func TestRelaysOverEveryTransport(t *testing.T) {
	for _, transport := range []string{"udp", "tcp", "tls", "dtls"} {
		t.Run(transport, func(t *testing.T) {
			b := newFixture(t)
			c := b.mustDial(transport, "ann", "first")
			// Small, odd and large payloads: the first ones are sent as indications, the others in a channel. The
			// stream client of pion needs nine bytes to recognize a frame. Tests of the listener cover shorter frames.
			for _, size := range []int{5, 6, 7, 160, 1200, 1201, 1599} {
				if err := c.echo(strings.Repeat("x", size)); err != nil {
					t.Fatalf("echo %d bytes: %v", size, err)
				}
			}
			if n := b.Sessions().Len(); n != 1 {
				t.Errorf("%d sessions, want 1", n)
			}
			if err := c.relay.Close(); err != nil {
				t.Fatal(err)
			}
			within(t, "session gone after Refresh 0", func() bool { return b.Sessions().Len() == 0 })
			if n := b.engine.Allocations(); n != 0 {
				t.Errorf("pion/turn still holds %d allocations", n)
			}
		})
	}
}

// a wrong password, an unknown user and an empty password get 401.
func TestWrongCredentialsAreRefused(t *testing.T) {
	b := newFixture(t)
	for _, c := range []struct{ user, password string }{{"ann", "wrong"}, {"bob", "first"}, {"ann", ""}} {
		if _, err := b.dial("udp", c.user, c.password); err == nil || !strings.Contains(err.Error(), "401") {
			t.Errorf("%s/%s: %v, want 401", c.user, c.password, err)
		}
	}
	if b.Sessions().Len() != 0 {
		t.Error("a refused client left a session")
	}
}

// P-02: a permission for a peer that no route allows gives 403.
func TestPeerOutsideTheRoutesIsForbidden(t *testing.T) {
	b := newFixture(t)
	c := b.mustDial("udp", "ann", "first")
	err := c.client.CreatePermission(&net.UDPAddr{IP: net.IPv4(10, 1, 2, 3), Port: 9})
	if err == nil || !strings.Contains(err.Error(), "403") {
		t.Fatalf("permission for a peer without a route: %v, want 403", err)
	}
}
