package listener

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pion/dtls/v3"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
)

const (
	// inbox is the number of datagrams of a client that may wait for decryption. Further ones are dropped.
	inbox = 128
	// longestDatagram is the longest datagram that pion/dtls reads.
	longestDatagram = 8192
)

// association is the net.PacketConn of one client for pion/dtls. Its client has shown its address with a cookie, and a
// dtlsSocket reads for it.
//
// pion/dtls checks a cookie of its own. It first gets the ClientHello that the client must have sent without a cookie.
// The HelloVerifyRequest with which pion/dtls answers is not sent, and setCookie replaces the cookie. Then pion/dtls
// gets the real ClientHello unchanged, because both sides hash it.
type association struct {
	socket *dtlsSocket
	client netip.AddrPort
	addr   *net.UDPAddr // the client, in the form that pion/dtls knows
	from   datagram.Source
	// own sends to this client. It is shared with other clients if shared is set.
	own    *datagram.Sender
	shared bool
	cookie [cookieSize]byte
	// ahead is added to the numbers of unencrypted records. The ServerHello has the record number of the ClientHello,
	// so that no number is used twice after several HelloVerifyRequests (RFC 6347 §4.2.1).
	ahead uint64
	conn  *dtls.Conn

	inbox     chan []byte
	interrupt chan struct{}
	closed    chan struct{}
	close     sync.Once
	// gone is closed when the connection and its session have ended.
	gone chan struct{}
	// established is set when the handshake is complete.
	established atomic.Bool
	// turns limits the computations of the handshake. It is set before the handshake starts. The first turn ends with
	// the first record that is sent, which is signed. Every other turn is from the receipt of a datagram to the next
	// read.
	turns    *handshakeTurns
	answered atomic.Bool
}

// associations are those of one client address. A second one exists while a client that has lost its state makes a new
// handshake.
type associations struct {
	// first serves the client, or makes its first handshake. second makes a handshake and replaces first when it is
	// complete.
	first, second *association
}

// openedBy returns the association of a ClientHello, or nil.
func (as associations) openedBy(h hello) *association {
	for _, a := range []*association{as.first, as.second} {
		if a != nil && a.opened(h) {
			return a
		}
	}
	return nil
}

// handshaking reports whether a handshake is in progress.
func (as associations) handshaking() bool {
	return as.second != nil || as.first != nil && !as.first.established.Load()
}

// deliver passes on a datagram that is no ClientHello. An unencrypted datagram is for the handshake in progress. An
// encrypted one may be the last message of that handshake or a message of the earlier association. Both get it, and
// each discards what it cannot decrypt.
func (as associations) deliver(records []byte) {
	plain := len(records) >= recordHeader && epochOf(records) == 0
	if as.first != nil && (as.second == nil || !plain) {
		as.first.deliver(records)
	}
	if as.second != nil {
		as.second.deliver(records)
	}
}

// add adds an association as the first one of its client, or else as the second one.
func (s *dtlsSocket) add(a *association) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.clients[a.client]
	if known.first == nil {
		known.first = a
	} else {
		known.second = a
	}
	s.clients[a.client] = known
}

// promote makes the second association of a client its only one, and returns the former first one. It returns nil if
// the association is not the second one.
func (s *dtlsSocket) promote(a *association) (before *association) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.clients[a.client]
	if known.second != a {
		return nil
	}
	s.clients[a.client] = associations{first: a}
	return known.first
}

// remove removes an association.
func (s *dtlsSocket) remove(a *association) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.clients[a.client]
	switch a {
	case known.first:
		known = associations{first: known.second}
	case known.second:
		known.second = nil
	}
	if known == (associations{}) {
		delete(s.clients, a.client)
		return
	}
	s.clients[a.client] = known
}

// newAssociation starts the handshake of the server. The first datagrams for pion/dtls are made from the hello, whose
// cookie is valid.
func newAssociation(
	s *dtlsSocket, client netip.AddrPort, from datagram.Source, h hello, options ...dtls.ServerOption,
) (*association, error) {
	if err := relay.Room(); err != nil {
		return nil, err
	}
	own, shared, err := s.port.own(s.index)
	if err != nil {
		return nil, err
	}
	a := &association{
		socket: s, client: client, addr: net.UDPAddrFromAddrPort(client), from: from, own: own, shared: shared,
		cookie: [cookieSize]byte(h.cookie), ahead: h.sequence - 1,
		inbox: make(chan []byte, inbox), interrupt: make(chan struct{}, 1),
		closed: make(chan struct{}), gone: make(chan struct{}),
	}
	a.inbox <- h.first()
	a.inbox <- slices.Clone(h.record)
	if a.conn, err = dtls.ServerWithOptions(a, a.addr, options...); err != nil {
		a.release()
		return nil, err
	}
	return a, nil
}

