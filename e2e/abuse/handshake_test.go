package abuse

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
)

// T-14: a source that starts handshakes continuously gets at most a quarter of the CPUs, and delays neither media nor
// handshakes of others. The certificate is RSA, with which a handshake costs the server ten times as much CPU as with
// ECDSA. Calls at another dataplane are the control.
func TestHandshakesTakeAQuarterOfTheCPUs(t *testing.T) {
	for network, hello := range map[call.Network]func(context.Context, func(func()), netip.Addr, netip.AddrPort) bool{
		call.TLS: helloTLS, call.DTLS: helloDTLS,
	} {
		t.Run(string(network), func(t *testing.T) {
			chain, key := certificate(t, loopback)
			d := startWith(t, settings{chain: chain, key: key})
			calls, control := d.calls(t, 3), start(t).calls(t, 3)
			began, cpu := time.Now(), d.cpu(t)
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			var done atomic.Int64
			var flood sync.WaitGroup
			for range 64 {
				flood.Go(func() {
					for ctx.Err() == nil {
						if hello(ctx, func(f func()) { f() }, public.Next(), d.at(public, network)) {
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
			for i, c := range calls {
				s, undisturbed := c.End(timeout), control[i].End(timeout)
				if s.Lost > undisturbed.Lost || s.Median > 3*undisturbed.Median+moreAge {
					t.Errorf("call during a flood of handshakes: %s; control: %s", s, undisturbed)
				}
			}
			if done.Load() == 0 {
				t.Error("no handshake of the flood was answered: the test is not valid")
			}
			// Handshakes may use a quarter of the cores. Accepting, refusing and media may use another quarter.
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
		c, err := call.Start(t.Context(), d.options(call.UDP, loopback))
		must(t, err)
		calls = append(calls, c)
	}
	return calls
}

// helloDTLS begins a handshake from an address. do opens the socket in a network namespace.
func helloDTLS(ctx context.Context, do func(func()), from netip.Addr, to netip.AddrPort) bool {
	conn, err := dialDTLS(do, from, to)
	if err != nil {
		return false
	}
	defer conn.Close()
	return beginDTLS(ctx, conn)
}

func dialDTLS(do func(func()), from netip.Addr, to netip.AddrPort) (conn *net.UDPConn, err error) {
	do(func() {
		conn, err = net.DialUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0)), net.UDPAddrFromAddrPort(to))
	})
	return conn, err
}

// beginDTLS returns the server's cookie and waits for the first datagram of the handshake. By then the server has done
// the expensive computations.
func beginDTLS(ctx context.Context, conn *net.UDPConn) bool {
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
	return err == nil && n > recordHeader && buf[0] == recordHandshake && buf[recordHeader] == serverHello
}

// helloTLS sends a recorded ClientHello from an address, at no CPU cost of its own, and waits for the response. By then
// the server has done the expensive computations. do connects in a network namespace.
func helloTLS(ctx context.Context, do func(func()), from netip.Addr, to netip.AddrPort) bool {
	var conn net.Conn
	var err error
	do(func() {
		dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0)), Timeout: time.Second}
		conn, err = dialer.DialContext(ctx, "tcp4", to.String())
	})
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.(*net.TCPConn).SetLinger(0) // no TIME_WAIT, so that ports do not run out
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	record := make([]byte, 5)
	if _, err := conn.Write(recordedHello()); err != nil {
		return false
	}
	_, err = io.ReadFull(conn, record)
	return err == nil && record[0] == recordHandshake
}

// recordedHello returns a ClientHello of TLS.
var recordedHello = sync.OnceValue(func() []byte {
	client, server := net.Pipe()
	defer client.Close()
	// ends when client is closed
	go func() { _ = tls.Client(client, &tls.Config{InsecureSkipVerify: true}).Handshake() }()
	buf := make([]byte, 4096)
	n, _ := server.Read(buf) // the record is written at once
	return buf[:n]
})
