package listener

import (
	"container/list"
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/limit"
)

const (
	// handshakeShare is the divisor of the CPUs: TLS and DTLS handshakes use a quarter of the cores at most. A
	// signature costs as much as forwarding hundreds of packets, and any host can cause one.
	handshakeShare = 4
	// longestTurn is the maximum duration of a CPU turn, which is the time in which a handshake may compute. If no read
	// of the handshake has ended the CPU turn by then, a timer ends it.
	longestTurn = 100 * time.Millisecond
	// eachWaiting is how many handshakes of one source may wait for a CPU turn (see handshakeLimiter). A private source
	// may have limit.PrivateFactor times as many. While several sources wait, each may have an equal share of
	// mostWaiting, but at least one. In total four times mostWaiting may wait. Further handshakes are refused at once.
	mostWaiting, eachWaiting = 1024, 64
)

var errNoTurn = errors.New("start handshake: no CPU time within the limits: too many handshakes are waiting: " +
	"raise the CPU limit of stunnerd, or block the source that opens the connections")

// handshakeLimiter limits the CPU time of handshakes. A handshake may compute only while it has a CPU turn. With n
// cores there are n/4 CPU turns at a time, at least one. With fewer than four cores one CPU turn is more than a quarter
// of the cores, so a pause follows each: with one core it is three times as long as the CPU turn, with two cores as
// long as the CPU turn.
//
// Sources (session.Source) get CPU turns in rotation, independent of the number of their waiting handshakes, so that a
// source that floods delays only itself. An address that hides many clients is one source.
type handshakeLimiter struct {
	cores int

	mu    sync.Mutex
	free  int        // CPU turns that can start now
	count int        // handshakes that wait
	queue *list.List // of *waiting; the front is the source that gets the next CPU turn
	of    map[netip.Prefix]*waiting
}

// waiting are the waiting handshakes of a source, in order of arrival.
type waiting struct {
	source netip.Prefix
	at     *list.Element
	turns  *list.List // of chan struct{}
}

func newHandshakeLimiter(cores int) *handshakeLimiter {
	return &handshakeLimiter{
		cores: cores, free: max(1, cores/handshakeShare), queue: list.New(), of: map[netip.Prefix]*waiting{},
	}
}

// pause returns the length of the pause after a CPU turn.
func (p *handshakeLimiter) pause(turn time.Duration) time.Duration {
	turns := max(1, p.cores/handshakeShare)
	return max(0, turn*time.Duration(turns*handshakeShare-p.cores)/time.Duration(p.cores))
}

// acquire waits for a CPU turn for a source. It returns false if too many handshakes wait, or if stop is closed first.
// The caller must call release at the end of the CPU turn.
func (p *handshakeLimiter) acquire(stop <-chan struct{}, source netip.Prefix) bool {
	p.mu.Lock()
	if p.free > 0 {
		p.free--
		p.mu.Unlock()
		return true
	}
	w := p.of[source]
	if w == nil {
		w = &waiting{source: source, turns: list.New()}
		w.at = p.queue.PushBack(w)
		p.of[source] = w
	}
	if !p.room(w) {
		p.forget(w)
		p.mu.Unlock()
		return false
	}
	turn := make(chan struct{})
	place := w.turns.PushBack(turn)
	p.count++
	p.mu.Unlock()
	select {
	case <-turn:
		return true
	case <-stop:
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-turn: // the CPU turn was granted at the same moment
		p.next()
	default:
		w.turns.Remove(place)
		p.count--
		p.forget(w)
	}
	return false
}

// room reports whether another handshake of a source may wait for a CPU turn. The caller must hold mu.
func (p *handshakeLimiter) room(w *waiting) bool {
	each := eachWaiting
	if limit.Private(w.source.Addr()) {
		each *= limit.PrivateFactor
	}
	return p.count < 4*mostWaiting && w.turns.Len() < max(1, min(each, mostWaiting/len(p.of)))
}

// release ends a CPU turn, which has lasted for the given duration.
func (p *handshakeLimiter) release(turn time.Duration) {
	end := func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.next()
	}
	if pause := p.pause(turn); pause > 0 {
		time.AfterFunc(pause, end)
		return
	}
	end()
}

