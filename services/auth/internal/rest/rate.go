package rest

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"
)

// Rate bounds how often one source may ask. The zero Rate bounds nothing.
type Rate struct {
	// PerSecond is how many requests a second are answered in the long run.
	PerSecond float64
	// Burst is how many may come at once after a silence.
	Burst int
}

// Rates bounds how often each source, and each subject of tokens, may ask.
type Rates struct {
	// Rate is for subjects, and for sources outside of the cluster.
	Rate
	// Inside is for sources inside of the cluster: there a web app may ask for all its users.
	Inside Rate
	// Networks are those of the cluster, beside private addresses.
	Networks []netip.Prefix
	// Proxies are trusted to say for whom they ask, in Header: XForwardedFor unless it is Forwarded.
	Proxies []netip.Prefix
	Header  string
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
func (b *buckets) wait(key string, r Rate, now time.Time) time.Duration {
	bucket, ok := b.known.Get(key)
	if !ok {
		bucket = rate.NewLimiter(rate.Limit(r.PerSecond), r.Burst)
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

// limitSource is for what a stranger can do before anybody knows who asks.
func (s server) limitSource(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from := s.buckets.source(r)
		if key, rate := s.buckets.bucketOf(from); s.admit(w, r, key, rate) {
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), sourceKey{}, from)))
		}
	})
}

type sourceKey struct{}

// sourceOf is where a request comes from that limitSource let in.
func sourceOf(ctx context.Context) source {
	from, _ := ctx.Value(sourceKey{}).(source)
	return from
}

// limitSubject is for what one user can do from many addresses.
func (s server) limitSubject(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if who := identityOf(r.Context()); !who.Known || s.admit(w, r, "subject "+who.Subject, s.buckets.Rate) {
			next.ServeHTTP(w, r)
		}
	})
}

// admit answers 429 when the owner of a key asks too often.
func (s server) admit(w http.ResponseWriter, r *http.Request, key string, rate Rate) bool {
	if rate.PerSecond == 0 {
		return true
	}
	delay := s.buckets.wait(key, rate, s.Now())
	if delay == 0 {
		return true
	}
	w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(delay.Seconds()))))
	fail(http.StatusTooManyRequests).write(w, r)
	return false
}

// bucketOf is where the requests of a source are counted, and at which rate. Inside of the cluster each address has a bucket. Outside, a subscriber of
// an IPv6 network has 64 bits of it. All that a proxy does not name share a bucket of the proxy.
func (r Rates) bucketOf(from source) (key string, rate Rate) {
	a := from.addr
	switch {
	case from.unread:
		return from.String(), r.Rate
	case a.IsPrivate() || a.IsLoopback() || a.IsLinkLocalUnicast() || holds(r.Networks, a):
		return "address " + a.String(), r.Inside
	case a.Is6():
		p, _ := a.Prefix(64) // no length of an IPv6 address is out of range
		return "address " + p.String(), r.Rate
	}
	return "address " + a.String(), r.Rate
}
