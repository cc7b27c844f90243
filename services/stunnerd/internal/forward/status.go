package forward

import "sync/atomic"

// Status is the state of a Forwarder.
type Status struct {
	// Problem is why nothing is forwarded, or empty.
	Problem string
	// Peers is the number of other pods. Clients is the number of clients whose owner this front knows. Held is the
	// number of clients whose owner this home stores.
	Peers, Clients, Held int
	// Passed counts datagrams of clients that this front has sent to owners, and Answered the datagrams of owners that
	// it has sent to clients. Delivered and Replied count the same datagrams at the owner.
	Passed, Answered, Delivered, Replied uint64
	// Asked counts the ask frames of this front. Limited counts datagrams that were dropped because of the limits of
	// ask frames, and Unknown datagrams of clients without an owner.
	Asked, Limited, Unknown uint64
	// Failed counts frames that could not be sent, and holds for which the index has no room.
	Failed uint64
	// Refused counts received frames that were dropped, by reason (see Refusals).
	Refused map[string]uint64
}

// refusal is why a received frame was dropped.
type refusal int

const (
	badFrame refusal = iota
	badKey
	replayed
	notListed
	noListener
	looped
	unasked
	refusals
)

var refusalNames = [refusals]string{
	badFrame:   "bad_frame",
	badKey:     "bad_key",
	replayed:   "replay",
	notListed:  "stranger",
	noListener: "listener",
	looped:     "loop",
	unasked:    "unasked",
}

// Refusals returns the reasons of Status.Refused:
//
//   - bad_frame: not sealed with the key of its sender, malformed, or of an unknown version or kind
//   - bad_key: the frame names a key that this pod has not got
//   - replay: a frame of this counter was received before, or the counter is too old
//   - stranger: the sender is not in the list, or not at the address from which the frame came
//   - listener: no listener is open here on the port that the frame names
//   - loop: the frame names the pod as owner that searches the owner
//   - unasked: an answer for a client that this front does not search, or of a pod that is not its owner
func Refusals() []string { return refusalNames[:] }

// counters are the counters of Status.
type counters struct {
	passed, answered, delivered, replied, asked, limited, unknown, failed atomic.Uint64
	refused                                                               [refusals]atomic.Uint64
}

func (f *Forwarder) refuse(why refusal) { f.counters.refused[why].Add(1) }

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
		Refused: map[string]uint64{},
	}
	for why, name := range refusalNames {
		if n := c.refused[why].Load(); n > 0 {
			s.Refused[name] = n
		}
	}
	return s
}
