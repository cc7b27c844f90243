package cluster

import (
	"maps"
	"net/netip"
)

// Self is where this process and the other pods of its Gateway receive datagrams from clients. None of these sockets is a peer (T-03): a
// client that reaches a listener through its own relay can nest allocations, and packets then go round. A Self is immutable, and views share
// it. The zero Self spares nothing.
type Self struct {
	// ports holds every port of a socket. Its value says whether a listener of this process binds the port.
	ports   map[uint16]bool
	addrs   map[netip.Addr]struct{}
	sockets map[netip.AddrPort]struct{}
}

// NewSelf returns the Self of a host with addrs, on which listeners bind ports; loopback addresses count without being in addrs. sockets are
// addresses elsewhere that lead to the listeners, such as those of a load balancer.
func NewSelf(addrs []netip.Addr, ports []uint16, sockets []netip.AddrPort) *Self {
	s := &Self{ports: map[uint16]bool{}, addrs: map[netip.Addr]struct{}{}, sockets: map[netip.AddrPort]struct{}{}}
	for _, a := range addrs {
		s.addrs[a.Unmap()] = struct{}{}
	}
	for _, a := range sockets {
		s.sockets[netip.AddrPortFrom(a.Addr().Unmap(), a.Port())] = struct{}{}
		s.ports[a.Port()] = false
	}
	for _, port := range ports {
		s.ports[port] = true
	}
	return s
}

// Equal tells whether two Selves are the same sockets.
func (s *Self) Equal(other *Self) bool {
	return s != nil && other != nil && maps.Equal(s.ports, other.ports) && maps.Equal(s.addrs, other.addrs) && maps.Equal(s.sockets, other.sockets)
}

// at tells whether a socket of Self is at an address and port.
func (s *Self) at(addr netip.Addr, port uint16) bool {
	if s == nil {
		return false
	}
	bound, known := s.ports[port]
	if !known {
		return false
	}
	if _, own := s.addrs[addr]; bound && (own || addr.IsLoopback()) {
		return true
	}
	_, own := s.sockets[netip.AddrPortFrom(addr, port)]
	return own
}

// Sparing returns the view without the sockets of self. Ports of relays stay: two clients of one gateway may meet there, where a route
// allows it.
func (v *View) Sparing(self *Self) *View {
	spared := *v
	spared.self = self
	return &spared
}

// Permits tells whether a client may have a permission for a peer. A permission names an address and counts for all its ports (RFC 8656
// §9), but a client that names a socket of Self with its port wants that socket, and is told at once that data for it is dropped.
func (v *View) Permits(peer netip.AddrPort) bool {
	return v.AllowsAddr(peer.Addr()) && !v.leadsToSelf(peer.Addr().Unmap(), peer.Port())
}

// leadsToSelf tells whether an address, or an IPv4 address inside it, is that of a socket of Self.
func (v *View) leadsToSelf(addr netip.Addr, port uint16) bool {
	var room [maxEmbedded]netip.Addr
	inside, _ := embedded(addr, &room)
	for _, a := range inside {
		if v.self.at(a, port) {
			return true
		}
	}
	return v.self.at(addr, port)
}
