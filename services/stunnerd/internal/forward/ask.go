package forward

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stunner-gateway/stunner/services/api/ratelimit"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
)

const (
	// answerTimeout is how long a front waits for the answer of a home before it asks the other home. If a search finds
	// no owner, the front drops the datagrams of the client for this time.
	answerTimeout = 250 * time.Millisecond
	// giveUp is how long a front remembers that a home has not answered. Clients repeat requests after up to 8 s (RFC
	// 8489 §6.2.1).
	giveUp = 10 * time.Second
	// unanswered is how long a front searches for the owner of a client before it passes STUN messages of the client to
	// the listener, which answers that there is no session. It is longer than the restart of a container, which takes
	// about a second.
	unanswered = 3 * time.Second
	// maxSearches is the maximum number of clients whose owner a front does not know: it is searching, or has found
	// that there is none.
	maxSearches = 65_536
	// maxKnown is the largest number of clients whose owners a front knows, about 60 MB.
	maxKnown = 1 << 18
	// idle is how long a front remembers an owner after the last datagram of the client or of the owner.
	idle = 150 * time.Second
	// secondIdle is how long a front sends to a client from two of its own addresses while datagrams arrive at only one
	// of them. A datagram with a forged source may arrive at another address than the datagrams of the client. So the
	// front sends from both addresses until one has received nothing for longer than an ICE agent is silent (RFC 7675
	// §5.1).
	secondIdle = 30 * time.Second

	// asksPerSlot limits the asks of a front to 5,000 a second.
	asksPerSlot = 500
	slot        = 100 * time.Millisecond
	// asksPerSource limits the asks a second for the clients of one source address, after freeAsksPerSlot asks were
	// sent in a slot. Below this threshold, a source has no limit, because the clients of an office behind one address
	// would wait for each other after a load balancer has redistributed them.
	asksPerSource   = 10
	freeAsksPerSlot = asksPerSlot / 10
	// asksPerHome limits the unanswered asks for one client. Several asks are useful, because each contains a datagram
	// that the home returns. While there are fewer than freeAsksPerSlot asks, the limit is burstPerHome: a client may
	// send all packets of a video frame before the home has answered.
	asksPerHome  = 4
	burstPerHome = 32
	maxSources   = 16_384
)

// known is a client whose owner the front knows. All outboxes share it.
type known struct {
	// owner is nil after forget.
	owner atomic.Pointer[pod]
	// asked is the address to which the client sends. If the client also sends to a second address, other is the latest
	// such address; otherwise it is nil. A Source is never changed, only replaced.
	asked, other atomic.Pointer[datagram.Source]
	// received is when the client last sent to asked, receivedOther when the client last sent to other, and answered
	// when the owner last sent to the client. All are on the clock of the Forwarder.
	received, receivedOther, answered atomic.Int64
	// named is when learn last stored the owner, on the same clock.
	named atomic.Int64
}

// setReceived records that the client has sent a datagram to an address.
func (n *known) setReceived(asked *datagram.Source, now time.Duration) {
	other := n.other.Load()
	switch {
	case *n.asked.Load() == *asked:
		if n.received.Load() != int64(now) {
			n.received.Store(int64(now))
		}
		if other != nil && now-time.Duration(n.receivedOther.Load()) >= secondIdle {
			n.other.Store(nil)
		}
		return
	case other == nil || *other != *asked:
		replacement := *asked
		other = &replacement
		n.other.Store(other)
	}
	n.receivedOther.Store(int64(now))
	if now-time.Duration(n.received.Load()) >= secondIdle {
		n.asked.Store(other)
		n.received.Store(int64(now))
		n.other.Store(nil)
	}
}

// ownerSearch is the search for the owner of a client.
type ownerSearch struct {
	// view is the list of pods at the start of the search. began is the start of the first search for this client.
	view  *view
	began time.Duration
	// homes are the other pods that may store the owner, in the order in which they are asked. step is the index of the
	// current home.
	homes []*pod
	step  int
	// tried are all pods that were asked, including those from an earlier list of pods.
	tried []*pod
	// asks is the number of asks to the current home since the time since.
	asks  int
	since time.Duration
	// none is set when all homes were asked. Until since+answerTimeout, the client counts as a client without an owner.
	none  bool
	asked *datagram.Source
}

// ask counts an ask frame to the current home, and returns the home.
func (s *ownerSearch) ask() *pod {
	s.asks++
	home := s.homes[s.step]
	if !slices.Contains(s.tried, home) {
		s.tried = append(s.tried, home)
	}
	return home
}

