package listener

import (
	"errors"
	"reflect"
	"sync/atomic"

	"github.com/pion/dtls/v3"
)

// setCookie makes a pion/dtls server accept a cookie of this package as its own. It must be called in the goroutine of
// the handshake, after the server has sent its HelloVerifyRequest and before it reads the next ClientHello.
//
// setCookie overwrites a private field, because no public option of pion/dtls lets a handshake start after a stateless
// cookie exchange (RFC 6347 §4.2.1):
//
//   - The server makes its cookie with crypto/rand. There is no option for a cookie or for its random source;
//     WithHelloRandomBytesGenerator concerns the random bytes of a ServerHello.
//   - WithInsecureSkipVerifyHello makes the server answer a first ClientHello, with message_seq 0, and makes it number
//     its ServerHello 0. After our HelloVerifyRequest the client's ClientHello has message_seq 1, and the client waits
//     for a ServerHello with message_seq 1.
//   - The numbers and the cookie of the ClientHello cannot be rewritten on the way to pion/dtls. Both sides hash the handshake
//     messages with their headers, and the Finished messages prove that the hashes are equal (RFC 6347 §4.2.6).
//   - Resume and WithSessionStore need a handshake that has been completed before.
//
// TestDTLSVersionIsReviewed fails if the version of pion/dtls changes. It also protects recordNumber.
func setCookie(conn *dtls.Conn, cookie [cookieSize]byte) error {
	own := reflect.ValueOf(conn).Elem().FieldByName("state").FieldByName("cookie")
	if !own.IsValid() || own.Kind() != reflect.Slice || copy(own.Bytes(), cookie[:]) != cookieSize {
		return errCookie
	}
	return nil
}

var errCookie = errors.New("pion/dtls has no field state.cookie of 20 bytes any more: adapt setCookie")

// recordNumber returns the address at which pion/dtls stores the highest number of an authentic record of the client,
// plus 1. It reads a private field, because no public option of pion/dtls reports which datagram contained an authentic
// record. markPacketAsValid sets the field after a record of epoch 1 was decrypted and had a new number.
func recordNumber(conn *dtls.Conn) (*atomic.Uint64, error) {
	number := reflect.ValueOf(conn).Elem().FieldByName("state").FieldByName("remoteSequenceNumber")
	if !number.IsValid() || number.Type() != reflect.TypeFor[*atomic.Uint64]() || number.IsNil() {
		return nil, errRecordNumber
	}
	return (*atomic.Uint64)(number.UnsafePointer()), nil
}

var errRecordNumber = errors.New("pion/dtls has no field state.remoteSequenceNumber any more: adapt recordNumber")
