package session

import (
	"crypto/sha256"
	"slices"
	"sync/atomic"
	"time"

	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
)

// allowance counts the bytes that the sessions of a credential have used, if the credential limits them. All sessions
// with the credential share the allowance. It remains after them until the credential expires, so that a client that
// allocates again gets no more bytes.
type allowance struct {
	rates rates
	// used is the number of payload bytes in both directions.
	used atomic.Int64
	// sessions counts the live sessions, and until is the expiry of the credential. Table.mu guards both.
	sessions int
	until    time.Time
}

// allowanceKey is a part of the hash of a user name, which may have 508 bytes.
type allowanceKey [16]byte

const (
	// maxAllowances is the maximum number of allowances of credentials without a session. Above this number, the
	// allowances that expire first are removed. To displace the allowance of its credential, a client needs
	// maxAllowances new credentials, so it gains nothing.
	maxAllowances = 4096
	// priceAllowance is the memory of an allowance and its entry in the map. Only a part of the memory of sessions may
	// be used for allowances.
	priceAllowance = 192
	allowancePart  = 64
)

// keyOf returns the key of the allowance of a session.
func keyOf(s *Session) (key allowanceKey) {
	sum := sha256.Sum256([]byte(s.Username))
	copy(key[:], sum[:])
	return key
}

// limitsBytes reports whether a caveat limits the bytes of a session.
func limitsBytes(c *credential.Caveats) bool { return c.BytesPerSecond > 0 || c.Bytes > 0 }

// caveatsAdmit returns the error of Reserve if the caveats of a session do not allow another session of its user.
// ports is the number of sessions that the user has. The caller must hold mu.
func (t *Table) caveatsAdmit(s *Session, ports int64) error {
	switch c := &s.Caveats; {
	case c.Allocations > 0 && ports >= c.Allocations:
		return ErrCaveatAllocations
	case c.Bytes > 0:
		if a := t.allowances[keyOf(s)]; a != nil && a.used.Load() >= c.Bytes {
			return ErrCaveatBytes
		}
	}
	return nil
}

// allow returns the allowance of a new session, or nil if no caveat limits its bytes. The caller holds mu.
func (t *Table) allow(s *Session) *allowance {
	if !limitsBytes(&s.Caveats) {
		return nil
	}
	key := keyOf(s)
	a := t.allowances[key]
	switch {
	case a == nil:
		name, _ := credential.ParseUsername(s.Username)
		a = &allowance{until: name.Expires}
		t.allowances[key] = a
	case a.sessions == 0:
		t.idleAllowances--
	}
	a.sessions++
	return a
}

// leave decrements the number of sessions that use an allowance. The caller must hold mu.
func (t *Table) leave(a *allowance) {
	if a == nil {
		return
	}
	if a.sessions--; a.sessions == 0 {
		t.idleAllowances++
		t.forgetAllowances()
	}
}

// forgetAllowances removes allowances without a session if there are more than maxAllowances. It first removes unused
// ones and allowances of expired credentials, then the allowances that expire first. It frees an eighth of
// maxAllowances at a time, so that it runs rarely. The caller must hold mu.
func (t *Table) forgetAllowances() {
	most := maxAllowances
	if memory := t.bounds.Load().Capacity[Memory]; memory > 0 {
		most = int(min(int64(most), memory/allowancePart/priceAllowance))
	}
	if t.idleAllowances <= most {
		return
	}
	now := time.Now()
	var idle []allowanceKey
	for key, a := range t.allowances {
		switch {
		case a.sessions > 0:
		case a.used.Load() == 0, now.After(a.until.Add(time.Hour)): // one hour is more than the clocks may differ
			delete(t.allowances, key)
		default:
			idle = append(idle, key)
		}
	}
	t.idleAllowances = len(idle)
	excess := t.idleAllowances - (most - most/8)
	if excess <= 0 {
		return
	}
	slices.SortFunc(idle, func(a, b allowanceKey) int {
		return t.allowances[a].until.Compare(t.allowances[b].until)
	})
	for _, key := range idle[:excess] {
		delete(t.allowances, key)
	}
	t.idleAllowances -= excess
}

// admits takes n bytes from the rate and from the bytes that the caveats allow. If a datagram does not fit into the
// remaining bytes, all of them count as used, so that no further session can begin. A nil allowance admits everything.
func (a *allowance) admits(c *credential.Caveats, d Direction, n int, now time.Duration) (why meter.Reason, ok bool) {
	switch {
	case a == nil:
		return 0, true
	case c.BytesPerSecond > 0 && !a.rates.take(d, n, c.BytesPerSecond, now):
		return meter.CaveatRate, false
	case c.Bytes > 0 && !a.spend(int64(n), c.Bytes):
		return meter.CaveatBytes, false
	}
	return 0, true
}

// spend takes n bytes of a limit. If fewer than n bytes are left, it takes these and reports false.
func (a *allowance) spend(n, limit int64) bool {
	for {
		used := a.used.Load()
		next := min(used+n, limit)
		if a.used.CompareAndSwap(used, next) {
			return used+n <= limit
		}
	}
}
