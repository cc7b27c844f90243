// Package ratelimit limits the rate of requests of many clients, in bounded memory.
//
// SourcePrefix defines which addresses are one source.
package ratelimit

import (
	"maps"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Limiter holds a token bucket for each key. Keys are usually source prefixes or users.
type Limiter[K comparable] struct {
	limit   rate.Limit
	burst   int
	maxKeys int

	mu      sync.Mutex
	buckets map[K]*rate.Limiter
	swept   time.Time
}

// New returns a limiter that allows perSecond requests a second for each key, and burst requests at once. It keeps at
// most maxKeys buckets. If all are in use, a new key replaces an arbitrary one, so that a client that uses many keys
// cannot exclude other clients.
func New[K comparable](perSecond float64, burst, maxKeys int) *Limiter[K] {
	return &Limiter[K]{limit: rate.Limit(perSecond), burst: burst, maxKeys: maxKeys, buckets: map[K]*rate.Limiter{}}
}

// Take takes a token from the bucket of key and returns 0. If the bucket is empty, it takes none and returns the time
// until the bucket has a token.
func (l *Limiter[K]) Take(key K, now time.Time) (wait time.Duration) {
	return l.TakeAt(key, float64(l.limit), l.burst, now)
}

// TakeAt is Take for a key with a rate and a burst of its own, which may differ between calls.
func (l *Limiter[K]) TakeAt(key K, perSecond float64, burst int, now time.Time) (wait time.Duration) {
	b := l.bucket(key, rate.Limit(perSecond), burst, now)
	if b.Limit() != rate.Limit(perSecond) || b.Burst() != burst {
		b.SetLimitAt(now, rate.Limit(perSecond))
		b.SetBurstAt(now, burst)
	}
	token := b.ReserveN(now, 1)
	if wait = token.DelayFrom(now); wait > 0 {
		token.CancelAt(now)
	}
	return wait
}

// bucket returns the bucket of a key. If maxKeys buckets are in use, it removes the full buckets, which equal new
// buckets. It does so at most once a second, because it visits all buckets.
func (l *Limiter[K]) bucket(key K, limit rate.Limit, burst int, now time.Time) *rate.Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	if b, ok := l.buckets[key]; ok {
		return b
	}
	if len(l.buckets) >= l.maxKeys && now.Sub(l.swept) >= time.Second {
		l.swept = now
		maps.DeleteFunc(l.buckets, func(_ K, b *rate.Limiter) bool { return b.TokensAt(now) >= float64(b.Burst()) })
	}
	if len(l.buckets) >= l.maxKeys {
		for other := range l.buckets { // the order is random
			delete(l.buckets, other)
			break
		}
	}
	b := rate.NewLimiter(limit, burst)
	l.buckets[key] = b
	return b
}

// SourcePrefix returns the addresses that count as one source of requests: an IPv4 address, or a /64 of IPv6, because
// one host can use all addresses of a /64 (RFC 6177 §2).
func SourcePrefix(addr netip.Addr) netip.Prefix {
	addr = addr.Unmap()
	bits := addr.BitLen()
	if addr.Is6() {
		bits = 64
	}
	prefix, _ := addr.Prefix(bits) // bits is in range
	return prefix
}
