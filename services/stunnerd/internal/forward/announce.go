package forward

import (
	"slices"
	"time"
)

const (
	// tellAgain is the time after a change of the list of pods at which an owner repeats its announcement to new homes.
	// A home drops frames that arrive before it has received the new list. All pods receive a list within a second.
	tellAgain = 1500 * time.Millisecond
	// maxPending is the maximum number of clients whose announcement is pending. Clients that do not fit are announced
	// at the next periodic renewal.
	maxPending = 65_536
	// batchSize is the number of bytes for clients in one hold, renew or release frame. Such a frame has at most 1,200
	// bytes.
	batchSize = 1200 - Overhead6
	// releaseTicks is the number of calls of tick in which a release is repeated: after 1, 2, 4 and 8 of them. A
	// home that gets no release continues the ended session if the pod is lost.
	releaseTicks = 8
	// sweepEvery is the interval at which expired entries are removed from the index and from Sessions.
	sweepEvery = 30 * time.Second
)

// Added announces to the homes of a client that this pod has its session. Sessions must already contain the session.
func (f *Forwarder) Added(c Client) {
	k, ok := keyOf(c)
	if f == nil || !ok {
		return
	}
	f.front.mu.Lock()
	f.front.forget(k)
	delete(f.front.searches, k)
	f.front.mu.Unlock()
	f.queue(k, c, hold)
	f.Changed(c)
}

// Ended announces to the homes of a client that its session here has ended.
func (f *Forwarder) Ended(c Client) {
	if k, ok := keyOf(c); f != nil && ok {
		f.queue(k, c, release)
	}
}

// change is an announcement that is pending.
type change struct {
	client Client
	kind   kind
}

// queue queues a hold or release frame for a client, in place of a queued frame for the same client.
func (f *Forwarder) queue(k clientKey, c Client, what kind) {
	if !f.view.Load().forwards() {
		return // when forwarding begins, the announcer announces all sessions
	}
	f.changes.Lock()
	_, listed := f.pending[k]
	listed = listed || len(f.pending) < most(f.clients, maxPending)
	if listed {
		f.pending[k] = change{client: c, kind: what}
	}
	f.changes.Unlock()
	if !listed {
		f.unlisted()
	}
	f.signal()
}

// signal wakes the announcer.
func (f *Forwarder) signal() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// announcer announces to the homes of clients which sessions this pod has. Only one goroutine uses it.
type announcer struct {
	forwarder *Forwarder
	outbox    *Outbox
	batches   map[batchKey]*clientBatch
	// view is the list of pods at the last announcement.
	view *view
	// again is the time of a second announcement of all sessions after a change of the list of pods, or 0 if none is
	// due. base are the homes before that change, or before the first of several changes that follow each other within
	// tellAgain. The second announcement is for the homes that are not in base.
	base  []home
	again time.Duration
	// renew is the time of the next announcement of all sessions.
	renew time.Duration
	// counts are the frames with session counts that are being filled. count is the time of the next announcement of
	// all counts.
	counts map[*link][]byte
	count  time.Duration
	// released are the clients whose release is repeated, with the number of calls of tick since the first release.
	released map[Client]int
}

// batchKey identifies a frame that is being filled.
type batchKey struct {
	link *link
	kind kind
	ipv4 bool
}

// clientBatch contains the clients of a frame: the first one, and the others in encoded form.
type clientBatch struct {
	first Client
	rest  []byte
}

// run announces sessions and removes expired entries until Close.
func (f *Forwarder) run() {
	a := announcer{
		forwarder: f, outbox: f.Outbox(), batches: map[batchKey]*clientBatch{}, renew: f.now() + renewEvery,
		counts: map[*link][]byte{}, count: f.now() + countEvery, released: map[Client]int{},
	}
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	pings := time.NewTicker(pingEvery)
	defer pings.Stop()
	for sweep, count := f.now()+sweepEvery, 0; ; {
		select {
		case <-f.closed:
			return
		case <-pings.C:
			count++
			a.tick(count)
			continue
		case <-f.wake:
		case <-ticker.C:
			f.settle()
			f.front.sweep(f.now())
			if at := f.now(); at >= sweep {
				sweep = at + sweepEvery
				f.index.sweep(at)
				f.sweepQuotas(at)
				f.sessions.Sweep(time.Now())
				f.retire(at)
			}
		}
		a.announce()
	}
}

