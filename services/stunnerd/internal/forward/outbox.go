package forward

import (
	"errors"
	"maps"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
)

// Outbox collects the frames of one batch of a reader. It is not safe for concurrent use. A nil *Outbox passes nothing.
type Outbox struct {
	forwarder *Forwarder
	// known is a cache of clients, so that a datagram of a known client needs no lock.
	known map[clientKey]*known
	// memory holds the frames, and packets refers to them. senders has the sender of each frame.
	memory  []byte
	packets []datagram.Packet
	senders []sender
}

// outboxMemory is the memory for the frames of an Outbox. It has room for one frame of any size.
const outboxMemory = 1 << 16

// Outbox returns a new Outbox. Every reader of a listener needs one. It is nil if f is nil.
func (f *Forwarder) Outbox() *Outbox {
	if f == nil {
		return nil
	}
	return &Outbox{forwarder: f, known: map[clientKey]*known{}}
}

// Pass passes a datagram of a client without a session here on to the owner or a home. asked is the address to which
// the client has sent it. It reports false if forwarding is off or the client is known to have no owner, so that the
// caller drops or answers the datagram. The datagram may be changed after the call. now is the time of the batch.
func (o *Outbox) Pass(c Client, payload []byte, asked datagram.Source, now time.Time) bool {
	if o == nil {
		return false
	}
	f := o.forwarder
	v := f.view.Load()
	if !v.forwards() {
		return false
	}
	k, ok := keyOf(c)
	if !ok {
		return false
	}
	if n := o.known[k]; n != nil {
		if f.passTo(o, n, c, payload, &asked, now) {
			return true
		}
		delete(o.known, k)
	}
	return o.passUnknown(v, k, c, payload, &asked, now)
}

// passUnknown is Pass for a client that is not in the cache of the Outbox.
func (o *Outbox) passUnknown(
	v *view, k clientKey, c Client, payload []byte, asked *datagram.Source, now time.Time,
) bool {
	f := o.forwarder
	verdict, n, home := f.route(v, k, c, isSTUN(payload), asked, now)
	switch verdict {
	case toOwner:
		o.cache(k, n)
		return f.passTo(o, n, c, payload, asked, now)
	case toHome:
		f.counters.asked.Add(1)
		l := home.link.Load()
		return l != nil && o.add(l, ask, c, payload)
	case limited: // the client may have a session, so the caller must not send an error for a missing session
		f.counters.limited.Add(1)
		f.meter.Decline(meter.Searches, meter.Note{})
		return true
	case dropped:
		return true
	case ownerless:
		f.counters.unknown.Add(1)
		f.meter.Decline(meter.Unowned, meter.Note{})
	}
	return false
}

// passTo passes a datagram to the owner of a client. It reports false if the owner was forgotten, has left the list or
// is lost.
func (f *Forwarder) passTo(o *Outbox, n *known, c Client, payload []byte, asked *datagram.Source, now time.Time) bool {
	l := n.reach(f.since(now))
	if l == nil {
		return false
	}
	n.setReceived(asked, f.since(now))
	if o.add(l, data, c, payload) {
		f.counters.passed.Add(1)
	}
	return true
}

// cache adds a client to the cache. If the cache is much larger than the table of known clients, it also removes
// clients that are no longer in that table.
func (o *Outbox) cache(k clientKey, n *known) {
	if len(o.known) > 64 && len(o.known) > 2*o.forwarder.front.len() {
		maps.DeleteFunc(o.known, func(_ clientKey, n *known) bool { return n.owner.Load() == nil })
	}
	o.known[k] = n
}

// find returns a known client, or nil.
func (o *Outbox) find(k clientKey) *known {
	n := o.known[k]
	if n == nil || n.owner.Load() == nil {
		delete(o.known, k)
		if n = o.forwarder.front.find(k); n != nil {
			o.cache(k, n)
		}
	}
	return n
}

// add adds a frame. It reports false if the frame is too long.
func (o *Outbox) add(l *link, k kind, c Client, payload []byte) bool {
	if !o.room(payload) {
		o.Flush()
	}
	if o.put(l, k, c, payload) != nil {
		o.forwarder.unsent(1)
		return false
	}
	return true
}

// room reports whether there is room for a frame with a payload. An empty Outbox always has room.
func (o *Outbox) room(payload []byte) bool {
	return len(o.packets) == 0 ||
		len(o.packets) < datagram.BatchSize && len(o.memory)+Overhead6+len(payload) <= outboxMemory
}

var errCounter = errors.New("this process has sent the largest number of frames")

// put appends a frame. There must be room for it.
func (o *Outbox) put(l *link, k kind, c Client, payload []byte) error {
	if len(payload) > maxFrame-Overhead6 {
		return unix.EMSGSIZE
	}
	counter := o.forwarder.counter.Add(1)
	if counter > maxCounter {
		return errCounter
	}
	if o.memory == nil {
		o.memory = make([]byte, 0, outboxMemory)
		o.packets, o.senders = make([]datagram.Packet, 0, datagram.BatchSize), make([]sender, 0, datagram.BatchSize)
	}
	start := len(o.memory)
	o.memory = l.sealer.seal(o.memory, o.forwarder.self.Sender, counter, k, c, payload)
	o.packets = append(o.packets, datagram.Packet{Payload: o.memory[start:], To: l.peer.Address})
	o.senders = append(o.senders, l.sender)
	return nil
}

// Flush sends the frames. A frame that cannot be sent is counted. After a panic the Outbox is empty, because the next
// Flush would cause the panic again, and its reader would handle no further datagram.
func (o *Outbox) Flush() {
	if o == nil || len(o.packets) == 0 {
		return
	}
	defer o.empty()
	o.send()
	for i := range o.packets {
		if o.packets[i].Err != nil {
			o.forwarder.unsent(1)
		}
	}
}

// send sends the frames. Consecutive frames to the same pod are sent by one call.
func (o *Outbox) send() {
	for first := 0; first < len(o.packets); {
		end := first + 1
		for end < len(o.packets) && o.senders[end] == o.senders[first] {
			end++
		}
		o.senders[first].SendAll(o.packets[first:end])
		first = end
	}
}

func (o *Outbox) empty() {
	clear(o.senders)
	o.memory, o.packets, o.senders = o.memory[:0], o.packets[:0], o.senders[:0]
}
