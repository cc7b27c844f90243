package rest

import (
	"fmt"
	"math"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"
)

// Rates bounds how often one address, and one subject of tokens, may ask. The zero Rates bounds nothing.
type Rates struct {
	// PerSecond is how many requests a second are answered in the long run.
	PerSecond float64
	// Burst is how many may come at once after a silence.
	Burst int
	// Proxies are trusted to say in X-Forwarded-For for whom they ask.
	Proxies []netip.Prefix
}

// remembered is how many addresses and subjects are known at a time. Who comes back after so many others begins afresh.
const remembered = 1 << 16

// buckets holds a token bucket for each key.
type buckets struct {
	Rates
	known *lru.Cache[string, *rate.Limiter]
}

func newBuckets(r Rates) (*buckets, error) {
	known, err := lru.New[string, *rate.Limiter](remembered)
	if err != nil {
		return nil, fmt.Errorf("make rate limits: %w", err)
	}
	return &buckets{r, known}, nil
}

// wait is how long the owner of a key has to wait before it may ask; 0 lets it ask now.
func (b *buckets) wait(key string, now time.Time) time.Duration {
	bucket, ok := b.known.Get(key)
	if !ok {
		bucket = rate.NewLimiter(rate.Limit(b.PerSecond), b.Burst)
		if first, there, _ := b.known.PeekOrAdd(key, bucket); there {
			bucket = first
		}
	}
	turn := bucket.ReserveN(now, 1)
	delay := turn.DelayFrom(now)
	if delay > 0 {
		turn.CancelAt(now) // a request that is refused costs nothing
	}
	return delay
}

// limitAddress is for what a stranger can do before anybody knows who asks. Private addresses are those of the cluster: behind one of
// them there may be every user of a web app.
func (s server) limitAddress(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from := s.buckets.source(r)
		if s.buckets.PerSecond > 0 && !internal(from) && !s.admit(w, r, "address "+neighbourhood(from)) {
			return
		}
		next.ServeHTTP(w, r)
	})
}

// limitSubject is for what one user can do from many addresses.
func (s server) limitSubject(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who := identityOf(r.Context())
		if s.buckets.PerSecond > 0 && who.Known && !s.admit(w, r, "subject "+who.Subject) {
			return
		}
		next.ServeHTTP(w, r)
	})
}

// admit answers 429 when the owner of a key asks too often.
func (s server) admit(w http.ResponseWriter, r *http.Request, key string) bool {
	delay := s.buckets.wait(key, s.Now())
	if delay == 0 {
		return true
	}
	w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(delay.Seconds()))))
	fail(http.StatusTooManyRequests).write(w, r)
	return false
}

// source is the address that asks: the other end of the connection or, when that is a proxy that is trusted, the last address in
// X-Forwarded-For that is not. What stands before that one anybody may have written.
func (b *buckets) source(r *http.Request) netip.Addr {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	from := peer.Addr().Unmap()
	if err != nil || !b.trusts(from) {
		return from
	}
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for _, hop := range slices.Backward(hops) {
		addr, err := netip.ParseAddr(strings.TrimSpace(hop))
		if err != nil {
			break
		}
		if from = addr.Unmap().WithZone(""); !b.trusts(from) {
			break
		}
	}
	return from
}

func (b *buckets) trusts(a netip.Addr) bool {
	return slices.ContainsFunc(b.Proxies, func(p netip.Prefix) bool { return p.Contains(a) })
}

func internal(a netip.Addr) bool { return a.IsPrivate() || a.IsLoopback() || a.IsLinkLocalUnicast() }

// neighbourhood is what one subscriber has: an IPv4 address, or 64 bits of IPv6.
func neighbourhood(a netip.Addr) string {
	if !a.Is6() {
		return a.String()
	}
	p, _ := a.Prefix(64) // no length of an IPv6 address is out of range
	return p.String()
}