// release closes the socket of the association.
func (a *association) release() {
	if !a.shared {
		_ = a.own.Close()
	}
}

// establish makes an association with a complete handshake the only one of its client. It returns when the session of
// the earlier association has ended, because the gate refuses a second allocation of the same client address.
func (a *association) establish(ctx context.Context) error {
	a.established.Store(true)
	before := a.socket.promote(a)
	if before == nil {
		return nil
	}
	_ = before.Close()
	select {
	case <-before.gone:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// opened reports whether a hello has opened the association. The client repeats the hello if the answer is lost.
func (a *association) opened(h hello) bool { return string(h.cookie) == string(a.cookie[:]) }

// deliver queues a copy of a datagram of the client.
func (a *association) deliver(records []byte) {
	if len(records) > longestDatagram {
		a.socket.drop(a.client, meter.Malformed)
		return
	}
	select {
	case a.inbox <- slices.Clone(records):
	default:
		a.socket.drop(a.client, meter.SendFailed)
	}
}

// ReadFrom returns the next datagram of the client.
func (a *association) ReadFrom(to []byte) (int, net.Addr, error) {
	handshaking := !a.established.Load() && a.answered.Load()
	if handshaking {
		a.turns.release()
	}
	select {
	case records := <-a.inbox:
		if handshaking {
			a.turns.acquire(a.closed)
		}
		return copy(to, records), a.addr, nil
	case <-a.interrupt:
		return 0, nil, context.DeadlineExceeded
	case <-a.closed:
		return 0, nil, net.ErrClosed
	}
}

// WriteTo sends a datagram to the client, except the HelloVerifyRequest. A datagram that cannot be sent is dropped,
// because an error would end the association.
func (a *association) WriteTo(records []byte, _ net.Addr) (int, error) {
	select {
	case <-a.closed:
		return 0, net.ErrClosed
	default:
	}
	if records[0] == typeHandshake && epochOf(records) == 0 && records[recordHeader] == helloVerifyRequest {
		return len(records), setCookie(a.conn, a.cookie)
	}
	if !a.answered.Load() && a.answered.CompareAndSwap(false, true) {
		a.turns.release()
	}
	if err := a.own.Send(a.renumber(records), a.client, &a.from); err != nil {
		a.socket.drop(a.client, relay.Undelivered(err))
	}
	return len(records), nil
}

// renumber adds ahead to the numbers of unencrypted records.
func (a *association) renumber(records []byte) []byte {
	if a.ahead == 0 || epochOf(records) != 0 {
		return records
	}
	records = slices.Clone(records)
	for rest := records; len(rest) >= recordHeader && epochOf(rest) == 0; {
		numbered := binary.BigEndian.Uint64(rest[3:])
		binary.BigEndian.PutUint64(rest[3:], numbered+a.ahead)
		size := recordHeader + int(binary.BigEndian.Uint16(rest[11:]))
		rest = rest[min(size, len(rest)):]
	}
	return records
}

func epochOf(record []byte) uint16 { return binary.BigEndian.Uint16(record[3:]) }

// Close ends reads and writes.
func (a *association) Close() error {
	a.close.Do(func() { close(a.closed) })
	return nil
}

// SetReadDeadline interrupts reads, or allows them again. pion/dtls sets only deadlines in the past, and the zero
// deadline.
func (a *association) SetReadDeadline(t time.Time) error {
	if t.IsZero() {
		select {
		case <-a.interrupt:
		default:
		}
		return nil
	}
	select {
	case a.interrupt <- struct{}{}:
	default:
	}
	return nil
}

// SetWriteDeadline does nothing, because writes do not wait.
func (a *association) SetWriteDeadline(time.Time) error { return nil }

// SetDeadline sets the deadline of reads.
func (a *association) SetDeadline(t time.Time) error { return a.SetReadDeadline(t) }

// LocalAddr returns the address of the dtlsSocket.
func (a *association) LocalAddr() net.Addr { return a.socket.conn.LocalAddr() }
