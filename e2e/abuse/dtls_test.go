package abuse

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pion/dtls/v3"
	"github.com/pion/turn/v3"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
)

// Values of DTLS header fields (RFC 6347 §4.1, §4.2.2).
const (
	recordHandshake    = 22
	serverHello        = 2
	helloVerifyRequest = 3
	recordHeader       = 13
)

// clientHello returns a minimal ClientHello with a supported cipher. The first ClientHello has message number 0 and no
// cookie. The second ClientHello has number 1.
func clientHello(random [32]byte, number byte, cookie []byte) []byte {
	body := append([]byte{0xFE, 0xFD}, random[:]...)
	body = append(body, 0, byte(len(cookie)))
	body = append(body, cookie...)
	body = append(body, 0, 4, 0xC0, 0x2B, 0xC0, 0x2F, 1, 0)
	size := byte(len(body))
	message := append([]byte{1, 0, 0, size, 0, number, 0, 0, 0, 0, 0, size}, body...)
	return append([]byte{recordHandshake, 0xFE, 0xFF, 0, 0, 0, 0, 0, 0, 0, number, 0, byte(len(message))}, message...)
}

func random() (r [32]byte) {
	_, _ = rand.Read(r[:]) // never fails
	return r
}

// T-16: a ClientHello from a forged address costs one response and leaves no state.
func TestForgedClientHelloLeavesNoState(t *testing.T) {
	const sources = 5_000
	d := start(t)
	for range 3 { // the first clients have one-time costs, which are not part of the flood
		d.good(t, call.DTLS)
	}
	d.await(t, timeout, d.atMost(call.DTLS, 0))
	memory, goroutines, began := d.warm(t), d.goroutines(t), d.cpu(t)
	var answered int
	for i := range sources {
		if i == sources/2 {
			t.Logf("first echo of a well-behaved client during the flood: %s", d.good(t, call.DTLS))
		}
		if verified(t, d.at(loopback, call.DTLS), netip.AddrFrom4([4]byte{127, 1, byte(i >> 8), byte(i)})) {
			answered++
		}
	}
	t.Logf(
		"%d hellos: %d answered, %+d goroutines, %+d kB, %s of CPU", sources, answered, d.goroutines(t)-goroutines,
		(d.rss(t)-memory)>>10, d.cpu(t)-began,
	)
	if answered < sources*99/100 {
		t.Errorf("%d of %d hellos answered", answered, sources)
	}
	d.await(t, timeout, d.atMost(call.DTLS, 0))
	if n := d.goroutines(t) - goroutines; n < -5 || n > 5 {
		t.Errorf("%+d goroutines", n)
	}
	if n := d.rss(t) - memory; n > 5<<20 {
		t.Errorf("memory has grown by %d kB", n>>10)
	}
}

// verified sends a ClientHello, and reports whether the server responded with a cookie and no more bytes than it
// received.
func verified(t *testing.T, server netip.AddrPort, source netip.Addr) bool {
	t.Helper()
	conn, err := net.DialUDP(
		"udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(source, 0)), net.UDPAddrFromAddrPort(server),
	)
	must(t, err)
	defer conn.Close()
	question := clientHello(random(), 0, nil)
	if _, err := conn.Write(question); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(time.Second))
	answer := make([]byte, 2048)
	n, err := conn.Read(answer)
	if err != nil {
		return false
	}
	if n > len(question) || n < recordHeader+1 || answer[0] != recordHandshake ||
		answer[recordHeader] != helloVerifyRequest {
		t.Errorf("response to %d bytes: %x", len(question), answer[:n])
	}
	return true
}

// T-16: a handshake on the 5-tuple of a session, started with a valid cookie and not completed, does not affect the
// session.
func TestFirstClientKeepsItsSession(t *testing.T) {
	d := start(t)
	server := net.UDPAddrFromAddrPort(d.at(loopback, call.DTLS))
	line := tap(t)
	secure, err := dtls.ClientWithOptions(line, server, dtls.WithRootCAs(d.roots),
		dtls.WithServerName(harness.Loopback))
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	must(t, secure.HandshakeContext(ctx))
	client, err := turn.NewClient(&turn.ClientConfig{
		STUNServerAddr: server.String(), TURNServerAddr: server.String(), Username: user, Password: password,
		Conn: turn.NewSTUNConn(secure),
	})
	must(t, err)
	defer client.Close()
	must(t, client.Listen())
	if _, err := client.SendBindingRequest(); err != nil { // afterwards the server has completed the handshake
		t.Fatal(err)
	}
	other := random()
	line.send(t, server, clientHello(other, 0, nil))
	cookie := line.await(t, helloVerifyRequest)[28:]
	relay, err := client.Allocate()
	must(t, err)
	defer relay.Close()
	line.send(t, server, clientHello(random(), 0, nil))
	line.send(t, server, clientHello(other, 1, cookie))
	line.await(t, serverHello)
	if err := client.CreatePermission(net.UDPAddrFromAddrPort(d.peer)); err != nil {
		t.Errorf("the session is no longer served: %v", err)
	}
}

