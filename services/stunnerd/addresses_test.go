package main

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/testnet"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/testport"
)

// T-03: a process detects an address that its host gets, and then no longer relays to its own listener there.
func TestProcessFollowsTheAddressesOfItsHost(t *testing.T) {
	if !testnet.Isolated(t) {
		return
	}
	p := start(t)
	c := p.mustDial("ann")
	_, port, err := net.SplitHostPort(p.turn["udp"])
	if err != nil {
		t.Fatal(err)
	}
	listener := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(net.JoinHostPort(later, port)))
	if err := c.client.CreatePermission(listener); err != nil {
		t.Fatalf("before the host has the address: %v", err)
	}
	testnet.IP(t, "address add "+later+"/32 dev lo")
	p.within("403 for the listener at the new address", func() bool {
		err := c.client.CreatePermission(listener)
		return err != nil && strings.Contains(err.Error(), "403")
	})
	if err := c.echo("still here"); err != nil {
		t.Errorf("the call does not go on: %v", err)
	}
}

// T-A16: relays use ports of the range in the flag or the environment variable.
func TestProcessHasRelayPortsOfItsRange(t *testing.T) {
	const n = 4
	first := testport.Range(t, n)
	text := fmt.Sprintf("%d-%d", first, first+n-1)
	t.Run("flag", func(t *testing.T) { hasRelayPorts(t, start(t, "--relay-ports", text), first, n) })
	t.Run("environment", func(t *testing.T) {
		t.Setenv("STUNNER_RELAY_PORTS", text)
		hasRelayPorts(t, start(t), first, n)
	})
}

func hasRelayPorts(t *testing.T, p *process, first, n int) {
	t.Helper()
	for i := range n {
		_, port, _ := strings.Cut(p.mustDial("user-"+strconv.Itoa(i)).relay.LocalAddr().String(), ":")
		if got, err := strconv.Atoi(port); err != nil || got < first || got >= first+n {
			t.Errorf("relay port %s is not of %d to %d", port, first, first+n-1)
		}
	}
	if _, err := p.dial("one-more"); err == nil || !strings.Contains(err.Error(), "508") {
		t.Errorf("one call more than there are ports: %v, want 508", err)
	}
}
