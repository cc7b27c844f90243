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
	"hash"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
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
// and the client's IP address: 12 bytes, or 16 characters. It is short because the challenge that holds it may go to a
// forged source address. A MAC of 64 bits suffices: a nonce proves the address of a client and no password, and a guess
// takes a request.
//
// The key of the MAC is derived from a root and the hour in which the nonce was made. The root is random. If the config
// has a shared secret, which clients do not know, the root is derived from it: a client that moves to another pod of
// the gateway then needs no further round trip.
type Source struct {
	// Lifetime is between MinLifetime and MaxLifetime. It must not change after the first use.
	Lifetime time.Duration

	// random is the root that is used without a shared secret: random, or that of a previous process.
	random []byte

	mu sync.Mutex
	// roots are the current root of the keys and, after a change, the previous root.
	roots []*root
}

// root is a root of keys, and caches the key of the current hour.
type root struct {
	secret []byte
	latest atomic.Pointer[key]
}

// key is the key of one hour.
type key struct {
	hour uint32
	macs sync.Pool // of hash.Hash, because their setup costs more than a MAC
}

const (
	timeSize = 4
	size     = 12
	rootSize = 32
)

var encoding = base64.RawURLEncoding

// New returns a source with a lifetime of MaxLifetime. Its root is that of a previous process (see Root), so that its
// nonces stay valid, or a random one if the argument does not have the length of a root.
func New(former []byte) (*Source, error) {
	random := slices.Clone(former)
	if len(former) != rootSize {
		random = make([]byte, rootSize)
		if _, err := rand.Read(random); err != nil {
			return nil, fmt.Errorf("make nonce key: %w", err)
		}
	}
	return &Source{Lifetime: MaxLifetime, random: random, roots: []*root{{secret: random}}}, nil
}

// Root returns the random root. It is secret.
func (n *Source) Root() []byte { return n.random }

// Share derives the root from the shared secret of a config, if it has one, so that every process with the same config
// accepts the nonces. Nonces that were made with the previous root stay valid.
func (n *Source) Share(c config.Config) {
	secret := n.random
	if shared := c.Auth.Authority().SharedSecret; shared != "" {
		var err error
		if secret, err = hkdf.Key(sha256.New, []byte(shared), nil, "nonces of "+c.Admin.Name, rootSize); err != nil {
			secret = n.random
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if !hmac.Equal(secret, n.roots[0].secret) {
		n.roots = []*root{{secret: secret}, n.roots[0]}
	}
}

// Make returns a nonce for a client.
func (n *Source) Make(client netip.Addr, now time.Time) []byte {
	var raw [size]byte
	binary.BigEndian.PutUint32(raw[:], uint32(now.Unix()))
	copy(raw[timeSize:], n.current()[0].mac(raw[:timeSize], client, now))
	return encoding.AppendEncode(nil, raw[:])
}

// Valid reports whether a nonce was made for a client, and is not older than Lifetime.
func (n *Source) Valid(nonce []byte, client netip.Addr, now time.Time) bool {
	raw, err := encoding.AppendDecode(nil, nonce)
	if err != nil || len(raw) != size {
		return false
	}
	ours := slices.ContainsFunc(n.current(), func(r *root) bool {
		return hmac.Equal(raw[timeSize:], r.mac(raw[:timeSize], client, now))
	})
	age := now.Sub(time.Unix(int64(binary.BigEndian.Uint32(raw)), 0))
	return ours && age >= -leeway && age <= n.Lifetime
}

func (n *Source) current() []*root {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.roots
}

func (r *root) mac(made []byte, client netip.Addr, now time.Time) []byte {
	k := r.key(binary.BigEndian.Uint32(made)/hour, now)
	h := k.macs.Get().(hash.Hash)
	defer k.macs.Put(h)
	h.Reset()
	h.Write(made)
	addr := client.As16()
	h.Write(addr[:])
	return h.Sum(nil)[:size-timeSize]
}

// hour is the time in seconds for which a key is used.
const hour = uint32(MaxLifetime / time.Second)

// key returns the key of an hour. Only the key of the current hour is cached: a client may send any hour.
func (r *root) key(number uint32, now time.Time) *key {
	if k := r.latest.Load(); k != nil && k.hour == number {
		return k
	}
	h := hmac.New(sha256.New, r.secret)
	h.Write(binary.BigEndian.AppendUint32(nil, number))
	value := h.Sum(nil)
	k := &key{hour: number}
	k.macs.New = func() any { return hmac.New(sha256.New, value) }
	if number == uint32(now.Unix())/hour {
		r.latest.Store(k)
	}
	return k
}
