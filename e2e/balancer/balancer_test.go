// Package balancer tests a Gateway behind a load balancer, HAProxy, that ends TLS and sends the PROXY protocol. The
// load balancer is in a network namespace of its own.
//
// # Files
//
//	setup_test.go  the product, the load balancer, and their state
package balancer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/chromium"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
)

func TestMain(m *testing.M) { os.Exit(netns.Main(m.Run)) }

// Clients call through a load balancer: over TCP and TLS, which it forwards with version 2 of the PROXY protocol, and
// over TLS that it ends, with version 1. Sessions have the addresses of the clients. Headers that a client forges are
// refused, and a change of the prefixes ends no call.
func TestLoadBalancer(t *testing.T) {
	s := newStage(t)
	t.Run("clients are told the load balancer", s.urls)
	t.Run("calls", s.calls)
	t.Run("health checks", s.healthChecks)
	t.Run("Chromium through TLS that ends at the load balancer", s.chromium)
	t.Run("forged headers", s.forged)
	t.Run("the prefixes change during a call", s.prefixes)
	t.Run("an invalid prefix", s.mistake)
}

// urls: the auth service gives turns: URLs of a listener whose TLS ends at the load balancer.
func (s *balanced) urls(t *testing.T) {
	ice, err := s.stack.ICEServers(t.Context())
	harnesstest.NoError(t, err)
	got := ice.Servers[0].URLs
	for _, l := range []struct{ scheme, listener string }{{"turn", "tcp"}, {"turns", "tls"}, {"turns", "web"}} {
		if url := fmt.Sprintf("%s:%s:%d?transport=tcp", l.scheme, balancer4, s.ports[l.listener]); !slices.Contains(got, url) {
			t.Errorf("URLs %q, want %s", got, url)
		}
	}
	if wrong := fmt.Sprintf("turn:%s:%d", balancer4, s.ports["web"]); strings.Contains(strings.Join(got, " "), wrong) {
		t.Errorf("URLs %q have one without TLS, %s", got, wrong)
	}
}

// ways are the paths through the load balancer.
var ways = []struct {
	listener string
	network  call.Network
	from, to netip.Addr
}{
	{"tcp", call.TCP, client4, balancer4},
	{"tls", call.TLS, client4, balancer4},
	{"web", call.TLS, client4, balancer4},
	{"tcp", call.TCP, client6, balancer6},
	{"tls", call.TLS, client6, balancer6},
	{"web", call.TLS, client6, balancer6},
}

// calls: a session has the address and port of the client. The load balancer reaches the gateway over IPv4 only, so the
// address of a client over IPv6 differs in family from the address of the connection.
func (s *balanced) calls(t *testing.T) {
	var running []*call.Call
	var clients []netip.AddrPort
	for _, w := range ways {
		local := netip.AddrPortFrom(w.from, uint16(harnesstest.Port(t)))
		c := s.dial(t, w.network, local, netip.AddrPortFrom(w.to, uint16(s.ports[w.listener])))
		running, clients = append(running, c), append(clients, local)
	}
	for _, c := range running {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		harnesstest.NoError(t, c.AwaitMore(ctx, 50))
		cancel()
	}
	for i, client := range clients {
		if got := s.sessions(t, client.String()); !slices.Equal(got, []string{gatewayID + "/" + ways[i].listener}) {
			t.Errorf("%s has sessions on %q, want one on %s", client, got, ways[i].listener)
		}
	}
	if got := s.sessions(t, ""); len(got) != len(ways) {
		t.Errorf("%d sessions, want %d", len(got), len(ways))
	}
	for i, c := range running {
		if stats := c.End(timeout); stats.Err != nil || stats.Lost > 0 {
			t.Errorf("call by %s of %s: %s", ways[i].listener, ways[i].from, stats)
		}
	}
}

