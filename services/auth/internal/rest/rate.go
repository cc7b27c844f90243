package rest

import (
	"net/netip"
	"time"

	"github.com/stunner-gateway/stunner/services/api/ratelimit"
	"github.com/stunner-gateway/stunner/services/auth/internal/access"
)

// Rate is a rate limit of one source or caller. The zero Rate is unlimited.
type Rate struct {
	// PerSecond is the average number of requests a second.
	PerSecond float64
	// Burst is the number of requests that may be sent at once.
	Burst int
}

// Rates are the rate limits of sources and of callers. The policy can set other limits for callers.
type Rates struct {
	// Rate applies to each subject of a token, and to each source outside of the cluster.
	Rate
	// Inside applies to each source inside of the cluster, where a web app may send the requests of all its users, and
	// to each API key, which belongs to a web app.
	Inside Rate
	// Networks are the networks of the cluster. Sources with private, loopback or link-local addresses are always
	// inside of the cluster.
	Networks []netip.Prefix
	// Proxies are the networks of the trusted proxies. The source of a request from a trusted proxy is in an HTTP
	// header (see Header). That header is ignored in all other requests.
	Proxies []netip.Prefix
	// Header is the name of the header in which a proxy sends the source: XForwardedFor or Forwarded. Empty means
	// XForwardedFor.
	Header string
}

// maxKeys is the maximum number of token buckets of one limiter. Each source and each caller has a bucket.
const maxKeys = 1 << 16

// limiters contain the token buckets, each with its own rate: outside the buckets of sources outside of the cluster,
// inside the buckets of sources inside of the cluster, and callers the buckets of callers. A nil limiter allows all
// requests.
type limiters struct {
	outside, inside *ratelimit.Limiter[sourceKey]
	callers         *ratelimit.Limiter[string]
}

// sourceKey identifies the source of a request: the prefix of its address, or the proxy that sent no source address.
type sourceKey struct {
	prefix  netip.Prefix
	unnamed bool
}

func newLimiters(r Rates) limiters {
	of := func(r Rate) *ratelimit.Limiter[sourceKey] {
		if r.PerSecond == 0 {
			return nil
		}
		return ratelimit.New[sourceKey](r.PerSecond, r.Burst, maxKeys)
	}
	return limiters{outside: of(r.Rate), inside: of(r.Inside), callers: ratelimit.New[string](0, 0, maxKeys)}
}

// caller counts a request of a caller. It returns how long the request has to wait, or 0 if it is within the rate
// limit. A caller without credentials is limited as its source, unless the policy has a limit for such callers.
func (l limiters) caller(who *access.Identity, from source, rates Rates, now time.Time) time.Duration {
	limit, key := Rate(who.Grant.Rate), who.Caller
	switch {
	case limit != (Rate{}):
	case who.Key != "":
		limit = rates.Inside
	case who.Known:
		limit = rates.Rate
	}
	if limit.PerSecond == 0 {
		return 0
	}
	if key == "" {
		key = "source " + ratelimit.SourcePrefix(from.addr).String()
	}
	return l.callers.TakeAt(key, limit.PerSecond, limit.Burst, now)
}

// source counts a request of a source. It returns how long the request has to wait, or 0 if it is within the rate
// limit. Inside of the cluster each address has a limit of its own, outside each ratelimit.SourcePrefix. All requests
// of a proxy without a readable source address share one limit.
func (l limiters) source(from source, networks []netip.Prefix, now time.Time) time.Duration {
	a := from.addr
	switch {
	case from.unnamed:
		return take(l.outside, sourceKey{netip.PrefixFrom(a, a.BitLen()), true}, now)
	case a.IsPrivate() || a.IsLoopback() || a.IsLinkLocalUnicast() || holds(networks, a):
		return take(l.inside, sourceKey{prefix: netip.PrefixFrom(a, a.BitLen())}, now)
	}
	return take(l.outside, sourceKey{prefix: ratelimit.SourcePrefix(a)}, now)
}

func take(l *ratelimit.Limiter[sourceKey], key sourceKey, now time.Time) time.Duration {
	if l == nil {
		return 0
	}
	return l.Take(key, now)
}
