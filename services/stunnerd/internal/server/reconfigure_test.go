package server

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/testport"
)

// changed returns a changed copy of the fixture's config.
func (b *fixture) changed(change func(*config.Config)) config.Config {
	c := b.config.Clone()
	change(&c)
	return c
}

// a call survives every change of the config except the removal of its listener, and can create permissions
// afterwards.
func TestACallSurvivesEveryChangeButTheRemovalOfItsListener(t *testing.T) {
	cases := map[string]func(t *testing.T, b *fixture, c *config.Config){
		"listener added": func(t *testing.T, b *fixture, c *config.Config) {
			c.Listeners = append(c.Listeners, config.Listener{
				Name: "test/gateway/more", Protocol: config.TURNUDP, Port: testport.Free(t), Address: "127.0.0.1"})
		},
		"other listener removed": func(_ *testing.T, _ *fixture, c *config.Config) {
			c.Listeners = slices.DeleteFunc(
				c.Listeners, func(l config.Listener) bool { return strings.HasSuffix(l.Name, "/tcp") },
			)
		},
		"password changed": func(
			_ *testing.T, _ *fixture, c *config.Config,
		) {
			c.Auth.Credentials[config.KeyPassword] = "second"
		},
		"realm changed": func(_ *testing.T, _ *fixture, c *config.Config) { c.Auth.Realm = "other.example" },
		"realm and password changed": func(_ *testing.T, _ *fixture, c *config.Config) {
			c.Auth.Realm, c.Auth.Credentials[config.KeyPassword] = "other.example", "second"
		},
		"log level":      func(_ *testing.T, _ *fixture, c *config.Config) { c.Admin.LogLevel = "all:DEBUG" },
		"quota":          func(_ *testing.T, _ *fixture, c *config.Config) { c.Admin.UserQuota = 1 },
		"public address": func(_ *testing.T, _ *fixture, c *config.Config) { c.Listeners[0].PublicAddress = "192.0.2.1" },
		"port changed":   func(t *testing.T, _ *fixture, c *config.Config) { c.Listeners[0].Port = testport.Free(t) },
		"protocol changed": func(t *testing.T, _ *fixture, c *config.Config) {
			c.Listeners[0].Protocol, c.Listeners[0].Port = config.TURNTCP, testport.Free(t)
		},
		"other cluster": func(_ *testing.T, _ *fixture, c *config.Config) {
			c.Clusters = append(c.Clusters, config.Cluster{
				Name: "test/more", Type: config.Static, Protocol: "UDP", Endpoints: []string{"192.0.2.0/24"},
			})
		},
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			b := newFixture(t)
			c := b.mustDial("udp", "ann", "first")
			if err := c.echo("before"); err != nil {
				t.Fatal(err)
			}
			b.apply(b.changed(func(next *config.Config) { change(t, b, next) }))
			for range 3 {
				if err := c.echo("after"); err != nil {
					t.Fatalf("call is cut: %v", err)
				}
			}
			// CreatePermission is authenticated, with the original credential of the session.
			if err := c.client.CreatePermission(&net.UDPAddr{IP: b.peer.Addr().AsSlice(), Port: 1}); err != nil {
				t.Errorf("live session cannot ask for a permission: %v", err)
			}
		})
	}
}

// after a change of the password, new allocations need the new password.
func TestNewCallNeedsTheNewCredential(t *testing.T) {
	b := newFixture(t)
	b.apply(b.changed(func(c *config.Config) { c.Auth.Credentials[config.KeyPassword] = "second" }))
	if _, err := b.dial("udp", "ann", "first"); err == nil {
		t.Error("old password makes a new allocation")
	}
	if err := b.mustDial("udp", "ann", "second").echo("hello"); err != nil {
		t.Error(err)
	}
}

