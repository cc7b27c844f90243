package wire

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// Address families (RFC 8489 §14.1).
const (
	IPv4 = 1
	IPv6 = 2
)

// Empty makes an attribute without value.
func Empty(t AttrType) Attr { return Attr{Type: t} }

// Text makes a text attribute.
func Text(t AttrType, s string) Attr { return Attr{Type: t, Value: []byte(s)} }

// Uint32 makes an attribute with a 32-bit number.
func Uint32(t AttrType, n uint32) Attr {
	return Attr{Type: t, Value: binary.BigEndian.AppendUint32(nil, n)}
}

// Byte makes an attribute of four bytes of which only the first is set, such as REQUESTED-TRANSPORT and
// REQUESTED-ADDRESS-FAMILY.
func Byte(t AttrType, n byte) Attr { return Attr{Type: t, Value: []byte{n, 0, 0, 0}} }

// Channel makes CHANNEL-NUMBER.
func Channel(n uint16) Attr { return Uint32(ChannelNumber, uint32(n)<<16) }

// Even makes EVEN-PORT. With reserve, the R bit requests the next port too.
func Even(reserve bool) Attr {
	if reserve {
		return Attr{Type: EvenPort, Value: []byte{0x80}}
	}
	return Attr{Type: EvenPort, Value: []byte{0}}
}

// Address makes an XOR address attribute. An IPv4-mapped IPv6 address is encoded as IPv6.
func Address(t AttrType, a netip.AddrPort) Attr { return Attr{Type: t, Addr: a} }

// hide encodes an XOR address for a transaction id.
func hide(a netip.AddrPort, id TxID) []byte {
	family := byte(IPv4)
	if a.Addr().Is6() {
		family = IPv6
	}
	v := append([]byte{0, family, 0, 0}, a.Addr().AsSlice()...)
	binary.BigEndian.PutUint16(v[2:], a.Port())
	xor(v, id)
	return v
}

// GetAddress decodes an XOR address attribute.
func (m Message) GetAddress(t AttrType) (netip.AddrPort, error) {
	raw, ok := m.Get(t)
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("no %s", t)
	}
	return m.address(t, raw)
}

// GetAddresses decodes all XOR address attributes of a type.
func (m Message) GetAddresses(t AttrType) (all []netip.AddrPort, err error) {
	for _, a := range m.Attrs {
		if a.Type != t {
			continue
		}
		addr, err := m.address(t, a.Value)
		if err != nil {
			return nil, err
		}
		all = append(all, addr)
	}
	return all, nil
}

func (m Message) address(t AttrType, raw []byte) (netip.AddrPort, error) {
	want := map[int]byte{8: IPv4, 20: IPv6}[len(raw)]
	if want == 0 || raw[1] != want {
		return netip.AddrPort{}, fmt.Errorf("%s is not an address: % x", t, raw)
	}
	v := append([]byte(nil), raw...)
	xor(v, m.ID)
	addr, _ := netip.AddrFromSlice(v[4:])
	return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(v[2:])), nil
}

// xor encodes or decodes port and address in place (RFC 8489 §14.2).
func xor(v []byte, id TxID) {
	mask := binary.BigEndian.AppendUint32(nil, cookie)
	mask = append(mask, id[:]...)
	for i := range v[2:4] {
		v[2+i] ^= mask[i]
	}
	for i := range v[4:] {
		v[4+i] ^= mask[i]
	}
}

// GetUint32 decodes an attribute with a 32-bit number.
func (m Message) GetUint32(t AttrType) (uint32, error) {
	v, ok := m.Get(t)
	if !ok || len(v) != 4 {
		return 0, fmt.Errorf("no %s of four bytes", t)
	}
	return binary.BigEndian.Uint32(v), nil
}

// GetUnknown decodes UNKNOWN-ATTRIBUTES.
func (m Message) GetUnknown() (types []AttrType) {
	v, _ := m.Get(UnknownAttributes)
	for ; len(v) >= 2; v = v[2:] {
		types = append(types, AttrType(binary.BigEndian.Uint16(v)))
	}
	return types
}
