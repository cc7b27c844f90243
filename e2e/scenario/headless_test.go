package scenario

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/pion/turn/v3"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/bedtest"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/services/api/config"
)

// In the headless model, the backend of the route is the Service of the Gateway itself, and two clients exchange media
// through their relays.
func TestHeadless(t *testing.T) {
	bin := bedtest.Build(t, bed.Operator, bed.Stunnerd, bed.Auth, bed.Echo)
	ports, err := bed.FreePorts()
	if err != nil {
		t.Fatal(err)
	}
	stack := &bed.Stack{Bin: bin, Dir: t.TempDir(), Ports: ports}
	if err := stack.Prepare(filepath.Join(bedtest.Root(t), "docs/examples/quickstart")); err != nil {
		t.Fatal(err)
	}
	if err := stack.Put("udproute.yaml", []byte(`
apiVersion: stunner.l7mp.io/v1
kind: UDPRoute
metadata: {name: clients, namespace: meet}
spec:
  parentRefs: [{name: front-door}]
  rules: [{backendRefs: [{name: front-door}]}]
`)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stack.Stop(); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := stack.Start(ctx); err != nil {
		t.Fatal(err)
	}
	ice, err := stack.ICEServers(ctx)
	if err != nil || len(ice.Servers) != 1 {
		t.Fatalf("ICE servers %v: %v", ice, err)
	}
	gateway, err := ice.Servers[0].Address(config.TURNUDP)
	if err != nil {
		t.Fatal(err)
	}
	user, password := ice.Servers[0].Username, ice.Servers[0].Credential
	peer, err := echoRelay(t, gateway, user, password)
	if err != nil {
		t.Fatal(err)
	}
	c, err := call.Start(ctx, call.Options{
		Gateway: gateway, Network: call.UDP, Username: user, Password: password, Peer: peer,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Await(ctx, flowing); err != nil {
		t.Error(err)
	}
	c.End(watch)
}

// echoRelay creates an allocation whose client returns the datagrams of all peers on the host of the gateway. It returns
// the address of the relay.
func echoRelay(t *testing.T, gateway netip.AddrPort, user, password string) (relay netip.AddrPort, err error) {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		return relay, fmt.Errorf("open socket: %w", err)
	}
	client, err := turn.NewClient(&turn.ClientConfig{
		TURNServerAddr: gateway.String(), Username: user, Password: password, Conn: conn,
	})
	if err != nil {
		return relay, fmt.Errorf("set up client: %w", err)
	}
	t.Cleanup(func() { client.Close(); conn.Close() })
	if err := client.Listen(); err != nil {
		return relay, fmt.Errorf("set up client: %w", err)
	}
	media, err := client.Allocate()
	if err != nil {
		return relay, fmt.Errorf("allocate: %w", err)
	}
	// A permission is for all ports of an address, but no client gets one by naming the listener.
	if err := client.CreatePermission(&net.UDPAddr{IP: gateway.Addr().AsSlice(), Port: 9}); err != nil {
		return relay, fmt.Errorf("create permission: %w", err)
	}
	go func() {
		for buf := make([]byte, 1500); ; {
			n, from, err := media.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = media.WriteTo(buf[:n], from)
		}
	}()
	return netip.ParseAddrPort(media.LocalAddr().String())
}