// a session may use its previous credential for the overlap of the new config; with an overlap of 0 it may not. A
// shorter overlap applies to earlier credentials too.
func TestCredentialOverlap(t *testing.T) {
	second := func(overlap *int32) func(c *config.Config) {
		return func(c *config.Config) {
			c.Auth.Credentials[config.KeyPassword], c.Auth.CredentialOverlap = "second", overlap
		}
	}
	for name, tc := range map[string]struct {
		changes []func(c *config.Config)
		good    bool
	}{
		"default":             {[]func(c *config.Config){second(nil)}, true},
		"an hour":             {[]func(c *config.Config){second(new(int32(3600)))}, true},
		"none":                {[]func(c *config.Config){second(new(int32(0)))}, false},
		"none, a little late": {[]func(c *config.Config){second(nil), second(new(int32(0)))}, false},
		"one second":          {[]func(c *config.Config){second(new(int32(1)))}, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newFixture(t)
			c := b.mustDial("udp", "ann", "first")
			for _, change := range tc.changes {
				b.apply(b.changed(change))
			}
			if name == "one second" {
				time.Sleep(time.Second) // the overlap
			}
			err := c.client.CreatePermission(net.UDPAddrFromAddrPort(b.peer))
			if (err == nil) != tc.good {
				t.Errorf("a request with the former credential: %v", err)
			}
			if err := b.mustDial("udp", "ann", "second").echo("hello"); err != nil {
				t.Error(err)
			}
		})
	}
}

