package listener

import (
	"cmp"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/forward"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/gate"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// secondIdle is how long data is sent on a second path without a datagram on it, while datagrams arrive on the path in
// use. An ICE agent without consent stops sending after this time (RFC 7675 §5.1), so a client that uses the second
// path sends more often than secondIdle.
const secondIdle = 30 * time.Second

// paths are the paths of the data for a client with a session: from this pod, or through another pod at which datagrams
// of the client arrive. The address translation between pods and client drops datagrams from any other pod.
//
// Only an authentic datagram moves the client: a request with a valid MESSAGE-INTEGRITY, a DTLS record that decrypts,
// or a connectivity check that the peer has answered (see checks). Other data may have a forged source address. If such
// data arrives on another path than the one in use, data for the client is sent on both paths. So no data is lost,
// whether the client has moved or its address is forged. There are never more than two paths. A client whose peers have
// permissions sends a request within their lifetime of five minutes (RFC 8656 §9).
type paths struct {
	// current is nil while the client sends all datagrams to this pod.
	current atomic.Pointer[pathPair]
	// here is the path from this pod.
	here path
	// changing is a mutex for changes of current.
	changing sync.Mutex
	checks   checks
}

// pathPair is the path of a client. While it is unclear whether the client has moved to another path, second is the new
// path, and data for the client is sent on both. used is nil for a restored client that may have used another pod,
// until a datagram of the client arrives. If this pod sent first, the address translation of the node would assign
// another port to later datagrams of the client.
type pathPair struct{ used, second *path }

// path is one path of a client.
type path struct {
	// front is the return path through another pod. The zero ReturnPath means that data is sent from this pod.
	front forward.ReturnPath
	// received is when a datagram last arrived on a second path, in nanoseconds since 1970.
	received atomic.Int64
	// proven is the time of the first authentic datagram on this path since the client last used another path, or the
	// later time at which a handover to this path was refused (see Stays), in nanoseconds since 1970. 0 means that
	// there was none.
	proven atomic.Int64
}

// hold prevents that data is sent until a datagram of the client arrives.
func (p *paths) hold() { p.current.Store(&pathPair{}) }

// path returns the path on which a datagram has arrived.
func (p *paths) path(front forward.ReturnPath, now time.Time) *path {
	at := &p.here
	if front != (forward.ReturnPath{}) {
		at = &path{front: front}
	}
	at.received.Store(now.UnixNano())
	return at
}

// idle reports whether no datagram has arrived for secondIdle.
func (p *path) idle(now time.Time) bool { return now.UnixNano()-p.received.Load() >= int64(secondIdle) }

// direct reports whether the client sends all datagrams to this pod.
func (p *paths) direct() bool { return p.current.Load() == nil }

// undecided reports whether there are two paths.
func (p *paths) undecided() bool {
	pair := p.current.Load()
	return pair != nil && pair.second != nil
}

// arrived records a datagram of the client whose source may be forged.
func (p *paths) arrived(front forward.ReturnPath, now time.Time) session.Move {
	switch pair := p.current.Load(); {
	case pair == nil && front == forward.ReturnPath{}:
		return 0
	case pair == nil || pair.used == nil:
	case pair.used.front == front && (pair.second == nil || !pair.second.idle(now)):
		return 0
	case pair.second != nil && pair.second.front == front:
		pair.second.received.Store(now.UnixNano())
		return 0
	}
	return p.change(func(used, second *path) (_, _ *path) {
		switch {
		case used == nil:
			return p.path(front, now), nil
		case used.front != front:
			return used, p.path(front, now)
		case second != nil && second.idle(now):
			return used, nil
		}
		return used, second // another reader has changed the paths meanwhile
	})
}

// follow moves the client to the path of an authentic datagram.
func (p *paths) follow(front forward.ReturnPath, now time.Time) session.Move {
	switch pair := p.current.Load(); {
	case pair == nil && front == forward.ReturnPath{}:
		return 0
	case pair != nil && pair.used != nil && pair.second == nil && pair.used.front == front:
		pair.used.proven.CompareAndSwap(0, now.UnixNano())
		return 0
	}
	return p.change(func(used, _ *path) (_, _ *path) {
		at, proven := p.path(front, now), now.UnixNano()
		if used != nil && used.front == front {
			proven = cmp.Or(used.proven.Load(), proven)
		}
		at.proven.Store(proven)
		return at, nil
	})
}

// elsewhere returns the path through another pod that the client uses, and the time since which the client has used it.
// It reports false if the client uses this pod, if there are two paths, or if no authentic datagram has arrived on the
// path.
func (p *paths) elsewhere() (at *path, since time.Time, ok bool) {
	pair := p.current.Load()
	if pair == nil || pair.used == nil || pair.second != nil || pair.used.front == (forward.ReturnPath{}) {
		return nil, since, false
	}
	proven := pair.used.proven.Load()
	return pair.used, time.Unix(0, proven), proven != 0
}

// change replaces both paths by the results of next.
func (p *paths) change(next func(used, second *path) (_, _ *path)) session.Move {
	p.changing.Lock()
	defer p.changing.Unlock()
	used, second := &p.here, (*path)(nil)
	pair := p.current.Load()
	if pair != nil {
		used, second = pair.used, pair.second
	}
	if used, second = next(used, second); used == &p.here && second == nil {
		p.current.Store(nil)
	} else {
		p.current.Store(&pathPair{used, second})
	}
	switch direct := p.direct(); {
	case pair == nil && !direct:
		return session.MovedAway
	case pair != nil && direct:
		return session.MovedHere
	case pair != nil && pair.used == nil:
		return session.Reached
	}
	return 0
}

// front returns the address of the pod through which data for the client is sent. It is the zero AddrPort for this pod.
// A second path is ignored.
func (p *paths) front() netip.AddrPort {
	if pair := p.current.Load(); pair != nil && pair.used != nil {
		return pair.used.front.Front()
	}
	return netip.AddrPort{}
}

// arrived records the path of a datagram with data of a client with a session.
func (c *udpClient) arrived(front forward.ReturnPath, frame []byte, now time.Time) session.Move {
	moved := c.paths.arrived(front, now)
	if c.paths.undecided() {
		c.paths.checks.sent(front, frame)
	}
	return moved
}

// answered is called with packets for a client that has two paths. If a packet is the answer to a connectivity check,
// the client moves to the path of that check.
func (c *udpClient) answered(packets []datagram.Packet) {
	for i := range packets {
		if front, ok := c.paths.checks.answered(packets[i].Payload); ok {
			c.moved(c.paths.follow(front, time.Now()))
		}
	}
}

func (c *udpClient) moved(how session.Move) {
	if how != 0 {
		c.socket.gate.Moved(c.addr, how)
	}
}

// sendOn sends data on a path.
func (c *udpClient) sendOn(p *path, packets []datagram.Packet) {
	if p == &c.paths.here {
		c.sendFromHere(packets)
	} else {
		p.front.SendAll(packets)
	}
}

// Follow implements session.Movable.
func (c *udpClient) Follow(from session.Client, message []byte, authentic bool) session.Move {
	sender, ok := from.(*udpClient)
	if ok && sender.front == (forward.ReturnPath{}) && c.unplaced() {
		c.arrivedAt(sender.from)
	}
	switch {
	case !ok:
		return 0
	case authentic:
		return c.paths.follow(sender.front, time.Now())
	}
	return c.arrived(sender.front, message, time.Now())
}

// Pass implements session.Movable.
func (c *udpClient) Pass(message []byte, now time.Time) bool {
	return c.front == forward.ReturnPath{} && c.socket.elsewhere.Pass(c.socket.client(c.addr), message, c.from, now)
}

// Begin implements session.Movable.
func (c *udpClient) Begin(message []byte) bool {
	return c.front == forward.ReturnPath{} && c.socket.elsewhere.Begin(c.socket.client(c.addr), message, c.from)
}

// Authenticated implements session.Movable.
func (c *udpClient) Authenticated() bool { return c.authenticated }

// Held implements session.Movable.
func (c *udpClient) Held() {
	c.socket.forwarder.Added(c.socket.client(c.addr))
}

// Away reports whether the client may use another pod.
func (c *udpClient) Away() bool { return !c.paths.direct() }

// Changed implements session.Movable.
func (c *udpClient) Changed() {
	c.socket.forwarder.Changed(c.socket.client(c.addr))
}

// Front implements session.Movable.
func (c *udpClient) Front() netip.AddrPort { return c.paths.front() }

// Forwarding is a Listener for clients whose datagrams arrive at another pod than the pod with their session. Only one
// goroutine calls its methods, except Has, Clients and Sweep.
type Forwarding interface {
	// Has reports whether a client has a session at this pod.
	Has(client netip.AddrPort) bool
	// Clients calls yield for each client with a session at this pod, until yield returns false.
	Clients(yield func(netip.AddrPort) bool)
	// Deliver handles a datagram that a client has sent to another pod. It reports false if the client has no session
	// here. It uses the frame until Flush.
	Deliver(client netip.AddrPort, frame []byte, front forward.ReturnPath, now time.Time) bool
	// Answer sends a datagram of another pod to a client. It uses the frame until Flush.
	Answer(client netip.AddrPort, frame []byte, asked *datagram.Source)
	// Unowned handles a STUN message of a client without a session in any pod. It does not retain the message.
	Unowned(client netip.AddrPort, message []byte, asked *datagram.Source)
	// Flush sends what Deliver and Answer have collected.
	Flush(now time.Time)
	// Sweep frees what Answer has opened for clients that receive no more answers. It may be called from any goroutine.
	Sweep(now time.Time)
}

// Movable is a Listener whose sessions can be handed over to another pod. Its methods may be called from any goroutine.
type Movable interface {
	// Begin handles an Allocate request of a client that another pod has authenticated, because that pod drains. front
	// is the return path to the client. It does not retain the message.
	Begin(client netip.AddrPort, message []byte, front forward.ReturnPath)
	// Take continues a session of another pod. Data for the client is sent through that pod for now. If that pod is
	// lost, front is the zero ReturnPath and former is nil, and no data is sent before a datagram of the client
	// arrives. See gate.Gate.Take. If the datagrams of the client arrive at this pod, here is the address to which the
	// client sends. Otherwise here is nil.
	Take(r *session.Record, front forward.ReturnPath, here *datagram.Source, former relay.Socket) error
	// Elsewhere returns the return path through another pod that a client with a session here uses. due is the time at
	// which the session may be handed over to that pod; it depends on the number of earlier moves. Elsewhere reports
	// false if the client uses this pod, if it is not certain which pod the client uses, or if the latest move of the
	// session is not complete.
	Elsewhere(client netip.AddrPort, moves int) (front forward.ReturnPath, due time.Time, ok bool)
	// Stays records that another pod has refused the session of a client. The next attempt is made later.
	Stays(client netip.AddrPort, now time.Time)
	// Gate returns the gate of the listener.
	Gate() *gate.Gate
}

// forwarded is a udpSocket without a reader. It handles the datagrams that arrive at other pods.
type forwarded struct {
	udpSocket
	answers frontAnswers
}

// Has implements Forwarding.
func (l *udpListener) Has(client netip.AddrPort) bool { return l.forwarded.gate.Relay(client) != nil }

// Clients implements Forwarding.
func (l *udpListener) Clients(yield func(netip.AddrPort) bool) { l.forwarded.gate.Clients()(yield) }

// Deliver implements Forwarding. A panic ends the session of the client whose datagram caused it.
func (l *udpListener) Deliver(client netip.AddrPort, frame []byte, front forward.ReturnPath, now time.Time) bool {
	s := &l.forwarded
	s.current.addr = client
	delivered := false
	defer func() {
		if !delivered {
			s.endSession()
		}
	}()
	defer s.drops.RecoverPanic("handle forwarded datagram")
	r := s.relay(client)
	var from datagram.Source
	if r != nil && front == (forward.ReturnPath{}) {
		from = *r.Session().Client.(*udpClient).source()
	}
	switch {
	case r == nil:
	case len(frame) == 0:
		s.drop(client, meter.Malformed)
	case isChannelData(frame[0]):
		c := r.Session().Client.(*udpClient)
		c.moved(c.arrived(front, frame, now))
		s.outbox.Add(r, frame, now)
	default:
		s.outbox.Flush(now)
		s.gate.Receive(frame, &udpClient{socket: &s.udpSocket, addr: client, from: from, front: front})
	}
	delivered = true
	return r != nil
}

// Begin implements Movable. Data for the client of the new session is sent through the front.
func (l *udpListener) Begin(client netip.AddrPort, message []byte, front forward.ReturnPath) {
	s := &l.forwarded
	defer s.drops.RecoverPanic("handle Allocate request of another pod")
	c := &udpClient{
		socket: l.sockets[int(client.Port())%len(l.sockets)], addr: client, taken: true, front: front, authenticated: true,
	}
	c.paths.follow(front, time.Now())
	s.gate.Receive(message, c)
}

// Take implements Movable.
func (l *udpListener) Take(
	r *session.Record, front forward.ReturnPath, here *datagram.Source, former relay.Socket,
) error {
	c := &udpClient{socket: l.sockets[int(r.Client.Port())%len(l.sockets)], addr: r.Client, taken: true}
	switch {
	case here != nil:
		c.arrivedAt(*here)
	case r.Away || front == (forward.ReturnPath{}):
		c.paths.hold()
	default:
		c.paths.hold()
		c.paths.arrived(front, time.Now())
	}
	return l.forwarded.gate.Take(r, c, former)
}

const (
	// adoptAfter is how long a client uses another pod before its session is handed over to that pod.
	adoptAfter = 30 * time.Second
	// maxDoubled is how many times adoptAfter is doubled at most: once for each earlier move of the session, and once
	// for each refusal by another pod. A client that changes between pods on purpose moves its session at most every 16
	// minutes.
	maxDoubled = 5
)

// Elsewhere implements Movable.
func (l *udpListener) Elsewhere(client netip.AddrPort, moves int) (front forward.ReturnPath, due time.Time, ok bool) {
	r := l.forwarded.gate.Owned(client)
	if r == nil || r.Former() != nil { // a move would close the socket of an earlier pod, which a peer may use
		return front, due, false
	}
	c := r.Session().Client.(*udpClient)
	at, since, ok := c.paths.elsewhere()
	if !ok {
		return front, due, false
	}
	return at.front, since.Add(adoptAfter << min(moves+int(c.stays.Load()), maxDoubled)), true
}

// Stays implements Movable.
func (l *udpListener) Stays(client netip.AddrPort, now time.Time) {
	r := l.forwarded.gate.Owned(client)
	if r == nil {
		return
	}
	c := r.Session().Client.(*udpClient)
	c.stays.Add(1)
	if at, _, ok := c.paths.elsewhere(); ok {
		at.proven.Store(now.UnixNano())
	}
}

// Gate implements Movable.
func (l *udpListener) Gate() *gate.Gate { return l.forwarded.gate }

// Answer implements Forwarding.
func (l *udpListener) Answer(client netip.AddrPort, frame []byte, asked *datagram.Source) {
	l.forwarded.answers.add(client, frame, asked)
}

// Unowned implements Forwarding.
func (l *udpListener) Unowned(client netip.AddrPort, message []byte, asked *datagram.Source) {
	s := &l.forwarded
	defer s.drops.RecoverPanic("handle message of a client without a session")
	s.gate.Receive(message, &udpClient{socket: &s.udpSocket, addr: client, from: *asked})
}

// Flush implements Forwarding.
func (l *udpListener) Flush(now time.Time) {
	s := &l.forwarded
	s.outbox.Flush(now)
	s.answers.flush(now)
}

// Sweep implements Forwarding.
func (l *udpListener) Sweep(now time.Time) { l.forwarded.answers.sweep(now) }
