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
	// handshakeShare is the divisor of the processor: handshakes of TLS and DTLS compute on a fourth of the cores at most. A signature costs
	// as much as forwarding hundreds of packets, and anybody can ask for one.
	handshakeShare = 4
	// longestTurn ends a turn whose handshake no longer computes and waits for something that ends no turn, so that others do not wait for it.
	longestTurn = 100 * time.Millisecond
	// mostWaiting is how many handshakes may wait for a turn, and eachWaiting how many of one source; a private source has HiddenFactor times as
	// many. While several sources wait, none may have more than its share of mostWaiting. One more is refused at once.
	mostWaiting, eachWaiting = 1024, 64
)

var errNoTurn = errors.New("too many handshakes of this source wait for the processor")

// pacer gives handshakes turns to compute. With n cores there are n/4 turns at a time, at least one. Below four cores one turn would be more
// than a fourth, and a pause follows each: three times as long as the turn with one core, as long as the turn with two.
//
// Sources (sourceOf) that wait get their turns one after the other, however many handshakes each has waiting, so that a source that floods delays
// itself. An address that hides many clients is one source.
type pacer struct {
	cores int

	mu    sync.Mutex
	free  int
	count int        // of the handshakes that wait
	queue *list.List // of *waiting, the source whose turn is next first
	of    map[netip.Prefix]*waiting
}

// waiting are the handshakes of a source that wait, in the order in which they came.
type waiting struct {
	source netip.Prefix
	at     *list.Element
	turns  *list.List // of chan struct{}
}

func newPacer(cores int) *pacer {
	return &pacer{cores: cores, free: max(1, cores/handshakeShare), queue: list.New(), of: map[netip.Prefix]*waiting{}}
}

// pause is how long a turn stays free after one that took so long.
func (p *pacer) pause(turn time.Duration) time.Duration {
	turns := max(1, p.cores/handshakeShare)
	return max(0, turn*time.Duration(turns*handshakeShare-p.cores)/time.Duration(p.cores))
}

// wait waits for a turn of a source. It returns false when there is no room to wait, or the stop comes first. After a turn, done has to be
// called.
func (p *pacer) wait(stop <-chan struct{}, source netip.Prefix) bool {
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
	case <-turn: // the turn came in this moment: pass it on
		p.next()
	default:
		w.turns.Remove(place)
		p.count--
		p.forget(w)
	}
	return false
}

// room tells whether one more handshake of a source may wait. It needs the lock.
func (p *pacer) room(w *waiting) bool {
	each := eachWaiting
	if limit.Private(w.source.Addr()) {
		each *= limit.PrivateFactor
	}
	return p.count < 4*mostWaiting && w.turns.Len() < max(1, min(each, mostWaiting/len(p.of)))
}

// done ends a turn that took so long.
func (p *pacer) done(turn time.Duration) {
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

// next gives a turn to the next source. It needs the lock.
func (p *pacer) next() {
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

// forget forgets a source that does not wait any more. It needs the lock.
func (p *pacer) forget(w *waiting) {
	if w.turns.Len() == 0 && p.of[w.source] == w {
		p.queue.Remove(w.at)
		delete(p.of, w.source)
	}
}

// pace gives one handshake its turns. The handshake computes in a turn, and waits for the network outside of one.
type pace struct {
	pacer *pacer
	// place is where the handshake stands among those that wait for their clients. While it waits for a turn it stands outside.
	place *place

	mu    sync.Mutex
	turn  uint64 // counts turns
	since time.Time
	mine  bool // the handshake has a turn now
	over  bool // the handshake is over; compute does nothing any more
}

func (l *Limits) pace(p *place) *pace { return &pace{pacer: l.pacer, place: p} }

// compute waits for a turn, and tells whether it came. After the handshake it does nothing.
func (p *pace) compute(stop <-chan struct{}) bool {
	if p.ended() {
		return true
	}
	p.place.pause()
	if !p.pacer.wait(stop, p.place.source) {
		return false
	}
	p.place.enter()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over { // it has ended meanwhile
		p.pacer.done(0)
		return true
	}
	p.mine, p.since = true, time.Now()
	p.turn++
	turn := p.turn
	time.AfterFunc(longestTurn, func() { p.release(turn) })
	return true
}

// rest ends the turn, if it is on.
func (p *pace) rest() { p.release(0) }

// release ends the turn of that number, or any turn if the number is 0, unless it has ended before.
func (p *pace) release(turn uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mine && (turn == 0 || turn == p.turn) {
		p.mine = false
		p.pacer.done(time.Since(p.since))
	}
}

// end ends pacing: the handshake is over.
func (p *pace) end() {
	p.mu.Lock()
	p.over = true
	p.mu.Unlock()
	p.rest()
}

func (p *pace) ended() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.over
}

// pacedConn is a stream on which a handshake computes in turns: each ends where it waits for the client.
type pacedConn struct {
	net.Conn
	ctx  context.Context // the handshake's; nil when that is over
	pace *pace
}

// Read is called by one goroutine at a time. During the handshake it ends the turn, and returns in a new one.
func (c *pacedConn) Read(b []byte) (int, error) {
	if c.ctx == nil {
		return c.Conn.Read(b)
	}
	c.pace.rest()
	n, err := c.Conn.Read(b)
	if err == nil && !c.pace.compute(c.ctx.Done()) {
		err = errNoTurn
	}
	return n, err
}
