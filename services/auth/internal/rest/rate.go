package rest

import (
	"net/netip"
	"time"

	"github.com/stunner-gateway/stunner/services/api/ratelimit"
)

// Rate is a rate limit of one source or subject. The zero Rate is unlimited.
type Rate struct {
	// PerSecond is the average number of requests a second.
	PerSecond float64
	// Burst is the number of requests that may be sent at once.
	Burst int
}

// Rates are the rate limits of sources and of subjects of tokens.
type Rates struct {
	// Rate applies to subjects, and to sources outside of the cluster.
	Rate
	// Inside applies to sources inside of the cluster, where a web app may send the requests of all its users.
	Inside Rate
	// Networks are the networks of the cluster, in addition to private addresses.
	Networks []netip.Prefix
	// Proxies are the networks of proxies that are trusted to name the source of a request in Header.
	Proxies []netip.Prefix
	// Header is XForwardedFor or Forwarded; empty means XForwardedFor.
	Header string
}

// maxKeys is the number of sources and subjects for which a token bucket is kept.
const maxKeys = 1 << 16

// limiters contain the token buckets for the rates outside and inside of the cluster. A nil limiter has no limit.
type limiters struct{ outside, inside *ratelimit.Limiter[string] }

func newLimiters(r Rates) limiters {
	of := func(r Rate) *ratelimit.Limiter[string] {
		if r.PerSecond == 0 {
			return nil
		}
		return ratelimit.New[string](r.PerSecond, r.Burst, maxKeys)
	}
	return limiters{outside: of(r.Rate), inside: of(r.Inside)}
}

// subject returns how long the request of a subject has to wait, or 0 if it is within the rate.
func (l limiters) subject(name string, now time.Time) time.Duration {
	return take(l.outside, "subject "+name, now)
}

// source returns how long the request of a source has to wait, or 0 if it is within the rate. Inside of the cluster
// each address has a bucket of its own, outside each ratelimit.SourcePrefix. All sources that a proxy does not name
// share one bucket of that proxy.
func (l limiters) source(from source, networks []netip.Prefix, now time.Time) time.Duration {
	a := from.addr
	switch {
	case from.unnamed:
		return take(l.outside, from.String(), now)
	case a.IsPrivate() || a.IsLoopback() || a.IsLinkLocalUnicast() || holds(networks, a):
		return take(l.inside, "address "+a.String(), now)
	}
	return take(l.outside, "address "+ratelimit.SourcePrefix(a).String(), now)
}

func take(l *ratelimit.Limiter[string], key string, now time.Time) time.Duration {
	if l == nil {
		return 0
	}
	return l.Take(key, now)
}
