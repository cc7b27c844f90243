package relay

import (
	"fmt"
	"net"
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
// the routes do not allow, and queues all others for Receive. Datagrams that arrive just after their peer has got a
// channel are queued behind the earlier ones. A panic ends the session, and not the process.
func (r *Relay) ReceiveBatch(batch []Datagram, now time.Time) {
	defer r.EndOnPanic("forward from peers")
	t := transfers.Get()
	defer transfers.Put(t)
	defer t.reset()
	at := r.since(now)
	for i := range batch {
		d := &batch[i]
		if c := r.byPeer(d.peer, at); c != nil && d.icmp == (ICMP{}) && !r.undecided.holds(d.peer) {
			r.toClient(t, c, d, now)
		} else {
			r.enqueue(d)
		}
	}
	r.sendToClient(t, now)
}

func (r *Relay) sendToClient(t *transfer, now time.Time) {
	if len(t.packets) > 0 {
		r.session.Client.SendAll(t.packets)
		r.count(t, session.ToClient, now)
	}
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
	case !r.session.Admits(session.ToClient, d.n, now):
		r.drop(meter.ByteRate, c.peer)
	default:
		frame := d.channelData(c.number, r.session.Client.Connected())
		t.add(datagram.Packet{Payload: frame}, item{
			traffic: v.traffic, peer: c.peer, size: d.n, channel: c, generation: generation,
		})
	}
}

// enqueue queues a copy of a datagram for Receive, because the allocation engine knows the permissions of peers without
// a channel.
func (r *Relay) enqueue(d *Datagram) {
	if d.icmp != (ICMP{}) {
		_ = r.undecided.add(d.clone())
		return
	}
	if _, reached := r.routes.Load().Match(d.peer); reached != cluster.Allowed {
		r.drop(ReasonOf(reached), d.peer)
		return
	}
	if !r.undecided.add(d.clone()) {
		r.drop(meter.Congested, d.peer)
	}
}

// Receive waits for a datagram of a peer without a channel that the routes allow, or for an ICMP message about a
// datagram to a peer, and returns the address of the peer. The caller calls Deliver if the peer has a permission.
// Otherwise the next Receive drops the datagram. The only error is net.ErrClosed, after Close or a panic.
//
// Receive and Deliver must be called by one goroutine. A panic in them ends the session, and not the process.
func (r *Relay) Receive() (peer netip.AddrPort, err error) {
	err = net.ErrClosed // the result after a panic
	defer r.EndOnPanic("receive from peer")
	for {
		if d := r.current; d != nil {
			r.drop(meter.NoPermission, d.peer)
			r.current = nil
		}
		d, ok := r.undecided.next()
		if !ok {
			return netip.AddrPort{}, net.ErrClosed
		}
		if d.icmp == (ICMP{}) && r.forwardBound(&d) {
			continue
		}
		r.current = &d
		return d.peer, nil
	}
}

// forwardBound forwards or drops a datagram of the queue if its peer has got a channel. Otherwise it reports false. If
// Bind is in progress, it waits for Bind.
func (r *Relay) forwardBound(d *Datagram) bool {
	r.binding.Lock()
	now := time.Now()
	c := r.byPeer(d.peer, r.since(now))
	r.binding.Unlock()
	if c == nil {
		return false
	}
	t := transfers.Get()
	defer transfers.Put(t)
	defer t.reset()
	r.toClient(t, c, d, now)
	r.sendToClient(t, now)
	return true
}

// Deliver sends the datagram that made Receive return to the client, as a Data indication (RFC 8656 §11.3).
func (r *Relay) Deliver() error {
	defer r.EndOnPanic("send Data indication")
	d := r.current
	if d == nil {
		return nil
	}
	r.current = nil
	name, reached := r.routes.Load().Match(d.peer)
	if reached != cluster.Allowed { // the routes have changed while the datagram was in the queue
		r.drop(ReasonOf(reached), d.peer)
		return nil
	}
	if !r.session.Admits(session.ToClient, d.n, time.Now()) {
		r.drop(meter.ByteRate, d.peer)
		return nil
	}
	peer := stunmsg.Address{Type: stun.AttrXORPeerAddress, Addr: d.peer}
	content := stun.RawAttribute{Type: stun.AttrData, Value: d.payload()}
	if d.icmp != (ICMP{}) {
		content = d.icmp.attribute()
	}
	m, err := stun.Build(stun.TransactionID, stun.NewType(stun.MethodData, stun.ClassIndication), peer, content)
	if err != nil {
		return fmt.Errorf("build Data indication: %w", err)
	}
	if len(m.Raw) > stunmsg.MaxSize { // the longest datagram of IPv6 does not fit into a message
		r.drop(meter.TooLarge, d.peer)
		return nil
	}
	if err := r.session.Client.Send(m.Raw); err != nil {
		r.drop(Undelivered(err), d.peer)
		return nil
	}
	if d.icmp == (ICMP{}) {
		r.meter.Cluster(name).Rx.Add(d.n)
		r.session.Traffic.Rx.Add(d.n)
	}
	return nil
}

// undecided is a queue of datagrams for the allocation engine. A relay has no memory for it while it is empty.
type undecided struct {
	mu     sync.Mutex
	queue  []Datagram
	bytes  int
	closed bool
	// handled is the peer of the datagram that next has returned, until the following call of next.
	handled netip.AddrPort
	// unfinished is the number of datagrams in queue, plus one while a datagram is handled.
	unfinished atomic.Int32
	// changed gets a value after a datagram was added, and after close.
	changed chan struct{}
}

// The largest queue, as large as the receive buffer of a socket: room for what peers send until the client has bound a
// channel.
const (
	maxUndecided      = 256
	maxUndecidedBytes = 256 << 10
)

// add reports false if the queue is full. After close it discards the datagram.
func (u *undecided) add(d Datagram) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return true
	}
	if len(u.queue) >= maxUndecided || u.bytes+d.n > maxUndecidedBytes {
		return false
	}
	u.queue = append(u.queue, d)
	u.bytes += d.n
	u.unfinished.Add(1)
	u.notify()
	return true
}

// holds reports whether a datagram of a peer is in the queue or is being handled, so that a later one must not overtake
// it.
func (u *undecided) holds(peer netip.AddrPort) bool {
	if u.unfinished.Load() == 0 {
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.handled == peer || slices.ContainsFunc(u.queue, func(d Datagram) bool { return d.peer == peer })
}

// next waits for a datagram and removes it from the queue. The call means that the previous datagram was handled. ok is
// false after close.
func (u *undecided) next() (d Datagram, ok bool) {
	for {
		u.mu.Lock()
		u.handled = netip.AddrPort{}
		u.unfinished.Store(int32(len(u.queue)))
		if u.closed || len(u.queue) > 0 {
			break
		}
		u.mu.Unlock()
		<-u.changed
	}
	defer u.mu.Unlock()
	if u.closed {
		return d, false
	}
	d = u.queue[0]
	u.queue[0] = Datagram{} // its memory becomes free
	u.handled, u.bytes = d.peer, u.bytes-d.n
	u.unfinished.Store(int32(len(u.queue)))
	if u.queue = u.queue[1:]; len(u.queue) == 0 {
		u.queue = nil
	}
	return d, true
}

func (u *undecided) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closed, u.queue = true, nil
	u.notify()
}

func (u *undecided) notify() {
	select {
	case u.changed <- struct{}{}:
	default:
	}
}
