package probe

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"net"
	"slices"
	"time"

	"github.com/pion/dtls/v3"

	"github.com/stunner-gateway/stunner/e2e/turnprobe/internal/wire"
)

var stream = []Check{
	{ID: "C-07 padding", RFC: "8656 §12.5", On: streams,
		Says: "on a stream ChannelData is padded to four bytes, both ways",
		Run: func(t *Trial) {
			c, p := t.Bound()
			for n := range 8 { // missing padding would shift the next frame
				c.SendOn(0x4000, pattern(n))
				c.SendOn(0x4000, pattern(n+1))
				p.Gets(c.relay, pattern(n))
				p.Gets(c.relay, pattern(n+1))
				p.Send(c.relay, pattern(n))
				p.Send(c.relay, pattern(n+1))
				c.GetsOn(0x4000, pattern(n))
				c.GetsOn(0x4000, pattern(n+1))
			}
		}},
	{ID: "C-07 at once", RFC: "8656 §12.5", On: streams, Pace: Measuring,
		Says: "on a stream small payloads are forwarded at once", Run: smallAtOnce},
	{ID: "C-08 ChannelData", RFC: "8656 §12.5", On: streams,
		Says: "the content of an oversize ChannelData message is not parsed as messages",
		Run:  func(t *Trial) { smuggle(t, wire.ChannelData(0x4000, nil, true), 4) }},
	{ID: "C-08 STUN", RFC: "8489 §6.2.2", On: streams,
		Says: "the content of an oversize STUN message is not parsed as messages",
		Run:  func(t *Trial) { smuggle(t, req(wire.Binding), 20) }},
	{ID: "C-09 split", RFC: "8489 §6.2.2", On: streams, Says: "a message that arrives byte by byte is answered",
		Run: splitRequest},
	{ID: "C-09 several", RFC: "8489 §6.2.2", On: streams, Says: "several messages in one segment are all answered",
		Run: severalInOne},
	{ID: "C-09 split ChannelData", RFC: "8656 §12.5", On: streams,
		Says: "fragmented ChannelData is reassembled before it is relayed", Run: splitChannelData},
	{ID: "C-09 garbage", RFC: "7983 §7", On: streams,
		Says: "bytes that are not a message end the connection or are skipped",
		Run: func(t *Trial) {
			t.Client().Ignored([]byte("GET / HTTP/1.1\r\nHost: turn.example.org\r\n\r\n"), "an HTTP request")
			t.Client().Ignored(
				[]byte("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
				"22 bytes 0xFF",
			)
		}},
	{ID: "T-A18 connection ends", RFC: "8656 §5", On: streams, Pace: Measuring,
		Says: "when the client's connection ends, its relay port is closed",
		Run: func(t *Trial) {
			c := t.Allocated()
			c.conn.Close()
			t.closed(c.relay, t.Silence)
		}},
	{ID: "T-A18 half close", RFC: "policy", On: onlyTCP, Pace: Measuring,
		Says: "a half-closed TCP connection is closed",
		Run: func(t *Trial) {
			c := t.Allocated()
			t.must(c.conn.(*net.TCPConn).CloseWrite(), "end the connection")
			t.closed(c.relay, t.Answer)
		}},
	{ID: "T-14 silent", RFC: "policy", On: []Transport{TCP, TLS}, Pace: Waiting,
		Says: "a silent connection is closed within 12 s", Run: func(t *Trial) { closes(t, nil) }},
	{ID: "T-14 half a header", RFC: "policy", On: streams, Pace: Waiting,
		Says: "a connection with half a header is closed within 12 s",
		Run:  func(t *Trial) { closes(t, []byte{0, 1, 0, 0, 0x21, 0x12}) }},
	{ID: "T-14 dripping", RFC: "policy", On: streams, Pace: Waiting,
		Says: "a connection that sends its first message at one byte per second is closed within 12 s", Run: dripping},
	{ID: "T-14 no handshake", RFC: "policy", On: onlyTLS, Pace: Waiting,
		Says: "a connection without TLS handshake is closed within 12 s", Run: func(t *Trial) { closesRaw(t, nil) }},
	{ID: "T-14 half a handshake", RFC: "policy", On: onlyTLS, Pace: Waiting,
		Says: "a connection with half a ClientHello is closed within 12 s",
		Run:  func(t *Trial) { closesRaw(t, []byte{22, 3, 1, 2, 0, 1, 0, 1, 0xFC, 3, 3}) }},
	{ID: "T-14 good client", RFC: "policy", On: streams, Pace: Measuring,
		Says: "with 50 silent connections open, a client gets an allocation within a second", Run: besideSilence},
	{ID: "T-15 large body", RFC: "policy", On: streams,
		Says: "a message of 64 KiB without credentials ends the connection",
		Run:  func(t *Trial) { largeBody(t, 65000) }},
	{ID: "T-15 body over 1 KiB", RFC: "policy", On: streams,
		Says: "a message of more than 1,024 bytes without credentials ends the connection",
		Run:  func(t *Trial) { largeBody(t, 1500) }},
	{ID: "T-16 TLS 1.2", RFC: "8489 §6.2.3", On: onlyTLS, Says: "TLS 1.2 is accepted",
		Run: func(t *Trial) { tlsVersion(t, tls.VersionTLS12) }},
	{ID: "T-16 TLS 1.3", RFC: "policy", On: onlyTLS, Says: "TLS 1.3 is accepted",
		Run: func(t *Trial) { tlsVersion(t, tls.VersionTLS13) }},
	{ID: "T-16 TLS 1.1", RFC: "8996 §5", On: onlyTLS, Says: "TLS 1.1 and older are refused",
		Run: func(t *Trial) {
			conn, err := dialTLS(
				t.soon(), t.source.addr, t.Server,
				&tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11},
			)
			if err == nil {
				conn.Close()
				t.Failf("a handshake with %s succeeds", tls.VersionName(conn.ConnectionState().Version))
			}
		}},
	{ID: "T-16 clear text", RFC: "8489 §6.2.3", On: secure,
		Says: "a plaintext request to a TLS or DTLS port is not answered", Run: clearText},
	{ID: "T-16 cookie", RFC: "6347 §4.2.1", On: onlyDTLS,
		Says: "a DTLS ClientHello without cookie gets a HelloVerifyRequest only", Run: helloVerify},
	{ID: "N-06 stun.turn", RFC: "7443 §3", On: secure,
		Says: "the server selects stun.turn if the client offers it in ALPN",
		Run: func(t *Trial) {
			if got := negotiated(t, "stun.turn"); got != "stun.turn" {
				t.Failf("the server chooses %q", got)
			}
		}},
	{ID: "N-06 nothing", RFC: "7443 §3", On: secure, Says: "a client without ALPN is accepted",
		Run: func(t *Trial) { negotiated(t) }},
	{ID: "N-06 others", RFC: "policy", On: secure, Says: "a client that offers only other ALPN protocols is accepted",
		Run: func(t *Trial) { negotiated(t, "webrtc", "h2") }},
}

