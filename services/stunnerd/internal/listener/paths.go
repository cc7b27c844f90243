package listener

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/forward"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// silence is how long the path of a client must have been silent before unauthenticated data moves the client to
// another path. So datagrams with a forged source address do not move a client that sends media.
const silence = 200 * time.Millisecond

// paths are the paths of the data for a client with a session: from this pod, or through another pod at which datagrams
// of the client arrive. A NAT in front of the client drops datagrams that another pod sends.
type paths struct {
	// current is nil while the client sends all datagrams to this pod.
	current atomic.Pointer[pathPair]
	// changing serializes changes of current.
	changing sync.Mutex
}

// pathPair is the path of a client. While it is undecided whether the client uses another path now, second is that path,
// and both get the data for the client.
type pathPair struct{ used, second *path }

// path is one path of a client.
type path struct {
	// front is the way through another pod. The zero Way is the path from this pod.
	front forward.Way
	// heard is when a datagram has last arrived on the path, in nanoseconds since 1970.
	heard atomic.Int64
}

func newPath(front forward.Way, heard time.Time) *path {
	p := &path{front: front}
	p.heard.Store(heard.UnixNano())
	return p
}

func (p *path) silent(now time.Time) bool { return now.UnixNano()-p.heard.Load() >= int64(silence) }

// direct reports whether the client sends all datagrams to this pod.
func (p *paths) direct() bool { return p.current.Load() == nil }

// arrived records a datagram of the client on a path. It reports whether the client was direct before and is not now.
func (p *paths) arrived(front forward.Way, now time.Time) (first bool) {
	switch pair := p.current.Load(); {
	case pair == nil && front == forward.Way{}:
		return false
	case pair != nil && pair.second == nil && pair.used.front == front:
		pair.used.heard.Store(now.UnixNano())
		return false
	}
	p.changing.Lock()
	defer p.changing.Unlock()
	pair := p.current.Load()
	if pair == nil { // when a datagram has last arrived at this pod is unknown
		pair = &pathPair{used: newPath(forward.Way{}, now)}
		first = front != forward.Way{}
	}
	switch used, second := pair.used, pair.second; {
	case used.front == front:
		used.heard.Store(now.UnixNano())
		if second != nil && second.silent(now) {
			second = nil
		}
		p.store(used, second)
	case used.silent(now):
		p.store(newPath(front, now), nil)
	default:
		p.store(used, newPath(front, now))
	}
	return first
}

// follow moves the client to a path. It reports whether this is not the path from this pod.
func (p *paths) follow(front forward.Way, now time.Time) bool {
	if front == (forward.Way{}) && p.direct() {
		return false
	}
	p.changing.Lock()
	defer p.changing.Unlock()
	p.store(newPath(front, now), nil)
	return !p.direct()
}

// store sets the paths. The caller holds changing.
func (p *paths) store(used, second *path) {
	if second == nil && used.front == (forward.Way{}) {
		p.current.Store(nil)
		return
	}
	p.current.Store(&pathPair{used, second})
}

// front returns the pod through which data for the client leaves, or the zero AddrPort if that is this pod.
func (p *paths) front() netip.AddrPort {
	if pair := p.current.Load(); pair != nil {
		return pair.used.front.Front()
	}
	return netip.AddrPort{}
}

// arrived records a datagram of the client of a relay. The kernel does not forward the channels of a client that may
// use another pod.
func (c *udpClient) arrived(r *relay.Relay, front forward.Way, now time.Time) {
	if c.paths.arrived(front, now) {
		r.Disarm()
	}
}

// sendOn sends data on a path.
func (c *udpClient) sendOn(p *path, packets []datagram.Packet) {
	if p.front == (forward.Way{}) {
		c.sendFromHere(packets)
	} else {
		p.front.SendAll(packets)
	}
}

// Follow implements session.Movable.
func (c *udpClient) Follow(request session.Client) bool {
	from, ok := request.(*udpClient)
	return ok && c.paths.follow(from.front, time.Now())
}

// Pass implements session.Movable.
func (c *udpClient) Pass(message []byte, now time.Time) bool {
	return c.front == forward.Way{} && c.socket.elsewhere.Pass(c.socket.client(c.addr), message, c.from, now)
}

// Held implements session.Movable.
func (c *udpClient) Held() { c.socket.forwarder.Added(c.socket.client(c.addr)) }

// Front implements session.Movable.
func (c *udpClient) Front() netip.AddrPort { return c.paths.front() }

// Forwarding is a Listener whose clients may send to one pod while another one has their sessions. Its methods are
// called by one goroutine, except Has and Clients.
type Forwarding interface {
	// Has reports whether a client has a session here.
	Has(client netip.AddrPort) bool
	// Clients calls yield for each client with a session here until yield returns false.
	Clients(yield func(netip.AddrPort) bool)
	// Deliver handles a datagram that a client has sent to another pod. It reports false if the client has no session
	// here. It uses the frame until Flush.
	Deliver(client netip.AddrPort, frame []byte, front forward.Way, now time.Time) bool
	// Answer sends a datagram of another pod to a client. It uses the frame until Flush.
	Answer(client netip.AddrPort, frame []byte, asked *datagram.Source)
	// Unowned handles a STUN message of a client without a session in any pod. It does not retain the message.
	Unowned(client netip.AddrPort, message []byte, asked *datagram.Source)
	// Flush sends what Deliver and Answer have collected.
	Flush(now time.Time)
}

// forwarded handles the datagrams that arrive from other pods. It is a udpSocket that does not read.
type forwarded struct {
	udpSocket
	answers []datagram.Packet
}

// Has implements Forwarding.
func (l *udpListener) Has(client netip.AddrPort) bool { return l.forwarded.gate.Relay(client) != nil }

// Clients implements Forwarding.
func (l *udpListener) Clients(yield func(netip.AddrPort) bool) { l.forwarded.gate.Clients()(yield) }

// Deliver implements Forwarding. A panic ends the session of the client whose datagram caused it.
func (l *udpListener) Deliver(client netip.AddrPort, frame []byte, front forward.Way, now time.Time) bool {
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
	switch {
	case r == nil || len(frame) == 0:
	case isChannelData(frame[0]):
		r.Session().Client.(*udpClient).arrived(r, front, now)
		s.outbox.Add(r, frame, now)
	default:
		s.outbox.Flush(now)
		s.gate.Receive(frame, &udpClient{socket: &s.udpSocket, addr: client, front: front})
	}
	delivered = true
	return r != nil
}

// Answer implements Forwarding.
func (l *udpListener) Answer(client netip.AddrPort, frame []byte, asked *datagram.Source) {
	l.forwarded.answers = append(l.forwarded.answers, datagram.Packet{Payload: frame, To: client, From: asked})
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
	if len(s.answers) == 0 {
		return
	}
	s.port.senders[0].SendAll(s.answers)
	s.meter.Tx.AddSum(sent(s.answers))
	for i := range s.answers {
		if err := s.answers[i].Err; err != nil {
			s.drop(s.answers[i].To, relay.Undelivered(err))
		}
	}
	clear(s.answers)
	s.answers = s.answers[:0]
}
