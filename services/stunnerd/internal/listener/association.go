package listener

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pion/dtls/v3"
	"golang.org/x/crypto/cryptobyte"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/forward"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

const (
	// inbox is the number of datagrams of a client that may wait for decryption. Further datagrams are dropped.
	inbox = 128
	// longestDatagram is the longest datagram that pion/dtls reads.
	longestDatagram = 8192
	// inboxBytes is how many bytes of datagrams may wait for decryption, with inboxEntry more for each datagram. They
	// are included in the memory that a connection is charged. The handshake records that pion/dtls keeps reduce this
	// limit by keptFactor times their size. For a client with a session, inboxBurst more bytes may wait; the session is
	// charged for them.
	inboxBytes, inboxEntry, keptFactor = 24 << 10, 64, 4
	inboxBurst                         = 40 << 10
	// handshakeBytes is the maximum size of the records of one handshake, after its ClientHello. Each record counts
	// recordBytes more. Until the association ends, pion/dtls keeps fragments of messages, and the encrypted records
	// that arrive before it has the keys. Each of them takes more than 400 bytes.
	handshakeBytes, recordBytes = 4096, 100
	// otherBytes is the part of handshakeBytes that datagrams without a whole ClientKeyExchange may use. Another host
	// can send such datagrams with the address of the client at any time. The rest suffices for five flights of the
	// client, ClientKeyExchange to Finished.
	otherBytes = handshakeBytes / 2
	// finishedSize is the size of the content of the record with Finished: a nonce, the message header, the content,
	// and the tag of AES-GCM, which all dtlsSuites use. A client sends no other encrypted handshake message.
	finishedSize = 8 + messageHeader + 12 + 16
	// repeatEvery is the shortest time between two repetitions of the last flight of the server.
	repeatEvery = 50 * time.Millisecond
	// keyExchangeMessage is the number of ClientKeyExchange in a handshake. The number of the ClientHello is 1.
	keyExchangeMessage = 2
)

// association is the net.PacketConn that pion/dtls uses for one client. A dtlsSocket receives the datagrams of the
// client and passes them to the association. An association is created only after the client has returned a valid
// cookie, which proves its source address.
//
// pion/dtls cannot skip its own cookie exchange, so the association simulates that exchange. pion/dtls first reads a
// ClientHello without a cookie, which is reconstructed from the real one (hello.first). WriteTo discards the
// HelloVerifyRequest with which pion/dtls answers, and calls setCookie, so that pion/dtls expects the cookie that the
// client already has. Then pion/dtls reads the real ClientHello. It must be unchanged, because the Finished messages
// contain a hash of it.
type association struct {
	socket *dtlsSocket
	client netip.AddrPort
	addr   *net.UDPAddr // client, as net.Addr for pion/dtls
	from   datagram.Source
	// sender sends to this client.
	sender *datagram.Sender
	// shared is set if other clients use the same sender. The sender must then stay open when the association ends.
	shared bool
	// paths are the paths to the client.
	paths paths
	// number points to the highest number of an authentic record plus 1 (see recordNumber).
	number *atomic.Uint64
	// following guards front and followed. front is the path of the datagram that pion/dtls has read last. followed is
	// the highest value of number so far.
	following sync.Mutex
	front     forward.ReturnPath
	followed  uint64
	cookie    [cookieSize]byte
	// opening is the hash of the head of the ClientHello that has opened the association.
	opening [sha256.Size]byte
	conn    *dtls.Conn
	// plain is the number of the latest plain record that was queued for pion/dtls. The numbers of the client are not
	// used: pion/dtls discards a record whose number it has received before, also in a forged record.
	plain atomic.Uint64

	inbox chan received
	// queued is the size of the datagrams in inbox.
	queued    atomic.Int64
	burst     burst
	interrupt chan struct{}
	closed    chan struct{}
	close     sync.Once
	// ended is a channel that is closed when the connection and its session have ended.
	ended chan struct{}
	// established is set when the handshake is complete.
	established atomic.Bool
	// keyExchange is the size of the only ClientKeyExchange that the server can use, in bytes. It is 0 until the server
	// has sent its ServerKeyExchange.
	keyExchange atomic.Int64
	// handshaken is the number of bytes of handshake records that were received after the ClientHello.
	handshaken atomic.Int64
	// kept is the part of handshaken that pion/dtls keeps. It is set when the handshake is complete.
	kept atomic.Int64
	// last is the last flight of the server. repeated is the time of its latest repetition, in nanoseconds since 1970.
	last     atomic.Pointer[[]byte]
	repeated atomic.Int64
	// turns gives the handshake CPU turns (see handshakeLimiter). It is set before the handshake starts. The first CPU
	// turn ends when the first record is sent, because that record is signed. Every other CPU turn is from the receipt
	// of a datagram to the next read.
	turns    *handshakeTurns
	answered atomic.Bool
}

