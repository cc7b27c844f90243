package listener

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/forward"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

const (
	// silence is the shortest time without a datagram of a client after which unauthenticated data moves the client to
	// another path. So datagrams with a forged source address do not move a client that sends media.
	silence = 200 * time.Millisecond
	// longestPause bounds the pauses of a client. Receivers of media send RTCP packets more often. While two paths get
	// the data, the address translation of the node learns that this pod sends to the client, and gives the client
	// another port if it returns to this pod soon afterwards. So the bound is low.
	longestPause = 1500 * time.Millisecond
	// fading is how long a client that sends continuously needs to be considered as such after a pause.
	fading = 3 * time.Second
)

// paths are the paths of the data for a client with a session: from this pod, or through another pod at which datagrams
// of the client arrive. A NAT in front of the client drops datagrams that another pod sends.
//
// An authenticated request moves the client at once. Other data may have a forged source address. It moves the client
// after the path in use was silent for twice as long as the client pauses, and until then both paths get the data. So
// forged data cannot interrupt a client that sends anything at all on its path.
type paths struct {
	// current is nil while the client sends all datagrams to this pod.
	current atomic.Pointer[pathPair]
	// here is the path from this pod.
	here path
	// pause is the longest recent time between two datagrams on the path in use, in nanoseconds.
	pause atomic.Int64
	// changing serializes changes of current.
	changing sync.Mutex
}

// pathPair is the path of a client. While it is undecided whether the client uses another path now, second is that path,
// and both get the data for the client. used is nil for a restored client that has used another pod, until a datagram
// of the client arrives. If this pod sent first, the address translation of the node would give the client another port
// when it returns.
type pathPair struct{ used, second *path }

// path is one path of a client.
type path struct {
	// front is the way through another pod. The zero Way is the path from this pod.
	front forward.Way
	// heard is when a datagram has last arrived on the path, in nanoseconds since 1970.
	heard atomic.Int64
}

// begin begins with the path from this pod.
func (p *paths) begin(now time.Time) { p.here.heard.Store(now.UnixNano()) }

// hold sends nothing until a datagram of the client arrives.
func (p *paths) hold() { p.current.Store(&pathPair{}) }

// path returns a path on which a datagram has arrived.
func (p *paths) path(front forward.Way, now time.Time) *path {
	at := &p.here
	if front != (forward.Way{}) {
		at = &path{front: front}
	}
	at.heard.Store(now.UnixNano())
	return at
}

// hear records a datagram on the only path. Times between datagrams that arrive on two paths are no pauses: a move takes
// time, and a client that pauses for longer would get its data on two paths for longer at its next move.
func (p *paths) hear(used *path, now time.Time) {
	at := now.UnixNano()
	gap := time.Duration(at - used.heard.Load())
	if gap <= 0 { // of the same batch
		return
	}
	used.heard.Store(at)
	p.paused(gap)
}

// paused records a time between two datagrams. Earlier pauses count less and less.
func (p *paths) paused(gap time.Duration) {
	gap = min(gap, longestPause)
	before := time.Duration(p.pause.Load())
	p.pause.Store(int64(max(gap, before-time.Duration(before.Seconds()/fading.Seconds()*float64(gap)))))
}

// silent reports whether a path was silent for so long that the client does not use it any more.
func (p *paths) silent(at *path, now time.Time) bool {
	return now.UnixNano()-at.heard.Load() >= max(int64(silence), 2*p.pause.Load())
}

// direct reports whether the client sends all datagrams to this pod.
func (p *paths) direct() bool { return p.current.Load() == nil }

// away reports whether the client uses another pod.
func (p *paths) away() bool {
	pair := p.current.Load()
	return pair != nil && (pair.used == nil || pair.used.front != forward.Way{})
}

// settled returns the path on which a datagram has arrived if it is the only one, or nil.
func (p *paths) settled(front forward.Way) *path {
	switch pair := p.current.Load(); {
	case pair == nil && front == forward.Way{}:
		return &p.here
	case pair != nil && pair.used != nil && pair.second == nil && pair.used.front == front:
		return pair.used
	}
	return nil
}

