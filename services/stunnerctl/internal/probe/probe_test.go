package probe

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pion/dtls/v3"
	"github.com/pion/logging"
	"github.com/pion/stun/v2"
	"github.com/pion/turn/v3"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/diagnose"
)

// relay allocates relayed addresses of the loopback address, and counts the open ones.
type relay struct{ open atomic.Int32 }

func (*relay) Validate() error { return nil }

func (r *relay) AllocatePacketConn(string, int) (net.PacketConn, net.Addr, error) {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	r.open.Add(1)
	return &relayConn{PacketConn: conn, relay: r}, conn.LocalAddr(), nil
}

func (*relay) AllocateConn(string, int) (net.Conn, net.Addr, error) {
	return nil, nil, errors.New("no TCP")
}

type relayConn struct {
	net.PacketConn
	relay  *relay
	closed atomic.Bool
}

func (c *relayConn) Close() error {
	if !c.closed.Swap(true) {
		c.relay.open.Add(-1)
	}
	return c.PacketConn.Close()
}

// forbidden is a peer for which the server gives no permission.
const forbidden = "127.0.0.9"

// serve runs a TURN server with the password "pw" over each transport, and returns its config and its relays.
func serve(t *testing.T, leaf x509.Certificate) (c config.Config, relays *relay) {
	t.Helper()
	relays = &relay{}
	pair := issue(t, leaf)
	allowed := func(_ net.Addr, peer net.IP) bool { return peer.String() != forbidden }
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	must(t, err)
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	secure, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}})
	must(t, err)
	datagrams, err := dtls.ListenWithOptions("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}, dtls.WithCertificates(pair))
	must(t, err)
	quiet := logging.NewDefaultLoggerFactory()
	quiet.DefaultLogLevel = logging.LogLevelDisabled
	s, err := turn.NewServer(turn.ServerConfig{
		Realm: "example.org", LoggerFactory: quiet,
		AuthHandler: func(user, realm string, _ net.Addr) ([]byte, bool) {
			return turn.GenerateAuthKey(user, realm, "pw"), true
		},
		PacketConnConfigs: []turn.PacketConnConfig{
			{PacketConn: udp, RelayAddressGenerator: relays, PermissionHandler: allowed},
		},
		ListenerConfigs: []turn.ListenerConfig{
			{Listener: tcp, RelayAddressGenerator: relays, PermissionHandler: allowed},
			{Listener: secure, RelayAddressGenerator: relays, PermissionHandler: allowed},
			{Listener: datagrams, RelayAddressGenerator: relays, PermissionHandler: allowed},
		},
	})
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	for _, l := range []struct {
		protocol config.Protocol
		at       net.Addr
	}{
		{config.TURNUDP, udp.LocalAddr()}, {config.TURNTCP, tcp.Addr()}, {config.TURNTLS, secure.Addr()}, {config.TURNDTLS, datagrams.Addr()},
	} {
		at := netip.MustParseAddrPort(l.at.String())
		c.Listeners = append(c.Listeners, config.Listener{
			Name: "meet/door/" + string(l.protocol), Protocol: l.protocol, PublicAddress: "127.0.0.1", Port: int(at.Port()),
			Routes: []string{"meet/media"},
		})
	}
	return c, relays
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// issue makes a self-signed certificate.
func issue(t *testing.T, leaf x509.Certificate) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	leaf.SerialNumber, leaf.NotBefore = big.NewInt(1), time.Now().Add(-time.Hour)
	leaf.Subject = pkix.Name{CommonName: "leaf"}
	if leaf.NotAfter.IsZero() {
		leaf.NotAfter = time.Now().Add(time.Hour)
	}
	raw, err := x509.CreateCertificate(rand.Reader, &leaf, &leaf, key.Public(), key)
	must(t, err)
	return tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key}
}

// peer is a UDP socket, which echoes if answers is set, and counts the received datagrams.
func peer(t *testing.T, address string, answers bool) (at netip.AddrPort, received *atomic.Int32) {
	t.Helper()
	conn, err := net.ListenPacket("udp", net.JoinHostPort(address, "0"))
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	received = &atomic.Int32{}
	go func() {
		buf := make([]byte, maxDatagram)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			received.Add(1)
			if answers {
				_, _ = conn.WriteTo(buf[:n], from)
			}
		}
	}()
	return netip.MustParseAddrPort(conn.LocalAddr().String()), received
}

