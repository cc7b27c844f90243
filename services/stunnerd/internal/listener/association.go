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
	// inbox is how many datagrams of a client may wait to be decrypted. Beyond that they are lost, as on any link that is full.
	inbox = 128
	// longestDatagram is what pion/dtls reads at most.
	longestDatagram = 8192
)

// association is the socket of one client, as pion/dtls sees it: it has shown its address, and what it sends is read by the socket of all.
//
// pion/dtls wants to check a cookie of its own making. It is shown the client's first ClientHello as it must have been; its
// HelloVerifyRequest goes nowhere, and it is told that our cookie is its own. The client's real ClientHello then follows unchanged: both
// sides hash it to know that they have seen the same handshake, so nothing in it could be replaced.
type association struct {
	socket *dtlsSocket
	client netip.AddrPort
	addr   *net.UDPAddr // the client, in the form that pion/dtls knows
	from   datagram.Source
	// own sends to this client, and to no other unless it is shared.
	own    *datagram.Sender
	shared bool
	cookie [cookieSize]byte
	// ahead is by how much records of the handshake are numbered higher than pion/dtls numbers them: the ServerHello has the number of the
	// ClientHello, so that no number comes twice after several HelloVerifyRequests (RFC 6347 §4.2.1).
	ahead uint64
	conn  *dtls.Conn

	inbox     chan []byte
	interrupt chan struct{}
	closed    chan struct{}
	close     sync.Once
	// gone is closed when the connection over this association has ended, and its session with it.
	gone chan struct{}
	// established is set when the handshake is over.
	established atomic.Bool
	// pace has the handshake compute in turns. The first one lasts from its beginning to the first answer, which is signed, each other one
	// from a datagram of the client to the next. It is set before the handshake begins.
	pace     *pace
	answered atomic.Bool
}

// associations are those of one client address. There are two while a client that has lost its state makes the handshake of the second.
type associations struct {
	// first serves the client, or makes the first handshake of the client. second makes a handshake and takes the place of first when it
	// is complete.
	first, second *association
}

// openedBy returns the association that a ClientHello has opened, or nil.
func (as associations) openedBy(h hello) *association {
	for _, a := range []*association{as.first, as.second} {
		if a != nil && a.opened(h) {
			return a
		}
	}
	return nil
}

// handshaking tells whether a handshake is under way.
func (as associations) handshaking() bool {
	return as.second != nil || as.first != nil && !as.first.established.Load()
}

// deliver hands over a datagram that is no ClientHello. What is not encrypted belongs to the handshake under way. An encrypted datagram may be the
// last message of that handshake or a message of the earlier association: each of the two discards what it cannot decrypt.
func (as associations) deliver(records []byte) {
	plain := len(records) >= recordHeader && epochOf(records) == 0
	if as.first != nil && (as.second == nil || !plain) {
		as.first.deliver(records)
	}
	if as.second != nil {
		as.second.deliver(records)
	}
}

// add makes an association the second of its client, or the first where there is none.
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

// promote makes the second association of a client its only one. It returns the one that was the first, or nil when there is none to replace.
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

// remove forgets an association.
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

// newAssociation starts the server's side of a handshake, with the client's hello, whose cookie is good, as the first thing to read.
func newAssociation(s *dtlsSocket, client netip.AddrPort, from datagram.Source, h hello, options ...dtls.ServerOption) (*association, error) {
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
		inbox: make(chan []byte, inbox), interrupt: make(chan struct{}, 1), closed: make(chan struct{}), gone: make(chan struct{}),
	}
	a.inbox <- h.first()
	a.inbox <- slices.Clone(h.record)
	if a.conn, err = dtls.ServerWithOptions(a, a.addr, options...); err != nil {
		a.release()
		return nil, err
	}
	return a, nil
}

// release closes the association's socket.
func (a *association) release() {
	if !a.shared {
		_ = a.own.Close()
	}
}

// establish makes an association whose handshake is complete the only one of its client. It returns when the session of the one before has
// ended: until then the gate refuses the client an allocation, because its address has one.
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

// opened tells whether it was this hello that has opened the association: it comes again when its answer is lost.
func (a *association) opened(h hello) bool { return string(h.cookie) == string(a.cookie[:]) }

// deliver takes a copy of a datagram of the client.
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
		a.pace.rest()
	}
	select {
	case records := <-a.inbox:
		if handshaking {
			a.pace.compute(a.closed)
		}
		return copy(to, records), a.addr, nil
	case <-a.interrupt:
		return 0, nil, context.DeadlineExceeded
	case <-a.closed:
		return 0, nil, net.ErrClosed
	}
}

// WriteTo sends a datagram to the client, but for the HelloVerifyRequest, which it has had already. A datagram that cannot be sent is lost, as
// on any link: an error would end the association.
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
		a.pace.rest()
	}
	if err := a.own.Send(a.renumber(records), a.client, &a.from); err != nil {
		a.socket.drop(a.client, relay.Undelivered(err))
	}
	return len(records), nil
}

// renumber counts the records of the handshake, which are not encrypted, from the number on that the client has reached.
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

// Close ends reading and writing. The address is free for another association when the last of this one is gone.
func (a *association) Close() error {
	a.close.Do(func() { close(a.closed) })
	return nil
}

// SetReadDeadline interrupts reading, or lets it go on: pion/dtls sets deadlines that are over, and takes them back.
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

// SetWriteDeadline has nothing to do: writing does not wait.
func (a *association) SetWriteDeadline(time.Time) error { return nil }

// SetDeadline is that of reading.
func (a *association) SetDeadline(t time.Time) error { return a.SetReadDeadline(t) }

// LocalAddr is that of the socket.
func (a *association) LocalAddr() net.Addr { return a.socket.conn.LocalAddr() }
