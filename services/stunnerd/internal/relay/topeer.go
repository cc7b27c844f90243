package relay

import (
	"net/netip"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/cluster"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// Outbox collects the ChannelData of one batch of a listener. The payloads for the peers of one relay are sent
// together, in order. The zero Outbox is empty. It is not safe for concurrent use.
type Outbox struct {
	groups []*group
	used   int // the number of groups in use
	sent   int // the number of groups that Flush has sent
	// clusters are the sent payloads, until the end of Flush.
	clusters meter.Tally
}

// group is the payloads for the peers of one relay.
type group struct {
	relay *Relay
	transfer
}

// Add adds the payload of a ChannelData frame from the client of a relay, or drops it. The frame must remain valid
// until Flush. now is the time of the batch.
func (o *Outbox) Add(r *Relay, frame []byte, now time.Time) {
	generation := r.generation()
	if c, v, payload := r.admit(frame, now); v != nil {
		o.group(r).add(datagram.Packet{Payload: payload, To: c.peer}, item{
			traffic: v.traffic, usage: v.usage, count: c.count, peer: c.peer, size: len(payload), channel: c, generation: generation,
		})
	} else if r.spent.Load() {
		o.group(r) // so that Flush ends the session
	}
}

// group returns the group of a relay. The search is linear, but the last group is often the right one.
func (o *Outbox) group(r *Relay) *group {
	for i := o.used - 1; i >= o.sent; i-- {
		if o.groups[i].relay == r {
			return o.groups[i]
		}
	}
	if o.used == len(o.groups) {
		o.groups = append(o.groups, new(group))
	}
	g := o.groups[o.used]
	g.relay = r
	o.used++
	return g
}

// Flush sends the payloads and empties the Outbox. A panic ends one session only. If ending that session causes a panic
// too, the next Flush sends the rest. now is the time of the batch.
func (o *Outbox) Flush(now time.Time) {
	for o.sent < o.used {
		g := o.groups[o.sent]
		r := g.relay
		o.sent, g.relay = o.sent+1, nil
		r.sendToPeers(&g.transfer, &o.clusters, now)
	}
	o.used, o.sent = 0, 0
	o.clusters.Flush()
}

var outboxes datagram.Pool[Outbox]

// FromClient forwards one ChannelData frame from the client to the peer that its channel is bound to.
func (r *Relay) FromClient(frame []byte) {
	o := outboxes.Get()
	defer outboxes.Put(o)
	now := time.Now()
	o.Add(r, frame, now)
	o.Flush(now)
}

// admit returns the channel, the verdict and the payload of a ChannelData frame. The verdict is nil if the frame was
// dropped.
func (r *Relay) admit(frame []byte, now time.Time) (c *channel, v *verdict, payload []byte) {
	number, payload, ok := parseChannelData(frame)
	if !ok {
		r.drop(meter.Malformed, netip.AddrPort{})
		return nil, nil, nil
	}
	at := r.since(now)
	if c = r.byNumber(number, at); c == nil {
		r.drop(meter.ChannelUnbound, netip.AddrPort{})
		return nil, nil, nil
	}
	if v = r.judge(c); v.reached != cluster.Allowed {
		r.Deny(v.reached, c.peer, now)
		return nil, nil, nil
	}
	c.permitted.Store(int64(at + PermissionLifetime))
	if !r.admits(session.ToPeer, len(payload), c.peer, now) {
		return nil, nil, nil
	}
	if isBindingRequest(payload) {
		r.observe(payload, c.peer)
	}
	return c, v, payload
}

func (r *Relay) sendToPeers(t *transfer, clusters *meter.Tally, now time.Time) {
	defer r.EndOnPanic("forward to peers")
	defer t.reset()
	if len(t.packets) > 0 {
		if m := r.moving.Load(); m != nil {
			m.send(t.packets)
		} else {
			r.socket.Send(t.packets)
		}
		r.count(t, session.ToPeer, clusters, now)
	}
	r.endSpent()
}

// Send sends the data of a Send indication to a peer. The caller has checked the permission. A datagram that the routes
// do not allow is dropped and counted. If whole is set, the datagram is not fragmented (DONT-FRAGMENT, RFC 8656 §14.9),
// and is dropped and counted if it is longer than the MTU of the path.
func (r *Relay) Send(data []byte, peer netip.AddrPort, whole bool) {
	defer r.EndOnPanic("forward to peer")
	name, reached := r.View().Match(peer)
	now := time.Now()
	if reached != cluster.Allowed {
		r.Deny(reached, peer, now)
		return
	}
	defer r.endSpent()
	if !r.admits(session.ToPeer, len(data), peer, now) {
		return
	}
	if isBindingRequest(data) {
		r.observe(data, peer)
	}
	t := transfers.Get()
	defer transfers.Put(t)
	t.add(datagram.Packet{Payload: data, To: peer, Whole: whole}, item{
		traffic: r.meter.Cluster(name), usage: r.session.Usage.Route(name),
		count: r.countOf(peer, r.since(now)), peer: peer, size: len(data),
	})
	r.sendToPeers(t, &t.clusters, now)
	t.clusters.Flush()
}
