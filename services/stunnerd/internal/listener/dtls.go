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
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/forward"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/gate"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/pionlog"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/watch"
)

// dtlsListener is a listener for TURN over DTLS. It has several sockets on one port.
type dtlsListener struct {
	*connections
	sockets []*dtlsSocket
	forget  func()
	answers frontAnswers
}

// dtlsSocket is one receiving socket and its reader. For a datagram of a client without an association it stores no
// state, and its answer is shorter than the datagram, because the source address may be forged. The cookie in the
// answer is derived from the address of the client (RFC 6347 §4.2.1).
type dtlsSocket struct {
	*connections
	conn    *net.UDPConn
	port    *udpPort
	index   int // among the readers of the port
	task    watch.Task
	cookies *cookies
	offer   func(hello) ([]dtls.ServerOption, error)
	// elsewhere passes datagrams to other pods. Only the reader goroutine uses it.
	elsewhere *forward.Outbox

	mu      sync.Mutex
	clients map[netip.AddrPort]associations
}

func openDTLS(c config.Listener, g *gate.Gate, m *meter.Listener, o Options) (Listener, error) {
	certs, err := newCertificates(c)
	if err != nil {
		return nil, err
	}
	port, err := openPort(c.Port, o.Sockets, o.Log)
	if err != nil {
		return nil, err
	}
	l := &dtlsListener{
		connections: newConnections(port, transport{certs: certs, secure: secureDTLS}, g, m, o),
		forget:      o.Meter.ListenerDrops.Watch(port.drops),
	}
	secret := cookieSecret()
	for i, conn := range port.readers {
		s := &dtlsSocket{
			connections: l.connections, conn: conn, port: port, index: i,
			cookies: newCookies(secret), offer: offers(certs, o), clients: map[netip.AddrPort]associations{},
			elsewhere: o.Forwarder.Outbox(),
		}
		l.sockets = append(l.sockets, s)
	}
	l.answers = newFrontAnswers(port, l.sockets[0].meter, o.FrontSenders, l.sockets[0].drop)
	for _, s := range l.sockets {
		l.serving.Go(s.read)
	}
	return l, nil
}

// Tasks returns the readers.
func (l *dtlsListener) Tasks() (tasks []*watch.Task) {
	for _, s := range l.sockets {
		tasks = append(tasks, &s.task)
	}
	return tasks
}

// Close closes all associations and sockets, and waits for their goroutines.
func (l *dtlsListener) Close() error {
	l.forget()
	err := l.connections.Close()
	l.answers.closeAll()
	return err
}

// dtlsSuites are the authenticated cipher suites with forward secrecy.
var dtlsSuites = []dtls.CipherSuiteID{
	dtls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, dtls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
	dtls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, dtls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
}

// offers returns a function that returns the options of pion/dtls for a handshake. ALPN protocols are offered only to a
// client that offers one of them, as over TLS.
func offers(certs *certificates, o Options) func(hello) ([]dtls.ServerOption, error) {
	common := []dtls.ServerOption{
		dtls.WithGetCertificate(func(h *dtls.ClientHelloInfo) (*tls.Certificate, error) {
			return certs.named(h.ServerName), nil
		}),
		dtls.WithCipherSuites(dtlsSuites...),
		dtls.WithExtendedMasterSecret(dtls.RequestExtendedMasterSecret),
		dtls.WithLoggerFactory(pionlog.Factory{Log: o.Log}),
	}
	named := append(slices.Clip(common), dtls.WithSupportedProtocols(protocols...))
	return func(h hello) ([]dtls.ServerOption, error) {
		var message handshake.MessageClientHello
		if err := message.Unmarshal(h.body()); err != nil {
			return nil, err
		}
		for _, e := range message.Extensions {
			if known, ok := e.(*extension.ALPN); ok && offersTURN(known.ProtocolNameList) {
				return named, nil
			}
		}
		return common, nil
	}
}

// dtlsClient is a DTLS connection with its association.
type dtlsClient struct {
	*dtls.Conn
	association *association
}

// Read reads one record.
func (c dtlsClient) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.association.follow() // so that the answer uses the new path
	return n, err
}