// tapped is a client's socket that an attacker also writes to. It records the unencrypted handshake messages.
type tapped struct {
	*net.UDPConn
	hellos chan []byte
}

func tap(t *testing.T) tapped {
	t.Helper()
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: loopback.AsSlice()})
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	return tapped{conn, make(chan []byte, 100)}
}

func (l tapped) ReadFrom(to []byte) (int, net.Addr, error) {
	n, from, err := l.UDPConn.ReadFrom(to)
	if err == nil && n > recordHeader && to[0] == recordHandshake && to[4] == 0 { // epoch 0 is not encrypted
		l.hellos <- bytes.Clone(to[:n])
	}
	return n, from, err
}

// send writes as the attacker.
func (l tapped) send(t *testing.T, server net.Addr, datagram []byte) {
	t.Helper()
	for len(l.hellos) > 0 {
		<-l.hellos // discard messages to the client
	}
	if _, err := l.WriteTo(datagram, server); err != nil {
		t.Fatal(err)
	}
}

// await returns the next message of a type.
func (l tapped) await(t *testing.T, message byte) []byte {
	t.Helper()
	for late := time.After(timeout); ; {
		select {
		case datagram := <-l.hellos:
			if datagram[recordHeader] == message {
				return datagram
			}
		case <-late:
			t.Fatalf("no message of type %d", message)
		}
	}
}

// OpenSSL completes the handshake, also when responses of the server are lost and OpenSSL retransmits.
func TestOpenSSLConnects(t *testing.T) {
	d := start(t)
	for _, lost := range []int32{0, 1, 2} {
		t.Run(fmt.Sprintf("%d responses lost", lost), func(t *testing.T) {
			t.Parallel()
			server := lossy(t, d.at(loopback, call.DTLS), lost)
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			client := exec.CommandContext(
				ctx, "openssl", "s_client", "-dtls1_2", "-alpn", "h2,stun.turn", "-connect", server.String(),
			)
			client.Stdin = strings.NewReader("") // the program exits after the handshake
			out, err := client.CombinedOutput()
			if errors.Is(err, exec.ErrNotFound) {
				t.Fatal("openssl is not installed: run `sudo apt-get install --yes openssl`")
			}
			for _, want := range []string{
				"Protocol  : DTLSv1.2", "Cipher is ECDHE-ECDSA-AES", "ALPN protocol: stun.turn",
			} {
				if !bytes.Contains(out, []byte(want)) {
					t.Errorf("%v: no %q in\n%s", err, want, out)
				}
			}
		})
	}
}

// lossy forwards datagrams between one client and a server, and drops the first responses.
func lossy(t *testing.T, server netip.AddrPort, lost int32) netip.AddrPort {
	t.Helper()
	front, err := net.ListenUDP("udp4", &net.UDPAddr{IP: loopback.AsSlice()})
	must(t, err)
	back, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(server))
	must(t, err)
	t.Cleanup(func() { front.Close(); back.Close() })
	var client atomic.Pointer[netip.AddrPort]
	pass := func(from *net.UDPConn, to func([]byte, netip.AddrPort)) {
		buf := make([]byte, 1<<16)
		for {
			n, addr, err := from.ReadFromUDPAddrPort(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				to(buf[:n], addr)
			}
		}
	}
	go pass(front, func(b []byte, from netip.AddrPort) {
		client.Store(&from)
		_, _ = back.Write(b) // the client detects a closed server
	})
	go pass(back, func(b []byte, _ netip.AddrPort) {
		if lost > 0 {
			lost--
			return
		}
		_, _ = front.WriteToUDPAddrPort(b, *client.Load())
	})
	return front.LocalAddr().(*net.UDPAddr).AddrPort()
}