// healthChecks: the load balancer checks the gateway by its own connections, which are not counted as refused.
func (s *balanced) healthChecks(t *testing.T) {
	opened := s.metric(t, "stunner_listener_connections_total", "")
	s.await(t, func(context.Context) error {
		if now := s.metric(t, "stunner_listener_connections_total", ""); now < opened+6 {
			return fmt.Errorf("%g connections since %g", now-opened, opened)
		}
		return nil
	})
	for _, reason := range []string{invalid, unexpected} {
		if n := s.metric(t, "stunner_dropped_total", reason); n != 0 {
			t.Errorf("%g connections with reason %s", n, reason)
		}
	}
}

// chromium: a browser calls with the turns: URL of the listener whose TLS ends at the load balancer, and its session
// has the address of the browser. The other TLS listener is removed meanwhile, because a browser selects one of the
// relays.
func (s *balanced) chromium(t *testing.T) {
	encrypted := fmt.Sprintf("\n    - {name: tls, port: %d,", s.ports["tls"])
	hidden := strings.Replace(encrypted, "\n", "\n    #", 1)
	s.edit(t, encrypted, hidden)
	s.awaitURL(t, fmt.Sprintf(":%d?", s.ports["tls"]), false)
	p := chromium.Open(t, s.stack.AuthURL()+"/demo/?run=1&keep=1&transport=tls", s.authority)
	r := p.Reports("media come back", func(r chromium.Report) bool { return r.Verdict == "failed" || r.Received > 50 })
	if r.Verdict == "failed" || r.Pair.Local.Type != "relay" || r.Pair.Local.Relay != "tls" {
		t.Fatalf("verdict %q (%s), %+v, %+v", r.Verdict, r.Sentence, r.Pair, r.Error)
	}
	listeners := s.sessions(t, gateway4.String()) // this host reaches the load balancer from this address
	if !slices.Contains(listeners, gatewayID+"/web") {
		t.Errorf("the browser has sessions on %q, none through TLS that ends at the load balancer", listeners)
	}
	for _, a := range []netip.Addr{balancer4, balancer6} {
		if got := s.sessions(t, a.String()); len(got) > 0 {
			t.Errorf("sessions of the load balancer %s on %q", a, got)
		}
	}
	p.Tell("stop")
	r = p.Reports("the call is over", func(r chromium.Report) bool { return r.Verdict == "ok" || r.Verdict == "failed" })
	if r.Verdict != "ok" || r.Received == 0 {
		t.Errorf("verdict %q (%s), error %+v", r.Verdict, r.Sentence, r.Error)
	}
	t.Logf("sent %d, received %d, lost %d; sessions on %q", r.Sent, r.Received, r.Lost, listeners)

	s.edit(t, hidden, encrypted)
	s.awaitURL(t, fmt.Sprintf(":%d?", s.ports["tls"]), true)
}

// awaitURL waits until the auth service returns a URL that contains a text. With "" it waits until there is no URL.
func (s *balanced) awaitURL(t *testing.T, part string, told bool) {
	t.Helper()
	s.await(t, func(ctx context.Context) error {
		ice, err := s.stack.ICEServers(ctx)
		if err == nil && strings.Contains(strings.Join(ice.Servers[0].URLs, " "), part) != told {
			err = fmt.Errorf("URLs with %s in %q: want %t", part, ice.Servers[0].URLs, told)
		}
		return err
	})
}