func secureDTLS(ctx context.Context, conn net.Conn, turns *handshakeTurns) (net.Conn, error) {
	c := conn.(dtlsClient)
	c.association.turns = turns
	if !turns.acquire(ctx.Done()) {
		return nil, errNoTurn
	}
	if err := c.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	return c, c.association.establish(ctx)
}

// read reads until the socket is closed. After a panic it drops the datagram that has caused the panic, and continues.
func (s *dtlsSocket) read() {
	for !s.readUntilPanic() {
		if s.task.Working() {
			s.task.End()
		}
	}
}

func (s *dtlsSocket) readUntilPanic() (closed bool) {
	defer s.opt.Meter.RecoverPanic("read DTLS datagram")
	buf, control := make([]byte, datagram.MaxPayload), make([]byte, datagram.ControlSize)
	for {
		n, controlled, _, from, err := s.conn.ReadMsgUDPAddrPort(buf, control)
		if errors.Is(err, net.ErrClosed) {
			return true
		}
		s.task.Begin()
		client := netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
		if err != nil {
			s.drop(client, meter.Malformed)
		} else {
			s.receive(buf[:n], client, control[:controlled])
		}
		s.task.End()
	}
}

// receive passes a datagram to the associations of its client. A ClientHello with a valid cookie opens an association,
// even if the client has one: a client that has lost its state may use the same address and port (RFC 6347 §4.2.8). The
// earlier association serves the client until the later one has completed its handshake. While a handshake of the
// client is in progress, no further handshake starts.
func (s *dtlsSocket) receive(records []byte, client netip.AddrPort, control []byte) {
	known := s.find(client)
	h, isHello := parseHello(records)
	if !isHello {
		if known == (associations{}) && !s.pass(records, client, control) {
			s.drop(client, strayReason(records))
		}
		known.deliver(records)
		return
	}
	opened := known.openedBy(h)
	switch {
	case opened != nil:
		opened.deliver(records, forward.ReturnPath{})
	case known.handshaking():
		s.drop(client, meter.HandshakeRunning)
	case !s.cookies.valid(h, client, time.Now()):
		var room [recordHeader + messageHeader + 2 + 1 + cookieSize]byte
		from := datagram.SourceOf(control)
		answer := s.cookies.appendHelloVerify(room[:0], h, client, time.Now())
		if err := s.port.answer(answer, client, &from); err != nil {
			s.drop(client, relay.Undelivered(err)) // the client repeats its ClientHello
		}
	default:
		s.open(h, client, datagram.SourceOf(control))
	}
}

// strayReason returns the reason for dropping a datagram of a client without an association. It distinguishes a late
// DTLS record from other data (RFC 7983 §7).
func strayReason(datagram []byte) meter.Reason {
	if len(datagram) > recordHeader && datagram[0] >= 20 && datagram[0] <= 63 {
		return meter.NoAllocation
	}
	return meter.Malformed
}

func (s *dtlsSocket) find(client netip.AddrPort) associations {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clients[client]
}

// open starts the handshake of a client that has returned a valid cookie.
func (s *dtlsSocket) open(h hello, client netip.AddrPort, from datagram.Source) {
	options, err := s.offer(h)
	if err != nil {
		s.drop(client, meter.Handshake)
		return
	}
	memory := s.connect(client)
	if memory == nil {
		return
	}
	a, err := newAssociation(s, client, from, h, options...)
	if err != nil {
		memory.End()
		if errors.Is(err, relay.ErrNoRoom) {
			s.drop(client, meter.NoDescriptor)
			return
		}
		s.drop(client, meter.Handshake)
		return
	}
	s.add(a)
	s.begin(dtlsClient{a.conn, a}, memory, func() {
		a.release()
		s.remove(a)
		close(a.ended)
	})
}

func (s *dtlsSocket) drop(client netip.AddrPort, why meter.Reason) {
	s.opt.Meter.DropNote(why, meter.Note{Listener: s.meter.Name, Client: client})
}

// recordLimit is the longest content of a DTLS record (RFC 6347 §4.1). A longer frame is dropped without ending the
// session.
const recordLimit = 1 << 14

// records reads frames from a DTLS connection, which preserves the boundaries of records.
type records struct {
	from io.Reader
	buf  []byte
}

// close does nothing, because the memory of a session includes the buffer.
func (r *records) close() {}

// next returns the content of one record, which is one message or ChannelData frame (RFC 7350 §3).
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
