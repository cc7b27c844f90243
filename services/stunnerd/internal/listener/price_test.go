package listener

import (
	"crypto/tls"
	"net"
	"runtime"
	"testing"

	"github.com/pion/dtls/v3"
	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// the price of a session over a connection is higher than that over UDP by more than what the connection holds:
// half of what both of its ends hold, because the client is in this process too.
func TestPricesCoverConnections(t *testing.T) {
	const n = 50
	used := func() int64 {
		var m runtime.MemStats
		for range 2 {
			runtime.GC()
		}
		runtime.ReadMemStats(&m)
		return int64(m.HeapInuse + m.StackInuse)
	}
	for _, protocol := range []config.Protocol{config.TURNTCP, config.TURNTLS, config.TURNDTLS} {
		t.Run(string(protocol), func(t *testing.T) {
			c := config.Listener{Protocol: protocol}
			if protocol != config.TURNTCP {
				c.Cert, c.Key = keyPair(t, "turn.example.org")
			}
			_, addr := openSecure(t, c)
			dial := func() net.Conn {
				if protocol == config.TURNDTLS {
					conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: addr.IP})
					if err != nil {
						t.Fatal(err)
					}
					client, err := dtls.ClientWithOptions(conn, addr, dtls.WithInsecureSkipVerify(true))
					if err != nil {
						t.Fatal(err)
					}
					if err := client.HandshakeContext(t.Context()); err != nil {
						t.Fatal(err)
					}
					return client
				}
				conn, err := net.Dial("tcp", addr.String())
				if err != nil {
					t.Fatal(err)
				}
				if protocol == config.TURNTLS {
					return tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
				}
				return conn
			}
			request := stun.MustBuild(stun.TransactionID, stun.BindingRequest).Raw
			open := func() net.Conn {
				conn := dial()
				answer := make([]byte, 256)
				if _, err := conn.Write(request); err != nil {
					t.Fatal(err)
				}
				if _, err := conn.Read(answer); err != nil {
					t.Fatal(err)
				}
				return conn
			}
			defer open().Close() // what exists once
			before := used()
			var all []net.Conn
			for range n {
				all = append(all, open())
			}
			cost := (used() - before) / n / 2
			for _, conn := range all {
				_ = conn.Close()
			}
			price := session.PriceOfTransport(protocol)
			t.Logf("%s: %d bytes, the price has %d", protocol, cost, price)
			if cost > price {
				t.Errorf("%s: a connection holds %d bytes, but its session is charged for %d", protocol, cost, price)
			}
		})
	}
}
