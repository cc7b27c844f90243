package call

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/pion/turn/v3"
)

// TestTally: stats computes loss, duplicates, round trip times and gaps from departures and arrivals.
func TestTally(t *testing.T) {
	var c tally
	at := func(ms int) time.Time { return time.UnixMilli(int64(1000 + ms)) }
	for seq := range uint64(4) {
		c.sent(seq, at(int(seq)*10))
	}
	c.received(0, at(4))
	c.received(2, at(26)) // overtook 1, which is lost
	c.received(2, at(27))
	c.received(3, at(50))
	c.freeze()
	if c.sent(4, at(60)) {
		t.Error("a frozen tally accepts a departure")
	}
	want := Stats{Sent: 4, Received: 3, Lost: 1, Duplicates: 1,
		Median: 6 * time.Millisecond, P95: 20 * time.Millisecond, P99: 20 * time.Millisecond, LongestGap: 24 * time.Millisecond}
	if got := c.stats(at(100)); got != want {
		t.Errorf("stats:\ngot  %v\nwant %v", got, want)
	}
}

// TestLaps: a lap has the longest gap in it, including a gap that began before it or has not ended.
func TestLaps(t *testing.T) {
	var c tally
	at := func(ms int) time.Time { return time.UnixMilli(int64(1000 + ms)) }
	for seq := range uint64(5) {
		c.sent(seq, at(0))
	}
	lap := func(name string, now, want int) {
		t.Helper()
		if got := c.nextLap(at(now)); got != time.Duration(want)*time.Millisecond {
			t.Errorf("%s: longest gap %s, want %d ms", name, got, want)
		}
	}
	lap("no echo yet", 5, 0)
	c.received(0, at(10))
	c.received(1, at(40))
	c.received(2, at(50))
	lap("three echoes", 55, 30)
	lap("a gap that has not ended", 70, 20)
	c.received(3, at(95))
	c.received(4, at(100))
	lap("a gap that began in the previous lap", 101, 45)
	c.freeze()
	lap("the call has ended", 1000, 0)
}

// TestCall: a call through a TURN server loses nothing. If the peer does not answer, every datagram counts as lost.
func TestCall(t *testing.T) {
	gateway := server(t)
	for _, network := range []Network{UDP, TCP} {
		t.Run(string(network), func(t *testing.T) {
			c := start(
				t, Options{Gateway: gateway, Network: network, Username: "ann", Password: "pw", Peer: echo(t, true)},
			)
			if err := c.Await(t.Context(), 20); err != nil {
				t.Fatal(err)
			}
			if s := c.End(time.Second); s.Lost != 0 || s.Received < 20 || s.Median <= 0 || s.Err != nil {
				t.Errorf("call: %s", s)
			}
		})
	}
	t.Run("silent peer", func(t *testing.T) {
		c := start(t, Options{Gateway: gateway, Network: UDP, Username: "ann", Password: "pw", Peer: echo(t, false)})
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := c.Await(ctx, 1); err == nil {
			t.Error("echoes from a peer that does not answer")
		}
		if s := c.End(0); s.Received != 0 || s.Lost != s.Sent || s.Sent == 0 {
			t.Errorf("call: %s", s)
		}
	})
	t.Run("wrong password", func(t *testing.T) {
		c, err := Start(
			t.Context(),
			Options{Gateway: gateway, Network: UDP, Username: "ann", Password: "wrong", Peer: echo(t, true)},
		)
		if err == nil {
			c.End(0)
			t.Fatal("a wrong password was accepted")
		}
	})
}

func start(t *testing.T, o Options) *Call {
	t.Helper()
	c, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// server runs the TURN server of pion/turn on one port for UDP and TCP.
func server(t *testing.T) netip.AddrPort {
	t.Helper()
	stream, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gateway := netip.MustParseAddrPort(stream.Addr().String())
	packets, err := net.ListenPacket("udp4", gateway.String())
	if err != nil {
		t.Fatal(err)
	}
	relay := &turn.RelayAddressGeneratorStatic{RelayAddress: net.IPv4(127, 0, 0, 1), Address: "127.0.0.1"}
	s, err := turn.NewServer(turn.ServerConfig{
		Realm: "test",
		AuthHandler: func(user, realm string, _ net.Addr) ([]byte, bool) {
			return turn.GenerateAuthKey(user, realm, "pw"), true
		},
		PacketConnConfigs: []turn.PacketConnConfig{{PacketConn: packets, RelayAddressGenerator: relay}},
		ListenerConfigs:   []turn.ListenerConfig{{Listener: stream, RelayAddressGenerator: relay}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return gateway
}

// echo runs a UDP peer that echoes datagrams if answers is true.
func echo(t *testing.T, answers bool) netip.AddrPort {
	t.Helper()
	conn, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			if answers {
				_, _ = conn.WriteTo(buf[:n], from)
			}
		}
	}()
	return netip.MustParseAddrPort(conn.LocalAddr().String())
}
