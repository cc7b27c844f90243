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
	// handshakeShare is the divisor of the CPUs: handshakes of TLS and DTLS compute on a quarter of the cores at most.
	// A signature costs as much as forwarding hundreds of packets, and any host can cause one.
	handshakeShare = 4
	// longestTurn ends a turn whose handshake waits for something that does not end a turn.
	longestTurn = 100 * time.Millisecond
	// eachWaiting is how many handshakes of one source may wait for a turn. A private source may have
	// limit.PrivateFactor times as many. While several sources wait, each may have an equal share of mostWaiting, at
	// least one. In total four times mostWaiting may wait. Further handshakes are refused at once.
	mostWaiting, eachWaiting = 1024, 64
)

var errNoTurn = errors.New("too many handshakes of this source wait for the CPU")

// handshakeLimiter gives handshakes turns to compute. With n cores there are n/4 turns at a time, at least one. Below
// four cores one turn is more than a quarter, so a pause follows each: three times as long as the turn with one core,
// as long as the turn with two.
//
// Sources (session.Source) get their turns in rotation, independent of the number of their waiting handshakes, so that
// a source that floods delays itself. An address that hides many clients is one source.
type handshakeLimiter struct {
	cores int

	mu    sync.Mutex
	free  int
	count int        // of the handshakes that wait
	queue *list.List // of *waiting, the source whose turn is next first
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

// pause returns the length of the pause after a turn.
func (p *handshakeLimiter) pause(turn time.Duration) time.Duration {
	turns := max(1, p.cores/handshakeShare)
	return max(0, turn*time.Duration(turns*handshakeShare-p.cores)/time.Duration(p.cores))
}

// acquire waits for a turn of a source. It returns false if too many handshakes wait, or if stop is closed first. After
// a turn, release must be called.
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
	case <-turn: // the turn was given at the same time
		p.next()
	default:
		w.turns.Remove(place)
		p.count--
		p.forget(w)
	}
	return false
}

// room reports whether one more handshake of a source may wait. The caller holds mu.
func (p *handshakeLimiter) room(w *waiting) bool {
	each := eachWaiting
	if limit.Private(w.source.Addr()) {
		each *= limit.PrivateFactor
	}
	return p.count < 4*mostWaiting && w.turns.Len() < max(1, min(each, mostWaiting/len(p.of)))
}

// release ends a turn that has lasted so long.
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

// next gives a turn to the next source. The caller holds mu.
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

// forget removes a source without waiting handshakes. The caller holds mu.
func (p *handshakeLimiter) forget(w *waiting) {
	if w.turns.Len() == 0 && p.of[w.source] == w {
		p.queue.Remove(w.at)
		delete(p.of, w.source)
	}
}

// handshakeTurns are the turns of one handshake. The handshake computes in a turn, and waits for the client outside of
// a turn.
type handshakeTurns struct {
	limiter *handshakeLimiter
	// slot is that of Limits.handshakes. It is free while the handshake waits for a turn, so that the wait cannot evict
	// the handshake.
	slot *slot

	mu         sync.Mutex
	turn       uint64 // counts turns
	since      time.Time
	mine       bool // the handshake has a turn
	isFinished bool
}

func (l *Limits) newTurns(s *slot) *handshakeTurns { return &handshakeTurns{limiter: l.turns, slot: s} }

// acquire waits for a turn, and reports whether there is one. After finish it does nothing.
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

// release ends the turn, if there is one.
func (p *handshakeTurns) release() { p.releaseTurn(0) }

// releaseTurn ends the turn with a number, or any turn if the number is 0.
func (p *handshakeTurns) releaseTurn(turn uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mine && (turn == 0 || turn == p.turn) {
		p.mine = false
		p.limiter.release(time.Since(p.since))
	}
}

// finish ends the last turn. The handshake needs no further ones.
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

// turnConn is a stream on which a handshake computes in turns.
type turnConn struct {
	net.Conn
	ctx   context.Context // of the handshake; nil afterwards
	turns *handshakeTurns
}

// Read ends the turn during the handshake, and returns in a new one. It is called by one goroutine at a time.
func (c *turnConn) Read(b []byte) (int, error) {
	if c.ctx == nil {
		return c.Conn.Read(b)
	}
	c.turns.release()
	n, err := c.Conn.Read(b)
	if err == nil && !c.turns.acquire(c.ctx.Done()) {
		err = errNoTurn
	}
	return n, err
}
