package listener

import (
	"container/list"
	"net/netip"
	"runtime"
	"sync"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/limit"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// Limits bounds the connections and handshakes of clients without a session. All listeners of a process share them.
type Limits struct {
	handshakes, unauthenticated, headers *connLimiter
	turns                                *handshakeLimiter
}

// NewLimits returns unused limits. capacity is the maximum number of clients of the process, or 0 for no maximum. The
// handshakes may take half of it at most, and so may the connections without a session.
func NewLimits(capacity int) *Limits {
	most := func(n int) int {
		if capacity > 0 {
			n = min(n, max(capacity/2, 1))
		}
		return n
	}
	return &Limits{
		handshakes:      newConnLimiter(most(1024), 64),         // TLS and DTLS handshakes in progress
		unauthenticated: newConnLimiter(most(4096), 256),        // connections without a session
		headers:         newConnLimiter(most(1024), most(1024)), // connections of load balancers before their header
		turns:           newHandshakeLimiter(runtime.GOMAXPROCS(0)),
	}
}

// connLimiter bounds the number of connections that are in a handshake, or that have no session: in total, and for each
// source. A new connection is always admitted. If there is no free slot, the oldest connection of the same source, or
// of a source with many slots, is closed instead. So a client that authenticates quickly is served even if many other
// clients are silent.
type connLimiter struct {
	most, each int

	mu      sync.Mutex
	all     *list.List // of *slot, oldest first
	sources map[netip.Prefix]*list.List
}

// slot counts one connection against the limit of a connLimiter while the slot is taken.
type slot struct {
	limiter *connLimiter
	source  netip.Prefix
	each    int
	evict   func()
	// all is the element of the slot in connLimiter's list of all taken slots; nil while the slot is not taken.
	all *list.Element
	// same is the element of the slot in the list of the slots of its source; nil while the slot is not taken.
	same *list.Element
	// left is set when leave was called, or when another connection has taken over the slot. The slot can then not be
	// taken again. Otherwise a connection that is being closed could evict further connections.
	left bool
}

func newConnLimiter(most, each int) *connLimiter {
	return &connLimiter{most: most, each: each, all: list.New(), sources: map[netip.Prefix]*list.List{}}
}

// slot returns a free slot for a connection of a client. evict is called when another connection takes over the slot.
func (c *connLimiter) slot(client netip.Addr, evict func()) *slot {
	p := &slot{limiter: c, source: session.Source(client), each: c.each, evict: evict}
	if limit.Private(client) {
		p.each *= limit.PrivateFactor
	}
	return p
}

// enter takes the slot, unless it is taken already. If the limit is reached, it evicts an older slot.
func (p *slot) enter() {
	if oldest := p.take(); oldest != nil {
		oldest.evict()
	}
}

// take takes the slot. If the limit is reached, take returns the slot of another connection, which the caller must
// evict. Otherwise it returns nil.
func (p *slot) take() (oldest *slot) {
	c := p.limiter
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.all != nil || p.left {
		return nil
	}
	same := c.sources[p.source]
	if same == nil {
		same = list.New()
		c.sources[p.source] = same
	}
	switch {
	case same.Len() >= p.each:
		oldest = same.Front().Value.(*slot)
	case c.all.Len() >= c.most:
		oldest = c.oldest()
	}
	p.all, p.same = c.all.PushBack(p), same.PushBack(p)
	if oldest != nil {
		oldest.remove()
		oldest.left = true
	}
	return oldest
}

// readmit makes a slot available again that another connection has taken over, because its connection stays open.
func (p *slot) readmit() {
	p.limiter.mu.Lock()
	defer p.limiter.mu.Unlock()
	p.left = false
}

// oldest returns the slot of the oldest connection among the sources that have at least an equal share of all slots. So
// a source that floods evicts its own connections. The caller holds mu. All slots are in use.
func (c *connLimiter) oldest() *slot {
	share := c.all.Len() / len(c.sources)
	for at := c.all.Front(); ; at = at.Next() {
		if p := at.Value.(*slot); c.sources[p.source].Len() >= share {
			return p
		}
	}
}

// pause frees the slot. enter can take it again.
func (p *slot) pause() {
	p.limiter.mu.Lock()
	defer p.limiter.mu.Unlock()
	p.remove()
}

// leave frees the slot. It cannot be taken again.
func (p *slot) leave() {
	p.limiter.mu.Lock()
	defer p.limiter.mu.Unlock()
	p.remove()
	p.left = true
}

// remove frees the slot. The caller holds mu.
func (p *slot) remove() {
	if p.all == nil {
		return
	}
	c := p.limiter
	same := c.sources[p.source]
	c.all.Remove(p.all)
	same.Remove(p.same)
	if same.Len() == 0 {
		delete(c.sources, p.source)
	}
	p.all, p.same = nil, nil
}
