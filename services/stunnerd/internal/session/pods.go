package session

import (
	"crypto/sha256"
	"math"
)

// User is a part of the hash of a user ID. The pods of a Gateway exchange it in place of the user ID. Finding a second
// user ID with the same User requires a collision in half of SHA-256.
type User [16]byte

// counted is what this pod reports to the other pods about a user to which a limit of sessions applies.
type counted struct {
	user User
	// provisional counts the relay ports that other pods do not count for this pod. They belong to sessions that other
	// pods have not admitted, and to sessions that another pod has not ended yet after a handover.
	provisional int64
	// told is the number of relay ports of the last report, or unsure.
	told int64
}

// unsure is the value of counted.told after Users has listed provisional relay ports.
const unsure = -1

// Admission is what the pods of the Gateway need to admit a session that has a relay port.
type Admission struct {
	User User
	// Ports is the number of relay ports of the user in this process, including the port of the session.
	Ports int64
	// Limit is the number of relay ports that the user may have in all pods.
	Limit int64
	// Over is the error if the user has more relay ports than Limit: ErrUserQuota or ErrCaveatAllocations.
	Over error
}

// Report makes the table call a function when the number of relay ports of a user changes, if a limit of sessions
// applies to the user. The function is not called while relay ports of the user are provisional: some of them may
// already be counted by other pods. fewer reports whether the number has decreased. The function must not use the
// table. Report must be called before the table is used.
func (t *Table) Report(to func(user User, ports int64, fewer bool)) { t.report = to }

// Admission returns what other pods need to admit a session. It reports false if the session needs no admission: no
// limit applies to its user, or its relay port is not provisional.
func (t *Table) Admission(s *Session) (Admission, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !s.port.provisional {
		return Admission{}, false
	}
	u := s.account.user
	a := Admission{User: u.pods.user, Ports: u.held[RelayPorts]}
	a.Limit, a.Over = t.limit(s)
	return a, a.Limit > 0
}

// Settle makes the relay port of a session count in other pods.
func (t *Table) Settle(s *Session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !s.port.provisional {
		return
	}
	s.port.provisional = false
	t.unsettled--
	u := s.account.user
	u.pods.provisional--
	t.tell(u)
}

// Users calls yield with the number of relay ports of each user to which a limit of sessions applies, until yield
// returns false. Provisional relay ports count, so that a user that requests sessions all the time is reported too. It
// holds no lock while it calls yield.
func (t *Table) Users(yield func(user User, ports int64) bool) {
	type report struct {
		user  User
		ports int64
	}
	t.mu.Lock()
	all := make([]report, 0, len(t.users))
	for _, h := range t.users {
		if h.pods == nil {
			continue
		}
		all = append(all, report{h.pods.user, h.held[RelayPorts]})
		if h.pods.provisional > 0 {
			h.pods.told = unsure
		}
	}
	t.mu.Unlock()
	for _, r := range all {
		if !yield(r.user, r.ports) {
			return
		}
	}
}

// limit returns the largest number of relay ports that the user of a session may have in all pods, and the error if it
// has more. 0 means no limit.
func (t *Table) limit(s *Session) (int64, error) {
	quota, caveat := int64(t.bounds.Load().UserSessions), s.Caveats.Allocations
	if caveat > 0 && (quota <= 0 || caveat < quota) {
		return min(caveat, math.MaxUint32), ErrCaveatAllocations
	}
	return min(quota, math.MaxUint32), ErrUserQuota
}

// count makes other pods count the relay ports of a user. The caller holds mu.
func (t *Table) count(userID string, h *holder) {
	if t.report == nil || h.pods != nil {
		return
	}
	h.pods = new(counted)
	sum := sha256.Sum256([]byte(userID))
	copy(h.pods.user[:], sum[:])
}

// tell reports the number of relay ports of a user if it has changed. The caller holds mu.
func (t *Table) tell(h *holder) {
	if h.pods == nil || h.pods.provisional > 0 {
		return
	}
	if n := h.held[RelayPorts]; n != h.pods.told {
		fewer := n < h.pods.told || h.pods.told == unsure
		h.pods.told = n
		t.report(h.pods.user, n, fewer)
	}
}
