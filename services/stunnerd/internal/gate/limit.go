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

// Limits on answers to whoever has not shown a good credential. They protect others from answers that they never asked for, and
// users from having their passwords guessed; no request with a good credential is ever held up by them.
const (
	// A challenge costs one token. A client that comes back with the nonce has shown that its address is real, and gets the token
	// back: many users behind one address are served at any rate, a forged source is not.
	challengeRate  = 10 // a second
	challengeBurst = 10
	// bindings is how many Binding answers cost as much as a challenge: they are hardly longer than their requests.
	bindings = 10
	// failureRate bounds the answers to wrong credentials.
	failureRate  = 10 // a minute
	failureBurst = 10
	// nameRate bounds the answers to wrong credentials of one user name, wherever they come from but from private sources, which have a bound
	// of their own together. The right password is never held up, so that nobody can lock a user out.
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

// Limits are the limiters of a process. All its listeners share them: a source is the same source everywhere.
type Limits struct {
	challenges, failures *limiter
	names                *limiter
	sessions             int
}

// NewLimits returns limits of which nothing is used up. sessions bounds the allocations of the process; 0 means no bound.
func NewLimits(sessions int) *Limits {
	return &Limits{
		sessions:   sessions,
		challenges: newLimiter(challengeRate, time.Second, challengeBurst, MayHide),
		// A host's own processes are nobody who guesses passwords from far away.
		failures: newLimiter(failureRate, time.Minute, failureBurst, func(a netip.Addr) bool { return MayHide(a) || a.IsLoopback() }),
		names:    newLimiter(nameRate, time.Minute, nameBurst, nil),
	}
}

// answerable tells whether a refusal may be sent to a client that has not shown a good credential.
func (l *Limits) answerable(r *request, why meter.Reason) bool {
	source := r.client.Addr().Addr()
	switch why {
	case meter.UnknownUser, meter.WrongPassword, meter.ExpiredCredential:
		name, _ := r.value(stun.AttrUsername)
		return l.failures.allow(source, 1) && (l.failures.mayHide(source) || l.names.allowName(name))
	}
	// A connection has a source that is real; over UDP anybody can write any address on a datagram.
	return r.client.Connected() || l.challenges.allow(source, 1)
}

// proven gives back what the challenge cost: the client has read it.
func (l *Limits) proven(r *request) {
	if !r.client.Connected() {
		l.challenges.refund(r.client.Addr().Addr())
	}
}

// binding tells whether a Binding request may be answered.
func (l *Limits) binding(r *request) bool {
	return r.client.Connected() || l.challenges.allow(r.client.Addr().Addr(), bindings)
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