func smallAtOnce(t *Trial) {
	c, p := t.Bound()
	for n := 1; n < 10; n++ {
		started := time.Now()
		c.SendOn(0x4000, pattern(n))
		p.Gets(c.relay, pattern(n))
		p.Send(c.relay, pattern(n))
		c.GetsOn(0x4000, pattern(n))
		if took := t.pulse.Since(started); took > 2*atOnceLimit {
			t.Failf("round trip of %d bytes takes %s", n, took)
		}
	}
}

// atOnceLimit is the maximum round trip time of a small message.
const atOnceLimit = 100 * time.Millisecond

// smuggle sends a frame with the maximum length, filled with messages that must not be parsed. A server that adds the
// header size in 16 bits would overflow and parse them.
func smuggle(t *Trial, head []byte, size int) {
	c, p := t.Bound()
	hidden := req(wire.Binding)
	stolen := wire.ChannelData(0x4000, []byte("smuggled"), true)
	length := 0xFFFF &^ 3
	binary.BigEndian.PutUint16(head[2:], uint16(length))
	body := make([]byte, 0, length)
	for len(body)+len(hidden)+len(stolen) <= length {
		body = append(append(body, hidden...), stolen...)
	}
	c.transmit(slices.Concat(head[:size], body, make([]byte, length-len(body))))
	if _, ok := c.take(t.Silence, answers(hidden)); ok {
		t.Failf("a Binding request inside the message is answered")
	}
	for data, _, ok := p.receive(t.Silence); ok; data, _, ok = p.receive(t.Silence) {
		if string(data) == "smuggled" {
			t.Failf("ChannelData inside the message is relayed")
		}
	}
	if !c.closed() {
		c.Refresh(600).OK()
	}
	t.alive("oversize message")
}

