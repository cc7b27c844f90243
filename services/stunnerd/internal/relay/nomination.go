package relay

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/stunmsg"
)

// nominations keeps the connectivity check of the client to each peer that a move sends again, and remembers which of
// them were reported to Routes.OnNomination. A connectivity check is a Binding request. A check with USE-CANDIDATE
// nominates (RFC 8445 §7.2.2). The newest nominating check is kept, as long as it has the same USERNAME as the newest
// check to the peer: USERNAME changes when ICE restarts. Some clients nominate only once, when a call begins, and a
// peer does not change its path for a later check. For a client that never nominates, because its peers do, the newest
// checks to maxUnnominated peers are kept.
//
// Browsers send USE-CANDIDATE in each check, so one check is reported for each peer and USERNAME. A client that changes
// USERNAME or the port of the peer in each check must not cause a write to the journal for each packet, because the
// journal is shared by all clients. So checks are reported at most once in nominationInterval, the newest check of each
// peer.
type nominations struct {
	mu sync.Mutex
	// checks are the checks to the latest peers, at most one for each and session.MaxChecks in total.
	checks []check
	// reported is when checks were last reported.
	reported time.Time
	// timer reports pending checks. It is nil if the timer is not running.
	timer *time.Timer
	// fresh is set while a check that does not nominate waits to be reported.
	fresh bool
	// memory is the claim of the session for the memory of the checks, here and in the journal. The journal keeps the
	// checks that were removed here, so the claim is for the highest number of checks so far.
	memory session.Claim
	closed bool
}

type check struct {
	session.Check
	username  uint64 // hash
	nominates bool
	// pending is set if the check nominates and is not reported yet.
	pending bool
}

const (
	// nominationInterval is the shortest time between two reports of a relay.
	nominationInterval = time.Second
	// maxUnnominated is the number of peers whose checks are kept for a client that does not nominate.
	maxUnnominated = 4
)

var usernames = maphash.MakeSeed()

// isBindingRequest reports whether data from a client starts like a Binding request that is short enough for
// session.Check. It is called for each packet.
func isBindingRequest(b []byte) bool {
	return len(b) >= stunmsg.HeaderSize && b[0] == 0 && b[1] == 1 && len(b) <= session.MaxCheck
}

// magicCookie is in bytes 4 to 7 of each STUN message (RFC 8489 §5).
const magicCookie = 0x2112A442

// observe stores a Binding request from the client to a peer. If it is new, observe reports it within
// nominationInterval: to Routes.OnNomination, or to Routes.OnFreshCheck if it does not nominate.
func (r *Relay) observe(message []byte, peer netip.AddrPort) {
	if r.session.Client.Connected() || binary.BigEndian.Uint32(message[4:]) != magicCookie {
		return
	}
	username, nominates := checkUser(message)
	if len(username) == 0 {
		return
	}
	if r.nominations.Load() == nil {
		r.nominations.CompareAndSwap(nil, &nominations{memory: r.session.Claim(session.Memory)})
	}
	n := r.nominations.Load()
	n.mu.Lock()
	defer n.mu.Unlock()
	switch fresh := n.add(newCheck(session.Check{Peer: peer, Message: message}, username, nominates)); {
	case fresh && nominates:
		r.reportPending(n)
	case fresh:
		r.reportFresh(n)
	}
}

// reportFresh reports within nominationInterval that there is a new check that does not nominate. The caller holds
// n.mu.
func (r *Relay) reportFresh(n *nominations) {
	report := r.routes.fresh.Load()
	if n.fresh || report == nil {
		return
	}
	n.fresh = true
	time.AfterFunc(nominationInterval, func() {
		n.mu.Lock()
		n.fresh = false
		n.mu.Unlock()
		if !r.Closed() {
			(*report)(r)
		}
	})
}

func newCheck(c session.Check, username []byte, nominates bool) check {
	return check{Check: c, username: maphash.Bytes(usernames, username), nominates: nominates}
}

// reportPending reports the pending checks, now or when nominationInterval has passed. The caller holds n.mu.
func (r *Relay) reportPending(n *nominations) {
	report := r.routes.nominated.Load()
	isPending := func(c check) bool { return c.pending }
	if n.timer != nil || report == nil || !slices.ContainsFunc(n.checks, isPending) {
		return
	}
	if wait := nominationInterval - time.Since(n.reported); wait > 0 {
		n.timer = time.AfterFunc(wait, func() {
			n.mu.Lock()
			defer n.mu.Unlock()
			if n.timer = nil; !r.Closed() {
				r.reportPending(n)
			}
		})
		return
	}
	for i := range n.checks {
		if n.checks[i].pending {
			n.checks[i].pending = false
			(*report)(r, n.checks[i].Check)
		}
	}
	n.reported = time.Now()
}

