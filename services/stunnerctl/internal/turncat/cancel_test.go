package turncat

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pion/logging"
	"github.com/pion/turn/v3"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
)

// An allocation that the server makes while the call is cancelled is deleted.
func TestCancelledAllocationIsDeleted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	server, e := serve(t, func(c net.PacketConn) net.PacketConn { return lateConn{c, cancel} })
	if _, err := NewRelay(ctx, e, AnyFamily); err == nil {
		t.Error("a cancelled call has a relay")
	}
	empty(t, server)
}

// An allocation is deleted if a second call of Close begins during the first, as the UDP mux of pion/ice does after an
// error of the socket.
func TestTwiceClosedAllocationIsDeleted(t *testing.T) {
	server, e := serve(t, func(c net.PacketConn) net.PacketConn { return c })
	r, err := NewRelay(t.Context(), e, AnyFamily)
	if err != nil {
		t.Fatal(err)
	}
	second := &secondClose{PacketConn: r.allocation.relay, relay: r, ended: make(chan struct{})}
	r.allocation.relay = second
	r.Close()
	<-second.ended
	empty(t, server)
}

// secondClose closes the relay once more before it closes the socket. Its further calls fail, as further calls of
// pion/turn do.
type secondClose struct {
	net.PacketConn
	relay *Relay
	begun atomic.Bool
	ended chan struct{}
}

func (c *secondClose) Close() error {
	if c.begun.Swap(true) {
		return net.ErrClosed
	}
	go func() {
		defer close(c.ended)
		c.relay.Close()
	}()
	select {
	case <-c.ended: // the second call did not wait for the first
	case <-time.After(200 * time.Millisecond):
	}
	return c.PacketConn.Close()
}

// serve runs a TURN server on a UDP socket.
func serve(t *testing.T, socket func(net.PacketConn) net.PacketConn) (*turn.Server, Endpoint) {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	quiet := logging.NewDefaultLoggerFactory()
	quiet.DefaultLogLevel = logging.LogLevelDisabled
	server, err := turn.NewServer(turn.ServerConfig{
		Realm: "example.org", LoggerFactory: quiet,
		AuthHandler: func(user, realm string, _ net.Addr) ([]byte, bool) {
			return turn.GenerateAuthKey(user, realm, "pw"), true
		},
		PacketConnConfigs: []turn.PacketConnConfig{{
			PacketConn: socket(conn),
			RelayAddressGenerator: &turn.RelayAddressGeneratorStatic{
				RelayAddress: net.ParseIP("127.0.0.1"), Address: "127.0.0.1",
			},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	return server, Endpoint{
		Host: "127.0.0.1", Port: conn.LocalAddr().(*net.UDPAddr).Port, Protocol: config.TURNUDP,
		Credential: credential.Credential{Username: "ada", Password: "pw"},
	}
}

// empty waits until a server has no allocation.
func empty(t *testing.T, server *turn.Server) {
	t.Helper()
	for late := time.Now().Add(30 * time.Second); server.AllocationCount() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("%d allocations are left", server.AllocationCount())
		}
	}
}

// lateConn cancels a call when the server has made an allocation, and sends the answer later.
type lateConn struct {
	net.PacketConn
	cancel func()
}

func (c lateConn) WriteTo(p []byte, to net.Addr) (int, error) {
	if len(p) > 2 && p[0] == 0x01 && p[1] == 0x03 { // a success response to Allocate (RFC 8656 §17)
		c.cancel()
		answer := append([]byte{}, p...)
		time.AfterFunc(100*time.Millisecond, func() { _, _ = c.PacketConn.WriteTo(answer, to) })
		return len(p), nil
	}
	return c.PacketConn.WriteTo(p, to)
}
