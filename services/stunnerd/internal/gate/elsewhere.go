package gate

import (
	"iter"
	"net/netip"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// elsewhere passes a message of a client without a session to the pod that has the session, if there may be such a pod.
// A provisional session counts as a session of the other pod. This pod always handles Binding and Allocate requests. A
// Send indication of a client with a session updates the path to the client, as ChannelData does.
func (g *Gate) elsewhere(r *request, message []byte) bool {
	switch r.Type.Method {
	case stun.MethodRefresh, stun.MethodCreatePermission, stun.MethodChannelBind, stun.MethodSend:
	default:
		return false
	}
	c, ok := r.client.(session.Movable)
	if !ok {
		return false
	}
	f := g.flow(r.client.Addr())
	if (f == nil || f.waits.Load()) && c.Pass(message, time.Now()) {
		return true
	}
	if f != nil && r.Type.Class == stun.ClassIndication {
		g.follow(f, r.client, message, false)
	}
	return false
}

// beginElsewhere passes an authenticated Allocate request to another pod, if this process drains. Load balancers may
// send new clients to a pod for some time after it has begun to drain.
func (g *Gate) beginElsewhere(r *request) bool {
	c, ok := r.client.(session.Movable)
	return ok && g.table.Draining() && c.Begin(r.Raw)
}

// follow records on which path a client with a session has sent a message.
func (g *Gate) follow(f *flow, from session.Client, message []byte, authentic bool) {
	if c, ok := f.Client.(session.Movable); ok {
		g.moved(f, c.Follow(from, message, authentic))
	}
}

// Moved handles a change of the path to a client that ChannelData has caused.
func (g *Gate) Moved(client netip.AddrPort, how session.Move) {
	if f := g.flow(client); f != nil {
		g.moved(f, how)
	}
}

func (g *Gate) moved(f *flow, how session.Move) {
	switch how {
	case session.MovedAway:
		f.relay.Disarm()
		g.journal.Move(f.stored(), true)
	case session.MovedHere:
		g.journal.Move(f.stored(), false)
		f.relay.Reached()
	case session.Reached:
		f.relay.Reached()
	}
}

func (f *flow) held() {
	if c, ok := f.Client.(session.Movable); ok {
		c.Held()
	}
}

// changed sends a copy of the session to its homes.
func (f *flow) changed() {
	if c, ok := f.Client.(session.Movable); ok {
		c.Changed()
	}
}

// Clients returns the addresses of the clients with a session.
func (g *Gate) Clients() iter.Seq[netip.AddrPort] {
	return func(yield func(netip.AddrPort) bool) {
		g.mu.RLock()
		clients := make([]netip.AddrPort, 0, len(g.flows))
		for client := range g.flows {
			clients = append(clients, client)
		}
		g.mu.RUnlock()
		for _, client := range clients {
			if !yield(client) {
				return
			}
		}
	}
}
