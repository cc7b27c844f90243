package forward

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
)

// receive handles a frame, which it decrypts in place. Only the reader calls it. It must call flush after a batch.
func (f *Forwarder) receive(from netip.AddrPort, frame []byte, now time.Time) {
	h, ok := parseHeader(frame)
	if !ok {
		f.refuse(meter.BadFrame, from)
		return
	}
	v := f.view.Load()
	l := v.senders[h.sender]
	if l == nil || l.peer.Address != from {
		f.refuse(meter.Stranger, from)
		return
	}
	o := l.opener(h.keyID)
	switch {
	case o == nil:
		f.refuse(meter.BadKey, from)
		return
	case !o.window.fresh(h.counter):
		f.refuse(meter.Replay, from)
		return
	}
	m, ok := open(o.aead, frame)
	if !ok {
		f.refuse(meter.BadFrame, from)
		return
	}
	o.window.mark(h.counter)
	l.pod.setReceived(f.since(now))
	m.counter = h.counter
	f.handle(v, l, m, now)
}

// opener returns the opener of a key, or nil.
func (l *link) opener(keyID byte) *opener {
	for i := range l.openers {
		if l.openers[i].keyID == keyID {
			return l.openers[i].opener
		}
	}
	return nil
}

// flush ends a batch of calls of receive.
func (f *Forwarder) flush(now time.Time) {
	f.sessions.Flush(now)
	f.replies.Flush()
}

// handle handles an authenticated frame.
func (f *Forwarder) handle(v *view, l *link, m message, now time.Time) {
	k, _ := keyOf(m.client) // a client in a frame never has a zone
	at := f.since(now)
	switch m.kind {
	case data:
		f.handleData(l, k, m, now)
	case ask:
		f.handleAsk(v, l, k, m, now)
	case reply:
		f.handleReply(l, k, m, at)
	case is:
		f.handleIs(v, l, k, m, now)
	case unknown:
		f.handleUnknown(l, k, m, at)
	case hold, renew, release:
		f.handleHold(l, m, at)
	case take, adopt:
		f.handleTake(l, m)
	case begin:
		f.handleBegin(l, m)
	case taken:
		f.handleTaken(l, k, m)
	case fromPeer:
		f.handleFromPeer(l, m, now)
	case toPeer:
		f.handleToPeer(l, m)
	case part:
		f.sessions.Part(m.client, f.returnPath(l, m.client))
	case copyOf:
		f.handleCopy(v, l, k, m, now)
	case copied:
		f.handleCopied(v, l, k, m)
	case newer:
		f.handleNewer(v, l, k, m)
	case ping:
		f.replies.add(l, pong, m.client, nil)
	case pong:
	case pingRequest:
		f.handlePingRequest(v, l, m, at)
	case counts:
		f.handleCounts(l, m, at)
	case admit:
		f.handleAdmit(v, l, m, at)
	case admitted:
		f.handleAdmitted(l, m)
	default:
		f.refuse(meter.BadFrame, l.peer.Address)
	}
}

func (f *Forwarder) handleData(l *link, k clientKey, m message, now time.Time) {
	if f.sessions.Deliver(m.client, m.payload, f.returnPath(l, m.client), now) {
		f.counters.delivered.Add(1)
		return
	}
	if !f.sessions.Serves(m.client.Port) {
		f.refuse(meter.OtherListener, l.peer.Address)
		return
	}
	if n := f.replies.find(k); n != nil { // the successor of a handover, which may be the pod of l
		if owner := n.owner.Load(); owner != nil {
			f.replies.add(l, is, m.client, append(binary.BigEndian.AppendUint64(nil, owner.id), m.payload...))
			return
		}
	}
	f.replies.add(l, unknown, m.client, nil)
	f.queue(k, m.client, release) // a home has named this pod as the owner, but this pod has no session
}

func (f *Forwarder) handleAsk(v *view, l *link, k clientKey, m message, now time.Time) {
	if f.sessions.Has(m.client) {
		if v.self != nil {
			// The front must store the owner before it receives the answer to its datagram.
			f.replies.add(l, is, m.client, binary.BigEndian.AppendUint64(nil, v.self.id))
			f.replies.Flush()
		}
		f.handleData(l, k, m, now)
		return
	}
	owner, ok := f.index.find(k, f.since(now))
	switch {
	case ok && owner == l.pod.id:
		f.refuse(meter.Loop, l.peer.Address)
		f.index.release(k, owner)
	case ok && f.awaitsTakeOver(v, k, m.client, owner, f.since(now)): // drop the datagram: the client sends more
		return
	case ok && v.links[owner] != nil:
		v.links[owner].pod.need(f.since(now))
		f.replies.add(l, is, m.client, append(binary.BigEndian.AppendUint64(nil, owner), m.payload...))
		return
	case !f.sessions.Serves(m.client.Port):
		f.refuse(meter.OtherListener, l.peer.Address)
		return
	}
	f.replies.add(l, unknown, m.client, m.payload)
}

