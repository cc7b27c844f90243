package gate

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"
)

// NonceLifetime is how long a client may use a nonce (RFC 8656 §5 recommends at most an hour).
const NonceLifetime = time.Hour

// Nonces makes and checks nonces without remembering any: a nonce is its time of birth and a MAC over that and the client's
// address. 18 bytes make 24 characters; a short nonce keeps the challenge, which strangers can ask for with a forged source,
// small.
type Nonces struct{ key []byte }

const (
	nonceTime = 4
	nonceSize = 18
)

var nonceCode = base64.RawURLEncoding

// NewNonces returns a source of nonces with a random key.
func NewNonces() (*Nonces, error) {
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return nil, fmt.Errorf("make nonce key: %w", err)
	}
	return &Nonces{key}, nil
}

// Make returns a nonce for a client.
func (n *Nonces) Make(client netip.Addr, now time.Time) []byte {
	var raw [nonceSize]byte
	binary.BigEndian.PutUint32(raw[:], uint32(now.Unix()))
	copy(raw[nonceTime:], n.mac(raw[:nonceTime], client))
	return nonceCode.AppendEncode(nil, raw[:])
}

// Valid tells whether a nonce was made here for this client, less than NonceLifetime ago.
func (n *Nonces) Valid(nonce []byte, client netip.Addr, now time.Time) bool {
	raw, err := nonceCode.AppendDecode(nil, nonce)
	if err != nil || len(raw) != nonceSize {
		return false
	}
	if !hmac.Equal(raw[nonceTime:], n.mac(raw[:nonceTime], client)) {
		return false
	}
	age := now.Sub(time.Unix(int64(binary.BigEndian.Uint32(raw)), 0))
	return age >= -time.Second && age <= NonceLifetime
}

func (n *Nonces) mac(birth []byte, client netip.Addr) []byte {
	h := hmac.New(sha256.New, n.key)
	h.Write(birth)
	addr := client.As16()
	h.Write(addr[:])
	return h.Sum(nil)[:nonceSize-nonceTime]
}