// next gives a CPU turn to the source that is at the front of the queue. The caller holds mu.
func (p *handshakeLimiter) next() {
	first := p.queue.Front()
	if first == nil {
		p.free++
		return
	}
	w := first.Value.(*waiting)
	close(w.turns.Remove(w.turns.Front()).(chan struct{}))
	p.count--
	p.queue.MoveToBack(first)
	p.forget(w)
}

// forget removes a source that has no more waiting handshakes from the queue. The caller holds mu.
func (p *handshakeLimiter) forget(w *waiting) {
	if w.turns.Len() == 0 && p.of[w.source] == w {
		p.queue.Remove(w.at)
		delete(p.of, w.source)
	}
}

// handshakeTurns manages the CPU turns of one handshake. The handshake computes during a CPU turn, and waits for the
// client between CPU turns.
type handshakeTurns struct {
	limiter *handshakeLimiter
	// slot is the slot of the handshake in Limits.handshakes. It is free while the handshake waits for a CPU turn, so
	// that the handshake cannot be evicted for waiting.
	slot *slot

	mu         sync.Mutex
	turn       uint64 // number of the current or last CPU turn, from 1
	since      time.Time
	mine       bool // the handshake has a CPU turn
	isFinished bool
}

func (l *Limits) newTurns(s *slot) *handshakeTurns { return &handshakeTurns{limiter: l.turns, slot: s} }

// acquire waits for a CPU turn, and reports whether the handshake got one. After finish it returns true at once.
func (p *handshakeTurns) acquire(stop <-chan struct{}) bool {
	if p.finished() {
		return true
	}
	p.slot.pause()
	if !p.limiter.acquire(stop, p.slot.source) {
		return false
	}
	p.slot.enter()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isFinished { // the handshake has ended meanwhile
		p.limiter.release(0)
		return true
	}
	p.mine, p.since = true, time.Now()
	p.turn++
	turn := p.turn
	time.AfterFunc(longestTurn, func() { p.releaseTurn(turn) })
	return true
}

// release ends the CPU turn, if there is one.
func (p *handshakeTurns) release() { p.releaseTurn(0) }

// releaseTurn ends the CPU turn of the handshake if it has the given number. The number 0 means any CPU turn.
func (p *handshakeTurns) releaseTurn(turn uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mine && (turn == 0 || turn == p.turn) {
		p.mine = false
		p.limiter.release(time.Since(p.since))
	}
}

// finish ends the last CPU turn of a handshake that is complete or has failed.
func (p *handshakeTurns) finish() {
	p.mu.Lock()
	p.isFinished = true
	p.mu.Unlock()
	p.release()
}

func (p *handshakeTurns) finished() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.isFinished
}

// cpuTurnConn is the connection from which crypto/tls reads. During the handshake, a Read ends the CPU turn of the
// handshake and waits for a new one (see handshakeLimiter).
type cpuTurnConn struct {
	net.Conn
	ctx   context.Context // the context of the handshake; nil afterwards
	turns *handshakeTurns
	// left is how many more bytes crypto/tls may read: in total during the handshake, and afterwards until it returns
	// data.
	left int
}

const (
	// tlsHandshakeBytes is how many bytes crypto/tls may read in a handshake. A ClientHello with a post-quantum key and
	// a session ticket has less than 3 KiB. crypto/tls keeps a handshake message of up to 64 KiB until it is complete.
	tlsHandshakeBytes = 8 << 10
	// unreturnedBytes is how many bytes crypto/tls may read later before it returns data. It suffices for the longest
	// record (RFC 5246 §6.2.3). Handshake messages may arrive then too.
	unreturnedBytes = 20 << 10
)

// Read ends the CPU turn while it waits for data, and returns during a new CPU turn. It is called by one goroutine at a
// time. After the handshake it only reads. The error is errTooLarge if too many bytes were read (see left).
func (c *cpuTurnConn) Read(b []byte) (int, error) {
	if c.left <= 0 {
		return 0, errTooLarge
	}
	b = b[:min(len(b), c.left)]
	if c.ctx == nil {
		n, err := c.Conn.Read(b)
		c.left -= n
		return n, err
	}
	c.turns.release()
	n, err := c.Conn.Read(b)
	c.left -= n
	if err == nil && !c.turns.acquire(c.ctx.Done()) {
		err = errNoTurn
	}
	return n, err
}
