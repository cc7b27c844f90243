package gate

import (
	"net/netip"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/cluster"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/stunmsg"
)

// Reach returns the name of the cluster and the endpoint that allow clients of this listener to reach a peer. If no
// route allows it, allowed is false, and refused is the reason with which requests or datagrams of a client are
// refused.
func (g *Gate) Reach(peer netip.AddrPort) (name string, at config.Endpoint, refused meter.Reason, allowed bool) {
	p := g.policy.Load()
	if !p.serves() {
		return "", at, meter.STUNOnly, false
	}
	if _, ok := p.relayAddr(stunmsg.Family(peer.Addr())); !ok {
		return "", at, meter.FamilyUnsupported, false
	}
	name, at, verdict := g.routes.Load().Explain(peer)
	if verdict != cluster.Allowed {
		return "", at, relay.ReasonOf(verdict), false
	}
	return name, at, 0, true
}

// EndSessions ends the selected sessions of this listener for a reason, and returns them.
func (g *Gate) EndSessions(selected func(*session.Session) bool, why string) (ended []*session.Session) {
	g.mu.RLock()
	var flows []*flow
	for _, f := range g.flows {
		if selected(f.Session) {
			flows = append(flows, f)
		}
	}
	g.mu.RUnlock()
	for _, f := range flows {
		g.end(f, why)
		ended = append(ended, f.Session)
	}
	return ended
}
