// Package stunmsg reads and writes STUN messages (RFC 8489) and attributes of TURN (RFC 8656). It has the parts that
// pion/stun does not have, or checks less strictly.
//
// # Files
//
//	message.go    messages, and the attributes that are understood
//	attribute.go  values of attributes
package stunmsg

import (
	"crypto/subtle"
	"encoding/binary"
	"net/netip"

	"github.com/pion/stun/v2"
)

// Address families on the wire (RFC 8656 §18.6).
const (
	FamilyIPv4 = 1
	FamilyIPv6 = 2
)

// Family returns the family of an address.
func Family(a netip.Addr) byte {
	if a.Is4() {
		return FamilyIPv4
	}
	return FamilyIPv6
}

// Address is an attribute that holds a transport address. MAPPED-ADDRESS has a plain address (RFC 8489 §14.1), and any
// other attribute an XOR'ed address (§14.2).
type Address struct {
	Type stun.AttrType
	Addr netip.AddrPort
}

// AddTo implements stun.Setter. The transaction ID of the message must be set before. An IPv4-mapped IPv6 address is
// written as IPv4.
func (a Address) AddTo(m *stun.Message) error {
	var value [4 + 16]byte
	ip := a.Addr.Addr().Unmap()
	size := 4 + 16
	if ip.Is4() {
		v4 := ip.As4()
		size = 4 + copy(value[4:], v4[:])
	} else {
		v6 := ip.As16()
		copy(value[4:], v6[:])
	}
	value[1] = Family(ip)
	binary.BigEndian.PutUint16(value[2:], a.Addr.Port())
	if a.Type != stun.AttrMappedAddress {
		xorAddress(value[:size], value[:size], m.TransactionID)
	}
	m.Add(a.Type, value[:size])
	return nil
}

// xorAddress XORs the port with the first half of the magic cookie, and the IP address with the magic cookie and the
// transaction ID (RFC 8489 §14.2). It does not write the first two bytes of dst, a zero byte and the family.
func xorAddress(dst, src []byte, id [stun.TransactionIDSize]byte) {
	mask := [16]byte{0x21, 0x12, 0xA4, 0x42}
	copy(mask[4:], id[:])
	subtle.XORBytes(dst[2:4], src[2:4], mask[:2])
	subtle.XORBytes(dst[4:], src[4:], mask[:])
}

// Number is an attribute that holds a 32-bit number, such as LIFETIME.
type Number struct {
	Type  stun.AttrType
	Value uint32
}

// AddTo implements stun.Setter.
func (n Number) AddTo(m *stun.Message) error {
	var value [4]byte
	binary.BigEndian.PutUint32(value[:], n.Value)
	m.Add(n.Type, value[:])
	return nil
}
