package listener

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/pion/dtls/v3"
	"github.com/pion/logging"
	"github.com/pion/turn/v3"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/cluster"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/gate"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/testport"
)

// keyPair returns a certificate for names, in the form of a config.
func keyPair(t testing.TB, names ...string) (cert string, key credential.Secret) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	form := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: names, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, form, form, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	armour := func(kind string, b []byte) string {
		return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}))
	}
	return armour("CERTIFICATE", der), credential.Secret(armour("PRIVATE KEY", pkcs8))
}

// oneCertificate is a DTLS listener with one certificate.
func oneCertificate(t *testing.T) (c config.Listener) {
	t.Helper()
	c.Protocol = config.TURNDTLS
	c.Cert, c.Key = keyPair(t, "turn.example.org")
	return c
}

// openSecure opens a listener with certificates, and with one socket.
func openSecure(t *testing.T, c config.Listener) (*connections, *net.UDPAddr) {
	t.Helper()
	return openLimited(t, c, NewLimits(0))
}

func openLimited(t *testing.T, c config.Listener, limits *Limits) (*connections, *net.UDPAddr) {
	t.Helper()
	g, m := newGate(t, c.Protocol)
	c.Name, c.Port = "test", testport.Free(t)
	l, err := Open(c, g, Options{Sockets: 1, Limits: limits, Meter: m, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	if d, ok := l.(*dtlsListener); ok {
		return d.connections, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: c.Port}
	}
	return l.(*connections), &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: c.Port}
}

// someHello returns a ClientHello, without or with a cookie.
func someHello(t testing.TB, nonce byte, sequence uint64, message uint16, cookie []byte) []byte {
	t.Helper()
	body := append([]byte{0xFE, 0xFD}, bytes.Repeat([]byte{nonce}, 32)...)
	body = append(body, 0, byte(len(cookie)))
	body = append(body, cookie...)
	body = append(body, 0, 2, 0xC0, 0x2B, 1, 0)
	body = append(body, 0, 8, 0, 10, 0, 4, 0, 2, 0, 23) // supported_groups: P-256
	header := binary.BigEndian.AppendUint64([]byte{22, 0xFE, 0xFF}, sequence)
	header = append(
		header, 0, byte(12+len(body)), 1, 0, 0, byte(len(body)), 0, byte(message), 0, 0, 0, 0, 0, byte(len(body)),
	)
	datagram := append(header, body...)
	if _, ok := parseHello(datagram); !ok {
		t.Fatalf("no ClientHello: %x", datagram)
	}
	return datagram
}

// raw is a UDP socket that sends handwritten handshake messages. A client of pion/dtls may read from it.
type raw struct {
	*testing.T
	*net.UDPConn
	server *net.UDPAddr
	seen   chan []byte // the frames that the client has read
}

