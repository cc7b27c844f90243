package server

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// Over every transport, an ended session frees its relay port, its allocation and its quota within a second. The other
// sessions continue. The client may allocate again.
func TestEndSessions(t *testing.T) {
	b := newFixture(t)
	for _, transport := range []string{"udp", "tcp", "tls", "dtls"} {
		first, other := b.mustDial(transport, "ann", "first"), b.mustDial(transport, "ann", "first")
		for _, c := range []*call{first, other} {
			if err := c.echo("hello"); err != nil {
				t.Fatalf("%s: %v", transport, err)
			}
		}
		relay := first.relay.LocalAddr().String()
		ended := b.EndSessions(func(s *session.Session) bool { return s.Relay.String() == relay })
		if len(ended) != 1 || ended[0].Relay.String() != relay {
			t.Errorf("%s: %d sessions ended", transport, len(ended))
		}
		if b.Sessions().Len() != 1 || b.engine.Allocations() != 1 {
			t.Errorf("%s: %d sessions, %d allocations", transport, b.Sessions().Len(), b.engine.Allocations())
		}
		if conn, err := net.ListenPacket("udp4", relay); err != nil {
			t.Errorf("%s: the relay port is in use: %v", transport, err)
		} else {
			_ = conn.Close()
		}
		if err := other.echo("hello"); err != nil {
			t.Errorf("%s: the other session: %v", transport, err)
		}
		b.EndSessions(func(*session.Session) bool { return true })
		if err := b.mustDial(transport, "ann", "first").echo("again"); err != nil {
			t.Errorf("%s: %v", transport, err)
		}
		b.EndSessions(func(*session.Session) bool { return true })
	}
	if ended := b.EndSessions(func(*session.Session) bool { return true }); len(ended) != 0 {
		t.Errorf("%d sessions are left", len(ended))
	}
}

// Sessions of a replaced listener end too.
func TestEndSessionsOfReplacedListeners(t *testing.T) {
	b := newFixture(t)
	b.mustDial("tcp", "ann", "first")
	b.apply(b.changed(func(c *config.Config) { c.Listeners[1].Port = c.Listeners[1].Port - 1 }))
	if ended := b.EndSessions(func(*session.Session) bool { return true }); len(ended) != 1 || b.Sessions().Len() != 0 {
		t.Errorf("%d ended, %d left", len(ended), b.Sessions().Len())
	}
}

// Reach agrees with the requests of clients, and names the cluster and the endpoint, or the reason.
func TestReachAgreesWithRequests(t *testing.T) {
	b := newFixture(t)
	b.apply(b.changed(func(c *config.Config) {
		c.Clusters = append(c.Clusters, config.Cluster{
			Name: "test/net", Type: config.Static, Endpoints: []string{"10.0.0.0/8:<1-100>", "10.1.0.0/16:<1-100>"},
		})
		c.Listeners[0].Routes = append(c.Listeners[0].Routes, "test/net")
		c.Listeners[1].Routes = nil
		c.Default()
	}))
	call := b.mustDial("udp", "ann", "first")
	for _, c := range []struct{ peer, want string }{
		{b.peer.String(), "true test/echo 127.0.0.1:<" + fmt.Sprint(b.peer.Port(), "-", b.peer.Port()) + ">  "},
		{"10.1.2.3:53", "true test/net 10.1.0.0/16:<1-100>  "},
		{"10.2.2.3:53", "true test/net 10.0.0.0/8:<1-100>  "},
		{"10.2.2.3:200", "false   port_denied peer 10.2.2.3:200 denied: a route of listener test/gateway/udp allows the " +
			"address, but not this port (routes: test/echo, test/net)"},
		{"192.0.2.1:53", "false   peer_denied peer 192.0.2.1:53 denied: no route of listener test/gateway/udp allows it " +
			"(routes: test/echo, test/net)"},
	} {
		peer := netip.MustParseAddrPort(c.peer)
		r := b.Reach(peer)[0]
		if got := fmt.Sprint(r.Allowed, " ", r.Cluster, " ", r.Endpoint, " ", r.Reason, " ", r.Text); got != c.want {
			t.Errorf("%s: %s, want %s", c.peer, got, c.want)
		}
		err := call.client.CreatePermission(net.UDPAddrFromAddrPort(peer))
		if r.Reason != "port_denied" && (err == nil) != r.Allowed { // permissions are for all ports
			t.Errorf("%s: allowed %t, CreatePermission %v", c.peer, r.Allowed, err)
		}
	}
	if got := b.Reach(b.peer)[1]; got.Reason != "peer_denied" || got.Listener != "test/gateway/tcp" {
		t.Errorf("a listener without routes: %+v", got)
	}
	own := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(b.port("udp")))
	if got := b.Reach(own)[0]; got.Allowed {
		t.Errorf("the listener itself: %+v", got)
	}
	b.apply(b.changed(func(c *config.Config) { c.Auth = config.Auth{Type: config.AuthNone, Realm: "test.example"} }))
	if got := b.Reach(b.peer)[0]; got.Reason != "stun_only" {
		t.Errorf("without authentication: %+v", got)
	}
}

// Clients of a listener without a relay address of a family do not reach peers of that family.
func TestReachNeedsARelayAddress(t *testing.T) {
	b := newFixture(t)
	b.opt.HostAddresses = b.opt.HostAddresses[:1]
	b.apply(b.changed(func(c *config.Config) { c.Clusters[0].Endpoints = []string{"2001:db8::/32"} }))
	peer := netip.MustParseAddrPort("[2001:db8::1]:53")
	if got := b.Reach(peer)[0]; got.Reason != "family_unsupported" {
		t.Errorf("%+v", got)
	}
}

// The status has the certificate in use.
func TestStatusHasTheCertificateInUse(t *testing.T) {
	b := newFixture(t)
	for _, name := range []string{"first", "second"} {
		b.apply(b.changed(func(c *config.Config) {
			b.show(c, newIdentity(t, name))
			other := newIdentity(t, "other")
			c.Listeners[2].Certificates = []config.Certificate{{Cert: other.cert, Key: other.key}}
		}))
		for _, l := range b.Status().Listeners {
			switch {
			case !l.Protocol.Secure():
				if l.Certificate != nil {
					t.Errorf("%s: %+v", l.Name, l.Certificate)
				}
			case l.Certificate == nil, l.Certificate.Subject != "CN="+name, !l.Certificate.SelfSigned,
				fmt.Sprint(l.Certificate.Names) != "[127.0.0.1]", time.Until(l.Certificate.NotAfter) > time.Hour:
				t.Errorf("%s: %+v, want %s", l.Name, l.Certificate, name)
			}
		}
		if others := b.Status().Listeners[2].OtherCertificates; len(others) != 1 || others[0].Subject != "CN=other" {
			t.Errorf("other certificates %+v", others)
		}
	}
}
