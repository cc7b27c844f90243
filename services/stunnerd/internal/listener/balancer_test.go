package listener

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/cluster"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/gate"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
)

// timeout is how long a test waits for an event.
const timeout = 30 * time.Second

// thisHost are the prefixes of a load balancer on this host.
var thisHost = []string{"127.0.0.0/8"}

// streams are the protocols of listeners that read the PROXY protocol.
var streams = []config.Protocol{config.TURNTCP, config.TURNTLS}

// openBehind opens a listener with connections from load balancers.
func openBehind(t *testing.T, p config.Protocol, balancers []string) (*connections, *net.TCPAddr) {
	t.Helper()
	return openBehindLimited(t, p, balancers, NewLimits(0))
}

func openBehindLimited(t *testing.T, p config.Protocol, balancers []string, limits *Limits) (*connections, *net.TCPAddr) {
	t.Helper()
	c := config.Listener{Protocol: p, ProxyProtocol: balancers}
	if p == config.TURNTLS {
		c.Cert, c.Key = keyPair(t, "turn.example.org")
	}
	l, addr := openLimited(t, c, limits)
	return l, &net.TCPAddr{IP: addr.IP, Port: addr.Port}
}

// connectBehind opens a connection that begins with a header, and makes the handshake of the listener.
func (l *connections) connectBehind(t *testing.T, server *net.TCPAddr, header string) net.Conn {
	t.Helper()
	conn := dialFrom(t, nil, server)
	_ = conn.SetDeadline(time.Now().Add(timeout))
	if _, err := io.WriteString(conn, header); err != nil {
		t.Fatal(err)
	}
	if l.secure != nil {
		return tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
	}
	return conn
}

// mapped returns the address of a client in the answer to a Binding request.
func mapped(conn net.Conn) (netip.AddrPort, error) {
	_ = conn.SetDeadline(time.Now().Add(timeout))
	if _, err := conn.Write(stun.MustBuild(stun.TransactionID, stun.BindingRequest).Raw); err != nil {
		return netip.AddrPort{}, err
	}
	answer := make([]byte, 1024)
	n, err := conn.Read(answer)
	if err != nil {
		return netip.AddrPort{}, err
	}
	m := &stun.Message{Raw: answer[:n]}
	var client stun.XORMappedAddress
	if err := m.Decode(); err != nil {
		return netip.AddrPort{}, err
	}
	if err := client.GetFrom(m); err != nil {
		return netip.AddrPort{}, err
	}
	ip, _ := netip.AddrFromSlice(client.IP)
	return netip.AddrPortFrom(ip.Unmap(), uint16(client.Port)), nil
}

// mustMap checks that the address of a client is the wanted one.
func mustMap(t *testing.T, conn net.Conn, want string) {
	t.Helper()
	if got, err := mapped(conn); err != nil || got.String() != want {
		t.Errorf("the client is %s, error %v; want %s", got, err, want)
	}
}

// awaitClosed waits until the server has closed a connection, and returns what the server has sent. Closed connections
// are counted by reason before they are closed.
func awaitClosed(t *testing.T, conn net.Conn) []byte {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(timeout))
	sent, err := io.ReadAll(conn)
	if e, late := err.(net.Error); late && e.Timeout() {
		t.Fatalf("the connection stays open: %v", err)
	}
	return sent
}

// drops checks the numbers of closed connections by reason.
func (l *connections) drops(t *testing.T, want map[meter.Reason]uint64) {
	t.Helper()
	counted := l.opt.Meter.Drops()
	for reason, n := range want {
		if got := counted[reason.String()]; got != n {
			t.Errorf("%d connections with reason %s, want %d: %v", got, reason, n, counted)
		}
	}
}