func splitRequest(t *Trial) {
	c := t.Client()
	request := wire.Fingerprint(req(wire.Binding, wire.Text(wire.Software, "slow")))
	for i := range request {
		c.transmit(request[i : i+1])
	}
	if _, ok := c.take(t.Answer, answers(request)); !ok {
		t.Failf("no response within %s%s", t.Answer, c.whyOver())
	}
}

func severalInOne(t *Trial) {
	c := t.Client()
	var requests [][]byte
	for range 5 {
		requests = append(requests, req(wire.Binding))
	}
	c.transmit(slices.Concat(requests...))
	for i, r := range requests {
		if _, ok := c.take(t.Answer, answers(r)); !ok {
			t.Failf("request %d of %d is not answered", i+1, len(requests))
		}
	}
}

func splitChannelData(t *Trial) {
	c, p := t.Bound()
	for cut := 1; cut < 8; cut++ {
		message := wire.ChannelData(0x4000, []byte("in pieces"), true)
		c.transmit(message[:cut])
		c.transmit(message[cut:])
		p.Gets(c.relay, []byte("in pieces"))
	}
}

// timeout is how long a server may keep a connection without a complete request.
const timeout = 12 * time.Second

func closes(t *Trial, first []byte) {
	c := t.Client()
	c.transmit(first)
	if !c.closedWithin(timeout) {
		t.Failf("still open after %s", timeout)
	}
}

func dripping(t *Trial) {
	c := t.Client()
	request := req(wire.Binding, wire.Text(wire.Software, "never in a hurry"))
	started := time.Now()
	for i := range request {
		if left := timeout - t.pulse.Since(started); left <= 0 || c.closedWithin(min(left, time.Second)) {
			break
		}
		c.transmit(request[i : i+1])
	}
	if !c.closed() {
		t.Failf("still open after %s", timeout)
	}
}

// closesRaw uses the TCP port without TLS.
func closesRaw(t *Trial, first []byte) {
	conn, err := dialTCP(t.soon(), t.source.addr, t.Server)
	t.must(err, "connect to the server")
	defer conn.Close()
	_, err = conn.Write(first)
	t.must(err, "send")
	conn.SetReadDeadline(time.Now().Add(timeout))
	buf := make([]byte, 1024)
	for {
		_, err := conn.Read(buf)
		if timeout, ok := err.(net.Error); ok && timeout.Timeout() {
			t.Failf("still open after %s", timeout)
		}
		if err != nil {
			return
		}
	}
}

func besideSilence(t *Trial) {
	for range 50 {
		conn, err := dialTCP(t.soon(), t.source.addr, t.Server)
		t.must(err, "open a silent connection")
		t.later(func() { conn.Close() })
	}
	started := time.Now()
	t.Allocated()
	if took := t.pulse.Since(started); took > time.Second {
		t.Failf("an allocation takes %s", took)
	}
}

