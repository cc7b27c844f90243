package relay

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/cluster"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/stunmsg"
)

// ReceiveBatch implements Receiver. It forwards the datagrams of peers that have a channel, drops those of peers that
// the routes do not allow, and queues all others for decide. Datagrams of a peer whose channel is new are queued while
// earlier datagrams wait. A panic ends the session, and not the process.
func (r *Relay) ReceiveBatch(batch []Datagram, now time.Time) {
	if pass := r.passing.Load(); pass != nil {
		(*pass)(batch)
		return
	}
	if m := r.moving.Load(); m != nil {
		m.receivedBatch(batch, now)
	}
	r.receive(batch, now)
}

func (r *Relay) receive(batch []Datagram, now time.Time) {
	defer r.EndOnPanic("forward from peers")
	t := transfers.Get()
	defer transfers.Put(t)
	defer t.reset()
	at := r.since(now)
	for i := range batch {
		d := &batch[i]
		if c := r.byPeer(d.peer, at); c != nil && d.icmp == (ICMP{}) && c.isAnswered() && !r.undecided.holds(d.peer) {
			r.toClient(t, c, d, now)
		} else {
			r.enqueue(d)
		}
	}
	r.sendToClient(t, now)
}

// sendToClient sends a transfer. Then it ends the session if the session has used the bytes of its credential.
func (r *Relay) sendToClient(t *transfer, now time.Time) {
	if len(t.packets) > 0 {
		r.session.Client.SendAll(t.packets)
		r.count(t, session.ToClient, &t.clusters, now)
		t.clusters.Flush()
	}
	r.endSpent()
}

// toClient adds the ChannelData for the client to a transfer, or drops the datagram.
func (r *Relay) toClient(t *transfer, c *channel, d *Datagram, now time.Time) {
	generation := r.generation()
	v := r.judge(c)
	switch {
	case v.reached != cluster.Allowed:
		r.drop(ReasonOf(v.reached), c.peer)
	case !r.permittedAt(c, now):
		r.drop(meter.NoPermission, c.peer)
	case !r.admits(session.ToClient, d.n, c.peer, now):
	default:
		frame := d.channelData(c.number, r.session.Client.Connected())
		t.add(datagram.Packet{Payload: frame}, item{
			traffic: v.traffic, usage: v.usage, count: c.count, peer: c.peer, size: d.n, channel: c, generation: generation,
		})
	}
}

// enqueue queues a copy of a datagram for decide.
func (r *Relay) enqueue(d *Datagram) {
	if d.icmp != (ICMP{}) {
		r.Unreachable(d.peer)
		if !r.add(d) {
			r.drop(meter.Congested, d.peer)
		}
		return
	}
	if _, reached := r.View().Match(d.peer); reached != cluster.Allowed {
		r.drop(ReasonOf(reached), d.peer)
		return
	}
	if !r.add(d) {
		r.drop(meter.Congested, d.peer)
	}
}

// add adds a copy of a datagram to the queue, and starts decide if it does not run. It reports false if the queue is
// full.
func (r *Relay) add(d *Datagram) bool {
	ok, first := r.undecided.add(d)
	if first {
		go r.decide()
	}
	return ok
}

// decide handles the queued datagrams until the queue is empty. It runs in a goroutine of its own, because Bind and the
// allocation engine may make it wait. A panic ends the session, and not the process.
func (r *Relay) decide() {
	defer r.EndOnPanic("receive from peer")
	// An answer of the engine applies to all datagrams that were in the queue when it was asked. So a flood from a peer
	// without a permission causes few calls of the engine.
	var asked netip.Addr
	var permitted bool
	answered := 0
	for d, behind, ok := r.undecided.next(); ok; d, behind, ok = r.undecided.next() {
		answered--
		switch {
		case d.icmp == (ICMP{}) && r.forwardBound(&d):
			continue
		case answered < 0 || asked != d.peer.Addr():
			asked, answered = d.peer.Addr(), behind
			permitted = r.Permitted(d.peer) || r.permitted(d.peer)
		}
		if permitted {
			r.deliver(d)
		} else {
			r.drop(meter.NoPermission, d.peer)
		}
	}
}

// forwardBound handles a datagram of the queue whose peer has been bound to a channel meanwhile. It reports false for
// other datagrams. If the ChannelBind is not answered yet, it waits for the answer.
func (r *Relay) forwardBound(d *Datagram) bool {
	c := r.byPeer(d.peer, r.now())
	if c == nil {
		return false
	}
	<-c.answered
	now := time.Now()
	t := transfers.Get()
	defer transfers.Put(t)
	defer t.reset()
	r.toClient(t, c, d, now)
	r.sendToClient(t, now)
	return true
}

