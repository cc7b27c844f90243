package inspect

import (
	"context"
	"crypto/sha256"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/stunner-gateway/stunner/services/api/ratelimit"
)

// Requests above a limit wait in a queue.
const (
	// queueTime is the maximum time in a queue.
	queueTime = time.Second
	// queueFactor is the maximum length of a queue, as a multiple of the limit.
	queueFactor = 4
)

// limiter limits the requests in progress by key. Its zero value is ready to use.
type limiter[K comparable] struct {
	mu   sync.Mutex
	keys map[K]*slots
}

// slots are the requests of one key.
type slots struct {
	// taken contains an element for each request in progress. Its capacity is the limit.
	taken chan struct{}
	// requests is the number of requests in progress and in the queue.
	requests int
}

// enter waits until fewer than limit requests of the key are in progress, and counts one. It returns false if the queue
// is full, if queueTime has passed, or if ctx ends.
func (l *limiter[K]) enter(ctx context.Context, key K, limit int) bool {
	s := l.queue(key, limit)
	if s == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, queueTime)
	defer cancel()
	select {
	case s.taken <- struct{}{}:
		return true
	case <-ctx.Done():
		l.remove(key)
		return false
	}
}

// queue adds a request to the queue of a key. It returns nil if the queue is full.
func (l *limiter[K]) queue(key K, limit int) *slots {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.keys[key]
	switch {
	case s == nil:
		s = &slots{taken: make(chan struct{}, limit)}
		if l.keys == nil {
			l.keys = map[K]*slots{}
		}
		l.keys[key] = s
	case s.requests >= (1+queueFactor)*limit:
		return nil
	}
	s.requests++
	return s
}

// leave ends a request that was counted by enter.
func (l *limiter[K]) leave(key K) { <-l.remove(key).taken }

func (l *limiter[K]) remove(key K) *slots {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.keys[key]
	if s.requests--; s.requests == 0 {
		delete(l.keys, key)
	}
	return s
}

// credentials are the credentials that callers were authenticated with. They are known for credentialTTL.
type credentials struct {
	mu    sync.Mutex
	until map[credentialKey]time.Time
}

const (
	// credentialTTL is how long a credential is known after its last use.
	credentialTTL = time.Minute
	// maxCredentials is the number of known credentials.
	maxCredentials = 10_000
)

// credentialKey identifies a credential of a source by the hash of its header.
type credentialKey struct {
	source netip.Prefix
	header [sha256.Size]byte
}

func credentialOf(r *http.Request, from source) credentialKey {
	return credentialKey{from.prefix, sha256.Sum256([]byte(r.Header.Get("Authorization")))}
}

func (c *credentials) has(key credentialKey, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return now.Before(c.until[key])
}

// add makes a credential known. If too many are known, it removes those that have expired, or else all.
func (c *credentials) add(key credentialKey, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.until) >= maxCredentials {
		maps.DeleteFunc(c.until, func(_ credentialKey, until time.Time) bool { return now.After(until) })
	}
	if c.until == nil || len(c.until) >= maxCredentials {
		c.until = map[credentialKey]time.Time{}
	}
	c.until[key] = now.Add(credentialTTL)
}

// source is the origin of a request.
type source struct {
	// prefix are the addresses that count as one.
	prefix netip.Prefix
	// replica is set for the address of another replica.
	replica bool
}

func (a *API) sourceOf(r *http.Request) source {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return source{}
	}
	addr := at.Addr().Unmap()
	if slices.ContainsFunc(a.Replicas(), func(replica string) bool { return hostOf(replica) == addr }) {
		return source{prefix: netip.PrefixFrom(addr, addr.BitLen()), replica: true}
	}
	if addr.IsLoopback() { // SourcePrefix returns a network for ::1, and IsLoopback is false for that network
		return source{prefix: netip.PrefixFrom(addr, addr.BitLen())}
	}
	return source{prefix: ratelimit.SourcePrefix(addr)}
}

// hostOf returns the IP address in the URL of a replica.
func hostOf(replica string) netip.Addr {
	u, err := url.Parse(replica)
	if err != nil {
		return netip.Addr{}
	}
	addr, _ := netip.ParseAddr(u.Hostname())
	return addr.Unmap()
}

// OnThisHost reports whether a request was made on this host. It is false for a request that is only forwarded on this
// host: by a proxy, which adds a forwarding header; by a service mesh, which uses another address of 127.0.0.0/8; or by
// a browser on a page whose host name an attacker resolves to this host (DNS rebinding).
func OnThisHost(r *http.Request) bool {
	remote, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !slices.Contains(loopback, remote.Addr().Unmap()) {
		return false
	}
	host := (&url.URL{Host: r.Host}).Hostname()
	_, notAddress := netip.ParseAddr(host)
	forwarded := r.Header.Get("Forwarded") + r.Header.Get("X-Forwarded-For")
	return forwarded == "" && (host == "localhost" || notAddress == nil)
}

// loopback are the source addresses of callers on this host.
var loopback = []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}
