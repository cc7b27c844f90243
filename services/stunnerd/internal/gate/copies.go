package gate

import (
	"net/netip"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/usage"
)

// Version returns the transaction ID of the Allocate request of the session of a client, and the generation of the
// session. It reports false if there is no session, or if the session is provisional.
func (g *Gate) Version(client netip.AddrPort) (allocated [12]byte, generation uint32, ok bool) {
	f := g.flow(client)
	if f == nil || f.waits.Load() || f.relay.Closed() {
		return allocated, 0, false
	}
	return f.allocated, f.generation, true
}

// Copy returns the record of the session of a client over UDP, of at most the given size, from which another pod can
// continue the session if this pod is lost. Checks that do not fit are left out, the oldest first, and then the former
// authorities: without these, the session continues until its client must refresh it. Copy reports false
// for a session that could not continue: its permissions and channels do not fit, or its client has sent no
// connectivity check. Without a check, peers do not accept the relayed address of another pod.
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
	checks := f.relay.Checks()
	for _, former := range [][]Former{g.policy.Load().former(f.Started, time.Now()), nil} {
		r.Former = former
		for r.Checks = checks; len(r.Checks) > 0; r.Checks = r.Checks[1:] {
			b, err := r.MarshalBinary()
			if err == nil && len(b) <= most {
				return b, true
			}
		}
	}
	return nil, false
}

// GiveUp ends the session of a client without an answer to the client, if the session still has the given version:
// another pod has taken it over. The journal removes the session.
func (g *Gate) GiveUp(client netip.AddrPort, allocated [12]byte, generation uint32) {
	f := g.flow(client)
	if f == nil || f.allocated != allocated || f.generation != generation {
		return
	}
	g.unstore(f)
	g.end(f, usage.Moved)
	g.meter.SessionsGivenUp.Add(1)
}
