package stunmsg

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"

	"github.com/pion/stun/v2"
)

const (
	// HeaderSize is the length of the header of a message (RFC 8489 §5).
	HeaderSize = 20
	// MaxSize is the length of the longest message: the length field has 16 bits.
	MaxSize = HeaderSize + 65535
	// magicCookie is in bytes 4 to 7 of each message (RFC 8489 §5).
	magicCookie = 0x2112A442
)

// Attributes for which pion/stun has no name (RFC 8656 §18.11, §18.12).
const (
	AttrAdditionalFamily = stun.AttrType(0x8000) // ADDITIONAL-ADDRESS-FAMILY
	AttrAddressErrorCode = stun.AttrType(0x8001) // ADDRESS-ERROR-CODE

	attrIntegritySHA256 = stun.AttrType(0x001C) // MESSAGE-INTEGRITY-SHA256 (RFC 8489 §14.6)
)

// understood are the comprehension-required attributes that the server understands in requests and indications. A
// request with any other is answered with 420 (RFC 8489 §6.3.1).
var understood = [0x40]bool{
	stun.AttrMappedAddress: true, stun.AttrUsername: true, stun.AttrMessageIntegrity: true, stun.AttrErrorCode: true,
	stun.AttrUnknownAttributes: true, stun.AttrRealm: true, stun.AttrNonce: true, stun.AttrXORMappedAddress: true,
	stun.AttrChannelNumber: true, stun.AttrLifetime: true, stun.AttrXORPeerAddress: true, stun.AttrData: true,
	stun.AttrXORRelayedAddress: true, stun.AttrRequestedAddressFamily: true, stun.AttrEvenPort: true,
	stun.AttrRequestedTransport: true, stun.AttrDontFragment: true, stun.AttrReservationToken: true,
	stun.AttrPriority: true, stun.AttrUseCandidate: true, // ICE checks sent to a listener are answered as Binding requests
	stun.AttrPadding: true, // RFC 5780 §7.6
}

func understands(t stun.AttrType) bool { return int(t) < len(understood) && understood[t] }

// Message is a parsed message. Its memory is reused by the next Parse.
type Message struct {
	stun.Message
	// Signed reports whether the message has MESSAGE-INTEGRITY. SignedWith checks it.
	Signed bool
	// Classic reports whether the message is a request of RFC 3489: it has no magic cookie, and the first 4 bytes of
	// its transaction ID are in its place. Raw and TransactionID have the magic cookie.
	Classic bool
	// id is the beginning of the transaction ID of a classic message.
	id [4]byte
	// attrs are the attributes before MESSAGE-INTEGRITY. Attributes after it are ignored (RFC 8489 §14.5).
	attrs stun.Attributes
	// response is the memory of Answer.
	response stun.Message
}

// Errors of Parse.
var (
	ErrMalformed   = errors.New("malformed message")
	ErrFingerprint = errors.New("wrong fingerprint")
)

// Parse parses a message. The slice must hold exactly one message, with the right FINGERPRINT if it has one (RFC 8489
// §5, §6.3, §14.7). Only a request without FINGERPRINT, which RFC 3489 does not have, may lack the magic cookie. The
// message does not refer to the slice.
func (m *Message) Parse(b []byte) error {
	if len(b) < HeaderSize || b[0]&0xC0 != 0 || len(b)%4 != 0 ||
		int(binary.BigEndian.Uint16(b[2:])) != len(b)-HeaderSize {
		return ErrMalformed
	}
	// pion/stun appends to Raw while it checks MESSAGE-INTEGRITY.
	m.Raw = append(slices.Grow(m.Raw[:0], len(b)+64), b...)
	m.Classic, m.id = binary.BigEndian.Uint32(b[4:]) != magicCookie, [4]byte(b[4:])
	binary.BigEndian.PutUint32(m.Raw[4:], magicCookie)
	if err := m.Decode(); err != nil {
		return ErrMalformed
	}
	fingerprint, ok := m.Attributes.Get(stun.AttrFingerprint)
	if m.Classic && (ok || m.Type.Class != stun.ClassRequest) {
		return ErrMalformed
	}
	if ok {
		last := m.Attributes[len(m.Attributes)-1]
		if last.Type != stun.AttrFingerprint || len(fingerprint.Value) != 4 ||
			stun.Fingerprint.Check(&m.Message) != nil {
			return ErrFingerprint
		}
	}
	m.attrs, m.Signed = m.Attributes, false
	for i, a := range m.Attributes {
		if a.Type == stun.AttrMessageIntegrity {
			m.attrs, m.Signed = m.Attributes[:i], true
			break
		}
	}
	return nil
}

// Size returns the size of the memory of the message in bytes.
func (m *Message) Size() int { return cap(m.Raw) + cap(m.response.Raw) }

