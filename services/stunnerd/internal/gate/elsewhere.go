package gate

import (
	"iter"
	"net/netip"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// elsewhere passes a message of a client without a session to the pod that has the session, if there may be one. A
// Binding or Allocate request is always for this pod.
func (g *Gate) elsewhere(r *request, message []byte) bool {
	switch r.Type.Method {
	case stun.MethodRefresh, stun.MethodCreatePermission, stun.MethodChannelBind, stun.MethodSend:
	default:
		return false
	}
	c, ok := r.client.(session.Movable)
	return ok && g.flow(r.client.Addr()) == nil && c.Pass(message, time.Now())
}

// follow makes the session use the path of an authenticated request.
func (f *flow) follow(request session.Client) {
	if c, ok := f.Client.(session.Movable); ok && c.Follow(request) {
		f.relay.Disarm()
	}
}

// held tells other pods that the session of a client is here.
func (f *flow) held() {
	if c, ok := f.Client.(session.Movable); ok {
		c.Held()
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