// isSTUN distinguishes a STUN message from ChannelData by the first byte (RFC 7983).
func isSTUN(payload []byte) bool { return len(payload) > 0 && payload[0] < 4 }

// handleUnknown handles the answer of a pod that has neither the session nor its owner. If a home returns the datagram,
// the datagram is sent to the other home, because perhaps only that home has received the announcement of a new
// session. If no home is left, a STUN message is passed to the listener, so that a client whose session has ended gets
// an error at once.
func (f *Forwarder) handleUnknown(l *link, k clientKey, m message, at time.Duration) {
	limit := 0
	switch {
	case len(m.payload) == 0:
	case isSTUN(m.payload):
		limit = asksPerSlot
	default: // media; the client sends more
		limit = freeAsksPerSlot
	}
	next, asked := f.front.missing(k, l.pod, limit, at)
	switch {
	case len(m.payload) == 0:
	case next != nil:
		if home := next.link.Load(); home == nil {
			f.unsent(1)
		} else if f.replies.add(home, ask, m.client, m.payload) {
			f.counters.asked.Add(1)
		}
	case asked != nil && isSTUN(m.payload):
		f.sessions.Unowned(m.client, m.payload, asked)
	default:
		f.counters.unknown.Add(1)
		f.meter.Decline(meter.Unowned, meter.Note{})
	}
}

func (f *Forwarder) handleReply(l *link, k clientKey, m message, at time.Duration) {
	n := f.replies.find(k)
	if n == nil || n.owner.Load() != l.pod {
		f.refuse(meter.Unasked, l.peer.Address)
		return
	}
	if !f.sessions.Answer(m.client, m.payload, n.asked.Load()) {
		f.refuse(meter.OtherListener, l.peer.Address)
		return
	}
	if other := n.other.Load(); other != nil {
		f.sessions.Answer(m.client, m.payload, other)
	}
	if n.answered.Load() != int64(at) {
		n.answered.Store(int64(at))
	}
	f.counters.answered.Add(1)
}

func (f *Forwarder) handleIs(v *view, l *link, k clientKey, m message, now time.Time) {
	at := f.since(now)
	if len(m.payload) < 8 {
		f.refuse(meter.BadFrame, l.peer.Address)
		return
	}
	id, payload := binary.BigEndian.Uint64(m.payload), m.payload[8:]
	owner := v.links[id]
	switch {
	case v.self != nil && v.self.id == id && f.returned(l, m.client, payload, now):
		return
	case v.self != nil && v.self.id == id:
		f.refuse(meter.Loop, l.peer.Address)
		f.front.missing(k, l.pod, 0, at)
		if !f.sessions.Has(m.client) {
			f.queue(k, m.client, release)
		}
		return
	case owner == nil:
		f.front.missing(k, l.pod, 0, at)
		return
	}
	to, full := f.front.found(k, l.pod, owner.pod, at)
	switch {
	case full:
		f.unlisted()
		return
	case to == nil:
		f.refuse(meter.Unasked, l.peer.Address)
		return
	}
	if len(payload) == 0 {
		return
	}
	if next := to.link.Load(); next == nil {
		f.unsent(1)
	} else if f.replies.add(next, data, m.client, payload) {
		f.counters.passed.Add(1)
	}
}

// returned handles a datagram that this front has sent to a former owner, after that pod has handed over the session to
// this pod. It reports false if there is no such session here.
func (f *Forwarder) returned(l *link, c Client, payload []byte, now time.Time) bool {
	f.sessions.FromPeer(c, f.returnPath(l, c), netip.AddrPort{}, nil, now) // Confirm may arrive later
	return len(payload) > 0 && f.sessions.Deliver(c, payload, ReturnPath{}, now)
}

// handleHold handles the frames that list clients: hold, renew and release.
func (f *Forwarder) handleHold(l *link, m message, at time.Duration) {
	size := recordSize(m.client.Addr.Addr())
	for c, rest := m.client, m.payload; ; {
		if k, _ := keyOf(c); m.kind == release {
			f.index.release(k, l.pod.id)
		} else if !f.index.hold(k, l.pod.id, at, m.kind == hold) {
			f.unlisted()
		} else if s := f.index.other(k, l.pod.id); s != nil {
			f.tellNewer(l, c, s.Session, s.claim())
		}
		if len(rest) == 0 {
			return
		}
		var ok bool
		if c, rest, ok = record(rest, size); !ok {
			f.refuse(meter.BadFrame, l.peer.Address)
			return
		}
	}
}
