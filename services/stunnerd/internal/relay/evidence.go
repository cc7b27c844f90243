package relay

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/cluster"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// peerCount counts the packets between a relay and one peer. Usually one goroutine handles each direction, so the
// counters of a direction are changed once for each run of packets with one peer. Times are time.Durations since the
// start of the session.
type peerCount struct {
	addr netip.AddrPort
	// sent counts packets to the peer. lastSent is the time of the last packet. unansweredSince is the time of the
	// first packet to the peer after its last packet.
	sent                      atomic.Uint64
	lastSent, unansweredSince atomic.Int64
	// received counts packets of the peer. lastReceived is the time of the last packet, and answered is the value of
	// sent at that time.
	received, answered atomic.Uint64
	lastReceived       atomic.Int64
	// icmp counts ICMP messages, and lastICMP is the time of the last ICMP message.
	icmp     atomic.Uint64
	lastICMP atomic.Int64
}

// addSent counts n packets to the peer.
func (p *peerCount) addSent(n uint64, now time.Duration) {
	if p.sent.Load() == p.answered.Load() {
		p.unansweredSince.Store(int64(now))
	}
	p.sent.Add(n)
	p.lastSent.Store(int64(now))
}

// addReceived counts n packets of the peer.
func (p *peerCount) addReceived(n uint64, now time.Duration) {
	p.answered.Store(p.sent.Load())
	p.received.Add(n)
	p.lastReceived.Store(int64(now))
}

// lastActive returns the time of the last packet of either direction.
func (p *peerCount) lastActive() int64 { return max(p.lastSent.Load(), p.lastReceived.Load()) }

// maxUnbound is the number of peers without a channel whose packets a relay counts. The price of a session includes
// these counters. The price of a channel includes the counters of its peer.
const maxUnbound = 8

// unboundInterval is the minimum time between two replacements of the counters of peers without a channel. So a client
// that sends each packet to a new peer does not cause a replacement for each packet.
const unboundInterval = time.Second

// unbound are the counters of peers without a channel.
type unbound struct {
	// counts is copied on write.
	counts atomic.Pointer[[]*peerCount]

	mu       sync.Mutex
	replaced time.Duration
}

// find returns the counters of a peer, or nil.
func (u *unbound) find(peer netip.AddrPort) *peerCount {
	if counts := u.counts.Load(); counts != nil {
		for _, p := range *counts {
			if p.addr == peer {
				return p
			}
		}
	}
	return nil
}

// get returns the counters of a peer, and adds them if there are none. If there are already maxUnbound, the new
// counters replace the counters of the peer that was active the longest time ago. It returns nil if the last
// replacement was less than unboundInterval ago.
func (u *unbound) get(peer netip.AddrPort, now time.Duration) *peerCount {
	if p := u.find(peer); p != nil {
		return p
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if p := u.find(peer); p != nil {
		return p
	}
	if counts := u.counts.Load(); counts != nil && len(*counts) >= maxUnbound {
		if now < u.replaced+unboundInterval {
			return nil
		}
		u.replaced = now
	}
	p := &peerCount{addr: peer}
	u.add(p)
	return p
}

// put adds the counters of a peer whose channel has ended.
func (u *unbound) put(p *peerCount) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.remove(p.addr)
	u.add(p)
}

// take removes and returns the counters of a peer that is bound to a channel. If there are none, it returns new
// counters.
func (u *unbound) take(peer netip.AddrPort) *peerCount {
	u.mu.Lock()
	defer u.mu.Unlock()
	p := u.find(peer)
	if p == nil {
		return &peerCount{addr: peer}
	}
	u.remove(peer)
	return p
}

// add adds counters, and removes the least recently active counters if there are too many. The caller holds mu.
func (u *unbound) add(p *peerCount) {
	list := []*peerCount{p}
	if old := u.counts.Load(); old != nil {
		sorted := slices.SortedFunc(slices.Values(*old), func(a, b *peerCount) int {
			return cmp.Compare(b.lastActive(), a.lastActive())
		})
		list = append(list, sorted[:min(len(sorted), maxUnbound-1)]...)
	}
	u.counts.Store(&list)
}

// remove removes the counters of a peer. The caller holds mu.
func (u *unbound) remove(peer netip.AddrPort) {
	if old := u.counts.Load(); old != nil {
		list := slices.DeleteFunc(slices.Clone(*old), func(p *peerCount) bool { return p.addr == peer })
		u.counts.Store(&list)
	}
}

// countOf returns the counters of a peer that may have a channel. It returns nil if its packets are not counted.
func (r *Relay) countOf(peer netip.AddrPort, now time.Duration) *peerCount {
	if c := r.byPeer(peer, now); c != nil {
		return c.count
	}
	return r.unbound.get(peer, now)
}

// Unreachable implements Receiver.
func (r *Relay) Unreachable(peer netip.AddrPort) {
	p := r.unbound.find(peer)
	now := r.now()
	if c := r.byPeer(peer, now); c != nil {
		p = c.count
	}
	if p != nil {
		p.lastICMP.Store(int64(now))
		p.icmp.Add(1)
	}
	r.meter.ICMPErrors.Add(1)
}

// Peers calls a function with the traffic of each peer that the relay counts.
func (r *Relay) Peers(show func(session.PeerTraffic)) {
	view := r.routes.Load()
	for _, c := range *r.channels.Load() {
		show(r.traffic(view, c.count))
	}
	if counts := r.unbound.counts.Load(); counts != nil {
		for _, p := range *counts {
			show(r.traffic(view, p))
		}
	}
}

func (r *Relay) traffic(view *cluster.View, p *peerCount) session.PeerTraffic {
	t := session.PeerTraffic{Peer: p.addr, ICMPErrors: p.icmp.Load()}
	if name, reached := view.Match(p.addr); reached == cluster.Allowed {
		t.Cluster = name
	}
	// answered is read before sent, because it is never greater.
	answered := p.answered.Load()
	t.Received = p.received.Load()
	t.Sent = p.sent.Load()
	t.Unanswered = t.Sent - answered
	if t.Sent > 0 {
		t.LastSent = r.time(p.lastSent.Load())
	}
	if t.Received > 0 {
		t.LastReceived = r.time(p.lastReceived.Load())
	}
	if t.Unanswered > 0 {
		t.UnansweredSince = r.time(p.unansweredSince.Load())
	}
	if t.ICMPErrors > 0 {
		t.LastICMP = r.time(p.lastICMP.Load())
	}
	return t
}