// a former secret in a config admits new sessions. After a config has removed it, these sessions may use it for
// the overlap, and it admits no new sessions.
func TestFormerSecretOfAConfigIsRemembered(t *testing.T) {
	b := newFixture(t)
	root := credential.Secret("a shared secret that goes")
	with := func(former *config.FormerSecret) config.Config {
		return b.changed(func(c *config.Config) {
			c.Auth.Type, c.Auth.Credentials = config.AuthEphemeral, map[string]credential.Secret{
				config.KeySecret: "a shared secret that comes",
			}
			c.Auth.Former = former
		})
	}
	minted, err := credential.Authority{SharedSecret: root}.Mint("ann", time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	b.apply(with(&config.FormerSecret{Secret: root, Until: time.Now().Add(time.Hour).Unix()}))
	c := b.mustDial("udp", minted.Username, string(minted.Password))
	b.apply(with(nil))
	if err := c.client.CreatePermission(net.UDPAddrFromAddrPort(b.peer)); err != nil {
		t.Errorf("a session of the former secret cannot go on: %v", err)
	}
	if d, err := b.dial("udp", minted.Username, string(minted.Password)); err == nil {
		d.client.Close()
		t.Error("a session begins with a secret that the config has given up")
	}
	for range 20 {
		b.apply(with(&config.FormerSecret{Secret: root, Until: time.Now().Add(time.Hour).Unix()}))
		b.apply(with(nil))
	}
	if n := len(b.former); n > 2 {
		t.Errorf("%d former credentials are kept, of 2", n)
	}
}

// alternating between two credentials does not accumulate former credentials.
func TestFlappingCredentialIsRememberedOnce(t *testing.T) {
	b := newFixture(t)
	c := b.mustDial("udp", "ann", "first")
	for range 20 {
		b.apply(b.changed(func(c *config.Config) { c.Auth.Credentials[config.KeyPassword] = "second" }))
		b.apply(b.changed(func(*config.Config) {}))
	}
	b.apply(b.changed(func(c *config.Config) { c.Auth.Credentials[config.KeyPassword] = "second" }))
	if n := len(b.former); n > 2 {
		t.Errorf("%d former credentials are kept, of 2", n)
	}
	if err := c.client.CreatePermission(net.UDPAddrFromAddrPort(b.peer)); err != nil {
		t.Errorf("live session cannot ask for a permission: %v", err)
	}
}

// frequent changes of the realm end no session and are not remembered. The number of remembered credentials is
// bounded.
func TestFormerAuthoritiesAreBounded(t *testing.T) {
	b := newFixture(t)
	c := b.mustDial("udp", "ann", "first")
	for n := range 3 * maxFormer {
		b.apply(b.changed(func(c *config.Config) { c.Auth.Realm = fmt.Sprintf("realm-%d.example", n) }))
	}
	if n := len(b.former); n != 0 {
		t.Errorf("%d former authorities are kept of one that was renamed", n)
	}
	if err := c.client.CreatePermission(net.UDPAddrFromAddrPort(b.peer)); err != nil {
		t.Errorf("live session cannot ask for a permission: %v", err)
	}
	for n := range 3 * maxFormer {
		b.apply(b.changed(func(c *config.Config) {
			c.Auth.Credentials[config.KeyPassword] = credential.Secret(fmt.Sprint("password-", n))
		}))
		if n == 2*maxFormer {
			c = b.mustDial("udp", "ann", fmt.Sprint("password-", n))
		}
	}
	if n := len(b.former); n != maxFormer {
		t.Errorf("%d former authorities are kept, want %d", n, maxFormer)
	}
	if err := c.client.CreatePermission(net.UDPAddrFromAddrPort(b.peer)); err != nil {
		t.Errorf("session of %d changes ago cannot ask for a permission: %v", maxFormer-1, err)
	}
}

// T-05: the removal of a route ends the media of running calls, and permissions get 403.
func TestRemovedRouteStopsMediaAndPermissions(t *testing.T) {
	b := newFixture(t)
	c := b.mustDial("udp", "ann", "first")
	if err := c.echo("before"); err != nil {
		t.Fatal(err)
	}
	b.apply(b.changed(func(next *config.Config) { next.Listeners[0].Routes = nil }))
	if err := c.echo("after"); err == nil {
		t.Error("media goes on without a route")
	}
	if err := c.client.CreatePermission(net.UDPAddrFromAddrPort(b.peer)); err == nil ||
		!strings.Contains(err.Error(), "403") {
		t.Errorf("permission without a route: %v, want 403", err)
	}
	b.apply(b.config)
	if err := c.echo("again"); err != nil {
		t.Errorf("media does not come back with the route: %v", err)
	}
}

// T-04: packets to a port outside the range of the route are dropped and counted.
func TestNoMediaPassesOutsideThePortsOfARoute(t *testing.T) {
	b := newFixture(t)
	b.apply(b.changed(func(c *config.Config) { c.Clusters[0].Endpoints = []string{"127.0.0.1:<1-9>"} }))
	c := b.mustDial("udp", "ann", "first")
	if err := c.echo("out of range"); err == nil {
		t.Fatal("a port outside the route's range was reached")
	}
	if n := b.Meter().Drops()["port_denied"] + b.Meter().Refusals()["port_denied"] + b.Meter().Drops()["peer_denied"]; n == 0 {
		t.Error("nothing was counted")
	}
}

// D-07: the removal of a listener ends its sessions only.
func TestRemovedListenerEndsItsSessions(t *testing.T) {
	b := newFixture(t)
	b.mustDial("udp", "ann", "first")
	b.mustDial("tcp", "ann", "first")
	b.apply(b.changed(func(c *config.Config) { c.Listeners = c.Listeners[:1] }))
	within(t, "only the other listener's session is left", func() bool { return b.Sessions().Len() == 1 })
	if got := b.Sessions().List()[0].Listener; got != "test/gateway/udp" {
		t.Errorf("session of %s is left", got)
	}
}

// a listener that moves to another port keeps its previous port until its last session has ended.
func TestReplacedListenerClosesAfterItsLastSession(t *testing.T) {
	b := newFixture(t)
	old := b.port("udp")
	c := b.mustDial("udp", "ann", "first")
	b.apply(b.changed(func(next *config.Config) { next.Listeners[0].Port = testport.Free(t) }))
	if err := b.mustDial("udp", "ann", "first").echo("new port"); err != nil {
		t.Fatal(err)
	}
	if err := c.relay.Close(); err != nil {
		t.Fatal(err)
	}
	within(t, "old port free", func() bool {
		conn, err := net.ListenUDP("udp", &net.UDPAddr{Port: old})
		if err != nil {
			return false
		}
		return conn.Close() == nil
	})
}

// a listener whose new port is in use keeps its previous port, the status names it, and other listeners change.
func TestTakenPortKeepsThePreviousPortAndDelaysNoOtherListener(t *testing.T) {
	b := newFixture(t)
	c := b.mustDial("udp", "ann", "first")
	taken, err := net.ListenUDP("udp", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	next := b.changed(func(next *config.Config) {
		next.Listeners[0].Port = taken.LocalAddr().(*net.UDPAddr).Port
		next.Auth.Credentials[config.KeyPassword] = "second"
	})
	_, err = b.Apply(next)
	if err == nil || !strings.Contains(err.Error(), "test/gateway/udp") {
		t.Fatalf("error %v does not name the listener", err)
	}
	if b.Status().Failures["test/gateway/udp"] == "" {
		t.Error("status does not say which listener failed")
	}
	if err := c.echo("still here"); err != nil {
		t.Errorf("the old form is gone: %v", err)
	}
	if err := b.mustDial("tcp", "ann", "second").echo("other listener"); err != nil {
		t.Errorf("the other listener was held up: %v", err)
	}
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	b.apply(next)
	if err := b.mustDial("udp", "ann", "second").echo("retried"); err != nil {
		t.Errorf("the second try does not help: %v", err)
	}
}

// T-A17, T-12: a user beyond the quota gets 486, and can allocate again after a session has ended.
func TestQuotaIsPerUserAndFreedAtTheEnd(t *testing.T) {
	b := newFixture(t)
	b.apply(b.changed(func(c *config.Config) { c.Admin.UserQuota = 2 }))
	first := b.mustDial("udp", "ann", "first")
	b.mustDial("tcp", "ann", "first")
	if _, err := b.dial("udp", "ann", "first"); err == nil || !strings.Contains(err.Error(), "486") {
		t.Fatalf("third allocation: %v, want 486", err)
	}
	if err := first.relay.Close(); err != nil {
		t.Fatal(err)
	}
	within(t, "port given back", func() bool { return b.Sessions().Len() == 1 })
	b.mustDial("udp", "ann", "first")
}

// a draining process answers Allocate with 508 at once and keeps its sessions.
func TestDrainingRefusesNewCallsAndKeepsLiveOnes(t *testing.T) {
	b := newFixture(t)
	c := b.mustDial("udp", "ann", "first")
	b.Sessions().Drain()
	if _, err := b.dial("udp", "ann", "first"); err == nil || !strings.Contains(err.Error(), "508") {
		t.Errorf("allocation while draining: %v, want 508", err)
	}
	if err := c.echo("still here"); err != nil {
		t.Error(err)
	}
	if b.Status().Status != inspection.Terminating {
		t.Errorf("status %s", b.Status().Status)
	}
}

func TestRenamedListenerServesAtOnce(t *testing.T) {
	b := newFixture(t)
	next := b.changed(func(c *config.Config) { c.Listeners[0].Name = "test/gateway/renamed" })
	b.apply(next)
	if err := b.mustDial("renamed", "ann", "first").echo("hello"); err != nil {
		t.Error(err)
	}
}

func TestListenersSwapTheirPorts(t *testing.T) {
	b := newFixture(t)
	b.apply(b.changed(func(c *config.Config) {
		c.Listeners = append(c.Listeners, config.Listener{
			Name: "test/gateway/second", Protocol: config.TURNUDP, Port: testport.Free(
				t,
			), Address: "127.0.0.1", Routes: []string{"test/echo"}})
		b.config = c.Clone()
	}))
	first, last := b.port("udp"), b.port("second")
	b.apply(b.changed(func(c *config.Config) {
		c.Listeners[0].Port, c.Listeners[len(c.Listeners)-1].Port = last, first
	}))
	if b.port("udp") != last || b.port("second") != first {
		t.Fatalf("ports %d and %d, want %d and %d", b.port("udp"), b.port("second"), last, first)
	}
	for _, name := range []string{"udp", "second"} {
		if err := b.mustDial(name, "ann", "first").echo("hello"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
