// Package wire encodes and decodes STUN and TURN messages (RFC 8489, RFC 8656) for a prober. It encodes any message,
// valid or not. It decodes strictly: any malformed part of a server's message is an error.
package wire

import (
	"crypto/hmac"
	"crypto/md5"
	"crypto/rand"
	"crypto/sha1"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net/netip"
)

const (
	headerSize = 20
	cookie     = 0x2112A442
	crcMask    = 0x5354554E // RFC 8489 §14.7
)

// TxID is a transaction id.
type TxID [12]byte

// NewTxID returns a random transaction id.
func NewTxID() (id TxID) {
	rand.Read(id[:])
	return id
}

// Attr is one attribute: its type and its value without padding.
type Attr struct {
	Type  AttrType
	Value []byte
	// Addr replaces Value in XOR address attributes, whose encoding depends on the transaction id.
	Addr netip.AddrPort
}

// Message is a STUN message.
type Message struct {
	Method Method
	Class  Class
	ID     TxID
	Attrs  []Attr
	// Raw is the received message. It is empty in a message that was made by New.
	Raw []byte

	offsets []int // offset of each attribute in Raw
}

// New returns a message with a fresh transaction id.
func New(class Class, method Method, attrs ...Attr) Message {
	return Message{Method: method, Class: class, ID: NewTxID(), Attrs: attrs}
}

// Bytes encodes the message.
func (m Message) Bytes() []byte {
	b := make([]byte, headerSize, headerSize+64)
	binary.BigEndian.PutUint16(b, messageType(m.Class, m.Method))
	binary.BigEndian.PutUint32(b[4:], cookie)
	copy(b[8:], m.ID[:])
	return Append(b, m.Attrs...)
}

// Append adds attributes to an encoded message and corrects its length.
func Append(b []byte, attrs ...Attr) []byte {
	for _, a := range attrs {
		if a.Addr.IsValid() {
			a.Value = hide(a.Addr, TxID(b[8:headerSize]))
		}
		b = binary.BigEndian.AppendUint16(b, uint16(a.Type))
		b = binary.BigEndian.AppendUint16(b, uint16(len(a.Value)))
		b = append(b, a.Value...)
		b = append(b, make([]byte, pad(len(a.Value)))...)
	}
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)-headerSize))
	return b
}

// Sign adds MESSAGE-INTEGRITY (RFC 8489 §14.5).
func Sign(b, key []byte) []byte {
	return Append(b, Attr{Type: MessageIntegrity, Value: integrity(b, key)})
}

// Fingerprint adds FINGERPRINT (RFC 8489 §14.7).
func Fingerprint(b []byte) []byte {
	return Append(b, Uint32(FingerprintAttr, fingerprint(b)))
}

// integrity computes the HMAC over the message, with the length that the message has after the HMAC is added.
func integrity(b, key []byte) []byte {
	mac := hmac.New(sha1.New, key)
	mac.Write(withLength(b, 4+sha1.Size))
	return mac.Sum(nil)
}

func fingerprint(b []byte) uint32 {
	return crc32.ChecksumIEEE(withLength(b, 8)) ^ crcMask
}

func withLength(b []byte, more int) []byte {
	c := append([]byte(nil), b...)
	binary.BigEndian.PutUint16(c[2:], uint16(len(b)-headerSize+more))
	return c
}

// Key returns the key of the long-term credential mechanism (RFC 8489 §9.2.2).
func Key(username, realm, password string) []byte {
	sum := md5.Sum([]byte(username + ":" + realm + ":" + password))
	return sum[:]
}

// Parse decodes a message that must fill b exactly. A FINGERPRINT must be correct and the last attribute.
func Parse(b []byte) (Message, error) {
	if len(b) < headerSize {
		return Message{}, fmt.Errorf("parse message: %d bytes are less than a header", len(b))
	}
	t := binary.BigEndian.Uint16(b)
	if t&0xC000 != 0 || binary.BigEndian.Uint32(b[4:]) != cookie {
		return Message{}, fmt.Errorf("parse message: no STUN header: % x", b[:8])
	}
	if n := int(binary.BigEndian.Uint16(b[2:])); n != len(b)-headerSize || n%4 != 0 {
		return Message{}, fmt.Errorf("parse message: length %d in the header, %d bytes follow", n, len(b)-headerSize)
	}
	m := Message{Raw: b}
	m.Class, m.Method = split(t)
	copy(m.ID[:], b[8:])
	if err := m.parseAttrs(); err != nil {
		return Message{}, fmt.Errorf("parse message: %w", err)
	}
	return m, m.checkFingerprint()
}

func (m *Message) parseAttrs() error {
	for at := headerSize; at < len(m.Raw); {
		if len(m.Raw)-at < 4 {
			return fmt.Errorf("%d bytes after the last attribute", len(m.Raw)-at)
		}
		a := Attr{Type: AttrType(binary.BigEndian.Uint16(m.Raw[at:]))}
		n := int(binary.BigEndian.Uint16(m.Raw[at+2:]))
		if end := at + 4 + n + pad(n); end > len(m.Raw) {
			return fmt.Errorf("%s has %d bytes and exceeds the message", a.Type, n)
		}
		a.Value = m.Raw[at+4 : at+4+n]
		m.Attrs, m.offsets = append(m.Attrs, a), append(m.offsets, at)
		at += 4 + n + pad(n)
	}
	return nil
}

func (m *Message) checkFingerprint() error {
	for i, a := range m.Attrs {
		if a.Type != FingerprintAttr {
			continue
		}
		if i != len(m.Attrs)-1 {
			return errors.New("parse message: FINGERPRINT is not the last attribute")
		}
		if len(a.Value) != 4 || binary.BigEndian.Uint32(a.Value) != fingerprint(m.Raw[:m.offsets[i]]) {
			return errors.New("parse message: FINGERPRINT is wrong")
		}
	}
	return nil
}

// Verify checks MESSAGE-INTEGRITY of a received message.
func (m Message) Verify(key []byte) error {
	for i, a := range m.Attrs {
		if a.Type != MessageIntegrity {
			continue
		}
		if !hmac.Equal(a.Value, integrity(m.Raw[:m.offsets[i]], key)) {
			return errors.New("MESSAGE-INTEGRITY is wrong")
		}
		return nil
	}
	return errors.New("no MESSAGE-INTEGRITY")
}

// Get returns the first attribute of a type.
func (m Message) Get(t AttrType) ([]byte, bool) {
	for _, a := range m.Attrs {
		if a.Type == t {
			return a.Value, true
		}
	}
	return nil, false
}

// Value returns the value of the first attribute of a type, or nil.
func (m Message) Value(t AttrType) []byte {
	v, _ := m.Get(t)
	return v
}

// Has reports whether the message has an attribute of a type.
func (m Message) Has(t AttrType) bool {
	_, ok := m.Get(t)
	return ok
}

// Code returns the error code of an error response, 0 for a success response, or -1 if ERROR-CODE is absent or
// malformed.
func (m Message) Code() int {
	if m.Class == Success {
		return 0
	}
	v, ok := m.Get(ErrorCode)
	if !ok || len(v) < 4 || v[2]&7 < 3 || v[2]&7 > 6 || v[3] > 99 {
		return -1
	}
	return int(v[2]&7)*100 + int(v[3])
}

// String returns method, class and error code.
func (m Message) String() string {
	switch m.Class {
	case Error:
		return fmt.Sprintf("%s error %d", m.Method, m.Code())
	default:
		return fmt.Sprintf("%s %s", m.Method, m.Class)
	}
}

func pad(n int) int { return -n & 3 }
