package listener

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/pion/dtls/v3"
	"github.com/pion/dtls/v3/pkg/protocol/extension"
	"github.com/pion/dtls/v3/pkg/protocol/handshake"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/gate"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
)

// dtlsSockets are the sockets of a listener, as those of UDP: one client is always read by the same goroutine.
type dtlsSockets []*dtlsSocket

// dtlsSocket is one socket and its reader. A client of whom nothing is known costs an answer that is shorter than what it has sent, and
// nothing else: what it is answered with comes from its own message (RFC 6347 §4.2.1).
type dtlsSocket struct {
	*connections
	conn    *net.UDPConn
	cookies *cookies
	offer   func(hello) ([]dtls.ServerOption, error)

	mu      sync.Mutex
	clients map[netip.AddrPort]*association
}

func openDTLS(c config.Listener, g *gate.Gate, m *meter.Listener, o Options) (Listener, error) {
	certs, err := newCertificates(c)
	if err != nil {
		return nil, err
	}
	if err := probeUDP(c.Port); err != nil {
		return nil, err
	}
	var sockets dtlsSockets
	secret := cookieSecret()
	for range max(o.Sockets, 1) {
		conn, err := listenUDP(c.Port)
		if err != nil {
			return nil, errors.Join(err, sockets.Close())
		}
		sockets = append(sockets, &dtlsSocket{
			conn: conn, cookies: newCookies(secret), offer: offers(certs, o), clients: map[netip.AddrPort]*association{},
		})
	}
	l := newConnections(sockets, transport{certs: certs, secure: secureDTLS}, g, m, o)
	for _, s := range sockets {
		s.connections = l
		l.serving.Go(s.read)
	}
	return l, nil
}

// Close closes all sockets.
func (s dtlsSockets) Close() (err error) {
	for _, socket := range s {
		err = errors.Join(err, socket.conn.Close())
	}
	return err
}

// dtlsSuites are authenticated ciphers with forward secrecy, and nothing else.
var dtlsSuites = []dtls.CipherSuiteID{
	dtls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, dtls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
	dtls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, dtls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
}

// offers returns what a client is offered for its hello. Our protocols are named only to a client that knows one of them, as in TLS.
func offers(certs *certificates, o Options) func(hello) ([]dtls.ServerOption, error) {
	common := []dtls.ServerOption{
		dtls.WithGetCertificate(func(h *dtls.ClientHelloInfo) (*tls.Certificate, error) { return certs.named(h.ServerName), nil }),
		dtls.WithCipherSuites(dtlsSuites...),
		dtls.WithExtendedMasterSecret(dtls.RequestExtendedMasterSecret),
		dtls.WithLoggerFactory(gate.LoggerFactory{Log: o.Log}),
	}
	named := append(slices.Clip(common), dtls.WithSupportedProtocols(protocols...))
	return func(h hello) ([]dtls.ServerOption, error) {
		var message handshake.MessageClientHello
		if err := message.Unmarshal(h.body()); err != nil {
			return nil, err
		}
		for _, e := range message.Extensions {
			if known, ok := e.(*extension.ALPN); ok && knowsOurs(known.ProtocolNameList) {
				return named, nil
			}
		}
		return common, nil
	}
}

// dtlsClient is a DTLS connection with the association that it runs over.
type dtlsClient struct {
	*dtls.Conn
	association *association
}

func secureDTLS(ctx context.Context, conn net.Conn) (net.Conn, error) {
	c := conn.(dtlsClient)
	if err := c.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	c.association.established.Store(true)
	return c, nil
}

func (s *dtlsSocket) read() {
	buf, control := make([]byte, maxDatagram), make([]byte, controlSize)
	for {
		n, controlled, _, from, err := s.conn.ReadMsgUDPAddrPort(buf, control)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		client := netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
		if err != nil {
			s.drop(client, meter.Malformed)
			continue
		}
		s.receive(buf[:n], client, control[:controlled])
	}
}

// receive gives a datagram to its association. An association belongs to the client that has opened it: a ClientHello from the same address
// is nobody's as long as the handshake goes on or the client has a session, and otherwise has to come with a cookie before it ends
// anything (RFC 6347 §4.2.8).
func (s *dtlsSocket) receive(datagram []byte, client netip.AddrPort, control []byte) {
	a := s.find(client)
	h, isHello := parseHello(datagram)
	switch {
	case a != nil && (!isHello || a.opened(h)):
		a.deliver(datagram)
	case !isHello:
		s.drop(client, strayReason(datagram))
	case a != nil && (!a.established.Load() || s.gate.Relay(client) != nil):
	case !s.cookies.valid(h, client, time.Now()):
		var answer [recordHeader + messageHeader + 2 + 1 + cookieSize]byte
		_ = s.send(s.cookies.verify(answer[:0], h, client, time.Now()), sourceFor(control), client) // the client asks again
	case a != nil:
		_ = a.Close() // the client asks again when the last of it is gone
	default:
		s.open(h, client, sourceFor(control))
	}
}

// strayReason tells a record that comes too late, as the last one of a client often does, from what is no DTLS (RFC 7983 §7).
func strayReason(datagram []byte) meter.Reason {
	if len(datagram) > recordHeader && datagram[0] >= 20 && datagram[0] <= 63 {
		return meter.NoAllocation
	}
	return meter.Malformed
}

func (s *dtlsSocket) find(client netip.AddrPort) *association {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clients[client]
}

// open begins the handshake with a client that has shown its address.
func (s *dtlsSocket) open(h hello, client netip.AddrPort, from source) {
	options, err := s.offer(h)
	if err != nil {
		s.drop(client, meter.Handshake)
		return
	}
	a, err := newAssociation(s, client, from, h, options...)
	if err != nil {
		s.drop(client, meter.Handshake)
		return
	}
	s.mu.Lock()
	s.clients[client] = a
	s.mu.Unlock()
	s.begin(dtlsClient{a.conn, a}, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.clients, client)
	})
}

func (s *dtlsSocket) send(datagram []byte, from source, to netip.AddrPort) error {
	_, _, err := s.conn.WriteMsgUDPAddrPort(datagram, from.control(), to)
	return err
}

func (s *dtlsSocket) drop(client netip.AddrPort, why meter.Reason) {
	s.opt.Meter.DropNote(why, meter.Note{Listener: s.meter.Name, Client: client})
}

// recordLimit is the longest content of a DTLS record (RFC 6347 §4.1). A longer frame cannot be sent, and is no reason to end the session.
const recordLimit = 1 << 14

// records reads datagrams from a connection that keeps their borders.
type records struct {
	from io.Reader
	buf  []byte
}

// next returns one record's content: one message, as over UDP (RFC 7350 §3).
func (r *records) next(limit int) ([]byte, error) {
	if want := min(limit, recordLimit); len(r.buf) < want {
		r.buf = make([]byte, want)
	}
	n, err := r.from.Read(r.buf)
	var short *dtls.TemporaryError
	switch {
	case errors.As(err, &short):
		return nil, errTooLarge
	case err != nil:
		return nil, err
	case n == 0 || !isChannelData(r.buf[0]) && r.buf[0] > 3:
		return nil, errNotTURN
	case n > limit:
		return nil, errTooLarge
	}
	return r.buf[:n], nil
}
