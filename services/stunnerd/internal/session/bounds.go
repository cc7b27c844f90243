package session

import (
	"errors"
	"net/netip"
	"sync/atomic"
	"time"
)

// Bounds are what the sessions of a process may have of it. The zero value of each means no bound.
type Bounds struct {
	// UserSessions is how many sessions one user id may have at a time, SourceSessions how many one source: an IPv4 address, or a /64 of
	// IPv6. A reserved port counts as a session.
	UserSessions, SourceSessions int
	// SessionRate and UserRate are how many bytes of payload a second may pass in each direction: of one session, and of all sessions of
	// one user id together.
	SessionRate, UserRate int64
	// Capacity is how many places the process has. When few are free, users and sources that hold many are refused first.
	Capacity int
}

// What Reserve and Hold object to.
var (
	ErrUserQuota   = errors.New("the user has as many sessions as it may have")
	ErrSourceQuota = errors.New("the source has as many sessions as it may have")
	ErrCapacity    = errors.New("the process is full, or nearly, and the user or the source holds many places")
	ErrReserved    = errors.New("the user has as many reserved ports as it may have")
)

// Source is what counts as one source of clients: a host with IPv6 has a whole /64 to itself (RFC 6177 §2).
func Source(client netip.Addr) netip.Prefix {
	bits := client.BitLen()
	if client.Is6() {
		bits = 64
	}
	source, _ := client.WithZone("").Prefix(bits) // the length is in range
	return source
}

// Direction is where a payload goes.
type Direction int

// The directions.
const (
	ToPeer Direction = iota
	ToClient
	directions
)

// paces are the token buckets of one session, or of one user, by direction. Each is one number: the time at which the bucket will be full
// again, since the epoch of the table.
type paces [directions]atomic.Int64

// burst is how long a payload may be ahead of its rate: a key frame comes at once.
const burst = 250 * time.Millisecond

// take takes n bytes from a bucket that fills at a rate, if it holds as many. A bucket that is full lets any datagram pass, however small
// the rate.
func (p *paces) take(d Direction, n int, rate int64, now time.Duration) bool {
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

// Admits tells whether n bytes of payload may pass now, and counts them if so.
func (s *Session) Admits(d Direction, n int) bool {
	if s.place.table == nil {
		return true
	}
	b := s.place.table.bounds.Load()
	if b.SessionRate <= 0 && b.UserRate <= 0 {
		return true
	}
	now := time.Since(s.place.table.epoch)
	return (b.SessionRate <= 0 || s.paces.take(d, n, b.SessionRate, now)) && (b.UserRate <= 0 || s.place.user.paces.take(d, n, b.UserRate, now))
}
