package relay

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/pion/stun/v2"
)

// attrICMP is the ICMP attribute (RFC 8656 §18.13), for which pion/stun has no name.
const attrICMP = stun.AttrType(0x8004)

// The ICMP types that are forwarded to clients (RFC 8656 §11.5): destination unreachable and time exceeded, and for
// IPv6 packet too big.
var (
	icmp4 = []uint8{3, 11}
	icmp6 = []uint8{1, 2, 3}
)

// forClients reports whether the ICMP message about a datagram to a peer is forwarded to the client.
func (i ICMP) forClients(peer netip.AddrPort) bool {
	if peer.Addr().Is4() {
		return slices.Contains(icmp4, i.Type)
	}
	return slices.Contains(icmp6, i.Type)
}

// attribute returns the ICMP attribute: 16 reserved bits, 7 bits of type, 9 bits of code, 32 bits of error data.
func (i ICMP) attribute() stun.RawAttribute {
	v := binary.BigEndian.AppendUint16(make([]byte, 2, 8), uint16(i.Type)<<9|uint16(i.Code))
	return stun.RawAttribute{Type: attrICMP, Value: binary.BigEndian.AppendUint32(v, i.Data)}
}