// deliver sends a datagram to the client as a Data indication (RFC 8656 §11.3).
func (r *Relay) deliver(d Datagram) {
	name, reached := r.View().Match(d.peer)
	if reached != cluster.Allowed { // the routes have changed meanwhile
		r.drop(ReasonOf(reached), d.peer)
		return
	}
	now := time.Now()
	defer r.endSpent()
	if !r.admits(session.ToClient, d.n, d.peer, now) {
		return
	}
	peer := stunmsg.Address{Type: stun.AttrXORPeerAddress, Addr: d.peer}
	content := stun.RawAttribute{Type: stun.AttrData, Value: d.Payload()}
	if d.icmp != (ICMP{}) {
		content = d.icmp.attribute()
	}
	m, err := stun.Build(stun.TransactionID, stun.NewType(stun.MethodData, stun.ClassIndication), peer, content)
	if err != nil || len(m.Raw) > stunmsg.MaxSize { // the longest datagram of IPv6 does not fit into a message
		r.drop(meter.TooLarge, d.peer)
		return
	}
	if d.icmp == (ICMP{}) {
		if p := r.countOf(d.peer, r.since(now)); p != nil {
			p.addReceived(1, r.since(now))
		}
	}
	packet := []datagram.Packet{{Payload: m.Raw}}
	if r.session.Client.SendAll(packet); packet[0].Err != nil {
		r.drop(Undelivered(packet[0].Err), d.peer)
		return
	}
	if d.icmp == (ICMP{}) {
		r.meter.Cluster(name).Rx.Add(d.n)
		r.session.Traffic.Rx.Add(d.n)
		if u := r.session.Usage.Route(name); u != nil {
			u.Rx.Add(d.n)
		}
	}
}

// undecided is a queue of datagrams of peers without a channel, for Relay.decide. An empty queue has no memory for
// datagrams.
type undecided struct {
	mu    sync.Mutex
	queue []Datagram
	bytes int // of the payloads
	// memory is the claim of the session for the memory of the queue.
	memory session.Claim
	taken  bool // a goroutine runs Relay.decide
	closed bool
	// handled is the peer of the datagram that next has returned, until the following call of next.
	handled netip.AddrPort
	// unfinished is the number of datagrams in queue, plus one while a datagram is handled.
	unfinished atomic.Int32
}

// The maximum size of the queue, which equals the size of the receive buffer of a socket. It is enough for the
// datagrams that peers send until the client has bound a channel.
const (
	maxUndecided      = 256
	maxUndecidedBytes = 256 << 10
	// undecidedEntry is the memory of an entry without its payload.
	undecidedEntry = 128
	// freeUndecided is the part of the queue that is included in the memory of a session. It is enough for one datagram
	// of a call, which is handled before the next one arrives.
	freeUndecided = 1500 + undecidedEntry
	// undecidedStep is the step in which the session is charged, so that few datagrams change the charge.
	undecidedStep = 16 << 10
)

// add adds a copy of a datagram. ok is false if the queue is full, or if there is no memory for it: a peer with a route
// can fill the queue of each session whose relayed address it knows. If first is true, the caller starts Relay.decide.
// After close, add discards the datagram.
func (u *undecided) add(d *Datagram) (ok, first bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return true, false
	}
	if len(u.queue) >= maxUndecided || u.bytes+d.n > maxUndecidedBytes || !u.pay(d.n) {
		return false, false
	}
	u.queue = append(u.queue, d.clone())
	u.bytes += d.n
	u.unfinished.Add(1)
	first = !u.taken
	u.taken = true
	return true, first
}

// pay charges the session for another datagram of n bytes. It reports false if there is no memory for it.
func (u *undecided) pay(n int) bool {
	most := u.bytes + n + (len(u.queue)+1)*undecidedEntry
	if most <= freeUndecided {
		return true
	}
	steps := int64((most + undecidedStep - 1) / undecidedStep * undecidedStep)
	return steps <= u.memory.Held() || u.memory.Set(steps) == nil
}

// holds reports whether a datagram of a peer is in the queue or is being handled, so that a later datagram must not
// overtake it.
func (u *undecided) holds(peer netip.AddrPort) bool {
	if u.unfinished.Load() == 0 {
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.handled == peer || slices.ContainsFunc(u.queue, func(d Datagram) bool { return d.peer == peer })
}

// next removes a datagram from the queue, and returns the number of datagrams after it. Calling next means that the
// previous datagram was handled. ok is false after close, and if the queue is empty. The caller then ends Relay.decide.
func (u *undecided) next() (d Datagram, behind int, ok bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.handled = netip.AddrPort{}
	u.unfinished.Store(int32(len(u.queue)))
	if u.closed || len(u.queue) == 0 {
		u.taken = false
		u.memory.Release()
		return d, 0, false
	}
	d = u.queue[0]
	u.queue[0] = Datagram{} // so that the garbage collector can free its memory
	u.handled, u.bytes = d.peer, u.bytes-d.n
	if u.queue = u.queue[1:]; len(u.queue) == 0 {
		u.queue = nil
	}
	u.unfinished.Store(int32(len(u.queue) + 1))
	return d, len(u.queue), true
}

// close empties the queue, which accepts no datagrams afterwards.
func (u *undecided) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closed, u.queue = true, nil
	u.memory.Release()
}
