package server

import (
	"net/netip"
	"slices"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/cluster"
)

// SetLocalAddresses puts the addresses that this host has now in the place of those that it had. Listeners on them are no peers, and relays
// speak from them.
func (s *Server) SetLocalAddresses(addrs []netip.Addr) {
	now := sorted(addrs)
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Equal(*now, *s.local.Load()) {
		return
	}
	s.local.Store(now)
	s.self = s.selfOf(s.wanted)
	for _, l := range s.wanted.Listeners {
		if r := s.listeners[l.Name]; r != nil {
			r.obey(s.policy(s.wanted, l), s.allowed[l.Name].Sparing(s.self))
		}
	}
}

// isLocal tells whether an address is one of this host. It needs no lock: relay sockets are opened while the server applies a config.
func (s *Server) isLocal(addr netip.Addr) bool {
	_, found := slices.BinarySearchFunc(*s.local.Load(), addr, netip.Addr.Compare)
	return found || addr.IsLoopback()
}

// selfOf returns the sockets of a config's listeners and of those that are still open, which are no peers of anybody.
func (s *Server) selfOf(c config.Config) *cluster.Self {
	var ports []uint16
	var sockets []netip.AddrPort
	for _, l := range c.Listeners {
		ports = append(ports, uint16(l.Port))
		sockets = append(sockets, l.ReachedAt()...)
	}
	for _, r := range s.listeners {
		ports = append(ports, uint16(r.spec.Port))
		for _, form := range r.before {
			ports = append(ports, uint16(form.spec.Port))
		}
	}
	return cluster.NewSelf(*s.local.Load(), ports, sockets)
}

// view is what a listener's clients may reach: what its routes allow, without the sockets of the gateway itself.
func (s *Server) view(l config.Listener) *cluster.View {
	s.allowed[l.Name] = cluster.NewView(s.clusters, l.Routes)
	return s.allowed[l.Name].Sparing(s.self)
}

func sorted(addrs []netip.Addr) *[]netip.Addr {
	addrs = slices.SortedFunc(slices.Values(addrs), netip.Addr.Compare)
	addrs = slices.Compact(addrs)
	return &addrs
}
