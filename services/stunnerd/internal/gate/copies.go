package gate

import (
	"net/netip"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/usage"
)

// Version returns the transaction ID of the Allocate request of the session of a client, and the generation of the
// session. It reports false without a session, and for one that another pod has not let go yet.
func (g *Gate) Version(client netip.AddrPort) (allocated [12]byte, generation uint32, ok bool) {
	f := g.flow(client)
	if f == nil || f.waits.Load() || f.relay.Closed() {
		return allocated, 0, false
	}
	return f.allocated, f.generation, true
}

// Copy returns the record of the session of a client over UDP in at most a number of bytes, for other pods that continue
// the session if this one is lost. Checks to peers that the client has reached first are left out if there is no room.
// Copy reports false for a session that would not continue: it has more channels and permissions than that, or the client
// has sent no check, without which no peer takes the relayed address of another pod.
func (g *Gate) Copy(client netip.AddrPort, most int) (record []byte, ok bool) {
	f := g.flow(client)
	if f == nil || f.waits.Load() {
		return nil, false
	}
	at, ok := f.Client.(sourced)
	if !ok || f.Client.Connected() {
		return nil, false
	}
	f.refreshing.Lock()
	r := g.record(f, at)
	f.refreshing.Unlock()
	r.Checks = f.relay.Checks()
	for ; len(r.Checks) > 0; r.Checks = r.Checks[1:] {
		b, err := r.MarshalBinary()
		if err == nil && len(b) <= most {
			return b, true
		}
	}
	return nil, false
}

// GiveUp ends a session that another pod has taken over, if it is still the one of a version. The client gets no answer to
// anything any more, and the journal forgets the session.
func (g *Gate) GiveUp(client netip.AddrPort, allocated [12]byte, generation uint32) {
	f := g.flow(client)
	if f == nil || f.allocated != allocated || f.generation != generation {
		return
	}
	g.unstore(f)
	g.end(f, usage.Moved)
	g.meter.SessionsGivenUp.Add(1)
}
