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

// Source makes and checks nonces, and stores none. A nonce is the time at which it was made, the mark of its pod, and a
// MAC over both and the client's IP address: 12 bytes, or 16 characters. It is short because the challenge that holds
// it may go to a forged source address. A MAC of 56 bits suffices: a nonce proves the address of a client and no
// password, and each guess requires a request.
//
// The key of the MAC is derived from a root and the hour in which the nonce was made. Pods of a gateway have a common
// root, so that the nonce of a client stays valid when its session goes to another pod: a client that ends its call
// sends one Refresh with a lifetime of 0 and closes its socket. If the answer to this request is 438, the client does
// not repeat the request, and the session occupies its port and its quota until it expires.
//
// The root is derived from the newest key of the pods. Without such a key, as in the second before a pod gets its first
// list, it is derived from the shared secret of the config, and without a shared secret it is random. Clients know none
// of them.
type Source struct {
	// Lifetime is between MinLifetime and MaxLifetime. It must not change after the first use.
	Lifetime time.Duration

	// random is the root that is used without a key of the pods and without a shared secret. It is a random number, or
	// the root of a previous process.
	random []byte
	// mark is one byte that belongs to random. It distinguishes the nonces of this pod from the nonces of most other
	// pods.
	mark byte

	mu sync.Mutex
	// pods are the roots that are derived from the keys of the pods, the newest first, at most maxKeys.
	pods []*root
	// configs are the root that is derived from the config and, after a change, the previous root.
	configs []*root
	// roots are pods and configs. Nonces of all these roots are valid, and the first root makes nonces.
	roots []*root
}

// maxKeys is the number of keys of the pods that are used: the keys of today and of yesterday. A nonce lives for an
// hour, and each further root costs a MAC for each invalid nonce.
const maxKeys = 2

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
	// madeSize is the size of time and mark.
	madeSize = timeSize + 1
	size     = 12
	rootSize = 32
)

var encoding = base64.RawURLEncoding

// New returns a source with a lifetime of MaxLifetime. Its root is the given root of a previous process (see Root), so
// that nonces of that process stay valid. If the argument does not have the length of a root, the root is random.
func New(former []byte) (*Source, error) {
	random := slices.Clone(former)
	if len(former) != rootSize {
		random = make([]byte, rootSize)
		if _, err := rand.Read(random); err != nil {
			return nil, fmt.Errorf("make nonce key: %w", err)
		}
	}
	only := []*root{{secret: random}}
	return &Source{Lifetime: MaxLifetime, random: random, mark: sha256.Sum256(random)[0], configs: only, roots: only}, nil
}

// Root returns the random root. It is secret.
func (n *Source) Root() []byte { return n.random }

// Share derives the root from the shared secret of a config, if the config has one, so that every process with the same
// config accepts the nonces. Nonces that were made with the previous root stay valid.
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
	if !hmac.Equal(secret, n.configs[0].secret) {
		n.configs = []*root{{secret: secret}, n.configs[0]}
		n.roots = slices.Concat(n.pods, n.configs)
	}
}

// ShareKeys derives roots from secret keys that only the pods of the Gateway have, the newest first. With them, pods
// accept the nonces of each other independent of the credentials in the config. Without keys, the keys of the last call
// stay in use.
func (n *Source) ShareKeys(keys [][32]byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var pods []*root
	for _, k := range keys[:min(len(keys), maxKeys)] {
		secret, err := hkdf.Key(sha256.New, k[:], nil, "nonces of a gateway", rootSize)
		if err != nil {
			continue // cannot happen: HKDF fails only for longer keys
		}
		same := func(r *root) bool { return hmac.Equal(secret, r.secret) }
		if i := slices.IndexFunc(n.pods, same); i >= 0 {
			pods = append(pods, n.pods[i])
		} else {
			pods = append(pods, &root{secret: secret})
		}
	}
	if len(pods) > 0 {
		n.pods, n.roots = pods, slices.Concat(pods, n.configs)
	}
}

// Make returns a nonce for a client.
func (n *Source) Make(client netip.Addr, now time.Time) []byte {
	var raw [size]byte
	binary.BigEndian.PutUint32(raw[:], uint32(now.Unix()))
	raw[timeSize] = n.mark
	copy(raw[madeSize:], n.current()[0].mac(raw[:madeSize], client, now))
	return encoding.AppendEncode(nil, raw[:])
}

// Own reports whether a valid nonce was made by this pod, or by one of the few other pods with the same mark.
func (n *Source) Own(nonce []byte) bool {
	raw, err := encoding.AppendDecode(nil, nonce)
	return err == nil && len(raw) == size && raw[timeSize] == n.mark
}

// Valid reports whether a nonce was made for a client, and is not older than Lifetime. The nonce may have been made by
// another pod.
func (n *Source) Valid(nonce []byte, client netip.Addr, now time.Time) bool {
	raw, err := encoding.AppendDecode(nil, nonce)
	if err != nil || len(raw) != size {
		return false
	}
	ours := slices.ContainsFunc(n.current(), func(r *root) bool {
		return hmac.Equal(raw[madeSize:], r.mac(raw[:madeSize], client, now))
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
	return h.Sum(nil)[:size-madeSize]
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
