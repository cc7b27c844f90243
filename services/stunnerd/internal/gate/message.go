package gate

import (
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

const (
	stunHeader = 20
	// maxMessage is the longest STUN message there is: its length field has 16 bits.
	maxMessage = stunHeader + 65535
)

// Attributes for which pion/stun has no name: ADDITIONAL-ADDRESS-FAMILY and ADDRESS-ERROR-CODE (RFC 8656 §18.11, §18.12).
const (
	attrAdditionalFamily = stun.AttrType(0x8000)
	attrAddressError     = stun.AttrType(0x8001)
)

// understood are the comprehension-required attributes that the gate knows in requests and indications; any other is answered with 420
// (RFC 8489 §6.3.1). DONT-FRAGMENT is not among them: without a way to set the DF bit RFC 8656 §7.2 wants it treated as unknown.
var understood = map[stun.AttrType]bool{
	stun.AttrMappedAddress: true, stun.AttrUsername: true, stun.AttrMessageIntegrity: true, stun.AttrErrorCode: true,
	stun.AttrUnknownAttributes: true, stun.AttrRealm: true, stun.AttrNonce: true, stun.AttrXORMappedAddress: true,
	stun.AttrChannelNumber: true, stun.AttrLifetime: true, stun.AttrXORPeerAddress: true, stun.AttrData: true,
	stun.AttrXORRelayedAddress: true, stun.AttrRequestedAddressFamily: true, stun.AttrEvenPort: true,
	stun.AttrRequestedTransport: true, stun.AttrReservationToken: true,
	stun.AttrPriority: true, stun.AttrUseCandidate: true, // ICE checks that hit the listener are plain Bindings
}

// request is one parsed message and what the gate has found out about it.
type request struct {
	*stun.Message
	client session.Client
	// attrs are the attributes that count: those before MESSAGE-INTEGRITY (RFC 8489 §14.5).
	attrs  stun.Attributes
	signed bool
	// key is set once the credential is verified; every answer from then on is signed with it (RFC 8489 §9.2.4).
	key      []byte
	realm    string
	username string
	userID   string
	flow     *flow
}

var (
	errMalformed   = errors.New("malformed message")
	errFingerprint = errors.New("wrong fingerprint")
)

// parse reads a STUN message strictly: exactly one, whole, with its magic cookie, and a FINGERPRINT that is right where there is
// one (RFC 8489 §5, §6.3, §14.7).
func parse(b []byte, client session.Client) (*request, error) {
	if len(b) < stunHeader || b[0]&0xC0 != 0 || len(b)%4 != 0 || int(binary.BigEndian.Uint16(b[2:])) != len(b)-stunHeader {
		return nil, errMalformed
	}
	// The copy has room behind the message: pion/stun appends there while it checks the MAC.
	raw := append(make([]byte, 0, len(b)+64), b...)
	r := &request{Message: &stun.Message{Raw: raw}, client: client}
	if err := r.Decode(); err != nil {
		return nil, errMalformed
	}
	if fingerprint, at := r.Attributes.Get(stun.AttrFingerprint); at {
		last := r.Attributes[len(r.Attributes)-1]
		if last.Type != stun.AttrFingerprint || len(fingerprint.Value) != 4 || stun.Fingerprint.Check(r.Message) != nil {
			return nil, errFingerprint
		}
	}
	r.attrs = r.Attributes
	for i, a := range r.Attributes {
		if a.Type == stun.AttrMessageIntegrity {
			r.attrs, r.signed = r.Attributes[:i], true
			break
		}
	}
	return r, nil
}

// value returns an attribute that counts.
func (r *request) value(t stun.AttrType) ([]byte, bool) {
	a, ok := r.attrs.Get(t)
	return a.Value, ok
}

// unknown returns the comprehension-required attributes that the gate does not know.
func (r *request) unknown() (list unknownList) {
	for _, a := range r.attrs {
		if a.Type < 0x8000 && !understood[a.Type] {
			list = binary.BigEndian.AppendUint16(list, uint16(a.Type))
		}
	}
	return list
}

// unknownList is the value of UNKNOWN-ATTRIBUTES (RFC 8489 §14.13). pion/stun's own writes a zero behind each type.
type unknownList []byte

// AddTo is part of stun.Setter.
func (l unknownList) AddTo(m *stun.Message) error {
	m.Add(stun.AttrUnknownAttributes, l)
	return nil
}

// peers returns the peer addresses of the request. ok is false when one of them does not parse.
func (r *request) peers() (list []netip.AddrPort, ok bool) {
	for _, a := range r.attrs {
		if a.Type != stun.AttrXORPeerAddress {
			continue
		}
		peer, ok := r.peer(a.Value)
		if !ok {
			return nil, false
		}
		list = append(list, peer)
	}
	return list, true
}

// peer decodes one XOR-PEER-ADDRESS (RFC 8489 §14.2): a byte that says nothing, family, port, address, the last two XOR'ed with what the
// message begins with. Families are told apart by what is on the wire: an IPv4 address in IPv6 clothes stays IPv6 here, so that it meets the
// family check and not the route of the address inside.
func (r *request) peer(value []byte) (netip.AddrPort, bool) {
	if len(value) != 8 && len(value) != 20 || (value[1] == familyIPv4) != (len(value) == 8) || value[1] != familyIPv4 && value[1] != familyIPv6 {
		return netip.AddrPort{}, false
	}
	plain := make([]byte, len(value))
	subtle.XORBytes(plain[2:4], value[2:4], r.Raw[4:6])
	subtle.XORBytes(plain[4:], value[4:], r.Raw[4:stunHeader])
	ip, ok := netip.AddrFromSlice(plain[4:])
	return netip.AddrPortFrom(ip, binary.BigEndian.Uint16(plain[2:])), ok
}

// Address families on the wire (RFC 8656 §18.6).
const (
	familyIPv4 = 1
	familyIPv6 = 2
)

// answer builds a response to the request: signed when the client is known, with a FINGERPRINT when the request had one.
func (r *request) answer(class stun.MessageClass, attrs ...stun.Setter) ([]byte, error) {
	m := &stun.Message{Raw: make([]byte, 0, 256)}
	setters := []stun.Setter{stun.NewTransactionIDSetter(r.TransactionID), stun.NewType(r.Type.Method, class)}
	setters = append(setters, attrs...)
	if r.key != nil {
		setters = append(setters, stun.MessageIntegrity(r.key))
	}
	if r.Contains(stun.AttrFingerprint) {
		setters = append(setters, stun.Fingerprint)
	}
	if err := m.Build(setters...); err != nil {
		return nil, err
	}
	return m.Raw, nil
}

// address makes a setter for an XOR'ed address attribute.
type address struct {
	t    stun.AttrType
	addr netip.AddrPort
}

func (a address) AddTo(m *stun.Message) error {
	ip := a.addr.Addr().Unmap()
	x := stun.XORMappedAddress{IP: net.IP(ip.AsSlice()), Port: int(a.addr.Port())}
	return x.AddToAs(m, a.t)
}

// number makes a setter for an attribute that is a 32-bit number.
type number struct {
	t stun.AttrType
	n uint32
}

func (a number) AddTo(m *stun.Message) error {
	m.Add(a.t, binary.BigEndian.AppendUint32(nil, a.n))
	return nil
}

func isResponse(b []byte) bool { return len(b) > 1 && b[0]&0xC1 == 1 }
