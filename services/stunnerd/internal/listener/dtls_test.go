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

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/gate"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/testport"
)

// keyPair makes a certificate for some names, in the form that a config takes.
func keyPair(t *testing.T, names ...string) (cert string, key credential.Secret) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	form := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: names, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
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

// oneCertificate is a DTLS listener with a certificate.
func oneCertificate(t *testing.T) (c config.Listener) {
	t.Helper()
	c.Protocol = config.TURNDTLS
	c.Cert, c.Key = keyPair(t, "turn.example.org")
	return c
}

// openSecure opens a listener with certificates, and with one socket.
func openSecure(t *testing.T, c config.Listener) (*connections, *net.UDPAddr) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	machine, err := gate.NewMachine(1, log)
	if err != nil {
		t.Fatal(err)
	}
	nonces, err := gate.NewNonces()
	if err != nil {
		t.Fatal(err)
	}
	m := meter.New()
	g := gate.New("test", c.Protocol, gate.Shared{
		Machine: machine, Nonces: nonces, Network: relay.Kernel{}, Held: relay.NewReservations(), Limits: gate.NewLimits(0), Table: session.NewTable(), Meter: m, Log: log,
	})
	c.Name, c.Port = "test", testport.Free(t)
	l, err := Open(c, g, Options{Sockets: 1, Limits: NewLimits(0), Meter: m, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		g.Close()
		if err := machine.Close(); err != nil {
			t.Error(err)
		}
	})
	if d, ok := l.(*dtlsListener); ok {
		return d.connections, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: c.Port}
	}
	return l.(*connections), &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: c.Port}
}

// someHello is a ClientHello as a client sends it first, or again.
func someHello(t testing.TB, nonce byte, sequence uint64, message uint16, cookie []byte) []byte {
	t.Helper()
	body := append([]byte{0xFE, 0xFD}, bytes.Repeat([]byte{nonce}, 32)...)
	body = append(body, 0, byte(len(cookie)))
	body = append(body, cookie...)
	body = append(body, 0, 2, 0xC0, 0x2B, 1, 0)
	body = append(body, 0, 8, 0, 10, 0, 4, 0, 2, 0, 23) // supported_groups: P-256
	header := binary.BigEndian.AppendUint64([]byte{22, 0xFE, 0xFF}, sequence)
	header = append(header, 0, byte(12+len(body)), 1, 0, 0, byte(len(body)), 0, byte(message), 0, 0, 0, 0, 0, byte(len(body)))
	datagram := append(header, body...)
	if _, ok := parseHello(datagram); !ok {
		t.Fatalf("no ClientHello: %x", datagram)
	}
	return datagram
}

// raw is a socket on which a handshake is written by hand, also beside a client of pion/dtls that reads from it.
type raw struct {
	*testing.T
	*net.UDPConn
	server *net.UDPAddr
	seen   chan []byte // what the client reads
}

func newRaw(t *testing.T, server *net.UDPAddr) *raw {
	t.Helper()
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &raw{T: t, UDPConn: conn, server: server, seen: make(chan []byte, 100)}
}

// alone reads by itself: there is no client.
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

// ask sends a datagram and returns the first answer of the type, nothing when there is none in time.
func (r *raw) ask(datagram []byte, message byte, patience time.Duration) []byte {
	r.Helper()
	for len(r.seen) > 0 {
		<-r.seen // the answers to what was asked before
	}
	if _, err := r.WriteTo(datagram, r.server); err != nil {
		r.Fatal(err)
	}
	for late := time.After(patience); ; {
		select {
		case answer := <-r.seen:
			if len(answer) > recordHeader && answer[0] == typeHandshake && epochOf(answer) == 0 && answer[recordHeader] == message {
				return answer
			}
		case <-late:
			return nil
		}
	}
}

// cookie asks for one.
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
	silent = 300 * time.Millisecond // how long an answer that must not come is waited for
)

