package usage

import (
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
)

// Record is the state of one part of a session. A part is the time of the session in one process, or in successive
// processes with one folder. The counters of a part only grow. The usage of a session is the sum of its parts. The
// usage of a part is the highest values of its records, so records may be repeated, reordered and lost.
type Record struct {
	// Time is when the counters were read.
	Time time.Time `json:"time"`
	// Session identifies the session, and Part a part of it. Parts of different sessions differ too.
	Session string `json:"session"`
	Part    string `json:"part"`
	// Final reports whether the part has ended. All records after the end of a part have the same counters.
	Final bool `json:"final"`
	// Gateway is NAMESPACE/NAME. It is empty if the config names no Gateway.
	Gateway  string `json:"gateway,omitempty"`
	Listener string `json:"listener"`
	// Protocol is the protocol of the listener.
	Protocol string `json:"protocol"`
	// User is the user id without the expiry and the caveats of the user name, or a hash of it.
	User string `json:"user,omitempty"`
	// Caveats is a hash of the caveats of the credential. It is empty if there are none.
	Caveats string `json:"caveats,omitempty"`
	// Start is the start of the session. End and Reason are set if Final is.
	Start  time.Time  `json:"start"`
	End    *time.Time `json:"end,omitempty"`
	Reason string     `json:"reason,omitempty"`
	// Sent is to peers, and Received from peers.
	Sent     Count `json:"sent"`
	Received Count `json:"received"`
	// Routes are the same counts for each route.
	Routes []Route `json:"routes,omitempty"`
}

// Count is a number of datagrams, and of the bytes of their payloads.
type Count struct {
	Bytes   uint64 `json:"bytes"`
	Packets uint64 `json:"packets"`
}

// Route is the traffic with the peers of one route.
type Route struct {
	// Route is NAMESPACE/NAME, or Others.
	Route    string `json:"route"`
	Sent     Count  `json:"sent"`
	Received Count  `json:"received"`
}

func (c *Count) add(d Count) {
	c.Bytes += d.Bytes
	c.Packets += d.Packets
}

func countOf(f *meter.Flow) Count { return Count{Bytes: f.Bytes.Load(), Packets: f.Packets.Load()} }

// record reads an account. The caller holds mu.
func (b *Recorder) record(a *Account, now time.Time) Record {
	s := a.slot
	r := Record{
		Time: now.UTC(), Session: s.id.String(), Part: part(s.part), Final: s.state.Load() == ended,
		Gateway: b.slots.name(s.gateway), Listener: b.slots.name(s.listener), Protocol: b.slots.name(s.protocol),
		Start: time.UnixMilli(s.started).UTC(),
	}
	r.Caveats, r.User = b.slots.texts(a.at)
	if r.Final {
		end := time.UnixMilli(s.ended.Load()).UTC()
		r.End, r.Reason = &end, b.slots.name(s.reason.Load())
	}
	for i := range s.routes {
		at := s.routes[i].name.Load()
		if at == 0 {
			continue
		}
		one := Route{Route: b.slots.name(at), Sent: countOf(&s.routes[i].Tx), Received: countOf(&s.routes[i].Rx)}
		r.Sent.add(one.Sent)
		r.Received.add(one.Received)
		r.Routes = append(r.Routes, one)
	}
	return r
}
