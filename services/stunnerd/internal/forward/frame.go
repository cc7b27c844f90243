package forward

import (
	"crypto/cipher"
	"encoding/binary"
	"net/netip"
)

// A frame is one datagram between two pods:
//
//	version (1) | key id (1) | sender (8) | counter (6) | sealed: kind (1) | client (6 or 18) | listener port (2) | payload
//
// The highest bit of the kind is set if the client has an IPv6 address. The sealed part has a tag of 16 bytes
// (AES-GCM). Its nonce is the last 12 bytes of the header. The key depends on the sender and the receiver (see derive),
// and a sender never uses a counter twice, so no nonce is used twice with a key.
const (
	version    = 1
	headerSize = 16
	nonceAt    = 4 // the offset of the nonce in the header
	tagSize    = 16
	maxCounter = 1<<48 - 1

	// Overhead4 and Overhead6 are the size in bytes that a frame adds to a datagram of a client over IPv4 and IPv6.
	Overhead4 = headerSize + 1 + record4 + tagSize
	Overhead6 = headerSize + 1 + record6 + tagSize

	// maxFrame is the longest payload of UDP over IPv4.
	maxFrame = 65_507
)

// kind is the meaning of a frame. Receivers drop and count kinds that they do not know.
type kind byte

const (
	// ask is sent by a front to a home, to find the owner of the client. The payload is a datagram of the client.
	ask kind = iota + 1
	// data is sent by a front to the owner. The payload is a datagram of the client.
	data
	// reply is sent by the owner to a front. The payload is a datagram to the client.
	reply
	// is is the answer of a home to ask. The payload is the id of the owner (8 bytes) and the datagram of the ask,
	// which is empty if the home is the owner and has kept it.
	is
	// unknown is the answer to ask and data of a pod that has neither the session nor its owner in the index. The
	// payload is the datagram of the ask.
	unknown
	// hold is sent by an owner to a home when a session is created. The payload is a list of further clients of the
	// same address family. Homes replace an earlier owner.
	hold
	// renew is hold for an existing session. Homes do not replace another owner, because the client may have created a
	// newer session there.
	renew
	// release is sent by an owner to a home when a session has ended. The payload is as in hold.
	release
	// take is sent by an owner that drains to its successor. The payload is the clock of the owner (8 bytes, in
	// milliseconds since 1970) and the record of the session.
	take
	// taken is the answer to take. The payload is one byte: 1 if the successor continues the session, 0 if it does not.
	taken
	// fromPeer is sent by the former owner to the successor. The payload is the size of the peer's address (1 byte),
	// the address, encoded like a client, and a datagram that the peer has sent to the former relayed address. A frame
	// without payload means that the successor is the owner.
	fromPeer
	// toPeer is sent by the successor to the former owner. The payload has the same form as that of fromPeer. The
	// datagram is for the peer.
	toPeer
	// part is sent by the successor to the former owner when no peer uses the former relayed address any more.
	part
	// copyOf is sent by an owner to a home. The payload is the version of the session (16 bytes), the clock of the
	// owner (8 bytes, as in take), and the record of the session. A receiver that has the session in a lower generation
	// ends it.
	copyOf
	// copied is the answer to copyOf and newer. The payload is the first 24 bytes of the payload of copyOf or newer.
	copied
	// newer is sent to a pod that may have a session that another pod has taken over. The payload is the version of the
	// session at the other pod (16 bytes) and the id of that pod (8 bytes).
	newer
	// ping is sent to a silent pod. The answer is pong. Both have no payload and no client.
	ping
	pong
	// pingRequest is sent to other pods when a pod has not answered pings, so that they ping that pod too. The payload
	// is the id of that pod (8 bytes).
	pingRequest
	// counts is sent to a home of users, with the numbers of their sessions at the sender. The payload is a list of
	// users (16 bytes), numbers (4 bytes) and the counters of the sender at the time of counting (8 bytes). This frame
	// and the next two are not about a client: their client field is nobody.
	counts
	// admit asks a home whether a user may have another session. The payload is an id of the sender (8 bytes), the
	// user, the number of sessions at the sender with the new one (4 bytes), and the limit for all pods (4 bytes).
	admit
	// admitted is the answer to admit. The payload is the id of admit and one byte: 1 if the user may have the session,
	// or 0.
	admitted
	// adopt has the meaning and the payload of take, and is sent to the front of the client. The answer is taken.
	adopt
	// begin is sent by a draining pod to a pod that accepts new sessions. The payload is an Allocate request of the
	// client, which the sender has authenticated.
	begin
	kinds

	ipv6 kind = 0x80
)

