package server

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/pion/logging"
	"github.com/pion/turn/v3"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/testnet"
)

// openToAll returns a config whose UDP listener has a route to all addresses.
func (b *fixture) openToAll(change func(l *config.Listener)) config.Config {
	return b.changed(func(c *config.Config) {
		c.Clusters = append(
			c.Clusters,
			config.Cluster{Name: "test/all", Type: config.Static, Protocol: "UDP", Endpoints: []string{"0.0.0.0/0"}},
		)
		c.Listeners[0].Routes = []string{"test/all"}
		change(&c.Listeners[0])
	})
}

// nest makes an allocation at a server through the relay of a call.
func (c *call) nest(server netip.AddrPort) error {
	if err := c.client.CreatePermission(net.UDPAddrFromAddrPort(server)); err != nil {
		return err
	}
	inner, err := turn.NewClient(&turn.ClientConfig{
		STUNServerAddr: server.String(), TURNServerAddr: server.String(), Conn: c.relay,
		Username: "ann", Password: "first", LoggerFactory: logging.NewDefaultLoggerFactory(),
	})
	if err == nil {
		err = inner.Listen()
	}
	if err != nil {
		c.t.Fatal(err)
	}
	defer inner.Close()
	relay, err := inner.Allocate()
	if err != nil {
		return err
	}
	return relay.Close()
}

// T-03: with a route to all addresses, no allocation can be nested in another allocation through the public address or
// the address of a Service. These are not addresses of this host. The first half shows that the packets arrive if the
// config does not contain the addresses. Adding the addresses ends no session, only the traffic to them.
func TestAllocationsDoNotNest(t *testing.T) {
	if !testnet.Isolated(t) {
		return
	}
	// leads to this host, like a load balancer, but is not an address of this host
	testnet.IP(t, "route add local 203.0.113.0/24 dev lo")
	b := newFixture(t)
	port := uint16(b.port("udp"))
	public, service := netip.AddrPortFrom(netip.MustParseAddr("203.0.113.5"), port), netip.AddrPortFrom(
		netip.MustParseAddr("203.0.113.6"), port,
	)
	b.apply(b.openToAll(func(*config.Listener) {}))
	c := b.mustDial("udp", "ann", "first")
	for _, server := range []netip.AddrPort{public, service} {
		if err := c.nest(server); err != nil {
			t.Fatalf("%s does not lead to the listener in this test: %v", server, err)
		}
	}
	plan := b.apply(b.openToAll(func(l *config.Listener) {
		l.PublicAddresses, l.PublicPort = []string{"198.51.100.9", public.Addr().String()}, int(port)
		l.ServiceAddresses = []string{service.String()}
	}))
	if len(plan.Start)+len(plan.Replace)+len(plan.Stop)+len(plan.CloseFirst) > 0 {
		t.Errorf("named addresses do more than %q", plan)
	}
	if b.Sessions().Len() == 0 {
		t.Error("named addresses end the session")
	}
	for _, server := range []netip.AddrPort{public, service} {
		if err := c.nest(server); err == nil || !strings.Contains(err.Error(), "403") {
			t.Errorf("permission for %s: %v, want 403", server, err)
		}
		before := b.Meter().Drops()["port_denied"]
		// through the permission that was installed before
		if _, err := c.relay.WriteTo([]byte("hello"), net.UDPAddrFromAddrPort(server)); err != nil {
			t.Fatal(err)
		}
		within(
			t, "what is sent to "+server.String()+" is dropped",
			func() bool { return b.Meter().Drops()["port_denied"] > before },
		)
	}
	other := netip.AddrPortFrom(public.Addr(), port+1)
	if err := c.client.CreatePermission(net.UDPAddrFromAddrPort(other)); err != nil {
		t.Errorf("permission for another port of the public address: %v", err)
	}
}