func endpoint(a netip.AddrPort) string {
	return fmt.Sprintf("%s:<%d-%d>", a.Addr(), a.Port(), a.Port())
}

func password(p string) func(context.Context) (credential.Credential, error) {
	return func(context.Context) (credential.Credential, error) {
		return credential.Credential{Username: "stunnerctl", Password: credential.Secret(p)}, nil
	}
}

// TestEachTransport: a server that works answers over each transport, gives relays, and passes datagrams to the peers. No
// allocation is left.
func TestEachTransport(t *testing.T) {
	c, relays := serve(t, x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}})
	echo, _ := peer(t, "127.0.0.1", true)
	mute, received := peer(t, "127.0.0.1", false)
	denied, _ := peer(t, forbidden, true)
	c.Clusters = []config.Cluster{{Name: "meet/media", Endpoints: []string{
		endpoint(echo), endpoint(mute), endpoint(denied), "10.0.0.0/8", "127.0.0.1", "a.name",
	}}}
	got := Run(t.Context(), Options{Config: c, Credential: password("pw"), Origin: "a test"})
	if len(got.URLs) != 4 || got.Credential != "a test" || got.OmittedBackends != 4*3 {
		t.Fatalf("%+v", got)
	}
	for _, u := range got.URLs {
		if u.Result != diagnose.ProbeAnswered || u.Answered != u.Sent || !u.Long.Passes() || u.Allocation == nil || !u.Allocation.Relay.IsValid() {
			t.Errorf("%+v", u)
		}
		if whole := u.Train.Sent == trainLength && u.Train.Returned == trainLength && u.Train.Milliseconds > 0; whole != (u.Transport == "udp") {
			t.Errorf("train of %s: %+v", u.URL, u.Train)
		}
		if c := u.Certificate; u.Secure && (c == nil || !c.NameMatches || !c.SelfSigned || c.Trusted || c.Sent != 1) {
			t.Errorf("certificate %+v", c)
		}
	}
	want := []diagnose.ProbedBackend{
		{Route: "meet/media", Listener: "TURN-UDP", Peer: echo, OnePort: true, Result: diagnose.ProbeAnswered, Sent: 3, Returned: 3,
			Long: diagnose.ProbedLong{Bytes: 1184, Sent: 3, Answered: 3}},
		{Route: "meet/media", Listener: "TURN-UDP", Peer: mute, OnePort: true, Result: diagnose.ProbeNoAnswer, Sent: 3},
		{Route: "meet/media", Listener: "TURN-UDP", Peer: denied, OnePort: true, Result: diagnose.ProbeFailed,
			Detail: "request for a permission: the error response has no code"}, // of pion/turn
	}
	for i, b := range got.Backends {
		if b.Train.Sent != b.Train.Returned || b.Train.Sent == trainLength != (b.Result == diagnose.ProbeAnswered) {
			t.Errorf("train to backend %s: %+v", b.Peer, b.Train)
		}
		got.Backends[i].Train = diagnose.ProbedTrain{}
	}
	if !slices.Equal(got.Backends, want) || received.Load() != 2*datagrams {
		t.Errorf("%d received, %+v", received.Load(), got.Backends)
	}
	if n := relays.open.Load(); n != 0 {
		t.Errorf("%d allocations are left", n)
	}
}

// TestTrainCountsLoss: each request of a train whose answer is lost counts, and an answer that arrives twice counts once.
func TestTrainCountsLoss(t *testing.T) {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	go func() {
		buf := make([]byte, maxDatagram)
		for i := 0; ; i++ {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			if i%5 == 0 {
				continue
			}
			for range 2 {
				_, _ = conn.WriteTo(buf[:n], from)
			}
		}
	}()
	w, err := dial(t.Context(), config.TURNUDP, netip.MustParseAddrPort(conn.LocalAddr().String()), "")
	must(t, err)
	defer w.end()
	got := w.train(t.Context())
	if got.Sent != trainLength || got.Returned != trainLength*4/5 || got.Milliseconds <= 0 {
		t.Errorf("%+v", got)
	}
}