// record4 and record6 are the sizes of a client in a frame: address, port and listener port.
const (
	record4 = 4 + 2 + 2
	record6 = 16 + 2 + 2
)

// recordSize returns the size of a client with an address of the family of addr.
func recordSize(addr netip.Addr) int {
	if addr.Is4() {
		return record4
	}
	return record6
}

// putRecord appends a client.
func putRecord(b []byte, c Client) []byte {
	if c.Addr.Addr().Is4() {
		a := c.Addr.Addr().As4()
		b = append(b, a[:]...)
	} else {
		a := c.Addr.Addr().As16()
		b = append(b, a[:]...)
	}
	b = binary.BigEndian.AppendUint16(b, c.Addr.Port())
	return binary.BigEndian.AppendUint16(b, c.Port)
}

// record parses a client of the given size at the start of b. It reports false for an IPv4-mapped IPv6 address, so that
// a client has one form only.
func record(b []byte, size int) (c Client, rest []byte, ok bool) {
	if len(b) < size {
		return Client{}, nil, false
	}
	var addr netip.Addr
	if size == record4 {
		addr = netip.AddrFrom4([4]byte(b))
	} else {
		addr = netip.AddrFrom16([16]byte(b))
	}
	ports := b[size-4:]
	c.Addr = netip.AddrPortFrom(addr, binary.BigEndian.Uint16(ports))
	c.Port = binary.BigEndian.Uint16(ports[2:])
	return c, b[size:], !addr.Is4In6()
}

// sealer encrypts the frames to one receiver.
type sealer struct {
	keyID byte
	aead  cipher.AEAD
}

// seal appends a frame to b, which must have room for it, so that seal allocates nothing. payload must not overlap b.
func (s *sealer) seal(b []byte, sender [8]byte, counter uint64, k kind, c Client, payload []byte) []byte {
	start := len(b)
	b = append(b, version, s.keyID)
	b = append(b, sender[:]...)
	b = append(b, byte(counter>>40), byte(counter>>32), byte(counter>>24), byte(counter>>16), byte(counter>>8), byte(counter))
	if !c.Addr.Addr().Is4() {
		k |= ipv6
	}
	b = append(b, byte(k))
	b = putRecord(b, c)
	b = append(b, payload...)
	header := b[start:][:headerSize]
	return s.aead.Seal(b[:start+headerSize], header[nonceAt:], b[start+headerSize:], header)
}

// header is the part of a frame that is not sealed.
type header struct {
	keyID   byte
	sender  [8]byte
	counter uint64
}

// parseHeader parses the header of a frame. It reports false if the frame is too short or too long, or has another
// version.
func parseHeader(frame []byte) (h header, ok bool) {
	if len(frame) < Overhead4 || len(frame) > maxFrame || frame[0] != version {
		return header{}, false
	}
	copy(h.sender[:], frame[2:])
	h.keyID, h.counter = frame[1], uint64(binary.BigEndian.Uint16(frame[10:]))<<32|uint64(binary.BigEndian.Uint32(frame[12:]))
	return h, true
}

// message is the sealed part of a frame, and its counter.
type message struct {
	counter uint64
	kind    kind
	client  Client
	payload []byte
}

// open opens a frame in place. parseHeader must have accepted the frame. It reports false if the frame was not sealed
// with the key, or is malformed.
func open(aead cipher.AEAD, frame []byte) (m message, ok bool) {
	header, sealed := frame[:headerSize], frame[headerSize:]
	b, err := aead.Open(sealed[:0], header[nonceAt:], sealed, header)
	if err != nil {
		return message{}, false
	}
	size := record4
	if kind(b[0])&ipv6 != 0 {
		size = record6
	}
	m.kind = kind(b[0]) &^ ipv6
	m.client, m.payload, ok = record(b[1:], size)
	return m, ok
}