// received is a copy of a datagram of the client, and the path on which it has arrived.
type received struct {
	records []byte
	front   forward.ReturnPath
}

// associations are the associations of one client address. A client that has lost its state makes a new handshake, and
// then has a second association.
type associations struct {
	// first serves the client. If no handshake of the client is complete, it makes the first handshake.
	first *association
	// second makes a later handshake. It replaces first when its handshake is complete.
	second *association
}

// openedBy returns the association whose handshake was started by the given ClientHello, or nil.
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

// deliver passes a datagram that is not a ClientHello to the associations. An unencrypted datagram belongs to the
// handshake in progress. An encrypted datagram may be the last message of that handshake, or a message of the first
// association. Then both associations get it, and each discards what it cannot decrypt.
func (as associations) deliver(records []byte) {
	plain := len(records) >= recordHeader && epochOf(records) == 0
	if as.first != nil && (as.second == nil || !plain) {
		as.first.deliver(records, forward.ReturnPath{})
	}
	if as.second != nil {
		as.second.deliver(records, forward.ReturnPath{})
	}
}

// add adds an association of a client address: as the second association if there is a first one, and otherwise as the
// first association.
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

// promote makes the second association of a client its only association, and returns the former first association. It
// returns nil if the given association is not the second association.
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
		if a.established.Load() {
			s.opt.Forwarder.Ended(s.client(a.client))
		}
		return
	}
	s.clients[a.client] = known
}

// newAssociation prepares the handshake for a ClientHello with a valid cookie. It queues the first two datagrams for
// pion/dtls, which are made from the ClientHello. The second one also has a ChangeCipherSpec, which pion/dtls keeps
// until it has the keys. From then on pion/dtls accepts encrypted records. So it does not need the ChangeCipherSpec of
// the client, which nothing distinguishes from a forged one. The handshake starts in connection.handshake.
func newAssociation(
	s *dtlsSocket, client netip.AddrPort, from datagram.Source, h hello, options ...dtls.ServerOption,
) (*association, error) {
	if err := relay.Room(); err != nil {
		return nil, err
	}
	sender, shared := s.port.openSender(s.index, s.port.most)
	a := &association{
		socket: s, client: client, addr: net.UDPAddrFromAddrPort(client), from: from, sender: sender, shared: shared,
		cookie: [cookieSize]byte(h.cookie), opening: sha256.Sum256(h.head),
		inbox: make(chan received, inbox), interrupt: make(chan struct{}, 1),
		closed: make(chan struct{}), ended: make(chan struct{}),
	}
	second := slices.Clone(h.record)
	binary.BigEndian.PutUint64(second[3:], a.plain.Add(1)) // h.first has number 0
	for _, records := range [][]byte{h.first(), append(second, changeCipherSpec...)} {
		a.queued.Add(sizeInInbox(records))
		a.inbox <- received{records: records}
	}
	var err error
	if a.conn, err = dtls.ServerWithOptions(a, a.addr, options...); err == nil {
		a.number, err = recordNumber(a.conn)
	}
	if err != nil {
		a.release()
		return nil, err
	}
	return a, nil
}

