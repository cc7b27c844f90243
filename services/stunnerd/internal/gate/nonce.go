package gate

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// NonceLifetime is the longest time for which a client may use a nonce (RFC 8656 §5 recommends at most an hour), and the default.
// MinNonceLifetime is the shortest: with less, clients would spend many requests on new nonces.
const (
	NonceLifetime    = time.Hour
	MinNonceLifetime = 10 * time.Minute
)

// nonceLeeway is how far the clocks of two pods of a gateway may differ: a nonce of the one is not from the future for the other.
const nonceLeeway = 30 * time.Second

// Nonces makes and checks nonces without remembering any: a nonce is its time of birth and a MAC over that and the client's
// address. 18 bytes make 24 characters; a short nonce keeps the challenge, which strangers can ask for with a forged source,
// small.
//
// The key of the MAC changes every hour, whatever Lifetime is: it is derived from a root and the hour of birth. The root is random, or, where the
// pods of a gateway have a secret that clients do not know, derived from that: a client that moves to another pod pays no extra round trip.
type Nonces struct {
	// Lifetime is for how long a nonce is valid, between MinNonceLifetime and NonceLifetime. It is set before the first use.
	Lifetime time.Duration

	random []byte

	mu sync.Mutex
	// roots are the one in force, and the one before it.
	roots [][]byte
}

const (
	nonceTime = 4
	nonceSize = 18
	nonceKey  = 32
)

var nonceCode = base64.RawURLEncoding

// NewNonces returns a source of nonces with a random root and a lifetime of NonceLifetime.
func NewNonces() (*Nonces, error) {
	root := make([]byte, nonceKey)
	if _, err := rand.Read(root); err != nil {
		return nil, fmt.Errorf("make nonce key: %w", err)
	}
	return &Nonces{Lifetime: NonceLifetime, random: root, roots: [][]byte{root}}, nil
}

// Share makes nonces that every process with the same config accepts, if the config has a shared secret: no client knows it. Nonces of the
// root before are still good.
func (n *Nonces) Share(c config.Config) {
	root := n.random
	if secret := c.Auth.Authority().SharedSecret; secret != "" {
		var err error
		if root, err = hkdf.Key(sha256.New, []byte(secret), nil, "nonces of "+c.Admin.Name, nonceKey); err != nil {
			root = n.random
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if !hmac.Equal(root, n.roots[0]) {
		n.roots = [][]byte{root, n.roots[0]}
	}
}

// Make returns a nonce for a client.
func (n *Nonces) Make(client netip.Addr, now time.Time) []byte {
	var raw [nonceSize]byte
	binary.BigEndian.PutUint32(raw[:], uint32(now.Unix()))
	copy(raw[nonceTime:], mac(n.current()[0], raw[:nonceTime], client))
	return nonceCode.AppendEncode(nil, raw[:])
}

// Valid tells whether a nonce was made here for this client, less than Lifetime ago.
func (n *Nonces) Valid(nonce []byte, client netip.Addr, now time.Time) bool {
	raw, err := nonceCode.AppendDecode(nil, nonce)
	if err != nil || len(raw) != nonceSize {
		return false
	}
	ours := slices.ContainsFunc(n.current(), func(root []byte) bool {
		return hmac.Equal(raw[nonceTime:], mac(root, raw[:nonceTime], client))
	})
	age := now.Sub(time.Unix(int64(binary.BigEndian.Uint32(raw)), 0))
	return ours && age >= -nonceLeeway && age <= n.Lifetime
}

func (n *Nonces) current() [][]byte {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.roots
}

func mac(root, birth []byte, client netip.Addr) []byte {
	var hour [4]byte
	binary.BigEndian.PutUint32(hour[:], binary.BigEndian.Uint32(birth)/uint32(NonceLifetime/time.Second))
	key := hmac.New(sha256.New, root)
	key.Write(hour[:])
	h := hmac.New(sha256.New, key.Sum(nil))
	h.Write(birth)
	addr := client.As16()
	h.Write(addr[:])
	return h.Sum(nil)[:nonceSize-nonceTime]
}
