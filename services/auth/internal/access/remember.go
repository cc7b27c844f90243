package access

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/subtle"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// Bounds of the remembered tokens.
const (
	maxRemembered = 8192
	// callerShare is the maximum number of remembered tokens of one caller, so that one caller does not displace the
	// tokens of others.
	callerShare = 8
	// maxRememberedToken is the maximum length of a remembered token in bytes. It bounds the memory of an identity.
	maxRememberedToken = 4 << 10
)

// remembered are identities of verified tokens, by the hash of the token. The token itself is not kept. The identities
// belong to one state of a policy. Another policy starts without remembered identities.
type remembered struct {
	mu      sync.Mutex
	entries map[[sha256.Size]byte]*entry
	callers map[string][][sha256.Size]byte // hashes by Identity.Caller, the oldest first
}

type entry struct {
	who      Identity
	verifier *verifier
	token    *jwt.Token // has only the header
	key      any
	until    time.Time
}

func newRemembered() *remembered {
	return &remembered{
		entries: map[[sha256.Size]byte]*entry{}, callers: map[string][][sha256.Size]byte{},
	}
}

// find returns the identity of a token that was verified before and is still valid: it has not expired, and the key set
// still has the same key under its key id.
func (r *remembered) find(hash [sha256.Size]byte, now time.Time) (Identity, bool) {
	r.mu.Lock()
	e := r.entries[hash]
	r.mu.Unlock()
	if e == nil {
		return Identity{}, false
	}
	if now.Before(e.until) {
		if key, err := e.verifier.source.known(e.token); err == nil && sameKey(key, e.key) {
			return e.who, true
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.remove(hash)
	return Identity{}, false
}

// add remembers a verified token. If its caller has callerShare of them, it replaces the oldest one. If all are in use,
// it replaces an arbitrary one.
func (r *remembered) add(hash [sha256.Size]byte, e *entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.remove(hash)
	if own := r.callers[e.who.Caller]; len(own) >= callerShare {
		r.remove(own[0])
	}
	if len(r.entries) >= maxRemembered {
		for other := range r.entries { // in random order
			r.remove(other)
			break
		}
	}
	r.entries[hash] = e
	r.callers[e.who.Caller] = append(r.callers[e.who.Caller], hash)
}

func (r *remembered) remove(hash [sha256.Size]byte) {
	e := r.entries[hash]
	if e == nil {
		return
	}
	delete(r.entries, hash)
	own := r.callers[e.who.Caller]
	kept := own[:0]
	for _, h := range own {
		if h != hash {
			kept = append(kept, h)
		}
	}
	if len(kept) == 0 {
		delete(r.callers, e.who.Caller)
		return
	}
	r.callers[e.who.Caller] = kept
}

// sameKey reports whether two verification keys are equal: shared secrets, or public keys.
func sameKey(a, b any) bool {
	if secret, ok := a.([]byte); ok {
		other, ok := b.([]byte)
		return ok && subtle.ConstantTimeCompare(secret, other) == 1
	}
	switch a.(type) {
	case *rsa.PublicKey, *ecdsa.PublicKey:
		if a == b { // the usual case: the key set has not been read again
			return true
		}
	}
	public, ok := a.(interface {
		Equal(other crypto.PublicKey) bool
	})
	return ok && public.Equal(b)
}