// TestDeniedPeer: the error response 403 to the request for a permission denies the backend. Other error responses do
// not.
func TestDeniedPeer(t *testing.T) {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	codes := make(chan stun.ErrorCode, 1)
	go func() {
		buf := make([]byte, maxDatagram)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			request := &stun.Message{Raw: buf[:n]}
			if request.Decode() == nil {
				answer := stun.MustBuild(request, stun.NewType(request.Type.Method, stun.ClassErrorResponse), <-codes)
				_, _ = conn.WriteTo(answer.Raw, from)
			}
		}
	}()
	w, err := dial(t.Context(), config.TURNUDP, netip.MustParseAddrPort(conn.LocalAddr().String()), "")
	must(t, err)
	s := &session{serverConn: w, realm: []byte("example.org")}
	for code, want := range map[stun.ErrorCode]diagnose.ProbeResult{
		stun.CodeForbidden: diagnose.ProbeDenied, stun.CodeAllocMismatch: diagnose.ProbeFailed,
	} {
		codes <- code
		if got, detail := s.permit(t.Context(), netip.MustParseAddrPort("10.0.0.1:5")); got != want || detail == "" {
			t.Errorf("%d: %q, %q", code, got, detail)
		}
	}
}

// TestRefusedAllocations: a refused or missing credential is in the result.
func TestRefusedAllocations(t *testing.T) {
	c, _ := serve(t, x509.Certificate{})
	c.Listeners = c.Listeners[:1]
	got := Run(t.Context(), Options{Config: c, Credential: password("wrong")})
	// pion/turn answers a wrong password with 400 instead of 401 (RFC 8489 §9.2.4).
	if a := got.URLs[0].Allocation; a == nil || a.Code/100 != 4 || a.Relay.IsValid() {
		t.Errorf("%+v", a)
	}
	got = Run(t.Context(), Options{Config: c, Credential: func(context.Context) (credential.Credential, error) {
		return credential.Credential{}, errors.New("no token")
	}})
	if got.CredentialError != "no token" || got.URLs[0].Allocation != nil {
		t.Errorf("%+v", got)
	}
}

// listener returns a config with one listener at an address.
func listener(p config.Protocol, at net.Addr) config.Config {
	port := netip.MustParseAddrPort(at.String()).Port()
	return config.Config{Listeners: []config.Listener{{Name: "meet/door/l", Protocol: p, PublicAddress: "127.0.0.1", Port: int(port)}}}
}

// TestFaults: each way in which a URL does not answer has a result of its own.
func TestFaults(t *testing.T) {
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { silent.Close() })
	closed, err := net.ListenPacket("udp", "127.0.0.1:0")
	must(t, err)
	must(t, closed.Close())
	deaf, err := net.Listen("tcp", "127.0.0.1:0") // accepts in the kernel
	must(t, err)
	t.Cleanup(func() { deaf.Close() })
	ended, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	must(t, ended.Close())
	web := answering(t, func(conn net.Conn) { _, _ = conn.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")) })
	named := config.Config{Listeners: []config.Listener{{Name: "l", Protocol: config.TURNUDP, PublicAddress: "name.invalid", Port: 1}}}
	for name, row := range map[string]struct {
		config config.Config
		want   diagnose.ProbeResult
	}{
		"nothing answers":         {listener(config.TURNUDP, silent.LocalAddr()), diagnose.ProbeNoAnswer},
		"no DTLS server answers":  {listener(config.TURNDTLS, silent.LocalAddr()), diagnose.ProbeNoAnswer},
		"the UDP port is closed":  {listener(config.TURNUDP, closed.LocalAddr()), diagnose.ProbeRefused},
		"the TCP port is closed":  {listener(config.TURNTCP, ended.Addr()), diagnose.ProbeRefused},
		"TCP without an answer":   {listener(config.TURNTCP, deaf.Addr()), diagnose.ProbeNoAnswer},
		"TLS without a handshake": {listener(config.TURNTLS, deaf.Addr()), diagnose.ProbeHandshake},
		"a web server":            {listener(config.TURNTCP, web.Addr()), diagnose.ProbeNotSTUN},
		"TLS at a web server":     {listener(config.TURNTLS, web.Addr()), diagnose.ProbeHandshake},
		"no such name":            {named, diagnose.ProbeNoName},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := Run(t.Context(), Options{Config: row.config}).URLs[0]
			if u.Result != row.want || u.Answered != 0 || u.Detail == "" {
				t.Errorf("%+v, want %q", u, row.want)
			}
		})
	}
}

