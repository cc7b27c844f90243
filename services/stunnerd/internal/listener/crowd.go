package listener

import (
	"container/list"
	"net/netip"
	"runtime"
	"sync"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/limit"
)

// Limits bound what clients without a session may cost. All listeners of a process share them: a source is the same source everywhere.
type Limits struct {
	handshakes, strangers *crowd
	pacer                 *pacer
}

// NewLimits returns limits of which nothing is used up. capacity is how many allocations the process can bear, 0 for any number: clients
// without one may take half as much.
func NewLimits(capacity int) *Limits {
	most := func(n int) int {
		if capacity > 0 {
			n = min(n, max(capacity/2, 1))
		}
		return n
	}
	return &Limits{
		handshakes: newCrowd(most(1024), 64),  // TLS and DTLS handshakes that go on
		strangers:  newCrowd(most(4096), 256), // connections whose client has no session
		pacer:      newPacer(runtime.GOMAXPROCS(0)),
	}
}

// crowd bounds how many clients stand somewhere at a time, in all and from one source. When there is no room, the one that has stood there
// longest has to go, of the same source or of those that have many: who gets to the point is always let in, however many others are silent.
type crowd struct {
	most, each int

	mu      sync.Mutex
	all     *list.List // of *place, oldest first
	sources map[netip.Prefix]*list.List
}

// place is a client's place in a crowd.
type place struct {
	crowd  *crowd
	source netip.Prefix
	each   int
	evict  func() // called when the place is taken away
	// all and same are where the place stands among all, and among those of its source; nil outside the crowd.
	all, same *list.Element
	left      bool
}

func newCrowd(most, each int) *crowd {
	return &crowd{most: most, each: each, all: list.New(), sources: map[netip.Prefix]*list.List{}}
}

// place returns a place for a client, who does not stand there yet.
func (c *crowd) place(client netip.Addr, evict func()) *place {
	p := &place{crowd: c, source: sourceOf(client), each: c.each, evict: evict}
	if limit.Private(client) {
		p.each *= limit.PrivateFactor
	}
	return p
}

// sourceOf is what counts as one source. A host with IPv6 has a whole /64 to itself (RFC 6177 §2).
func sourceOf(client netip.Addr) netip.Prefix {
	bits := client.BitLen()
	if client.Is6() {
		bits = 64
	}
	source, _ := client.Prefix(bits) // fails for more bits than there are only
	return source
}

// enter puts the client into the crowd, as the latest to come, if it is not there.
func (p *place) enter() {
	if oldest := p.take(); oldest != nil {
		oldest.evict()
	}
}

// take returns whose place was taken for it.
func (p *place) take() (oldest *place) {
	c := p.crowd
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
		oldest = same.Front().Value.(*place)
	case c.all.Len() >= c.most:
		oldest = c.oldest()
	}
	p.all, p.same = c.all.PushBack(p), same.PushBack(p)
	if oldest != nil {
		oldest.remove()
	}
	return oldest
}

// oldest returns the oldest place among the sources that have at least their share, so that a source that floods pushes out its own. It needs
// the lock, and a crowd that is full.
func (c *crowd) oldest() *place {
	share := c.all.Len() / len(c.sources)
	for at := c.all.Front(); ; at = at.Next() {
		if p := at.Value.(*place); c.sources[p.source].Len() >= share {
			return p
		}
	}
}

// pause takes the client out of the crowd; it may enter again.
func (p *place) pause() {
	p.crowd.mu.Lock()
	defer p.crowd.mu.Unlock()
	p.remove()
}

// leave takes the client out of the crowd for good.
func (p *place) leave() {
	p.crowd.mu.Lock()
	defer p.crowd.mu.Unlock()
	p.remove()
	p.left = true
}

// remove needs the crowd's lock.
func (p *place) remove() {
	if p.all == nil {
		return
	}
	c := p.crowd
	same := c.sources[p.source]
	c.all.Remove(p.all)
	same.Remove(p.same)
	if same.Len() == 0 {
		delete(c.sources, p.source)
	}
	p.all, p.same = nil, nil
}