func newRaw(t *testing.T, server *net.UDPAddr) *raw {
	t.Helper()
	return newRawAt(t, server, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
}

// newRawAt is a socket at an address.
func newRawAt(t *testing.T, server, client *net.UDPAddr) *raw {
	t.Helper()
	conn, err := net.ListenUDP("udp4", client)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &raw{T: t, UDPConn: conn, server: server, seen: make(chan []byte, 100)}
}

// alone starts a reader of the socket. It is for sockets without a client of pion/dtls.
func (r *raw) alone() *raw {
	go func() {
		for buf := make([]byte, 4096); ; {
			if _, _, err := r.ReadFrom(buf); err != nil {
				return
			}
		}
	}()
	return r
}

func (r *raw) ReadFrom(to []byte) (int, net.Addr, error) {
	n, from, err := r.UDPConn.ReadFrom(to)
	if err == nil {
		r.seen <- bytes.Clone(to[:n])
	}
	return n, from, err
}

// ask sends a datagram and returns the first answer of a type, or nil.
func (r *raw) ask(datagram []byte, message byte, timeout time.Duration) []byte {
	r.Helper()
	for len(r.seen) > 0 {
		<-r.seen // earlier answers
	}
	if _, err := r.WriteTo(datagram, r.server); err != nil {
		r.Fatal(err)
	}
	for late := time.After(timeout); ; {
		select {
		case answer := <-r.seen:
			if len(answer) > recordHeader && answer[0] == typeHandshake && epochOf(answer) == 0 &&
				answer[recordHeader] == message {
				return answer
			}
		case <-late:
			return nil
		}
	}
}

// cookie requests a cookie.
func (r *raw) cookie(nonce byte, sequence uint64) []byte {
	r.Helper()
	question := someHello(r.T, nonce, sequence, 0, nil)
	answer := r.ask(question, helloVerifyRequest, soon)
	if len(answer) != 48 || len(answer) > len(question) {
		r.Fatalf("answer to a ClientHello without cookie: %x", answer)
	}
	if got := binary.BigEndian.Uint64(answer[3:]); got != sequence {
		r.Errorf("record %d is answered with record %d", sequence, got)
	}
	return answer[28:]
}

const (
	serverHello = 2

	soon   = 5 * time.Second
	silent = 300 * time.Millisecond // how long a test waits for an answer that must not be sent
)

// T-16: only a valid cookie opens an association. The record number of the ServerHello follows those of all
// HelloVerifyRequests (RFC 6347 §4.2.1, §4.2.2).
func TestCookieOpensAssociation(t *testing.T) {
	l, server := openSecure(t, oneCertificate(t))
	client, other := newRaw(t, server).alone(), newRaw(t, server).alone()
	cookie := client.cookie(1, 4)
	for name, datagram := range map[string][]byte{
		"made up":             someHello(t, 1, 5, 1, make([]byte, cookieSize)),
		"in the first hello":  someHello(t, 1, 5, 0, cookie),
		"in the first record": someHello(t, 1, 0, 1, cookie),
	} {
		if client.ask(datagram, helloVerifyRequest, soon) == nil {
			t.Errorf("cookie %s: not asked for a better one", name)
		}
	}
	if other.ask(someHello(t, 1, 5, 1, cookie), helloVerifyRequest, soon) == nil {
		t.Error("cookie of another address: not asked for a better one")
	}
	if n := l.count(); n != 0 {
		t.Fatalf("%d associations without a good cookie", n)
	}
	answer := client.ask(someHello(t, 1, 5, 1, cookie), serverHello, soon)
	if answer == nil {
		t.Fatal("no answer to a good cookie")
	}
	if record, message := binary.BigEndian.Uint64(answer[3:]), binary.BigEndian.Uint16(answer[17:]); record != lastVerify+1 ||
		message != 1 {
		t.Errorf("ServerHello is record %d, message %d; want %d and 1", record, message, lastVerify+1)
	}
	if client.ask(someHello(t, 1, 6, 1, cookie), serverHello, soon) == nil {
		t.Error("the same hello again, as when the answer is lost: no answer")
	}
}

func (l *connections) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.open)
}

// dial makes the handshake of a client on the socket.
func (r *raw) dial() *dtls.Conn {
	r.Helper()
	client, err := dtls.ClientWithOptions(r, r.server, dtls.WithInsecureSkipVerify(true))
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { client.Close() })
	ctx, cancel := context.WithTimeout(r.Context(), soon)
	defer cancel()
	if err := client.HandshakeContext(ctx); err != nil {
		r.Fatal(err)
	}
	return client
}

// binding makes a Binding request.
func binding(t *testing.T, client net.Conn) error {
	t.Helper()
	if _, err := client.Write(
		[]byte{0, 1, 0, 0, 0x21, 0x12, 0xA4, 0x42, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},
	); err != nil {
		return err
	}
	_ = client.SetReadDeadline(time.Now().Add(soon))
	_, err := client.Read(make([]byte, 1024))
	return err
}