// tick pings silent pods, copies sessions and repeats releases. It is called every pingEvery; count is the number of
// calls so far.
func (a *announcer) tick(count int) {
	defer a.forwarder.meter.RecoverPanic("copy sessions to other pods")
	now := a.forwarder.now()
	a.ping(count, now)
	a.copyAll(now)
	a.releaseAgain()
}

// releaseAgain repeats the releases of sessions that have ended a moment ago.
func (a *announcer) releaseAgain() {
	for c, ticks := range a.released {
		ticks++
		a.released[c] = ticks
		if a.forwarder.sessions.Has(c) || ticks > releaseTicks {
			delete(a.released, c)
		} else if ticks&(ticks-1) == 0 {
			a.toHomes(release, c)
		}
	}
	a.flush()
}

// announce sends the announcements that are due.
func (a *announcer) announce() {
	f := a.forwarder
	defer f.meter.RecoverPanic("announce sessions to other pods")
	v, now := f.view.Load(), f.now()
	all := v != a.view || now >= a.count || a.again != 0 && now >= a.again
	if all {
		a.count = now + countEvery
	}
	if v != a.view {
		var before []home
		if a.view != nil && a.view.forwards() {
			before = a.view.homes
		}
		if a.again == 0 {
			a.base = before
		}
		a.again, a.view = now+tellAgain, v
		a.tell(before, true)
	}
	f.changes.Lock()
	pending := f.pending
	f.pending = map[clientKey]change{}
	f.changes.Unlock()
	for _, c := range pending {
		if c.kind == release && f.sessions.Has(c.client) {
			c.kind = hold // the new session of the client began before the end of the earlier session was queued
		}
		a.toHomes(c.kind, c.client)
		if c.kind == release && len(a.released) < most(f.clients, maxPending) {
			a.released[c.client] = 0
		}
	}
	if a.again != 0 && now >= a.again {
		a.tell(a.base, false)
		a.base, a.again = nil, 0
	}
	if now >= a.renew {
		a.renew = now + renewEvery
		a.tell(nil, false)
	}
	a.tellCounts(all)
	a.flush()
}

// tell announces all sessions to the homes that are not in before. If copies is set, it also sends copies.
func (a *announcer) tell(before []home, copies bool) {
	if !a.view.forwards() {
		return
	}
	a.forwarder.sessions.All(func(c Client) bool {
		k, ok := keyOf(c)
		if !ok {
			return true
		}
		former, fresh := rank(before, k), false
		for _, h := range rank(a.view.homes, k) {
			if !slices.Contains(former[:], h) {
				a.add(h, renew, c)
				fresh = true
			}
		}
		if fresh && copies {
			a.forwarder.Changed(c)
		}
		return true
	})
}

// toHomes adds a client to the frames for its homes.
func (a *announcer) toHomes(what kind, c Client) {
	k, _ := keyOf(c) // announced clients have a key
	for _, h := range rank(a.view.homes, k) {
		a.add(h, what, c)
	}
}

// add adds a client to a frame for a home, unless the home is this pod.
func (a *announcer) add(h home, what kind, c Client) {
	if h.pod == nil {
		return
	}
	l := a.view.links[h.pod.id]
	if l == nil {
		return
	}
	key := batchKey{link: l, kind: what, ipv4: c.Addr.Addr().Is4()}
	b := a.batches[key]
	if b == nil {
		a.batches[key] = &clientBatch{first: c}
		return
	}
	b.rest = putRecord(b.rest, c)
	if len(b.rest)+record6 > batchSize {
		a.send(key, b)
		delete(a.batches, key)
	}
}

func (a *announcer) send(key batchKey, b *clientBatch) {
	a.outbox.add(key.link, key.kind, b.first, b.rest)
}

// flush sends the frames that are not full.
func (a *announcer) flush() {
	for key, b := range a.batches {
		a.send(key, b)
	}
	clear(a.batches)
	a.outbox.Flush()
}
