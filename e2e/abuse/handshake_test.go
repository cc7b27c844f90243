package abuse

import (
	"context"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
)

// T-14: a source that starts handshakes continuously gets at most a quarter of the CPUs, and delays neither media nor
// handshakes of others. The certificate is RSA, with which a handshake costs the server ten times as much CPU as with
// ECDSA.
func TestT14HandshakeFlood(t *testing.T) {
	if !netns.Isolated(t) {
		return
	}
	hello := tlsHello(t)
	for network, ask := range map[call.Network]func(context.Context, netip.Addr, netip.AddrPort) bool{
		call.TLS: func(ctx context.Context, from netip.Addr, to netip.AddrPort) bool {
			return askTLS(ctx, from, to, hello)
		},
		call.DTLS: askDTLS,
	} {
		t.Run(string(network), func(t *testing.T) {
			chain, key := certificate(t, netip.MustParseAddr(bed.Loopback))
			d := startWith(t, settings{chain: chain, key: key})
			calls := d.calls(t, 3)
			began, cpu := time.Now(), d.cpu(t)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			var done atomic.Int64
			var flood sync.WaitGroup
			for range 64 {
				flood.Go(func() {
					for ctx.Err() == nil {
						if ask(ctx, public.Next(), netip.AddrPortFrom(public, uint16(d.ports[network]))) {
							done.Add(1)
						}
					}
				})
			}
			var slowest time.Duration
			others := 0
			for ; ctx.Err() == nil; others++ {
				slowest = max(slowest, d.good(t, call.TLS), d.good(t, call.DTLS))
			}
			flood.Wait()
			took := time.Since(began)
			share := float64(d.cpu(t)-cpu) / float64(took) / float64(runtime.NumCPU())
			t.Logf("%.0f handshakes per second used %.0f %% of %d cores; %d other clients over TLS and DTLS, slowest first echo after %s",
				float64(done.Load())/took.Seconds(), 100*share, runtime.NumCPU(), 2*others, slowest)
			for _, c := range calls {
				s := c.End(patience)
				t.Logf("call: %s, p99 %s", s, s.P99)
				if s.Lost > 0 || s.Median > 20*time.Millisecond {
					t.Errorf("call during a flood of handshakes: %s", s)
				}
			}
			if done.Load() == 0 {
				t.Error("no handshake of the flood was answered: the test is not valid")
			}
			// A quarter for handshakes, and as much for accepting, refusing and media.
			if share > 0.5 {
				t.Errorf("the dataplane uses %.0f %% of the cores", 100*share)
			}
			if slowest > 3*time.Second {
				t.Errorf("another client waited for %s", slowest)
			}
		})
	}
}

// calls starts calls over UDP with 50 datagrams per second each.
func (d *target) calls(t *testing.T, n int) (calls []*call.Call) {
	t.Helper()
	for range n {
		c, err := call.Start(t.Context(), call.Options{
			Gateway: d.address(call.UDP), Network: call.UDP, Username: user, Password: password, Peer: d.peer,
			Interval: 20 * time.Millisecond,
		})
		if err != nil {
			t.Fatal(err)
		}
		calls = append(calls, c)
	}
	return calls
}

// askDTLS returns the server's cookie and waits for the first datagram of the handshake. By then the server has done
// the expensive computations.
func askDTLS(ctx context.Context, from netip.Addr, to netip.AddrPort) bool {
	conn, err := net.DialUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0)), net.UDPAddrFromAddrPort(to))
	if err != nil {
		return false
	}
	defer conn.Close()
	r, buf := random(), make([]byte, 2048)
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline)
	if _, err := conn.Write(clientHello(r, 0, nil)); err != nil {
		return false
	}
	n, err := conn.Read(buf)
	const version, length = 2, 1 // fields before the cookie in a HelloVerifyRequest
	if at := recordHeader + 12 + version + length; err != nil || n <= at {
		return false
	} else if _, err := conn.Write(clientHello(r, 1, buf[at:n])); err != nil {
		return false
	}
	n, err = conn.Read(buf)
	const serverHello = 2
	return err == nil && n > recordHeader && buf[0] == recordHandshake && buf[recordHeader] == serverHello
}

// askTLS sends a ClientHello from an address and waits for the response. By then the server has done the expensive
// computations.
func askTLS(ctx context.Context, from netip.Addr, to netip.AddrPort, hello []byte) bool {
	dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))}
	conn, err := dialer.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.(*net.TCPConn).SetLinger(0) // no TIME_WAIT, so that ports do not run out
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := conn.Write(hello); err != nil {
		return false
	}
	_, err = conn.Read(make([]byte, 1))
	return err == nil
}