// ReportNominations makes the relay report all its checks again.
func (r *Relay) ReportNominations() {
	if n := r.nominations.Load(); n != nil {
		n.mu.Lock()
		defer n.mu.Unlock()
		for i := range n.checks {
			n.checks[i].pending = n.checks[i].nominates
		}
		r.reportPending(n)
	}
}

// add stores a copy of a check, and reports whether the check is new: the first check with its peer, USERNAME and kind.
// A check is not stored if a nominating check is kept in its place, or if there is no memory for it. The caller must
// hold mu.
func (n *nominations) add(fresh check) (isNew bool) {
	at := slices.IndexFunc(n.checks, func(old check) bool { return old.Peer == fresh.Peer })
	if at >= 0 && n.checks[at].username == fresh.username && n.checks[at].nominates == fresh.nominates {
		n.checks[at].Message = append(n.checks[at].Message[:0], fresh.Message...)
		return false
	}
	if at >= 0 && n.checks[at].username == fresh.username && n.checks[at].nominates || n.closed {
		return false
	}
	kept := n.checks
	switch {
	case at >= 0:
		kept = slices.Delete(kept, at, at+1)
	case fresh.nominates:
		kept = slices.DeleteFunc(kept, func(old check) bool { return !old.nominates })
	case slices.ContainsFunc(kept, func(old check) bool { return old.nominates }):
		return false
	case len(kept) == maxUnnominated:
		kept = slices.Delete(kept, 0, 1)
	}
	n.checks = kept
	price := session.PriceOfChecks(len(kept) + 1)
	if price > n.memory.Held() && n.memory.Set(price) != nil {
		return false
	}
	if len(kept) == session.MaxChecks {
		kept = slices.Delete(kept, 0, 1)
	}
	fresh.Message, fresh.pending = bytes.Clone(fresh.Message), fresh.nominates
	n.checks = append(kept, fresh)
	return true
}

// copies returns copies of the checks. A nil *nominations has none.
func (n *nominations) copies() (list []session.Check) {
	if n == nil {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.checks {
		list = append(list, session.Check{Peer: c.Peer, Message: bytes.Clone(c.Message)})
	}
	return list
}

// Checks returns, for each peer, the connectivity check that a move sends again, the newest peer last. For a client
// that nominates, it is the latest check that nominates. For other clients, whose peers are controlling, it is the
// latest check, because a peer may still accept the address from which that check arrives.
func (r *Relay) Checks() []session.Check { return r.nominations.Load().copies() }

// close ends the charge when the session has ended.
func (n *nominations) close() {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed, n.checks = true, nil
	n.memory.Release()
}

// RestoreNominations keeps the checks of a session that another process has created, and charges the session for them.
// It must be called before Start.
func (r *Relay) RestoreNominations(checks []session.Check) {
	if len(checks) == 0 {
		return
	}
	n := &nominations{memory: r.session.Claim(session.Memory)}
	n.memory.Force(session.PriceOfChecks(len(checks)))
	for _, c := range checks {
		if !isBindingRequest(c.Message) {
			continue
		}
		if username, nominates := checkUser(c.Message); len(username) > 0 {
			c.Message = bytes.Clone(c.Message) // add replaces Message in place
			n.checks = append(n.checks, newCheck(c, username, nominates))
		}
	}
	r.nominations.Store(n)
}

// checkUser returns the USERNAME of a Binding request, and whether it has USE-CANDIDATE.
func checkUser(message []byte) (username []byte, nominates bool) {
	attrs := message[stunmsg.HeaderSize:]
	for len(attrs) >= 4 {
		kind, size := stun.AttrType(binary.BigEndian.Uint16(attrs)), int(binary.BigEndian.Uint16(attrs[2:]))
		padded := 4 + (size+3)&^3
		if padded > len(attrs) {
			return nil, false
		}
		switch kind {
		case stun.AttrUsername:
			username = attrs[4 : 4+size]
		case stun.AttrUseCandidate:
			nominates = true
		}
		attrs = attrs[padded:]
	}
	return username, nominates
}