// arrived records a datagram of the client on a path.
func (p *paths) arrived(front forward.Way, now time.Time) session.Move {
	if used := p.settled(front); used != nil {
		p.hear(used, now)
		return 0
	}
	return p.change(func() (used, second *path) {
		if pair := p.current.Load(); pair != nil {
			used, second = pair.used, pair.second
		} else {
			used = &p.here
		}
		switch {
		case used == nil:
			return p.path(front, now), nil
		case used.front == front:
			used.heard.Store(now.UnixNano())
			if second != nil && p.silent(second, now) {
				second = nil
			}
			return used, second
		case second == nil:
			// The kernel may have forwarded the datagrams of the client, so when it was last heard is unknown.
			used.heard.Store(now.UnixNano())
			return used, p.path(front, now)
		case second.front != front:
			return used, p.path(front, now)
		}
		second.heard.Store(now.UnixNano())
		if p.silent(used, now) {
			return second, nil
		}
		return used, second
	})
}

// follow moves the client to a path.
func (p *paths) follow(front forward.Way, now time.Time) session.Move {
	if used := p.settled(front); used != nil {
		p.hear(used, now)
		return 0
	}
	return p.change(func() (used, second *path) { return p.path(front, now), nil })
}

// change sets the paths to those that next returns.
func (p *paths) change(next func() (used, second *path)) (moved session.Move) {
	p.changing.Lock()
	defer p.changing.Unlock()
	direct, away := p.direct(), p.away()
	if used, second := next(); used == &p.here && second == nil {
		p.current.Store(nil)
	} else {
		p.current.Store(&pathPair{used, second})
	}
	if direct && !p.direct() {
		moved |= session.Undirected
	}
	switch now := p.away(); {
	case now && !away:
		moved |= session.MovedAway
	case !now && away:
		moved |= session.MovedHere
	}
	return moved
}

// front returns the pod through which data for the client leaves, or the zero AddrPort if that is this pod.
func (p *paths) front() netip.AddrPort {
	if pair := p.current.Load(); pair != nil && pair.used != nil {
		return pair.used.front.Front()
	}
	return netip.AddrPort{}
}

// arrived records data of a client with a session.
func (c *udpClient) arrived(front forward.Way, now time.Time) {
	if moved := c.paths.arrived(front, now); moved != 0 {
		c.socket.gate.Moved(c.addr, moved)
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
func (c *udpClient) Follow(message session.Client, authentic bool) session.Move {
	from, ok := message.(*udpClient)
	switch {
	case !ok:
		return 0
	case authentic:
		return c.paths.follow(from.front, time.Now())
	}
	return c.paths.arrived(from.front, time.Now())
}

// Pass implements session.Movable.
func (c *udpClient) Pass(message []byte, now time.Time) bool {
	return c.front == forward.Way{} && c.socket.elsewhere.Pass(c.socket.client(c.addr), message, c.from, now)
}

// Held implements session.Movable.
func (c *udpClient) Held() {
	c.paths.begin(time.Now())
	c.socket.forwarder.Added(c.socket.client(c.addr))
}

// Away reports whether the client uses another pod.
func (c *udpClient) Away() bool { return c.paths.away() }

// Front implements session.Movable.
func (c *udpClient) Front() netip.AddrPort { return c.paths.front() }

// Forwarding is a Listener whose clients may send to one pod while another one has their sessions. Its methods are
// called by one goroutine, except Has, Clients and Sweep.
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
	// Sweep frees what Answer has opened for clients that get no more answers. It may be called from any goroutine.
	Sweep(now time.Time)
}

// forwarded handles the datagrams that arrive from other pods. It is a udpSocket that does not read.
type forwarded struct {
	udpSocket
	answers frontAnswers
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
		r.Session().Client.(*udpClient).arrived(front, now)
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