// The client that a header names is the client of the connection: in answers and for a session.
func TestHeaderNamesTheClient(t *testing.T) {
	own := func(conn net.Conn) string { return conn.LocalAddr().String() }
	for _, p := range streams {
		for name, tc := range map[string]struct {
			header string
			client func(net.Conn) string
		}{
			"version 1":         {"PROXY TCP4 203.0.113.7 192.0.2.1 40000 443\r\n", nil},
			"version 2":         {header2(0x21, 0x11, four, -1), nil},
			"with extensions":   {header2(0x21, 0x11, append(bytes.Clone(four), extensions...), -1), nil},
			"IPv6":              {header2(0x21, 0x21, six, -1), func(net.Conn) string { return "[2001:db8::7]:40000" }},
			"a health check":    {header2(0x20, 0x00, nil, -1), own},
			"an unknown client": {"PROXY UNKNOWN\r\n", own},
		} {
			t.Run(fmt.Sprint(p, " ", name), func(t *testing.T) {
				l, server := openBehind(t, p, thisHost)
				conn := l.connectBehind(t, server, tc.header)
				want := "203.0.113.7:40000"
				if tc.client != nil {
					want = tc.client(conn)
				}
				mustMap(t, conn, want)
				l.drops(t, map[meter.Reason]uint64{meter.ProxyHeaderInvalid: 0, meter.ProxyHeaderUnexpected: 0})
			})
		}
	}
}

// The header may arrive in pieces, and its end together with the first data of the client.
func TestHeaderInPieces(t *testing.T) {
	request := stun.MustBuild(stun.TransactionID, stun.BindingRequest).Raw
	for name, header := range map[string]string{
		"version 1": "PROXY TCP4 203.0.113.7 192.0.2.1 40000 443\r\n", "version 2": header2(0x21, 0x11, four, -1),
	} {
		t.Run(name, func(t *testing.T) {
			l, server := openBehind(t, config.TURNTCP, thisHost)
			conn := dialFrom(t, nil, server)
			if err := conn.(*net.TCPConn).SetNoDelay(true); err != nil {
				t.Fatal(err)
			}
			data := append([]byte(header), request...)
			for i := range len(header) - 1 {
				if _, err := conn.Write(data[i : i+1]); err != nil {
					t.Fatal(err)
				}
				l.awaitRead(t)
			}
			if _, err := conn.Write(data[len(header)-1:]); err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Read(make([]byte, 1024)); err != nil {
				t.Fatal(err)
			}
			mustMap(t, conn, "203.0.113.7:40000")
		})
	}
}

// A connection is closed and counted if a load balancer sends no valid header, or if another source sends a header, or
// if there are two headers.
func TestForgedHeadersAreRefused(t *testing.T) {
	const v1 = "PROXY TCP4 203.0.113.7 192.0.2.1 40000 443\r\n"
	v2 := header2(0x21, 0x11, four, -1)
	request := string(stun.MustBuild(stun.TransactionID, stun.BindingRequest).Raw)
	elsewhere := []string{"192.0.2.0/24", "2001:db8::/32"}
	for _, p := range streams {
		for name, tc := range map[string]struct {
			balancers []string
			sent      string
			reason    meter.Reason
		}{
			"version 1 without load balancers": {nil, v1 + request, meter.ProxyHeaderUnexpected},
			"version 2 without load balancers": {nil, v2 + request, meter.ProxyHeaderUnexpected},
			"version 1 from elsewhere":         {elsewhere, v1 + request, meter.ProxyHeaderUnexpected},
			"version 2 from elsewhere":         {elsewhere, v2 + request, meter.ProxyHeaderUnexpected},
			"a health check from elsewhere":    {elsewhere, header2(0x20, 0, nil, -1) + request, meter.ProxyHeaderUnexpected},
			"two of version 1":                 {thisHost, v1 + v1 + request, meter.ProxyHeaderUnexpected},
			"two of version 2":                 {thisHost, v2 + v2 + request, meter.ProxyHeaderUnexpected},
			"version 1 in version 2":           {thisHost, v2 + v1 + request, meter.ProxyHeaderUnexpected},
			"a request":                        {thisHost, request, meter.ProxyHeaderInvalid},
			"a ClientHello":                    {thisHost, string(recordedHello(t)), meter.ProxyHeaderInvalid},
			"another version":                  {thisHost, header2(0x31, 0x11, four, -1) + request, meter.ProxyHeaderInvalid},
			"64 KiB":                           {thisHost, header2(0x21, 0x11, four, 1<<16-1) + request, meter.ProxyHeaderInvalid},
			"an endless line":                  {thisHost, "PROXY TCP4 " + string(make([]byte, 300)), meter.ProxyHeaderInvalid},
		} {
			t.Run(fmt.Sprint(p, " ", name), func(t *testing.T) {
				l, server := openBehind(t, p, tc.balancers)
				conn := dialFrom(t, nil, server)
				if _, err := io.WriteString(conn, tc.sent); err != nil {
					t.Fatal(err)
				}
				if sent := awaitClosed(t, conn); bytes.Contains(sent, []byte{0x21, 0x12, 0xA4, 0x42}) {
					t.Errorf("the request is answered: %x", sent)
				}
				want := map[meter.Reason]uint64{
					meter.ProxyHeaderInvalid: 0, meter.ProxyHeaderUnexpected: 0, meter.Malformed: 0, meter.Handshake: 0,
				}
				want[tc.reason] = 1
				l.drops(t, want)
				if p := l.opt.Meter.Panics.Load(); p != 0 {
					t.Errorf("%d panics", p)
				}
			})
		}
	}
}