// TestUnansweredRequestsAreRepeated: a request over UDP is retransmitted as in RFC 8489, and ends with the context.
func TestUnansweredRequestsAreRepeated(t *testing.T) {
	at, received := peer(t, "127.0.0.1", false)
	ctx, cancel := context.WithCancel(t.Context())
	w, err := dial(ctx, config.TURNUDP, at, "")
	must(t, err)
	go func() {
		for received.Load() < 2 {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	if _, err := w.bind(ctx, 0); !errors.Is(err, errNoAnswer) || received.Load() != 2 {
		t.Errorf("%v after %d requests", err, received.Load())
	}
}

// TestBounds: of many URLs and backends only some are tested, and the number of the others is in the result.
func TestBounds(t *testing.T) {
	var c config.Config
	l := config.Listener{Name: "meet/door/udp", Protocol: config.TURNUDP, Port: 1, Routes: []string{"meet/media"}}
	cluster := config.Cluster{Name: "meet/media"}
	for i := range MaxURLs + 3 {
		l.PublicAddresses = append(l.PublicAddresses, fmt.Sprintf("192.0.2.%d", i+1))
		cluster.Endpoints = append(cluster.Endpoints, fmt.Sprintf("10.0.0.%d:<5-6>", i+1))
	}
	c.Listeners, c.Clusters = []config.Listener{l}, []config.Cluster{cluster}
	o := Options{Config: c}
	if all, omitted := o.targets(t.Context()); len(all) != MaxURLs || omitted != 3 {
		t.Errorf("%d URLs, %d omitted", len(all), omitted)
	}
	all, omitted := o.backends(l, MaxBackends, nil)
	if len(all) != MaxBackends || omitted != MaxURLs+3-MaxBackends || all[0].OnePort || all[0].Peer.Port() != 5 {
		t.Errorf("%d backends, %d omitted: %+v", len(all), omitted, all[0])
	}
	if again, omitted := o.backends(l, MaxBackends, all); len(again) != 3 || omitted != 0 {
		t.Errorf("another listener: %d backends, %d omitted", len(again), omitted)
	}
}

// TestPods: pods are tested through connections that the caller makes, and at addresses that count only if one answers.
func TestPods(t *testing.T) {
	c, _ := serve(t, x509.Certificate{})
	tcp := c.Listeners[1]
	health := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/live" {
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(health.Close)
	at := "http://" + health.Listener.Addr().String()
	c.Admin.HealthcheckEndpoint = &at
	closing := answering(t, func(conn net.Conn) { _ = conn.Close() }) // as a forwarded port whose pod does not listen
	got := Options{Config: config.Config{Admin: c.Admin, Listeners: []config.Listener{tcp}}, Pods: []string{"a", "b", "c"},
		DialPod: func(_ context.Context, pod string, port int) (net.Conn, error) {
			switch pod {
			case "a":
				return net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
			case "b":
				return net.Dial("tcp", closing.Addr().String())
			}
			return nil, errors.New("pods/portforward is forbidden")
		}}.pods(t.Context())
	for i, want := range []diagnose.ProbeResult{
		diagnose.ProbeAnswered, diagnose.ProbeAnswered, diagnose.ProbeRefused, diagnose.ProbeRefused, diagnose.ProbeFailed,
		diagnose.ProbeFailed,
	} {
		if got[i].Result != want || want == diagnose.ProbeFailed && !strings.Contains(got[i].Detail, "forbidden") {
			t.Errorf("%+v, want %q", got[i], want)
		}
	}
	dead, err := net.ListenPacket("udp", "127.0.0.1:0")
	must(t, err)
	must(t, dead.Close())
	direct := func(pod string, port int) Direct {
		return Direct{pod, "meet/door/udp", config.TURNUDP, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(port))}
	}
	lost := direct("b", dead.LocalAddr().(*net.UDPAddr).Port)
	if all := (Options{Within: []Direct{lost}}).pods(t.Context()); len(all) != 0 {
		t.Errorf("no pod network: %+v", all)
	}
	all := Options{Within: []Direct{direct("a", c.Listeners[0].Port), lost}}.pods(t.Context())
	if len(all) != 2 || all[0].Result != diagnose.ProbeAnswered || all[1].Result != diagnose.ProbeRefused {
		t.Errorf("%+v", all)
	}
}

// TestDataIndications: an ICMP message is not an answer. Its type and code determine the reported reason. The answer of
// one peer does not count as the answer of another peer.
func TestDataIndications(t *testing.T) {
	v4, v6 := netip.MustParseAddrPort("10.0.0.1:5"), netip.MustParseAddrPort("[2001:db8::1]:6")
	other := netip.MustParseAddrPort("10.0.0.1:9")
	indication := func(peer netip.AddrPort, more stun.Setter) *stun.Message {
		return stun.MustBuild(stun.TransactionID, stun.NewType(stun.MethodData, stun.ClassIndication), peerAddress(peer), more)
	}
	for _, row := range []struct {
		peer       netip.AddrPort
		kind, code byte
		want       diagnose.ProbeResult
	}{
		{v4, 3, 3, diagnose.ProbeRefused}, {v4, 3, 13, diagnose.ProbeRejected}, {v4, 3, 1, diagnose.ProbeUnreachable},
		{v4, 11, 0, diagnose.ProbeUnreachable}, {v4, 3, 4, ""}, {v6, 1, 4, diagnose.ProbeRefused}, {v6, 1, 1, diagnose.ProbeRejected},
		{v6, 1, 3, diagnose.ProbeUnreachable}, {v6, 2, 0, ""},
	} {
		e := exchange{all: []diagnose.ProbedBackend{{Peer: v4}, {Peer: v6}}}
		e.count(indication(row.peer, stun.RawAttribute{Type: attrICMP, Value: []byte{0, 0, row.kind << 1, row.code, 0, 0, 0, 0}}))
		for _, b := range e.all {
			want := row.want
			if b.Peer != row.peer {
				want = ""
			}
			if b.Result != want || want != "" && b.Detail != fmt.Sprintf("ICMP type %d, code %d", row.kind, row.code) {
				t.Errorf("%s, type %d, code %d: %+v", row.peer, row.kind, row.code, b)
			}
		}
	}
	e := exchange{all: []diagnose.ProbedBackend{{Peer: v4}, {Peer: v6}}, lengths: map[[stun.TransactionIDSize]byte]int{}, matched: map[netip.AddrPort]int{}}
	short, long := stun.MustBuild(stun.TransactionID, stun.BindingRequest), stun.MustBuild(stun.TransactionID, stun.BindingRequest)
	e.lengths[short.TransactionID], e.lengths[long.TransactionID] = 0, 1200
	refusal := stun.MustBuild(short, stun.NewType(stun.MethodBinding, stun.ClassErrorResponse), stun.CodeUnauthorized)
	for _, data := range [][]byte{{1}, long.Raw, refusal.Raw} {
		e.count(indication(v6, stun.RawAttribute{Type: stun.AttrData, Value: data}))
	}
	e.count(indication(other, stun.RawAttribute{Type: stun.AttrData}))
	want := []diagnose.ProbedBackend{
		{Peer: v4}, {Peer: v6, Result: diagnose.ProbeAnswered, Returned: 2, Code: 401, Long: diagnose.ProbedLong{Answered: 1}},
	}
	if !slices.Equal(e.all, want) || e.matched[v6] != 1 {
		t.Errorf("%+v", e)
	}
	e.addUnexpected(v4)
	e.addUnexpected(netip.MustParseAddrPort("10.0.0.2:5"))
	if got := e.otherSources(v4); got != other.String()+", 10.0.0.2:5" {
		t.Errorf("answers of %s from %s", v4, got)
	}
	if got := e.otherSources(v6); got != "10.0.0.2:5" {
		t.Errorf("answers of %s from %s", v6, got)
	}
}

// TestErrorsHaveTextsForUsers: errors of the network are replaced by texts for users.
func TestErrorsHaveTextsForUsers(t *testing.T) {
	for err, want := range map[error]diagnose.ProbeResult{
		nil: diagnose.ProbeAnswered, io.EOF: diagnose.ProbeRefused, context.DeadlineExceeded: diagnose.ProbeNoAnswer,
		net.ErrClosed: diagnose.ProbeNoAnswer, errors.New("other"): diagnose.ProbeFailed,
	} {
		if got := resultOf(inWords(err)); got != want {
			t.Errorf("%v: %q, want %q", err, got, want)
		}
	}
}

// answering calls answer with each connection to the returned listener.
func answering(t *testing.T, answer func(net.Conn)) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			answer(conn)
		}
	}()
	return l
}