// Value returns the value of the first attribute of a type before MESSAGE-INTEGRITY, and whether there is one.
func (m *Message) Value(t stun.AttrType) ([]byte, bool) {
	a, ok := m.attrs.Get(t)
	return a.Value, ok
}

// Ignored returns the attributes after MESSAGE-INTEGRITY, except those that RFC 8489 §9 allows there.
func (m *Message) Ignored() (list []stun.AttrType) {
	if !m.Signed {
		return nil
	}
	for _, a := range m.Attributes[len(m.attrs)+1:] {
		if a.Type != stun.AttrFingerprint && a.Type != attrIntegritySHA256 {
			list = append(list, a.Type)
		}
	}
	return list
}

// Len returns the number of attributes before MESSAGE-INTEGRITY.
func (m *Message) Len() int { return len(m.attrs) }

// Unknown returns the comprehension-required attributes that the server does not understand. A classic message may have
// a CHANGE-REQUEST that requests no change, because clients of RFC 3489 add it to each request. The list for a classic
// message has an even number of types, one of them twice if necessary (RFC 3489 §11.2.10).
func (m *Message) Unknown() (list UnknownAttributes) {
	for _, a := range m.attrs {
		if m.Classic && a.Type == stun.AttrChangeRequest && bytes.Equal(a.Value, []byte{0, 0, 0, 0}) {
			continue
		}
		if a.Type < 0x8000 && !understands(a.Type) {
			list = binary.BigEndian.AppendUint16(list, uint16(a.Type))
		}
	}
	if m.Classic && len(list)%4 != 0 {
		list = append(list, list[:2]...)
	}
	return list
}

// UnknownAttributes is the value of UNKNOWN-ATTRIBUTES (RFC 8489 §14.13). It replaces stun.UnknownAttributes, which
// writes each type with 32 bits instead of 16.
type UnknownAttributes []byte

// AddTo implements stun.Setter.
func (u UnknownAttributes) AddTo(m *stun.Message) error {
	m.Add(stun.AttrUnknownAttributes, u)
	return nil
}

// Peers returns the addresses of all XOR-PEER-ADDRESS attributes. ok is false if one of them is malformed.
func (m *Message) Peers() (list []netip.AddrPort, ok bool) {
	for _, a := range m.attrs {
		if a.Type != stun.AttrXORPeerAddress {
			continue
		}
		peer, ok := m.Address(a.Value)
		if !ok {
			return nil, false
		}
		list = append(list, peer)
	}
	return list, true
}

// Address decodes the value of an attribute that holds an XOR'ed transport address (RFC 8489 §14.2). The first byte is
// ignored. The family is the family on the wire: an IPv4-mapped IPv6 address stays IPv6, so that it fails the check of
// the family and does not reach the route of the IPv4 address.
func (m *Message) Address(value []byte) (netip.AddrPort, bool) {
	isIPv4 := len(value) == 8 && value[1] == FamilyIPv4
	isIPv6 := len(value) == 20 && value[1] == FamilyIPv6
	if !isIPv4 && !isIPv6 {
		return netip.AddrPort{}, false
	}
	plain := make([]byte, len(value))
	xorAddress(plain, value, m.TransactionID)
	ip, ok := netip.AddrFromSlice(plain[4:])
	return netip.AddrPortFrom(ip, binary.BigEndian.Uint16(plain[2:])), ok
}

// Channel returns CHANNEL-NUMBER. ok is false if the attribute is absent or malformed.
func (m *Message) Channel() (number uint16, ok bool) {
	v, ok := m.Value(stun.AttrChannelNumber)
	if !ok || len(v) != 4 {
		return 0, false
	}
	return binary.BigEndian.Uint16(v), true
}

// SignedWith reports whether MESSAGE-INTEGRITY was made with a key. It takes the same time for either result.
func (m *Message) SignedWith(key []byte) bool {
	return stun.MessageIntegrity(key).Check(&m.Message) == nil
}

// Answer builds a response to the message. The response has MESSAGE-INTEGRITY if key is not nil, and FINGERPRINT if the
// message has FINGERPRINT. The response to a classic message repeats its whole transaction ID (RFC 5389 §12.2). It is
// valid until the next Answer or Parse.
func (m *Message) Answer(class stun.MessageClass, key []byte, attrs ...stun.Setter) ([]byte, error) {
	answer := &m.response
	answer.Reset()
	answer.Type, answer.TransactionID = stun.NewType(m.Type.Method, class), m.TransactionID
	answer.WriteHeader()
	for _, attr := range attrs {
		if err := attr.AddTo(answer); err != nil {
			return nil, err
		}
	}
	if key != nil {
		if err := stun.MessageIntegrity(key).AddTo(answer); err != nil {
			return nil, err
		}
	}
	if m.Contains(stun.AttrFingerprint) {
		if err := stun.Fingerprint.AddTo(answer); err != nil {
			return nil, err
		}
	}
	if m.Classic {
		copy(answer.Raw[4:], m.id[:])
	}
	return answer.Raw, nil
}
