package forward

import (
	"encoding/binary"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
)

const (
	// pingEvery is how often a pod is pinged while this pod needs it and receives nothing from it.
	pingEvery = 100 * time.Millisecond
	// quietTime is how long a pod that is needed may be silent before it is pinged.
	quietTime = 250 * time.Millisecond
	// lostPings is the number of pings without an answer after which a pod is lost: 1.5 s. With a loss of 20 % in each
	// direction, one pod in ten million is lost by mistake.
	lostPings = 15
	// neededFor is how long a pod counts as needed after the last call of need.
	neededFor = time.Second
	// pingRequestAfter is the number of pings without an answer after which other pods are requested to ping the pod
	// too. After as many further pings the request is repeated.
	pingRequestAfter = 3
	// lostEvery is the number of intervals of pingEvery between two pings of a lost pod.
	lostEvery = 10
)

// life records whether another pod answers.
type life struct {
	// received is the arrival time of the latest frame of the pod. needed is when this process last needed the pod
	// while the pod was silent. Both are on the clock of the Forwarder.
	received, needed atomic.Int64
	// unanswered counts the pings since received.
	unanswered atomic.Int32
}

// setReceived records the arrival of a frame of the pod.
func (p *life) setReceived(at time.Duration) {
	if at-time.Duration(p.received.Load()) >= time.Millisecond {
		p.received.Store(int64(at))
	}
	if p.unanswered.Load() != 0 {
		p.unanswered.Store(0)
	}
}

// need records that this process needs the pod, so that it pings the pod if the pod is silent.
func (p *life) need(at time.Duration) {
	if at-time.Duration(p.received.Load()) >= quietTime {
		p.needed.Store(int64(at))
	}
}

// lost reports whether the pod does not answer.
func (p *life) lost() bool { return p.unanswered.Load() >= lostPings }

// nobody is the placeholder in the client field of frames that are not about a client.
var nobody = Client{Addr: netip.AddrPortFrom(netip.IPv4Unspecified(), 0)}

// ping pings silent pods that are needed, and lost pods. It is called every pingEvery; count is the number of calls so
// far.
func (a *announcer) ping(count int, now time.Duration) {
	v := a.forwarder.view.Load()
	if !v.forwards() {
		return
	}
	for _, l := range v.links {
		p := &l.pod.life
		n := p.unanswered.Load()
		switch {
		case p.lost():
			if count%lostEvery == 0 {
				a.outbox.add(l, ping, nobody, nil)
			}
			continue
		case now-time.Duration(p.received.Load()) < quietTime:
			continue
		case p.needed.Load() == 0 || now-time.Duration(p.needed.Load()) >= neededFor:
			p.unanswered.CompareAndSwap(n, 0)
			continue
		}
		// A pong that is handled at the same time sets the counter to 0, which must not be overwritten.
		p.unanswered.CompareAndSwap(n, n+1)
		a.outbox.add(l, ping, nobody, nil)
		if n > 0 && n%pingRequestAfter == 0 {
			a.requestPings(v, l)
		}
	}
	a.outbox.Flush()
}

// requestPings requests the other pods to ping a pod, because a home takes over a session only if the owner has not
// answered pings of the home itself.
func (a *announcer) requestPings(v *view, about *link) {
	id := binary.BigEndian.AppendUint64(nil, about.pod.id)
	for _, l := range v.links {
		if l != about {
			a.outbox.add(l, pingRequest, nobody, id)
		}
	}
}

func (f *Forwarder) handlePingRequest(v *view, l *link, m message, at time.Duration) {
	if len(m.payload) != 8 {
		f.refuse(meter.BadFrame, l.peer.Address)
		return
	}
	if about := v.links[binary.BigEndian.Uint64(m.payload)]; about != nil {
		about.pod.need(at)
	}
}

// gone reports whether a pod has left the list or is lost. It returns false for this pod.
func (v *view) gone(id uint64) bool {
	if v.self != nil && v.self.id == id {
		return false
	}
	l := v.links[id]
	return l == nil || l.pod.lost()
}