// forged: a connection with a header of a client is closed, whether the client sends it to the gateway directly or
// through the load balancer. A connection of the load balancer without a header is closed too.
func (s *balanced) forged(t *testing.T) {
	const v1 = "PROXY TCP4 192.0.2.66 203.0.113.2 40000 443\r\n"
	const v2 = "\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\xc0\x00\x02\x42\xcb\x00\x71\x02\x9c\x40\x01\xbb"
	fromClient := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: client4.AsSlice()}}).DialContext
	gateway := func(listener string) string { return netip.AddrPortFrom(gateway4, uint16(s.ports[listener])).String() }
	balancer := func(listener string) string { return netip.AddrPortFrom(balancer4, uint16(s.ports[listener])).String() }
	for _, c := range []struct {
		name, to, sent, reason string
		dial                   func(ctx context.Context, network, address string) (net.Conn, error)
	}{
		{"version 1 at the TCP listener", gateway("tcp"), v1 + bindingRequest, unexpected, fromClient},
		{"version 2 at the TCP listener", gateway("tcp"), v2 + bindingRequest, unexpected, fromClient},
		{"version 1 at the TLS listener", gateway("tls"), v1 + bindingRequest, unexpected, fromClient},
		{"version 2 at the TLS listener", gateway("tls"), v2 + bindingRequest, unexpected, fromClient},
		{"version 1 through the load balancer", balancer("tcp"), v1 + bindingRequest, unexpected, fromClient},
		{"version 2 through the load balancer", balancer("tcp"), v2 + bindingRequest, unexpected, fromClient},
		{"version 2 through the load balancer over TLS", balancer("tls"), v2 + bindingRequest, unexpected, fromClient},
		{"no header of the load balancer", gateway("tcp"), bindingRequest, invalid, s.space.Dial},
		{"an unknown version of the load balancer", gateway("tls"), strings.Replace(v2, "\x21", "\x31", 1) + bindingRequest, invalid,
			s.space.Dial},
	} {
		before := s.metric(t, "stunner_dropped_total", c.reason)
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		conn, err := c.dial(ctx, "tcp", c.to)
		cancel()
		harnesstest.NoError(t, err)
		_ = conn.SetDeadline(time.Now().Add(timeout))
		if _, err := io.WriteString(conn, c.sent); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		answer, err := io.ReadAll(conn)
		if e := net.Error(nil); errors.As(err, &e) && e.Timeout() || strings.Contains(string(answer), magicCookie) {
			t.Errorf("%s: the answer is %q, %v; want a closed connection", c.name, answer, err)
		}
		_ = conn.Close()
		if n := s.metric(t, "stunner_dropped_total", c.reason) - before; n != 1 {
			t.Errorf("%s: %g more connections with reason %s, want 1", c.name, n, c.reason)
		}
	}
	if got := s.sessions(t, "192.0.2.66"); len(got) > 0 {
		t.Errorf("sessions of the forged client on %q", got)
	}
}

// prefixes: a call continues while the prefixes of the Gateway change. New connections use the new prefixes.
func (s *balanced) prefixes(t *testing.T) {
	way := ways[2]
	to := netip.AddrPortFrom(way.to, uint16(s.ports[way.listener]))
	local := func() netip.AddrPort { return netip.AddrPortFrom(way.from, uint16(harnesstest.Port(t))) }
	c := s.dial(t, way.network, local(), to)
	s.edit(t, balancer4.String()+"/32", "192.0.2.80/32")
	s.await(t, func(ctx context.Context) error {
		another, err := s.start(ctx, t, way.network, local(), to)
		if err == nil {
			another.End(0)
			return errors.New("a header of the former prefix is still read")
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	harnesstest.NoError(t, c.AwaitMore(ctx, 50))
	s.edit(t, "192.0.2.80/32", balancer4.String()+"/32")
	s.await(t, func(ctx context.Context) error {
		another, err := s.start(ctx, t, way.network, local(), to)
		if err == nil {
			another.End(0)
		}
		return err
	})
	harnesstest.NoError(t, c.AwaitMore(ctx, 50))
	if stats := c.End(timeout); stats.Err != nil || stats.Lost > 0 {
		t.Errorf("the call during the changes: %s", stats)
	}
}

// mistake: status.txt names an invalid annotation and the remedy, and clients are served as before.
func (s *balanced) mistake(t *testing.T) {
	s.edit(t, balancer4.String()+"/32", "balancer.example.net")
	s.await(t, func(context.Context) error {
		status, err := os.ReadFile(s.stack.Output() + "/status.txt")
		if want := `annotation stunner.l7mp.io/proxy-protocol: "balancer.example.net" is no prefix of IP addresses: write`; err == nil &&
			!strings.Contains(string(status), want) {
			err = fmt.Errorf("status.txt does not contain %q:\n%s", want, status)
		}
		return err
	})
	for _, w := range ways[:3] {
		c := s.dial(t, w.network, netip.AddrPortFrom(w.from, uint16(harnesstest.Port(t))),
			netip.AddrPortFrom(w.to, uint16(s.ports[w.listener])))
		c.End(0)
	}
}