// T-03: a listener cannot be a peer at an address that the host has got after the start. When the host has lost the
// address, only the routes apply to it.
func TestListenersAreDeniedAsPeersAtAddedAddresses(t *testing.T) {
	b := newFixture(t)
	b.apply(b.openToAll(func(*config.Listener) {}))
	c := b.mustDial("udp", "ann", "first")
	later := &net.UDPAddr{IP: net.IPv4(198, 51, 100, 9), Port: b.port("udp")}
	for _, step := range []struct {
		local []netip.Addr
		want  string
	}{
		{nil, "<nil>"}, {[]netip.Addr{netip.MustParseAddr("198.51.100.9")}, "403"}, {nil, "<nil>"},
	} {
		b.SetLocalAddresses(step.local)
		if err := c.client.CreatePermission(later); !strings.Contains(fmt.Sprint(err), step.want) {
			t.Errorf("with the addresses %v: %v, want %s", step.local, err, step.want)
		}
	}
	b.SetLocalAddresses([]netip.Addr{netip.MustParseAddr("198.51.100.9")})
	b.apply(b.openToAll(func(l *config.Listener) { l.PublicAddress = "203.0.113.5" }))
	if err := c.client.CreatePermission(later); err == nil || !strings.Contains(err.Error(), "403") {
		t.Errorf("after another config: %v, want 403", err)
	}
}

// T-03: a public address that is a host name, and the host name of a certificate, stand for the current addresses of
// the name.
func TestListenersAreDeniedAsPeersByTheirPublicName(t *testing.T) {
	for field, set := range map[string]func(*config.Config){
		"public_address": func(c *config.Config) {
			c.Listeners[0].PublicAddress, c.Listeners[0].PublicPort = "lb.test", 443
		},
		"public_host of another listener": func(c *config.Config) {
			dtls := &c.Listeners[3]
			dtls.PublicAddress, dtls.PublicHost, dtls.PublicPort = "203.0.113.9", "lb.test", 443
		},
	} {
		t.Run(field, func(t *testing.T) { noPeersByName(t, set) })
	}
}

// noPeersByName applies a config in which the name of a listener is lb.test and its port 443.
func noPeersByName(t *testing.T, set func(*config.Config)) {
	b, hosts := newNamedFixture(t)
	for _, addr := range []string{"203.0.113.5", "203.0.113.6"} {
		told := hosts.move(netip.MustParseAddr(addr))
		if addr == "203.0.113.5" {
			c := b.openToAll(func(*config.Listener) {})
			set(&c)
			b.apply(c)
		}
		told()
		c := b.mustDial("udp", "ann", "first")
		within(t, "403 for "+addr, func() bool {
			err := c.client.CreatePermission(&net.UDPAddr{IP: net.ParseIP(addr), Port: 443})
			return err != nil && strings.Contains(err.Error(), "403")
		})
		if err := c.client.CreatePermission(&net.UDPAddr{IP: net.ParseIP(addr), Port: 444}); err != nil {
			t.Errorf("another port of %s: %v", addr, err)
		}
	}
}

// A relay uses the address of its listener in the config as the source address, as soon as the host has it.
func TestRelaysUseTheAddressOfTheirListener(t *testing.T) {
	if !testnet.Isolated(t) {
		return
	}
	testnet.IP(t, "address add 192.0.2.2/32 dev lo")
	told := netip.MustParseAddr("192.0.2.2")
	b := newFixture(t)
	b.SetLocalAddresses([]netip.Addr{told})
	b.apply(b.changed(func(c *config.Config) { c.Listeners[0].Address = told.String() }))
	c := b.mustDial("udp", "ann", "first")
	peer, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(b.peer.Addr(), 0)))
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	if err := peer.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	at := peer.LocalAddr().(*net.UDPAddr)
	b.apply(b.changed(func(c *config.Config) {
		c.Listeners[0].Address = told.String()
		c.Clusters[0].Endpoints = []string{at.IP.String()}
	}))
	if _, err := c.relay.WriteTo([]byte("hello"), at); err != nil {
		t.Fatal(err)
	}
	_, from, err := peer.ReadFromUDPAddrPort(make([]byte, 16))
	if want := c.relay.LocalAddr().String(); err != nil || from.String() != want || from.Addr() != told {
		t.Errorf("told %s, the peer saw %s, %v", want, from, err)
	}
}
