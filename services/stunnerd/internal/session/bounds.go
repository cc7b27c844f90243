package session

import (
	"errors"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/stunner-gateway/stunner/services/api/ratelimit"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
)

// Bounds limit the sessions of a process. A field that is zero sets no limit. A port that is reserved for a later
// allocation counts as a session.
type Bounds struct {
	// UserSessions is the largest number of concurrent sessions of one user ID, in this process and in all pods that
	// count with it (see Table.Report).
	UserSessions int
	// SourceSessions is the largest number of concurrent sessions of one source: an IPv4 address, or a /64 of IPv6.
	SourceSessions int
	// SessionRate is the payload rate of one session, in bytes a second for each direction.
	SessionRate int64
	// UserRate is the payload rate of all sessions of one user ID together, in bytes a second for each direction.
	UserRate int64
	// Capacity is the maximum amount of each kind that the process holds. When most of it is used, the users and
	// networks with the largest amounts are refused first (see tier).
	Capacity Amounts
}

// Errors of Reserve and Hold, in addition to ErrCapacity.
var (
	ErrUserQuota   = errors.New("the user has as many sessions as it may have")
	ErrSourceQuota = errors.New("the source has as many sessions as it may have")
	ErrReserved    = errors.New("the user has as many reserved ports as it may have")
	// ErrCaveatAllocations and ErrCaveatBytes are the errors for the caveats of the credential.
	ErrCaveatAllocations = errors.New("the user has as many sessions as the credential allows")
	ErrCaveatBytes       = errors.New("the bytes that the credential allows are used")
)

// QuotaUsed returns the largest used part of the quota of a user ID, and the largest used part of the quota of a
// source, each from 0 to 1. A part is 0 if there is no such quota.
func (t *Table) QuotaUsed() (user, source float64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.bounds.Load()
	if b.UserSessions > 0 {
		for _, h := range t.users {
			user = max(user, float64(h.held[RelayPorts])/float64(b.UserSessions))
		}
	}
	if b.SourceSessions > 0 {
		for _, h := range t.sources {
			if !h.shared {
				source = max(source, float64(h.held[RelayPorts])/float64(b.SourceSessions))
			}
		}
	}
	return min(user, 1), min(source, 1)
}

// Source returns the prefix of client addresses that count as one source together with the given address.
func Source(client netip.Addr) netip.Prefix { return ratelimit.SourcePrefix(client) }

// Direction is the direction of a payload through a relay.
type Direction int

const (
	ToPeer Direction = iota
	ToClient
	directions
)

// rates are the token buckets of one session, of one user or of one credential, by direction. A bucket is stored as the
// time at which it will be full again, since the epoch of the table.
type rates [directions]atomic.Int64

// burst is how much payload may exceed the rate at once, as the time in which the rate allows that much. A key frame of
// a video fits into it.
const burst = 250 * time.Millisecond

// take takes n bytes from a bucket. It reports false, and takes nothing, if more than burst is used. A full bucket
// admits a datagram of any size, so a low rate cannot block large datagrams.
func (p *rates) take(d Direction, n int, rate int64, now time.Duration) bool {
	bucket := &p[d]
	price := time.Duration(n) * time.Second / time.Duration(rate)
	for {
		full := bucket.Load()
		if time.Duration(full)-now > burst {
			return false
		}
		if bucket.CompareAndSwap(full, int64(max(time.Duration(full), now)+price)) {
			return true
		}
	}
}

// BytesLimited reports whether a byte rate applies to the session, or a caveat about bytes.
func (s *Session) BytesLimited() bool {
	if s.account.table == nil {
		return false
	}
	b := s.account.table.bounds.Load()
	return b.SessionRate > 0 || b.UserRate > 0 || s.account.allowance != nil
}

// Admits reports whether n bytes of payload may pass now. If so, it counts them. Otherwise why is the reason. Bytes
// that one limit refuses still count against the limits that are checked before it.
func (s *Session) Admits(d Direction, n int, at time.Time) (why meter.Reason, ok bool) {
	if !s.BytesLimited() {
		return 0, true
	}
	b := s.account.table.bounds.Load()
	now := at.Sub(s.account.table.epoch)
	switch {
	case b.SessionRate > 0 && !s.rates.take(d, n, b.SessionRate, now),
		b.UserRate > 0 && !s.account.user.rates.take(d, n, b.UserRate, now):
		return meter.ByteRate, false
	}
	return s.account.allowance.admits(&s.Caveats, d, n, now)
}
