package listener

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/crypto/cryptobyte"
)

// Constants of DTLS (RFC 6347 §4.1, §4.2.2).
const (
	typeChangeCipherSpec = 20
	typeHandshake        = 22
	typeApplicationData  = 23

	clientHello        = 1
	helloVerifyRequest = 3
	serverKeyExchange  = 12
	clientKeyExchange  = 16

	recordHeader    = 13
	messageHeader   = 12
	versionAndNonce = 2 + 32
)

// hello is a ClientHello in one fragment, in the first record of a datagram. A fragmented ClientHello cannot be checked
// without state, and is dropped.
type hello struct {
	record   []byte // the whole record
	sequence uint64 // number of the record
	message  uint16 // number of the message in the handshake: 1 after a HelloVerifyRequest
	// head is the body of the ClientHello before the cookie: its version, the random bytes of the client and its
	// session ID.
	head   []byte
	cookie []byte
	// tail is the part of the ClientHello after the cookie.
	tail []byte
}

// parseHello returns the ClientHello in a datagram. Its slices refer to the datagram.
func parseHello(datagram []byte) (h hello, ok bool) {
	rest := cryptobyte.String(datagram)
	var version, epoch uint16
	var kind uint8
	var message cryptobyte.String
	if !rest.ReadUint8(&kind) || kind != typeHandshake || !rest.ReadUint16(&version) || version>>8 != 0xFE ||
		!rest.ReadUint16(&epoch) || epoch != 0 || !rest.ReadUint48(&h.sequence) ||
		!rest.ReadUint16LengthPrefixed(&message) {
		return hello{}, false
	}
	h.record = datagram[:len(datagram)-len(rest)]
	var size, offset, part uint32
	if !message.ReadUint8(&kind) || kind != clientHello || !message.ReadUint24(&size) ||
		!message.ReadUint16(&h.message) || !message.ReadUint24(&offset) || !message.ReadUint24(&part) ||
		offset != 0 || part != size || int(size) != len(message) {
		return hello{}, false
	}
	return h, h.parseBody(message)
}

func (h *hello) parseBody(body cryptobyte.String) bool {
	from := body
	var session, cookie, suites, compression cryptobyte.String
	if !body.Skip(versionAndNonce) || !body.ReadUint8LengthPrefixed(&session) {
		return false
	}
	h.head = from[:len(from)-len(body)]
	if !body.ReadUint8LengthPrefixed(&cookie) {
		return false
	}
	h.cookie, h.tail = cookie, body
	if !body.ReadUint16LengthPrefixed(&suites) || !body.ReadUint8LengthPrefixed(&compression) {
		return false
	}
	return true
}

// body returns the message without its header.
func (h hello) body() []byte { return h.record[recordHeader+messageHeader:] }

// first reconstructs the client's first ClientHello from its second ClientHello. They are equal except for the sequence
// numbers, and for the cookie, which only the second ClientHello has. The number of its record is 0.
func (h hello) first() []byte {
	size := len(h.head) + 1 + len(h.tail)
	record := slices.Clone(h.record[:recordHeader+messageHeader])
	binary.BigEndian.PutUint64(record[3:], 0)
	binary.BigEndian.PutUint16(record[11:], uint16(messageHeader+size))
	header := record[recordHeader:]
	putUint24(header[1:], size)
	binary.BigEndian.PutUint16(header[4:], 0)
	putUint24(header[9:], size)
	return slices.Concat(record, h.head, []byte{0}, h.tail)
}

func putUint24(to []byte, n int) { to[0], to[1], to[2] = byte(n>>16), byte(n>>8), byte(n) }

const (
	// cookieSize is the size of the cookies of pion/dtls (see setCookie).
	cookieSize = 20
	// cookieLife is the minimum time for which a cookie is valid. The maximum is twice as long.
	cookieLife = time.Minute
	// lastVerify is the highest record number of a HelloVerifyRequest. The records of a handshake have higher numbers.
	// A client discards a record with a number that it has received before, or that is below the highest received
	// number by more than its replay window. So the answer to a forged ClientHello must not repeat an arbitrary number
	// of that ClientHello. The first ClientHellos of a client have lower numbers than lastVerify, even if several are
	// lost.
	lastVerify = 15
)

// cookies makes and checks cookies, and stores none (RFC 6347 §4.2.1). A client that returns a cookie has proved its
// source address.
type cookies struct {
	mac hash.Hash
	sum []byte
}

// cookieSecret returns a random key for the cookies of a port. All readers of the port use the same key, because any of
// them may receive the cookie.
func cookieSecret() []byte {
	key := make([]byte, sha256.Size)
	_, _ = rand.Read(key) // never fails
	return key
}

func newCookies(secret []byte) *cookies { return &cookies{mac: hmac.New(sha256.New, secret)} }

// valid reports whether a ClientHello contains a cookie that was made for the address of the client.
func (c *cookies) valid(h hello, client netip.AddrPort, now time.Time) bool {
	// The client sends its second ClientHello after a HelloVerifyRequest, so neither the message nor the record has
	// number 0.
	if len(h.cookie) != cookieSize || h.message != 1 || h.sequence == 0 {
		return false
	}
	period := periodOf(now)
	return hmac.Equal(h.cookie, c.cookie(client, period)) || hmac.Equal(h.cookie, c.cookie(client, period-1))
}

// appendHelloVerify appends the HelloVerifyRequest that answers a ClientHello. The HelloVerifyRequest is shorter than
// any ClientHello.
func (c *cookies) appendHelloVerify(to []byte, h hello, client netip.AddrPort, now time.Time) []byte {
	const body = 2 + 1 + cookieSize
	// A HelloVerifyRequest has the version of DTLS 1.0 (0xFEFF), independent of the version that is negotiated later.
	// Its record number is that of the ClientHello, so that the server needs no state (RFC 6347 §4.2.1), but at most
	// lastVerify.
	to = append(to, typeHandshake, 0xFE, 0xFF)
	to = binary.BigEndian.AppendUint64(to, min(h.sequence, lastVerify)) // the first two bytes are the epoch
	to = binary.BigEndian.AppendUint16(to, messageHeader+body)
	to = append(to, helloVerifyRequest, 0, 0, body, 0, 0, 0, 0, 0, 0, 0, body, 0xFE, 0xFF, cookieSize)
	return append(to, c.cookie(client, periodOf(now))...)
}

// cookie returns the cookie for a client. The cookie depends on the client's address and on the number of the current
// cookieLife since 1970. It does not depend on the ClientHello, although RFC 6347 §4.2.1 recommends that. Otherwise a
// forged ClientHello would make the server send the client a cookie that is invalid for the ClientHello of the client.
// Clients accept one HelloVerifyRequest, so the handshake would fail. The slice is valid until the next call.
func (c *cookies) cookie(client netip.AddrPort, period int64) []byte {
	addr := client.Addr().As16()
	c.mac.Reset()
	c.mac.Write(addr[:])
	c.mac.Write(binary.BigEndian.AppendUint16(nil, client.Port()))
	c.mac.Write(binary.BigEndian.AppendUint64(nil, uint64(period)))
	c.sum = c.mac.Sum(c.sum[:0])
	return c.sum[:cookieSize]
}

func periodOf(now time.Time) int64 { return now.Unix() / int64(cookieLife/time.Second) }
