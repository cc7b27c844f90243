package server

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/resolve"
)

// hostAddresses stores the addresses of a host, and the times at which lookups received them.
type hostAddresses struct {
	mu     sync.Mutex
	addrs  []netip.Addr
	asked  chan struct{}
	looked time.Time
}

func (k *hostAddresses) lookup(_ context.Context, family, _ string) ([]netip.Addr, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if family != "ip4" {
		return nil, nil
	}
	if k.looked.IsZero() {
		k.looked = time.Now()
		close(k.asked)
	}
	return k.addrs, nil
}

// move changes the answer. The returned function waits until a lookup has received it, and returns when.
func (k *hostAddresses) move(addrs ...netip.Addr) (told func() time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.addrs, k.asked, k.looked = addrs, make(chan struct{}), time.Time{}
	asked := k.asked
	return func() time.Time {
		<-asked
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.looked
	}
}

// newNamedFixture returns a fixture whose UDP listener has a route to the host name sfu.test. The echo peer of the
// fixture is not on loopback, which no name may resolve to.
func newNamedFixture(t *testing.T) (*fixture, *hostAddresses) {
	t.Helper()
	b := newFixture(t)
	k := &hostAddresses{asked: make(chan struct{})}
	b.names.Close()
	b.names = resolve.New(k.lookup, b.refresh, b.opt.Log)
	b.peer = echoAt(t, hostAddress(t))
	b.config = b.changed(func(c *config.Config) {
		c.Clusters = append(c.Clusters, config.Cluster{
			Name: "test/named", Type: config.StrictDNS, Protocol: "UDP", Endpoints: []string{"sfu.test"},
		})
		c.Listeners[0].Routes = []string{"test/named"}
	})
	return b, k
}

// hostAddress returns an address of this host that is not loopback. Packets to it do not leave the host.
func hostAddress(t *testing.T) netip.Addr {
	t.Helper()
	list, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range list {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && p.Addr().IsGlobalUnicast() {
			return p.Addr()
		}
	}
	t.Fatal("this host has no IPv4 address but loopback: give it one with `ip address add 198.51.100.1/32 dev lo`")
	return netip.Addr{}
}

// a route to a name allows the addresses of the name. When the name loses an address, media to it ends.
func TestCallFollowsTheName(t *testing.T) {
	b, hosts := newNamedFixture(t)
	hosts.move(b.peer.Addr())
	b.apply(b.config)
	c := b.mustDial("udp", "ann", "first")
	within(t, "the name opens its address", func() bool { return c.echo("hello") == nil })

	gone := hosts.move(netip.MustParseAddr("192.0.2.77"))()
	for c.echo("still here") == nil {
		if time.Since(gone) > timeout {
			t.Fatal("media goes on after the name has moved away")
		}
	}
	err := c.client.CreatePermission(net.UDPAddrFromAddrPort(b.peer))
	if err == nil || !strings.Contains(err.Error(), "403") {
		t.Errorf("permission for an address that the name has left: %v, want 403", err)
	}

	back := hosts.move(b.peer.Addr())()
	for c.echo("back again") != nil {
		if time.Since(back) > 5*time.Second {
			t.Fatal("media does not come back with the name")
		}
	}
}

// T-01: a name that resolves to loopback does not give access to this host.
func TestNameDoesNotLeadToLoopback(t *testing.T) {
	b, hosts := newNamedFixture(t)
	hosts.move(b.peer.Addr(), netip.MustParseAddr("127.0.0.1"))
	b.apply(b.config)
	c := b.mustDial("udp", "ann", "first")
	within(t, "the name opens its other address", func() bool { return c.echo("hello") == nil })
	err := c.client.CreatePermission(&net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(b.peer.Port())})
	if err == nil || !strings.Contains(err.Error(), "403") {
		t.Errorf("permission for loopback: %v, want 403", err)
	}
}

func TestRemovedNamesAreForgotten(t *testing.T) {
	b, hosts := newNamedFixture(t)
	hosts.move(b.peer.Addr())
	b.apply(b.config)
	within(t, "the name is resolved", func() bool { return len(b.names.Answers()) == 1 })
	b.apply(b.changed(func(c *config.Config) { c.Clusters = c.Clusters[:1] }))
	if left := b.names.Answers(); len(left) != 0 {
		t.Errorf("still watched: %v", left)
	}
	c := b.mustDial("udp", "ann", "first")
	if err := c.echo("hello"); err == nil {
		t.Error("the address of a name is reached that no cluster has any more")
	}
}

// After a change of the config the resolved addresses of names are kept.
func TestAppliedConfigKeepsAnswers(t *testing.T) {
	b, hosts := newNamedFixture(t)
	hosts.move(b.peer.Addr())
	b.apply(b.config)
	c := b.mustDial("udp", "ann", "first")
	within(t, "the name opens its address", func() bool { return c.echo("hello") == nil })
	b.apply(b.changed(func(c *config.Config) {
		c.Auth.Realm = "other.example"
		c.Clusters = slices.Insert(c.Clusters, 0, config.Cluster{
			Name: "test/more", Type: config.StrictDNS, Protocol: "UDP", Endpoints: []string{"mcu.test", "sfu.test"},
		})
	}))
	if err := c.echo("still here"); err != nil {
		t.Errorf("call is cut: %v", err)
	}
}

func TestOnlyClustersWithOtherAddressesDiffer(t *testing.T) {
	was := []config.Cluster{
		{Name: "a", Endpoints: []string{"192.0.2.1"}}, {Name: "b"}, {Name: "c", Endpoints: []string{"192.0.2.3"}},
	}
	now := []config.Cluster{
		{Name: "a", Endpoints: []string{"192.0.2.1"}}, {Name: "b", Endpoints: []string{"192.0.2.2"}}, {Name: "c"},
	}
	if got := changedClusters(was, now); len(got) != 2 || !got["b"] || !got["c"] {
		t.Errorf("%v differ, want b and c", got)
	}
}