// front contains the clients that send to this pod while another pod has their sessions.
type front struct {
	mu       sync.Mutex
	known    map[clientKey]*known
	searches map[clientKey]*ownerSearch
	// clients is Options.Clients.
	clients int

	// asks is the number of asks since began, the start of the current slot.
	asks    int
	began   time.Duration
	sources *ratelimit.Limiter[netip.Prefix]
}

func newFront() front {
	return front{
		known: map[clientKey]*known{}, searches: map[clientKey]*ownerSearch{},
		sources: ratelimit.New[netip.Prefix](asksPerSource, asksPerSource, maxSources),
	}
}

// verdict is how an Outbox handles a datagram of a client that is not in its cache.
type verdict int

const (
	toOwner verdict = iota
	toHome
	ownerless
	limited
	// dropped: this pod is taking over the session.
	dropped
)

// route decides what happens to a datagram of a client: a STUN message or ChannelData. For toOwner it returns the
// client, for toHome the home to ask.
func (f *Forwarder) route(
	v *view, k clientKey, c Client, message bool, asked *datagram.Source, now time.Time,
) (verdict, *known, *pod) {
	at := f.since(now)
	f.front.mu.Lock()
	defer f.front.mu.Unlock()
	if n := f.front.known[k]; n != nil {
		if n.reach(at) != nil {
			return toOwner, n, nil
		}
		f.front.forget(k)
	}
	if f.ambiguous != nil && f.ambiguous(c.Addr.Addr()) {
		return ownerless, nil, nil
	}
	// The index is also read during a search: a hold frame may have named the owner since the search began, and the
	// asked home may no longer exist.
	switch n, rescued := f.held(v, k, c, asked, at); {
	case rescued:
		return dropped, nil, nil
	case n != nil:
		return toOwner, n, nil
	}
	s, began, tried := f.front.searches[k], at, []*pod(nil)
	if s != nil {
		began = s.began
	}
	if s != nil && s.none && at-s.since < answerTimeout || message && at-began >= unanswered {
		return ownerless, nil, nil
	}
	if s != nil && (s.none || s.view != v) { // search again
		if !s.none {
			tried = s.tried
		}
		delete(f.front.searches, k)
		s = nil
	}
	if s != nil && at-s.since >= answerTimeout { // the home has not answered
		s.step, s.asks, s.since = (s.step+1)%len(s.homes), 0, at
	}
	if s != nil && (s.asks >= burstPerHome || s.asks >= asksPerHome && f.front.scarce(at)) {
		return limited, nil, nil
	}
	if !f.front.mayAsk(c.Addr.Addr(), at, now) {
		return limited, nil, nil
	}
	if s == nil {
		if s = f.front.search(v, k, asked, at); s == nil {
			return limited, nil, nil
		}
		s.began, s.tried = began, tried
	}
	if s.none {
		return ownerless, nil, nil
	}
	return toHome, nil, s.ask()
}

// reach returns the link to the owner of a client. It returns nil if the owner is not in the list or is lost. A lost
// owner that a home has named again is used for a short time, because perhaps no home has a copy of the session.
func (n *known) reach(at time.Duration) *link {
	owner := n.owner.Load()
	if owner == nil || owner.lost() && at-time.Duration(n.named.Load()) >= answerTimeout {
		return nil
	}
	owner.need(at)
	return owner.link.Load()
}

// held returns the client if this pod is a home that stores the owner. It returns nil if the owner is lost and this pod
// has a copy of the session. takesOver is then set if this pod takes over the session now. The caller must hold the
// lock of the front.
func (f *Forwarder) held(
	v *view, k clientKey, c Client, asked *datagram.Source, at time.Duration,
) (n *known, takesOver bool) {
	id, ok := f.index.find(k, at)
	if !ok {
		return nil, false
	}
	switch copied, here := f.tryTakeOver(v, k, c, id, at); {
	case copied:
		return nil, here
	case v.links[id] == nil:
		return nil, false
	}
	return f.front.learn(k, v.links[id].pod, asked, at), false
}

// mayAsk counts an ask against the limits of the process and of a source address. It reports false if a limit is
// reached.
func (t *front) mayAsk(client netip.Addr, at time.Duration, now time.Time) bool {
	scarce := t.scarce(at)
	if t.asks >= asksPerSlot || scarce && t.sources.Take(ratelimit.SourcePrefix(client), now) > 0 {
		return false
	}
	t.asks++
	return true
}

