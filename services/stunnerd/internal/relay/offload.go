package relay

import (
	"sync/atomic"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/cluster"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/offload"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// Routes is the current view of the routes of one listener. A config change replaces the view.
type Routes struct {
	view  atomic.Pointer[cluster.View]
	group atomic.Pointer[offload.Group]
	// nominated is the function of OnNomination, or nil.
	nominated atomic.Pointer[func(*Relay, session.Check)]
	// fresh is the function of OnFreshCheck, or nil.
	fresh atomic.Pointer[func(*Relay)]
}

// Load returns the view.
func (r *Routes) Load() *cluster.View { return r.view.Load() }

// Store replaces the view. After Store, the kernel no longer forwards packets that only the old view allows.
func (r *Routes) Store(v *cluster.View) {
	r.view.Store(v)
	r.group.Load().Invalidate()
}

// Offload makes the kernel forward the data of the channels of this listener. Forwarding by an Offload of an earlier
// call ends. A nil Offload is valid.
func (r *Routes) Offload(f *offload.Offload) { r.group.Swap(f.NewGroup()).Close() }

// OnNomination makes relays report the nominating connectivity checks (RFC 8445 §7.2.2) of their clients over UDP: for
// each peer the first check with its newest USERNAME. A relay calls the function at most once a second for each peer. A
// check that arrives earlier waits. The function must not block, because clients wait for it.
func (r *Routes) OnNomination(f func(*Relay, session.Check)) { r.nominated.Store(&f) }

// OnFreshCheck makes relays report that Checks has a new check that does not nominate, at most once a second.
func (r *Routes) OnFreshCheck(f func(*Relay)) { r.fresh.Store(&f) }

// generation returns the generation in which a channel may be armed. It must be read before the routes. It is zero if
// the kernel must not forward packets of the relay: without a group, with a limit of bytes, which only user space
// enforces, and during a move, because the kernel would use only one of the two sockets.
func (r *Relay) generation() offload.Generation {
	g := r.routes.group.Load().Generation()
	if g.IsZero() || r.session.BytesLimited() || r.departing.Load() || r.moving.Load() != nil {
		return offload.Generation{}
	}
	return g
}

// armRetry is how long a channel that cannot be armed stays in user space.
const armRetry = 10 * time.Second

// arm makes the kernel forward the next packets of a channel. It is called after a packet of the channel was forwarded
// and its permission checked. The caller has read generation before the routes.
func (r *Relay) arm(c *channel, generation offload.Generation, now time.Time) {
	if generation.IsZero() || !c.isAnswered() || c.binding.Live(generation) || int64(r.since(now)) < c.armAfter.Load() {
		return
	}
	local := r.session.Client.Local()
	if !local.IsValid() {
		return // the client may use another pod; the channel is armed when its path is certain
	}
	c.armAfter.Store(int64(r.since(now) + armRetry))
	permitted := r.time(c.permitted.Load())
	if later := c.binding.Permitted(); later.After(permitted) { // extended by another Offload
		permitted = later
	}
	armed := generation.Arm(&c.binding, offload.Entry{
		Client: r.session.Client.Addr(), Listener: local, Channel: c.number, Peer: c.peer, Relay: r.socket.Bound(),
		Until: r.time(c.until.Load()), Permitted: permitted,
		Prolong: PermissionLifetime,
		Count:   func(n offload.Counters) { r.countKernel(c, n) },
		Share:   &r.slots,
	})
	if armed || !generation.Current() { // the routes have changed, so the next packet is checked again
		c.armAfter.Store(0)
	}
	// Close, Depart or Disarm may have ended the bindings before.
	if r.Closed() || r.departing.Load() || !r.session.Client.Local().IsValid() {
		c.binding.End()
	}
}

// Disarm ends the forwarding of all channels in the kernel. Permissions that in-kernel packets have extended keep their
// new expiry. The channels are armed again when Client.Local is valid.
func (r *Relay) Disarm() {
	for _, c := range *r.channels.Load() {
		permitted := int64(r.since(c.binding.Permitted()))
		c.binding.End()
		for was := c.permitted.Load(); was < permitted && !c.permitted.CompareAndSwap(was, permitted); {
			was = c.permitted.Load()
		}
	}
}

// time returns the time of a duration since the start of the session.
func (r *Relay) time(since int64) time.Time { return r.session.Started.Add(time.Duration(since)) }

// permittedAt reports whether the peer of a channel has a permission. ChannelData that the kernel has forwarded extends
// it too.
func (r *Relay) permittedAt(c *channel, now time.Time) bool {
	return int64(r.since(now)) < c.permitted.Load() || now.Before(c.binding.Permitted())
}

// renew updates in the kernel when a channel binding and the permission of its peer expire.
func (r *Relay) renew(c *channel) {
	c.binding.Renew(r.time(c.until.Load()), r.time(c.permitted.Load()))
}

// countKernel counts packets of a channel that the kernel has forwarded.
func (r *Relay) countKernel(c *channel, n offload.Counters) {
	up, down, now := meter.Sum(n.Up), meter.Sum(n.Down), r.now()
	if up.Packets > 0 {
		c.count.addSent(up.Packets, now)
	}
	if down.Packets > 0 {
		c.count.addReceived(down.Packets, now)
	}
	r.session.Traffic.Tx.AddSum(up)
	r.session.Traffic.Rx.AddSum(down)
	v := c.verdict.Load()
	for _, t := range [...]*meter.Traffic{v.traffic, v.usage} {
		if t != nil {
			t.Tx.AddSum(up)
			t.Rx.AddSum(down)
		}
	}
	r.meter.Offloaded.Tx.AddSum(up)
	r.meter.Offloaded.Rx.AddSum(down)
	l := r.meter.Listener(r.session.Listener)
	l.Rx.AddSum(framed(up))
	l.Tx.AddSum(framed(down))
}

// framed converts the counts of payloads to counts of ChannelData frames. The kernel forwards only frames without
// padding.
func framed(payloads meter.Sum) meter.Sum {
	payloads.Bytes += headerSize * payloads.Packets
	return payloads
}