// changeCipherSpec is the record of a ChangeCipherSpec with the number 1<<32. All other plain records of an association
// have lower numbers, so pion/dtls does not discard it as an old record when it has the keys.
var changeCipherSpec = []byte{typeChangeCipherSpec, 0xFE, 0xFD, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 1}

// release closes the socket of the association, unless other clients share it.
func (a *association) release() {
	if !a.shared {
		_ = a.sender.Close()
	}
}

// establish makes an association with a complete handshake the only one of its client. It waits until the session of
// the earlier association has ended, because the gate refuses a second allocation of the same client address.
func (a *association) establish(ctx context.Context) error {
	a.kept.Store(min(a.handshaken.Load(), handshakeBytes))
	a.established.Store(true)
	before := a.socket.promote(a)
	a.socket.opt.Forwarder.Added(a.socket.client(a.client))
	if before == nil {
		return nil
	}
	a.socket.drop(a.client, meter.Replaced)
	_ = before.Close()
	select {
	case <-before.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// opened reports whether a ClientHello is a copy of the ClientHello that has opened the association. A client repeats
// its ClientHello if the answer is lost. The random bytes in the head distinguish it from the ClientHello of another
// handshake, which may have the same cookie.
func (a *association) opened(h hello) bool {
	return string(h.cookie) == string(a.cookie[:]) && sha256.Sum256(h.head) == a.opening
}

// deliver queues a copy of a datagram of the client, without the records that the association does not accept. front is
// the path on which the datagram has arrived.
func (a *association) deliver(records []byte, front forward.ReturnPath) {
	if len(records) > longestDatagram {
		a.socket.drop(a.client, meter.Malformed)
		return
	}
	accepted, all := a.accepted(records)
	if !all {
		a.socket.drop(a.client, meter.UnexpectedRecord)
	}
	if len(accepted) == 0 {
		return
	}
	size := sizeInInbox(accepted)
	if more := a.queued.Add(size) - (inboxBytes - keptFactor*a.kept.Load()); more <= 0 || a.burst.covers(more) {
		select {
		case a.inbox <- received{accepted, front}:
			return
		default:
		}
	}
	a.queued.Add(-size)
	a.socket.drop(a.client, meter.SendFailed)
}

// burst charges the session of a client for the part of the inbox that exceeds inboxBytes.
type burst struct {
	mu sync.Mutex
	// charge returns a claim of the session. The function is nil before the handshake and after the end.
	charge func() session.Claim
	// memory is the claim while charged is set.
	memory  session.Claim
	charged atomic.Bool
}

// start enables the charge.
func (b *burst) start(charge func() session.Claim) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.charge = charge
}

// covers reports whether n bytes may wait in the inbox beyond inboxBytes. The session is charged for inboxBurst at
// once, so that few datagrams change the charge. Without a session, no bytes beyond inboxBytes may wait.
func (b *burst) covers(n int64) bool {
	if n > inboxBurst {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.charge == nil || b.memory.Held() > 0 {
		return b.charge != nil
	}
	b.memory = b.charge()
	b.charged.Store(b.memory.Set(inboxBurst) == nil && b.memory.Held() > 0)
	return b.charged.Load()
}

// settle releases the charge when no datagram waits in the inbox.
func (b *burst) settle(queued *atomic.Int64) {
	if queued.Load() > 0 || !b.charged.Load() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if queued.Load() == 0 {
		b.memory.Release()
		b.charged.Store(false)
	}
}

// end releases the charge, and prevents further charges.
func (b *burst) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.charge = nil
	b.memory.Release()
}

// sizeInInbox returns the memory that the waiting records take. A datagram is charged as a whole, including its records
// that were not accepted.
func sizeInInbox(records []byte) int64 { return int64(cap(records)) + inboxEntry }

// accepted returns a copy of those records of a datagram that pion/dtls gets. all reports whether the association
// accepts all records of the datagram.
func (a *association) accepted(datagram []byte) (accepted []byte, all bool) {
	accepted, all = make([]byte, 0, len(datagram)), true
	most := int64(otherBytes)
	if a.isKeyExchange(datagram) {
		most = handshakeBytes
	}
	rest := datagram
	for len(rest) > recordHeader {
		size := recordHeader + int(binary.BigEndian.Uint16(rest[11:]))
		if size > len(rest) {
			break
		}
		switch record := rest[:size]; {
		case size == recordHeader || !a.accepts(record, most):
			all = false
		case record[0] != typeChangeCipherSpec: // pion/dtls already has a ChangeCipherSpec
			accepted = append(accepted, record...)
			if epochOf(record) == 0 {
				binary.BigEndian.PutUint64(accepted[len(accepted)-size+3:], a.plain.Add(1))
			}
		}
		rest = rest[size:]
	}
	return accepted, all && len(rest) == 0
}

// accepts reports whether a record is expected. It adds the size of a record of the handshake to handshaken, up to the
// given limit. Plain records are not authenticated, and an invalid record must be discarded (RFC 6347 §4.1.2.7). But
// pion/dtls ends an association after plain application data, after a record of an unknown type, and after a malformed
// ChangeCipherSpec, which it does not decrypt in any epoch.
func (a *association) accepts(record []byte, most int64) bool {
	kind, epoch, established := record[0], epochOf(record), a.established.Load()
	switch {
	case kind < typeChangeCipherSpec || kind > typeApplicationData || epoch > 1:
		return false
	case epoch == 0 && established, epoch == 1 && kind == typeChangeCipherSpec:
		return false
	case epoch == 1 && kind == typeHandshake && len(record) != recordHeader+finishedSize:
		return false
	case established && kind == typeHandshake:
		a.repeat()
		return false
	case established:
		return true
	}
	if h, ok := parseHello(record); ok && a.opened(h) {
		return len(a.inbox) == 0 // pion/dtls keeps no copy of the repeated ClientHello
	}
	if epoch == 0 && kind == typeChangeCipherSpec {
		return string(record[recordHeader:]) == "\x01"
	}
	if epoch == 0 && !a.continues(record) {
		return false
	}
	size := int64(len(record) + recordBytes)
	if a.handshaken.Add(size) <= most {
		return true
	}
	a.handshaken.Add(-size)
	return false
}

// repeat sends the last flight of the server again, after a record that may be the Finished of a client that has lost
// this flight (RFC 6347 §4.2.4). pion/dtls does not get that record, because it would keep the record. The repeated
// flight has the same record numbers as the first one, as if the network had duplicated it.
func (a *association) repeat() {
	before, now := a.repeated.Load(), time.Now().UnixNano()
	flight := a.last.Load()
	if flight == nil || now-before < int64(repeatEvery) || !a.repeated.CompareAndSwap(before, now) {
		return
	}
	if err := a.send(*flight); err != nil {
		a.socket.drop(a.client, relay.Undelivered(err))
	}
}

// continues reports whether a plain record has fragments of ClientKeyExchange, which is the message after the
// ClientHello because the server requests no certificate. A fragment of a message of another size would end the
// handshake, and so would an empty message before the server has sent its ServerKeyExchange. Any other record is
// discarded, because it is forged or damaged, and would end the handshake. An alert is discarded too, because nothing
// distinguishes an alert of the client from a forged alert. So the handshake of a client that sends an alert ends only
// at its timeout.
func (a *association) continues(record []byte) bool {
	content := cryptobyte.String(record[recordHeader:])
	for record[0] == typeHandshake && !content.Empty() {
		var kind uint8
		var size, offset uint32
		var message uint16
		var part cryptobyte.String
		if !content.ReadUint8(&kind) || !content.ReadUint24(&size) || !content.ReadUint16(&message) ||
			!content.ReadUint24(&offset) || !content.ReadUint24LengthPrefixed(&part) ||
			kind != clientKeyExchange || message != keyExchangeMessage || size == 0 || int64(size) != a.keyExchange.Load() ||
			offset+uint32(len(part)) > size {
			return false
		}
	}
	return record[0] == typeHandshake
}

// isKeyExchange reports whether a datagram begins with a record of a whole ClientKeyExchange.
func (a *association) isKeyExchange(datagram []byte) bool {
	size := messageHeader + int(a.keyExchange.Load())
	if len(datagram) < recordHeader+size || int(binary.BigEndian.Uint16(datagram[11:])) != size {
		return false
	}
	whole := datagram[:recordHeader+size]
	fragment := whole[recordHeader+9:] // the size of the first fragment, and the fragment
	return epochOf(whole) == 0 && a.continues(whole) && int(fragment[2]) == size-messageHeader
}

// ReadFrom returns the next datagram of the client.
func (a *association) ReadFrom(to []byte) (int, net.Addr, error) {
	a.follow()
	handshaking := !a.established.Load() && a.answered.Load()
	if handshaking {
		a.turns.release()
	}
	select {
	case r := <-a.inbox:
		a.queued.Add(-sizeInInbox(r.records))
		a.burst.settle(&a.queued)
		if handshaking {
			a.turns.acquire(a.closed)
		}
		a.read(r.front)
		return copy(to, r.records), a.addr, nil
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
	if !a.established.Load() {
		if size := keyExchangeSize(records); size > 0 {
			a.keyExchange.Store(size)
		}
	}
	if !a.answered.Load() && a.answered.CompareAndSwap(false, true) {
		a.turns.release()
	}
	numbered := renumber(records)
	if records[0] == typeChangeCipherSpec {
		a.last.Store(&numbered)
	}
	if err := a.send(numbered); err != nil {
		a.socket.drop(a.client, relay.Undelivered(err))
	}
	return len(records), nil
}

// renumber adds lastVerify to the numbers of unencrypted records. The first record of pion/dtls after its
// HelloVerifyRequest has number 1.
func renumber(records []byte) []byte {
	if epochOf(records) != 0 {
		return records
	}
	records = slices.Clone(records)
	for rest := records; len(rest) >= recordHeader && epochOf(rest) == 0; {
		numbered := binary.BigEndian.Uint64(rest[3:])
		binary.BigEndian.PutUint64(rest[3:], numbered+lastVerify)
		size := recordHeader + int(binary.BigEndian.Uint16(rest[11:]))
		rest = rest[min(size, len(rest)):]
	}
	return records
}

// keyExchangeSize returns the size of the ClientKeyExchange that answers the ServerKeyExchange in a datagram of the
// server, or 0 if no record of the datagram begins with this message. Each of the two messages contains a public key of
// the same curve, after one byte with the length of the key (RFC 8422 §5.4, §5.7).
func keyExchangeSize(datagram []byte) int64 {
	const (
		offset    = recordHeader + 6                 // of the fragment in the message
		parameter = recordHeader + messageHeader + 3 // after the curve type and the name of the curve
	)
	for rest := datagram; len(rest) > parameter; {
		if rest[0] == typeHandshake && epochOf(rest) == 0 && rest[recordHeader] == serverKeyExchange &&
			[3]byte(rest[offset:]) == [3]byte{} {
			return 1 + int64(rest[parameter])
		}
		size := recordHeader + int(binary.BigEndian.Uint16(rest[11:]))
		rest = rest[min(size, len(rest)):]
	}
	return 0
}

func epochOf(record []byte) uint16 { return binary.BigEndian.Uint16(record[3:]) }

// Close ends reads and writes.
func (a *association) Close() error {
	a.close.Do(func() {
		close(a.closed)
		a.burst.end()
	})
	return nil
}

// SetReadDeadline interrupts reads, or allows them again. It is enough to distinguish a zero deadline from any other,
// because pion/dtls sets only the zero deadline and deadlines in the past.
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
