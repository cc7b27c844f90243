package forward

import (
	"net/netip"
	"sync/atomic"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
)

// Status is the state of a Forwarder.
type Status struct {
	// Problem says why nothing is forwarded, or why nothing is forwarded between some of the pods. It is empty if
	// forwarding works.
	Problem string
	// Peers is the number of other pods. Clients is the number of clients whose owner this front knows. Held is the
	// number of clients whose owner this home stores.
	Peers, Clients, Held int
	// Copies is the number of sessions of other pods that this home has a copy of.
	Copies int
	// Passed counts datagrams of clients that this front has sent to owners, and Answered the datagrams of owners that
	// it has sent to clients. Delivered and Replied count the same datagrams at the owner.
	Passed, Answered, Delivered, Replied uint64
	// Asked counts the ask frames of this front. Limited counts datagrams that were dropped because of the limits of
	// ask frames. Unknown counts datagrams of clients without an owner.
	Asked, Limited, Unknown uint64
	// Failed counts the frames that could not be sent. It also counts the clients that did not fit into the index or
	// into the pending announcements.
	Failed uint64
	// Refused counts frames that were dropped or not sent, by the other reasons of meter.Frames.
	Refused map[string]uint64
}

// counters are the counters of Status.
type counters struct {
	passed, answered, delivered, replied, asked, limited, unknown, failed atomic.Uint64
}

// refuse counts a received frame that was dropped. from is the address of its pod.
func (f *Forwarder) refuse(why meter.Reason, from netip.AddrPort) {
	f.meter.Decline(why, meter.Note{Peer: from})
}

// unsent counts frames that could not be sent.
func (f *Forwarder) unsent(frames uint64) {
	for range frames {
		f.counters.failed.Add(1)
		f.meter.Decline(meter.Unsent, meter.Note{})
	}
}

// unlisted counts a client that did not fit into the index or into the pending announcements.
func (f *Forwarder) unlisted() {
	f.counters.failed.Add(1)
	f.meter.Decline(meter.Unlisted, meter.Note{})
}

// Status returns the state, and the counters since the start.
func (f *Forwarder) Status() Status {
	if f == nil {
		return Status{Problem: "forwarding between pods is off"}
	}
	c := &f.counters
	v := f.view.Load()
	s := Status{
		Problem: v.problem, Peers: len(v.links),
		Clients: f.front.len(), Held: f.index.len(),
		Passed: c.passed.Load(), Answered: c.answered.Load(), Delivered: c.delivered.Load(), Replied: c.replied.Load(),
		Asked: c.asked.Load(), Limited: c.limited.Load(), Unknown: c.unknown.Load(), Failed: c.failed.Load(),
		Refused: f.meter.Declined(meter.Frames),
	}
	s.Copies, _ = f.index.numCopies()
	for _, not := range []meter.Reason{meter.Unowned, meter.Searches} { // counted in Unknown and Limited
		delete(s.Refused, not.String())
	}
	return s
}