// A check that opens a connection and ends it without a byte is not counted as a refused header.
func TestPortCheckIsNotCounted(t *testing.T) {
	l, server := openBehind(t, config.TURNTCP, thisHost)
	for reset := range 2 {
		conn := dialFrom(t, nil, server)
		l.awaitClients(t, 1)
		if reset == 1 {
			_ = conn.(*net.TCPConn).SetLinger(0)
		}
		_ = conn.Close()
		l.awaitClients(t, 0)
	}
	l.drops(t, map[meter.Reason]uint64{meter.ProxyHeaderInvalid: 0, meter.ProxyHeaderUnexpected: 0, meter.Malformed: 0})
}

// fixed is a connection with the address of a load balancer.
type fixed struct{ net.Conn }

func (fixed) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 40000} }

// T-14: a late header ends its connection. A late handshake after the header ends the connection too, because both have
// one deadline.
func TestLateHeaderEndsTheConnection(t *testing.T) {
	const header = "PROXY TCP4 203.0.113.7 192.0.2.1 40000 443\r\n"
	for name, tc := range map[string]struct {
		secure bool
		sent   string        // at once
		later  string        // after
		after  time.Duration // the header is complete
		reason meter.Reason
	}{
		"no byte":                  {false, "", "", 0, meter.ProxyHeaderInvalid},
		"a header in part":         {false, header[:20], "", 0, meter.ProxyHeaderInvalid},
		"no byte over TLS":         {true, "", "", 0, meter.ProxyHeaderInvalid},
		"a header in part of TLS":  {true, header[:20], "", 0, meter.ProxyHeaderInvalid},
		"a late header before TLS": {true, header[:20], header[20:], handshakeTimeout - time.Second, meter.Handshake},
	} {
		t.Run(name, func(t *testing.T) {
			p := config.TURNTCP
			if tc.secure {
				p = config.TURNTLS
			}
			of, _ := openBehind(t, p, thisHost)
			synctest.Test(t, func(t *testing.T) {
				m := meter.New()
				l := newConnections(
					io.NopCloser(nil), transport{stream: true, secure: of.secure, certs: of.certs}, of.gate, m.Listener("test"),
					Options{Meter: m, Limits: NewLimits(0), Log: slog.New(slog.DiscardHandler)},
				)
				l.setBalancers(config.Listener{ProxyProtocol: thisHost})
				client, server := net.Pipe()
				started := time.Now()
				l.accepted(fixed{server})
				if _, err := io.WriteString(client, tc.sent); err != nil {
					t.Fatal(err)
				}
				if tc.later != "" {
					time.Sleep(tc.after)
					if _, err := io.WriteString(client, tc.later); err != nil {
						t.Fatal(err)
					}
				}
				_, _ = io.ReadAll(client)
				if lasted := time.Since(started); lasted != handshakeTimeout {
					t.Errorf("the connection lasted %v, want %v", lasted, handshakeTimeout)
				}
				l.serving.Wait()
				l.drops(t, map[meter.Reason]uint64{tc.reason: 1})
			})
		})
	}
}

