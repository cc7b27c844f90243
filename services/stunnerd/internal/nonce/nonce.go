// Package nonce makes and checks the nonces of the long-term credential mechanism (RFC 8489 §9.2).
package nonce

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

const (
	// MaxLifetime is the longest lifetime of a nonce, and the default. RFC 8656 §5 recommends at most an hour.
	MaxLifetime = time.Hour
	// MinLifetime is the shortest lifetime of a nonce. With less, clients would spend many requests on new nonces.
	MinLifetime = 10 * time.Minute
	// leeway is how far the clocks of two pods of a gateway may differ.
	leeway = 30 * time.Second
)

// Source makes and checks nonces, and stores none. A nonce is the time at which it was made, and a MAC over that time
// and the client's IP address: 18 bytes, or 24 characters. It is short because the challenge that holds it may go to a
// forged source address.
//
// The key of the MAC is derived from a root and the hour in which the nonce was made. The root is random. If the config
// has a shared secret, which clients do not know, the root is derived from it: a client that moves to another pod of
// the gateway then needs no further round trip.
type Source struct {
	// Lifetime is between MinLifetime and MaxLifetime. It must not change after the first use.
	Lifetime time.Duration

	// random is the root that is used without a shared secret.
	random []byte

	mu sync.Mutex
	// roots are the current root of the keys and, after a change, the previous root.
	roots [][]byte
}

const (
	timeSize = 4
	size     = 18
	rootSize = 32
)

var encoding = base64.RawURLEncoding

// New returns a source with a random root and a lifetime of MaxLifetime.
func New() (*Source, error) {
	root := make([]byte, rootSize)
	if _, err := rand.Read(root); err != nil {
		return nil, fmt.Errorf("make nonce key: %w", err)
	}
	return &Source{Lifetime: MaxLifetime, random: root, roots: [][]byte{root}}, nil
}

// Share derives the root from the shared secret of a config, if it has one, so that every process with the same config
// accepts the nonces. Nonces that were made with the previous root stay valid.
func (n *Source) Share(c config.Config) {
	root := n.random
	if secret := c.Auth.Authority().SharedSecret; secret != "" {
		var err error
		if root, err = hkdf.Key(sha256.New, []byte(secret), nil, "nonces of "+c.Admin.Name, rootSize); err != nil {
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
func (n *Source) Make(client netip.Addr, now time.Time) []byte {
	var raw [size]byte
	binary.BigEndian.PutUint32(raw[:], uint32(now.Unix()))
	copy(raw[timeSize:], mac(n.current()[0], raw[:timeSize], client))
	return encoding.AppendEncode(nil, raw[:])
}

// Valid reports whether a nonce was made for a client, and is not older than Lifetime.
func (n *Source) Valid(nonce []byte, client netip.Addr, now time.Time) bool {
	raw, err := encoding.AppendDecode(nil, nonce)
	if err != nil || len(raw) != size {
		return false
	}
	ours := slices.ContainsFunc(n.current(), func(root []byte) bool {
		return hmac.Equal(raw[timeSize:], mac(root, raw[:timeSize], client))
	})
	age := now.Sub(time.Unix(int64(binary.BigEndian.Uint32(raw)), 0))
	return ours && age >= -leeway && age <= n.Lifetime
}

func (n *Source) current() [][]byte {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.roots
}

func mac(root, made []byte, client netip.Addr) []byte {
	var hour [4]byte
	binary.BigEndian.PutUint32(hour[:], binary.BigEndian.Uint32(made)/uint32(MaxLifetime/time.Second))
	key := hmac.New(sha256.New, root)
	key.Write(hour[:])
	h := hmac.New(sha256.New, key.Sum(nil))
	h.Write(made)
	addr := client.As16()
	h.Write(addr[:])
	return h.Sum(nil)[:size-timeSize]
}