// allocateOver makes an allocation over a DTLS connection and returns its client.
func allocateOver(t *testing.T, conn net.Conn) *turn.Client {
	t.Helper()
	c, err := turn.NewClient(&turn.ClientConfig{
		STUNServerAddr: conn.RemoteAddr().String(), TURNServerAddr: conn.RemoteAddr().String(),
		Conn: turn.NewSTUNConn(conn), Username: "ann", Password: "first",
		LoggerFactory: logging.NewDefaultLoggerFactory(),
	})
	if err == nil {
		err = c.Listen()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	relayed, err := c.Allocate()
	if err != nil {
		t.Fatalf("allocate: %v", err)
	}
	t.Cleanup(func() { _ = relayed.Close() })
	return c
}

// answers fails the test unless the server answers over the connection of a client.
func answers(t *testing.T, c *turn.Client, when string) {
	t.Helper()
	if _, err := c.SendBindingRequest(); err != nil {
		t.Errorf("%s: the first association serves its client no longer: %v", when, err)
	}
}

// openWithUser opens a DTLS listener with a credential.
func openWithUser(t *testing.T) (*connections, *net.UDPAddr) {
	t.Helper()
	l, server := openSecure(t, oneCertificate(t))
	l.gate.Update(&gate.Policy{
		Authority:  credential.Authority{Realm: "test.example", Username: "ann", Password: "first"},
		RelayAddrs: []netip.Addr{netip.MustParseAddr("127.0.0.1")},
	}, cluster.NewView(nil, nil))
	return l, server
}

// T-16: a client that restarts on the same address and port, without close_notify, makes a handshake and an allocation
// at once (RFC 6347 §4.2.8). Its earlier session ends.
func TestRestartedClientIsServed(t *testing.T) {
	l, server := openWithUser(t)
	for generation := range 3 {
		address := newRaw(t, server)
		if generation > 0 {
			address = newRawAt(t, server, l.client(t))
		}
		allocateOver(t, address.dial())
		gone(t, l, 1)
		if n := l.gate.Sessions(); n != 1 {
			t.Errorf("after %d restarts: %d sessions, want 1", generation, n)
		}
		l.drops(t, map[meter.Reason]uint64{meter.Replaced: uint64(generation)})
		if err := address.UDPConn.Close(); err != nil { // without close_notify
			t.Fatal(err)
		}
	}
}

// client returns the address of the only client of a listener.
func (l *connections) client(t *testing.T) *net.UDPAddr {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.open {
		return net.UDPAddrFromAddrPort(c.addr)
	}
	t.Fatal("no connection")
	return nil
}

// T-16: a ClientHello without a valid cookie, from the address of a session, changes nothing.
func TestForgedHelloDisturbsNoSession(t *testing.T) {
	l, server := openWithUser(t)
	address := newRaw(t, server)
	client := allocateOver(t, address.dial())
	for name, hello := range map[string][]byte{
		"without cookie": someHello(t, 7, 0, 0, nil),
		"made-up cookie": someHello(t, 7, 1, 1, make([]byte, cookieSize)),
	} {
		if address.ask(hello, helloVerifyRequest, soon) == nil {
			t.Errorf("%s: not asked for a cookie", name)
		}
		answers(t, client, name)
	}
	if n := l.count(); n != 1 {
		t.Errorf("%d associations, want 1", n)
	}
}

// T-16: an unfinished handshake from the address of a session does not disturb the session. A client has only one
// unfinished handshake at a time. It ends at the deadline of handshakes.
func TestUnfinishedHandshakeDisturbsNoSession(t *testing.T) {
	l, server := openWithUser(t)
	address := newRaw(t, server)
	client := allocateOver(t, address.dial())
	hello := someHello(t, 8, 2, 1, address.cookie(8, 1))
	if address.ask(hello, serverHello, soon) == nil {
		t.Fatal("no ServerHello for a good cookie")
	}
	began := time.Now()
	answers(t, client, "during the handshake")
	for name, datagram := range map[string][]byte{
		"handshake message": {22, 0xFE, 0xFD, 0, 0, 0, 0, 0, 0, 0, 9, 0, 1, 0},
		"encrypted record":  append([]byte{23, 0xFE, 0xFD, 0, 1, 0, 0, 0, 0, 1, 0, 0, 32}, make([]byte, 32)...),
	} {
		if _, err := address.WriteTo(datagram, server); err != nil {
			t.Fatal(err)
		}
		answers(t, client, name)
	}
	if address.ask(someHello(t, 9, 3, 0, nil), helloVerifyRequest, silent) != nil {
		t.Error("a third hello is answered while a handshake goes on")
	}
	if l.opt.Meter.Drops()["handshake_running"] == 0 {
		t.Errorf("the third hello is not counted: %v", l.opt.Meter.Drops())
	}
	if n := l.count(); n != 2 {
		t.Errorf("%d associations during the handshake, want 2", n)
	}
	for l.count() > 1 && time.Since(began) < 2*handshakeTimeout {
		time.Sleep(10 * time.Millisecond)
	}
	if n, after := l.count(), time.Since(began); n != 1 || after < handshakeTimeout-time.Second {
		t.Errorf("%d associations after %s, want 1 after %s", n, after, handshakeTimeout)
	}
	answers(t, client, "after the deadline")
	if n := l.gate.Sessions(); n != 1 {
		t.Errorf("%d sessions, want 1", n)
	}
}

// T-16, RFC 6347 §4.2.8: a client without a session that makes a new handshake replaces its association when the
// handshake is complete.
func TestRestartWithoutSession(t *testing.T) {
	l, server := openSecure(t, oneCertificate(t))
	first := newRaw(t, server)
	if err := binding(t, first.dial()); err != nil { // proves to the server that the handshake is complete
		t.Fatal(err)
	}
	if err := first.UDPConn.Close(); err != nil {
		t.Fatal(err)
	}
	if err := binding(t, newRawAt(t, server, first.LocalAddr().(*net.UDPAddr)).dial()); err != nil {
		t.Error(err)
	}
	gone(t, l, 1)
}

// T-15: a connection without a session has no buffer for messages that it may not send.
func TestRecordsGrowWithTheLimit(t *testing.T) {
	r := &records{from: bytes.NewReader(make([]byte, 3000))}
	for _, limit := range []int{unauthenticatedLimit, sessionLimit} {
		if frame, err := r.next(limit); err != nil || len(frame) > limit || len(r.buf) > recordLimit {
			t.Errorf("limit %d: %d bytes in a buffer of %d, %v", limit, len(frame), len(r.buf), err)
		}
	}
}

// T-15: one message of more than 1,024 bytes ends a connection without a session.
func TestLongRecordEndsConnection(t *testing.T) {
	l, server := openSecure(t, oneCertificate(t))
	client := newRaw(t, server).dial()
	if _, err := client.Write(make([]byte, unauthenticatedLimit+1)); err != nil {
		t.Fatal(err)
	}
	_ = client.SetReadDeadline(time.Now().Add(soon))
	if _, err := client.Read(make([]byte, 10)); !errors.Is(err, io.EOF) {
		t.Errorf("not closed: %v", err)
	}
	if n := l.opt.Meter.Drops()["malformed"]; n != 1 {
		t.Errorf("counted %d times", n)
	}
}

// F-12, T-16: a changed ClientHello has no valid cookie, and its answer is not longer than the ClientHello. parseHello
// reads a ClientHello of a client correctly, and handles any truncated or changed one without a panic.
func FuzzHello(f *testing.F) {
	f.Add(someHello(f, 1, 5, 1, make([]byte, cookieSize)))
	f.Add(someHello(f, 2, 0, 0, nil))
	client := netip.MustParseAddrPort("192.0.2.1:5000")
	now := time.Now()
	f.Fuzz(func(t *testing.T, datagram []byte) {
		h, ok := parseHello(datagram)
		if !ok {
			return
		}
		c := newCookies(cookieSecret())
		if c.valid(h, client, now) {
			t.Fatalf("a cookie that nobody made is good: %x", datagram)
		}
		if answer := c.appendHelloVerify(nil, h, client, now); len(answer) > len(datagram) {
			t.Fatalf("%d bytes are answered with %d", len(datagram), len(answer))
		}
		first, ok := parseHello(h.first())
		if !ok || first.message != 0 || first.sequence != 0 || len(first.cookie) != 0 ||
			!bytes.Equal(first.head, h.head) || !bytes.Equal(first.tail, h.tail) {
			t.Fatalf("the first hello before %x would have been %x", datagram, h.first())
		}
	})
}

// T-16: a cookie is valid for at least one minute and at most two.
func TestCookieExpires(t *testing.T) {
	client := netip.MustParseAddrPort("192.0.2.1:5000")
	c := newCookies(cookieSecret())
	now := time.Unix(1_000_000, 0)
	first, _ := parseHello(someHello(t, 1, 0, 0, nil))
	second, _ := parseHello(someHello(t, 1, 1, 1, c.appendHelloVerify(nil, first, client, now)[28:]))
	for after, want := range map[time.Duration]bool{
		0: true, cookieLife: true, 2 * cookieLife: false, -2 * cookieLife: false,
	} {
		if got := c.valid(second, client, now.Add(after)); got != want {
			t.Errorf("after %s: %v", after, got)
		}
	}
}