func largeBody(t *Trial, size int) {
	c := t.Client()
	c.transmit(req(wire.Allocate, wire.Attr{Type: 0xF777, Value: make([]byte, size)}))
	if !c.closedWithin(t.Answer) {
		t.Failf("still open after a message with %d bytes without credentials", size)
	}
	t.alive("large message")
}

// soon returns a context for operations on the prober's side.
func (t *Trial) soon() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), handshakeTime)
	t.later(cancel)
	return ctx
}

func tlsVersion(t *Trial, version uint16) {
	conn, err := dialTLS(t.soon(), t.source.addr, t.Server, &tls.Config{MinVersion: version, MaxVersion: version})
	t.must(err, "connect to the server")
	t.clientOn(conn, t.source).Ask(wire.Binding).OK()
}

func clearText(t *Trial) {
	below := map[Transport]Transport{TLS: TCP, DTLS: UDP}[t.Transport]
	conn, err := dial(below, t.source.addr, t.Server)
	t.must(err, "connect to the server")
	defer conn.Close()
	request := req(wire.Binding)
	_, err = conn.Write(request)
	t.must(err, "send")
	conn.SetReadDeadline(time.Now().Add(t.Silence))
	buf := make([]byte, 1500)
	if n, _ := conn.Read(buf); answers(request)(buf[:n]) {
		t.Failf("got %s", describe(buf[:n]))
	}
	t.alive("plaintext request")
}

// negotiated returns the ALPN protocol that the server selects on a working connection.
func negotiated(t *Trial, offer ...string) string {
	if t.Transport == TLS {
		conn, err := dialTLS(t.soon(), t.source.addr, t.Server, &tls.Config{NextProtos: offer})
		t.must(err, "connect to the server")
		t.clientOn(conn, t.source).Ask(wire.Binding).OK()
		return conn.ConnectionState().NegotiatedProtocol
	}
	conn, err := dialDTLS(t.soon(), t.source.addr, t.Server, offer)
	t.must(err, "connect to the server")
	t.clientOn(conn, t.source).Ask(wire.Binding).OK()
	state, _ := conn.ConnectionState()
	return state.NegotiatedProtocol
}

// helloVerify sends a ClientHello without cookie and reads the server's response, which must be small, because the
// source address is not validated yet.
func helloVerify(t *Trial) {
	conn, err := dialUDP(t.source.addr, t.Server)
	t.must(err, "open a socket")
	defer conn.Close()
	first := &firstFlight{packets: packets{conn}}
	client, err := dtls.ClientWithOptions(first, net.UDPAddrFromAddrPort(t.Server), dtls.WithInsecureSkipVerify(true))
	t.must(err, "make a client")
	ctx, cancel := context.WithTimeout(context.Background(), t.Answer)
	defer cancel()
	client.HandshakeContext(ctx)
	const handshake, helloVerifyRequest = 22, 3
	if len(first.answer) < 14 || first.answer[0] != handshake || first.answer[13] != helloVerifyRequest {
		t.Failf("the response to the first ClientHello is % x", first.answer[:min(len(first.answer), 16)])
	}
	if len(first.answer) > first.asked {
		t.Failf("response of %d bytes to %d", len(first.answer), first.asked)
	}
}

// firstFlight records the first datagram of the server.
type firstFlight struct {
	packets
	asked  int
	answer []byte
}

func (f *firstFlight) WriteTo(b []byte, to net.Addr) (int, error) {
	if f.asked == 0 {
		f.asked = len(b)
	}
	return f.packets.WriteTo(b, to)
}

func (f *firstFlight) ReadFrom(b []byte) (int, net.Addr, error) {
	n, from, err := f.packets.ReadFrom(b)
	if f.answer == nil {
		f.answer = append([]byte{}, b[:max(n, 0)]...)
	}
	return n, from, err
}
