package turncat

import (
	"context"
	"net"
	"net/netip"
)

// Relay is an allocation for any peers of one address family. Its methods of net.PacketConn send and receive at the
// relayed address. WriteTo creates permissions as needed.
type Relay struct {
	net.PacketConn
	allocation *allocation
}

// Family is the address family of a relayed address, as in REQUESTED-ADDRESS-FAMILY (RFC 8656 §18.8).
type Family byte

// The families. Servers that do not know REQUESTED-ADDRESS-FAMILY refuse the others.
const (
	AnyFamily Family = 0 // the server chooses
	IPv4      Family = 1
	IPv6      Family = 2
)

// FamilyOf returns the family of an address.
func FamilyOf(a netip.Addr) Family {
	if a.Unmap().Is4() {
		return IPv4
	}
	return IPv6
}

// NewRelay makes an allocation with a relayed address of the family. The error names the cause and the remedy.
func NewRelay(ctx context.Context, e Endpoint, family Family) (*Relay, error) {
	a, err := allocate(ctx, e, family, netip.AddrPort{}, nil, new(Stats))
	if err != nil {
		return nil, err
	}
	return &Relay{a.relay, a}, nil
}

// Permit creates a permission for a peer. The error names the cause and the remedy.
func (r *Relay) Permit(peer netip.AddrPort) error {
	return r.allocation.permit(net.UDPAddrFromAddrPort(peer))
}

// Address returns the relayed transport address.
func (r *Relay) Address() netip.AddrPort {
	a := r.LocalAddr().(*net.UDPAddr).AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// Close deletes the allocation.
func (r *Relay) Close() error {
	r.allocation.close()
	return nil
}
