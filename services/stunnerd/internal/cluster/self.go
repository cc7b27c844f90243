package cluster

import (
	"maps"
	"net/netip"
	"slices"
)

// Self is the set of sockets on which this process and the other pods of its Gateway receive from clients. A client
// must not have any of them as a peer: if it could reach a listener through its own relay, it could nest allocations,
// and packets would loop. A Self is immutable, and views share it. The zero Self is empty.
type Self struct {
	// ports has the port of each socket as a key. The value is true if listeners bind the port.
	ports   map[uint16]bool
	addrs   map[netip.Addr]struct{}
	sockets map[netip.AddrPort]struct{}
}

// NewSelf returns the Self of the pods of a Gateway: their addresses are addrs, and their listeners bind ports.
// Loopback addresses are always included. sockets are other transport addresses that lead to the listeners, such as
// those of a load balancer.
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

// Equal reports whether two Selves contain the same sockets.
func (s *Self) Equal(other *Self) bool {
	return s != nil && other != nil && maps.Equal(s.ports, other.ports) &&
		maps.Equal(s.addrs, other.addrs) && maps.Equal(s.sockets, other.sockets)
}

// at reports whether Self contains a transport address.
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

// WithoutSelf returns a copy of the view that denies the sockets of self. It does not deny relay ports: two clients of
// a gateway may exchange data through their relays if a route allows it.
func (v *View) WithoutSelf(self *Self) *View {
	without := *v
	without.self = self
	return &without
}

// Permits reports whether a client may have a permission for a peer. A permission is for all ports of an address (RFC
// 8656 §9). Nevertheless a request that names a socket of Self with its port is refused, because all data to that
// socket would be dropped, and the client learns this at once.
func (v *View) Permits(peer netip.AddrPort) bool {
	return v.AllowsAddr(peer.Addr()) && !v.leadsToSelf(peer.Addr().Unmap(), peer.Port())
}

// leadsToSelf reports whether Self contains a transport address, or an IPv4 address inside it with the same port.
func (v *View) leadsToSelf(addr netip.Addr, port uint16) bool {
	var room [maxEmbedded]netip.Addr
	inside, _ := embedded(addr, &room)
	leads := func(a netip.Addr) bool { return v.self.at(a, port) }
	return slices.ContainsFunc(inside, leads) || leads(addr)
}
