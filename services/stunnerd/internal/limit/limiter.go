package limit

import (
	"encoding/binary"
	"hash/maphash"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

const (
	perSecond = time.Second
	perMinute = time.Minute
)

// buckets is the number of token buckets of a limiter. Sources with the same hash share a bucket, so that the memory is
// fixed.
const buckets = 4096

// limiter is a table of token buckets. The key is a source (session.Source), a transport address or a user name. A
// bucket is stored as the time at which it will be full again (generic cell rate algorithm).
type limiter struct {
	seed     maphash.Seed
	interval time.Duration // in which one token is added
	burst    int           // tokens in a full bucket
	full     [buckets]atomic.Int64
	// private selects the sources that share privateBucket.
	private       func(netip.Addr) bool
	privateBucket atomic.Int64
	epoch         time.Time
}

func newLimiter(rate int, per time.Duration, burst int, private func(netip.Addr) bool) *limiter {
	return &limiter{
		seed: maphash.MakeSeed(), interval: per / time.Duration(rate), burst: burst, private: private,
		epoch: time.Now(),
	}
}

// allow takes 1/parts of a token from the bucket of a source. It reports false, and takes nothing, if the bucket holds
// less.
func (l *limiter) allow(source netip.Addr, parts int) bool {
	bucket, interval, burst := l.bucket(source)
	return l.take(bucket, interval/time.Duration(parts), interval*time.Duration(burst))
}

// allowName takes a token from the bucket of a user name.
func (l *limiter) allowName(name []byte) bool {
	return l.take(&l.full[maphash.Bytes(l.seed, name)%buckets], l.interval, l.interval*time.Duration(l.burst))
}

// allowTuple takes 1/parts of a token from the bucket of a transport address.
func (l *limiter) allowTuple(client netip.AddrPort, parts int) bool {
	return l.take(l.tuple(client), l.interval/time.Duration(parts), l.interval*time.Duration(l.burst))
}

func (l *limiter) allowAny() bool {
	return l.take(&l.privateBucket, l.interval, l.interval*time.Duration(l.burst))
}

// take takes tokens from a bucket. price is the number of tokens to take, and size the number in a full bucket. Both
// are given as the time in which the bucket gains that many tokens.
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

// refund returns a token to the bucket of a source.
func (l *limiter) refund(source netip.Addr) {
	bucket, interval, _ := l.bucket(source)
	bucket.Add(-int64(interval))
}

// refundTuple returns a token to the bucket of a transport address.
func (l *limiter) refundTuple(client netip.AddrPort) { l.tuple(client).Add(-int64(l.interval)) }

// tuple returns the bucket of a transport address.
func (l *limiter) tuple(client netip.AddrPort) *atomic.Int64 {
	return &l.full[hash(l.seed, client)%buckets]
}

// bucket returns the token bucket of a source, the interval in which it gains one token, and its maximum number of
// tokens.
func (l *limiter) bucket(source netip.Addr) (*atomic.Int64, time.Duration, int) {
	if l.private(source) {
		return &l.privateBucket, l.interval / PrivateFactor, l.burst * PrivateFactor
	}
	return &l.full[maphash.Comparable(l.seed, session.Source(source))%buckets], l.interval, l.burst
}

// hash returns a hash of a transport address.
func hash(seed maphash.Seed, client netip.AddrPort) uint64 {
	var b [18]byte
	addr := client.Addr().As16()
	copy(b[:], addr[:])
	binary.BigEndian.PutUint16(b[16:], client.Port())
	return maphash.Bytes(seed, b[:])
}