// T-16: only a good cookie opens an association, and the ServerHello goes on with the numbers where the client is (RFC 6347 §4.2.1, §4.2.2).
func TestCookieOpensAssociation(t *testing.T) {
	l, server := openSecure(t, oneCertificate(t))
	client, other := newRaw(t, server).alone(), newRaw(t, server).alone()
	cookie := client.cookie(1, 4)
	for name, datagram := range map[string][]byte{
		"made up":             someHello(t, 1, 5, 1, make([]byte, cookieSize)),
		"of another hello":    someHello(t, 2, 5, 1, cookie),
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
	if record, message := binary.BigEndian.Uint64(answer[3:]), binary.BigEndian.Uint16(answer[17:]); record != 5 || message != 1 {
		t.Errorf("ServerHello is record %d, message %d; want 5 and 1", record, message)
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

// binding asks for its address, which needs no credential.
func binding(t *testing.T, client net.Conn) error {
	t.Helper()
	if _, err := client.Write([]byte{0, 1, 0, 0, 0x21, 0x12, 0xA4, 0x42, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}); err != nil {
		return err
	}
	_ = client.SetReadDeadline(time.Now().Add(soon))
	_, err := client.Read(make([]byte, 1024))
	return err
}

// T-16, RFC 6347 §4.2.8: a hello from the address of a client changes nothing for it, unless it comes with a cookie and the client has no
// session.
func TestAssociationBelongsToItsFirstClient(t *testing.T) {
	l, server := openSecure(t, oneCertificate(t))
	address := newRaw(t, server)
	client := address.dial()
	if err := binding(t, client); err != nil { // from then on the server knows that the handshake is over
		t.Fatal(err)
	}
	if address.ask(someHello(t, 7, 0, 0, nil), helloVerifyRequest, soon) == nil {
		t.Error("a hello from the address of a client without a session is not asked for a cookie")
	}
	if err := binding(t, client); err != nil {
		t.Errorf("after a hello without cookie the client is no longer served: %v", err)
	}
	cookie := address.cookie(8, 1)
	for began := time.Now(); address.ask(someHello(t, 8, 2, 1, cookie), serverHello, silent) == nil; {
		if time.Since(began) > soon {
			t.Fatal("the client begins anew, with a cookie: no ServerHello")
		}
	}
	if n := l.count(); n != 1 {
		t.Errorf("%d associations of one address", n)
	}
	if address.ask(someHello(t, 9, 3, 0, nil), helloVerifyRequest, silent) != nil {
		t.Error("a hello is answered while a handshake goes on")
	}
}

// T-15: a connection without a session keeps no buffer for what it may not send.
func TestRecordsGrowWithTheLimit(t *testing.T) {
	r := &records{from: bytes.NewReader(make([]byte, 3000))}
	for _, limit := range []int{unknownLimit, sessionLimit} {
		if frame, err := r.next(limit); err != nil || len(frame) > limit || len(r.buf) > recordLimit {
			t.Errorf("limit %d: %d bytes in a buffer of %d, %v", limit, len(frame), len(r.buf), err)
		}
	}
}

// T-15: one message of more than 1,024 bytes ends a connection without a session.
func TestLongRecordEndsConnection(t *testing.T) {
	l, server := openSecure(t, oneCertificate(t))
	client := newRaw(t, server).dial()
	if _, err := client.Write(make([]byte, unknownLimit+1)); err != nil {
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

// F-12, T-16: a changed ClientHello has no good cookie, and its answer is not longer than it.
// A ClientHello of a real client is what we take it for, whatever is cut off or changed.
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
		if answer := c.verify(nil, h, client, now); len(answer) > len(datagram) {
			t.Fatalf("%d bytes are answered with %d", len(datagram), len(answer))
		}
		if h.sequence == 0 {
			return
		}
		first, ok := parseHello(h.first())
		if !ok || first.message != 0 || first.sequence != h.sequence-1 || len(first.cookie) != 0 ||
			!bytes.Equal(first.head, h.head) || !bytes.Equal(first.tail, h.tail) {
			t.Fatalf("the first hello before %x would have been %x", datagram, h.first())
		}
	})
}

// T-16: a cookie is good for at least one minute and at most two.
func TestCookieExpires(t *testing.T) {
	client := netip.MustParseAddrPort("192.0.2.1:5000")
	c := newCookies(cookieSecret())
	now := time.Unix(1_000_000, 0)
	first, _ := parseHello(someHello(t, 1, 0, 0, nil))
	second, _ := parseHello(someHello(t, 1, 1, 1, c.verify(nil, first, client, now)[28:]))
	for after, want := range map[time.Duration]bool{0: true, cookieLife: true, 2 * cookieLife: false, -2 * cookieLife: false} {
		if got := c.valid(second, client, now.Add(after)); got != want {
			t.Errorf("after %s: %v", after, got)
		}
	}
}
