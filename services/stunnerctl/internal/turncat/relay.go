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

// NewRelay makes an allocation. The relayed address is an IPv6 address if ipv6 is set. The error names the cause and
// the remedy.
func NewRelay(ctx context.Context, e Endpoint, ipv6 bool) (*Relay, error) {
	var family netip.AddrPort
	if ipv6 {
		family = netip.AddrPortFrom(netip.IPv6Unspecified(), 0)
	}
	a, err := allocate(ctx, e, family, nil, new(Stats))
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
func (r *Relay) Address() netip.AddrPort { return r.LocalAddr().(*net.UDPAddr).AddrPort() }

// Close deletes the allocation.
func (r *Relay) Close() error {
	r.allocation.close()
	return nil
}
