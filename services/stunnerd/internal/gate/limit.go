package gate

import (
	"hash/maphash"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// Limits on answers to wrong credentials, over every transport. They do not hold up a request with a good credential; the limits of
// guess.go do.
const (
	// failureRate bounds the answers to wrong credentials.
	failureRate  = 10 // a minute
	failureBurst = 10
	// nameRate bounds the answers to wrong credentials of one user name from all public sources together. It is about answers only, so that
	// nobody can lock a user out of other addresses.
	nameRate  = 100 // a minute
	nameBurst = 100
)

// HiddenFactor is how much more than another source those may have that MayHide names: a load balancer that hides its clients is seen as
// one source for all of them. All private sources together have this much.
const HiddenFactor = 100

// buckets is the number of token buckets: sources that fall into the same one share it, so that memory is fixed whatever comes in.
const buckets = 4096

// limiter is a table of token buckets by source, which is an IPv4 address or a network of IPv6, or by user name. A bucket is one number: the time at which it will be full again
// (the generic cell rate algorithm).
type limiter struct {
	seed     maphash.Seed
	interval time.Duration // the price of one answer
	burst    int
	full     [buckets]atomic.Int64
	// mayHide tells which sources share the one bucket of those that may hide many clients.
	mayHide func(netip.Addr) bool
	hidden  atomic.Int64
	epoch   time.Time
}

// Limits are what the listeners of a process have in common: a source that guesses passwords is the same source everywhere.
type Limits struct {
	failures *limiter
	names    *limiter
	guesses  *guesses
	silenced *silenced
}

// NewLimits returns limits of which nothing is used up.
func NewLimits() *Limits {
	return &Limits{
		failures: newLimiter(failureRate, time.Minute, failureBurst, hides),
		names:    newLimiter(nameRate, time.Minute, nameBurst, nil),
		guesses:  newGuesses(),
		silenced: newSilenced(),
	}
}

// answerable tells whether a refusal may be sent to a client that has not shown a good credential.
func (g *Gate) answerable(r *request, why meter.Reason) bool {
	source, l := r.client.Addr().Addr(), g.limits
	switch why {
	case meter.UnknownUser, meter.WrongPassword, meter.ExpiredCredential, meter.RateLimited:
		name, _ := r.value(stun.AttrUsername)
		return l.failures.allow(source, 1) && (l.failures.mayHide(source) || l.names.allowName(name))
	}
	return g.challenges.allow(r, 1)
}

func newLimiter(rate int, per time.Duration, burst int, hidden func(netip.Addr) bool) *limiter {
	return &limiter{seed: maphash.MakeSeed(), interval: per / time.Duration(rate), burst: burst, mayHide: hidden, epoch: time.Now()}
}

// allow takes a price from a source's bucket, if there is as much; parts is how many parts of a token that is: 1 is a whole one.
func (l *limiter) allow(source netip.Addr, parts int) bool {
	bucket, interval, burst := l.bucket(source)
	return l.take(bucket, interval/time.Duration(parts), interval*time.Duration(burst))
}

// allowName takes a token from a user name's bucket, if there is one.
func (l *limiter) allowName(name []byte) bool {
	return l.take(&l.full[maphash.Bytes(l.seed, name)%buckets], l.interval, l.interval*time.Duration(l.burst))
}

// allowTuple takes a price from the bucket of an address and port.
func (l *limiter) allowTuple(client netip.AddrPort, parts int) bool {
	return l.take(l.tuple(client), l.interval/time.Duration(parts), l.interval*time.Duration(l.burst))
}

// allowAll takes a token from the one bucket of all.
func (l *limiter) allowAll() bool {
	return l.take(&l.hidden, l.interval, l.interval*time.Duration(l.burst))
}

// take takes a price out of a bucket of a size, both said as the time in which as much comes in.
func (l *limiter) take(bucket *atomic.Int64, price, size time.Duration) bool {
	now := int64(time.Since(l.epoch))
	for {
		full := bucket.Load()
		next := max(full, now) + int64(price)
		if next-now > int64(size) {
			return false
		}
		if bucket.CompareAndSwap(full, next) {
			return true
		}
	}
}

// refund puts a token back.
func (l *limiter) refund(source netip.Addr) {
	bucket, interval, _ := l.bucket(source)
	bucket.Add(-int64(interval))
}

// refundTuple puts a token of an address and port back.
func (l *limiter) refundTuple(client netip.AddrPort) { l.tuple(client).Add(-int64(l.interval)) }

// tuple is the bucket of an address and port.
func (l *limiter) tuple(client netip.AddrPort) *atomic.Int64 {
	return &l.full[hash(l.seed, client)%buckets]
}

// bucket is the bucket of a source, with the price of a token and the number of tokens that it holds.
func (l *limiter) bucket(source netip.Addr) (*atomic.Int64, time.Duration, int) {
	if l.mayHide(source) {
		return &l.hidden, l.interval / HiddenFactor, l.burst * HiddenFactor
	}
	return &l.full[maphash.Comparable(l.seed, session.Source(source))%buckets], l.interval, l.burst
}

// MayHide tells whether an address may be that of a load balancer or a node behind which clients are hidden.
func MayHide(a netip.Addr) bool { return a.IsPrivate() || carrierNAT.Contains(a) }

// carrierNAT is the shared address space (RFC 6598), which clouds use for nodes.
var carrierNAT = netip.MustParsePrefix("100.64.0.0/10")