// scarce reports whether freeAsksPerSlot asks were sent in the current slot, so that asksPerSource applies.
func (t *front) scarce(at time.Duration) bool {
	t.renew(at)
	return t.asks >= freeAsksPerSlot
}

// renew begins a new slot if the current one is over.
func (t *front) renew(at time.Duration) {
	if at-t.began >= slot {
		t.began, t.asks = at, 0
	}
}

// search begins the search for the owner of a client. It returns nil if there are already maxSearches searches.
func (t *front) search(v *view, k clientKey, asked *datagram.Source, at time.Duration) *ownerSearch {
	if len(t.searches) >= most(t.clients, maxSearches) {
		return nil
	}
	source := *asked
	s := &ownerSearch{view: v, since: at, asked: &source}
	for _, h := range rank(v.homes, k) {
		if h.pod != nil && h.pod != v.self {
			s.homes = append(s.homes, h.pod)
		}
	}
	s.none = len(s.homes) == 0
	t.searches[k] = s
	return s
}

// learn stores the owner of a client. It returns nil if the table is full.
func (t *front) learn(k clientKey, owner *pod, asked *datagram.Source, at time.Duration) *known {
	n := t.known[k]
	if n == nil {
		if len(t.known) >= most(t.clients, maxKnown) {
			return nil
		}
		n = new(known)
		source := *asked
		n.asked.Store(&source)
		n.received.Store(int64(at))
		t.known[k] = n
	}
	n.named.Store(int64(at))
	n.owner.Store(owner)
	delete(t.searches, k)
	return n
}

// forget forgets the owner of a client.
func (t *front) forget(k clientKey) {
	if n := t.known[k]; n != nil {
		n.owner.Store(nil)
		delete(t.known, k)
	}
}

// find returns a client whose owner is known, or nil.
func (t *front) find(k clientKey) *known {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.known[k]
}

// found handles an is frame that names an owner. It returns the pod to which datagrams of the client are sent. It
// returns nil if this pod has not asked the sender, or, with full set, if the table of known clients is full. A known
// owner is replaced only if that owner itself names its successor, because the answer of a home may be late or
// outdated.
func (t *front) found(k clientKey, from, owner *pod, at time.Duration) (to *pod, full bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := t.known[k]; n != nil {
		n.owner.CompareAndSwap(from, owner)
		return n.owner.Load(), false
	}
	s := t.searches[k]
	if s == nil || !slices.Contains(s.tried, from) {
		return nil, false
	}
	if t.learn(k, owner, s.asked, at) == nil {
		return nil, true
	}
	return owner, false
}

// missing handles an unknown frame of a pod: the owner has no session, or a home does not know the owner. If all homes
// were asked, it returns the address to which the client sends. Otherwise it returns the next home and counts one ask,
// unless limit asks were sent in this slot.
func (t *front) missing(k clientKey, from *pod, limit int, at time.Duration) (next *pod, asked *datagram.Source) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := t.known[k]; n != nil {
		if n.owner.Load() == from {
			asked := n.asked.Load()
			t.forget(k)
			t.none(k, asked, at)
		}
		return nil, nil
	}
	s := t.searches[k]
	switch {
	case s == nil:
		return nil, nil
	case s.none:
		return nil, s.asked
	case s.homes[s.step] != from:
		return nil, nil
	}
	s.step, s.asks, s.since = s.step+1, 0, at
	if s.none = s.step == len(s.homes); s.none {
		return nil, s.asked
	}
	if t.renew(at); t.asks >= limit {
		return nil, nil
	}
	t.asks++
	return s.ask(), nil
}

// none records that the search has found no owner of a client.
func (t *front) none(k clientKey, asked *datagram.Source, at time.Duration) {
	if len(t.searches) < most(t.clients, maxSearches) {
		t.searches[k] = &ownerSearch{none: true, began: at, since: at, asked: asked}
	}
}

// sweep removes idle clients and ended searches.
func (t *front) sweep(now time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.searches, func(_ clientKey, s *ownerSearch) bool {
		if s.none {
			return now-s.since >= answerTimeout
		}
		return now-s.since >= giveUp
	})
	for k, n := range t.known {
		if now-time.Duration(max(n.received.Load(), n.receivedOther.Load(), n.answered.Load())) >= idle {
			t.forget(k)
		}
	}
}

func (t *front) len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.known)
}