// T-14: the limits of a source apply to the client that a header names, and not to the load balancer. A client that
// floods through the load balancer closes only its own connections.
func TestClientsBehindALoadBalancerAreBoundedEach(t *testing.T) {
	for _, p := range streams {
		t.Run(string(p), func(t *testing.T) {
			limits := NewLimits(0)
			limits.unauthenticated, limits.handshakes = newConnLimiter(10, 2), newConnLimiter(10, 2)
			l, server := openBehindLimited(t, p, thisHost, limits)
			var others []net.Conn
			for i := range 6 {
				conn := l.connectBehind(t, server, fmt.Sprintf("PROXY TCP4 203.0.113.%d 192.0.2.1 40000 443\r\n", i+1))
				mustMap(t, conn, fmt.Sprintf("203.0.113.%d:40000", i+1))
				others = append(others, conn)
			}
			for i := range 20 {
				conn := l.connectBehind(t, server, fmt.Sprintf("PROXY TCP4 198.51.100.9 192.0.2.1 %d 443\r\n", 40000+i))
				mustMap(t, conn, fmt.Sprintf("198.51.100.9:%d", 40000+i))
			}
			l.awaitClients(t, len(others)+2)
			for i, conn := range others {
				mustMap(t, conn, fmt.Sprintf("203.0.113.%d:40000", i+1))
			}
			l.drops(t, map[meter.Reason]uint64{meter.Crowded: 18})
		})
	}
}

// T-14: the number of connections with a missing header is bounded, and they do not prevent service for a client with a
// header.
func TestConnectionsBeforeTheirHeaderAreBounded(t *testing.T) {
	limits := NewLimits(0)
	limits.headers = newConnLimiter(4, 4)
	l, server := openBehindLimited(t, config.TURNTCP, thisHost, limits)
	var silent []net.Conn
	for i := range 10 {
		silent = append(silent, dialFrom(t, nil, server))
		l.awaitOpened(t, uint64(i+1))
	}
	mustMap(t, l.connectBehind(t, server, "PROXY TCP4 203.0.113.7 192.0.2.1 40000 443\r\n"), "203.0.113.7:40000")
	l.awaitClients(t, 4)
	for _, conn := range silent[:7] {
		awaitClosed(t, conn)
	}
	l.drops(t, map[meter.Reason]uint64{meter.Crowded: 7, meter.ProxyHeaderInvalid: 0})
}

// awaitOpened waits until the listener has accepted n connections.
func (l *connections) awaitOpened(t *testing.T, n uint64) {
	t.Helper()
	for late := time.Now().Add(timeout); l.meter.Opened.Load() < n; runtime.Gosched() {
		if time.Now().After(late) {
			t.Fatalf("%d connections, want %d", l.meter.Opened.Load(), n)
		}
	}
}

// A change of the prefixes applies to the next connection. Open connections and sessions continue.
func TestPrefixesChangeInPlace(t *testing.T) {
	const header = "PROXY TCP4 203.0.113.7 192.0.2.1 40000 443\r\n"
	l, server := openBehind(t, config.TURNTCP, thisHost)
	l.gate.Update(&gate.Policy{
		Authority:  credential.Authority{Realm: "test.example", Username: "ann", Password: "first"},
		RelayAddrs: []netip.Addr{netip.MustParseAddr("127.0.0.1")},
	}, cluster.NewView(nil, nil))
	call := allocateOver(t, l.connectBehind(t, server, header))
	if r := l.gate.Relay(netip.MustParseAddrPort("203.0.113.7:40000")); r == nil || l.gate.Sessions() != 1 {
		t.Fatalf("%d sessions, and that of the client is there: %t", l.gate.Sessions(), r != nil)
	}
	for name, balancers := range map[string][]string{"no prefix": nil, "another prefix": {"192.0.2.0/24"}} {
		if err := l.Update(config.Listener{ProxyProtocol: balancers}); err != nil {
			t.Fatal(err)
		}
		plain := dialFrom(t, nil, server)
		mustMap(t, plain, plain.LocalAddr().String())
		forged := dialFrom(t, nil, server)
		if _, err := io.WriteString(forged, header); err != nil {
			t.Fatal(err)
		}
		awaitClosed(t, forged)
		if _, err := call.SendBindingRequest(); err != nil || l.gate.Sessions() != 1 {
			t.Errorf("%s: the call ends: %v, %d sessions", name, err, l.gate.Sessions())
		}
	}
	if err := l.Update(config.Listener{ProxyProtocol: thisHost}); err != nil {
		t.Fatal(err)
	}
	again := l.connectBehind(t, server, "PROXY TCP4 203.0.113.8 192.0.2.1 40000 443\r\n")
	mustMap(t, again, "203.0.113.8:40000")
	l.drops(t, map[meter.Reason]uint64{meter.ProxyHeaderUnexpected: 2})
}
