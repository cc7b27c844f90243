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

// nominations remembers which nominating connectivity checks of the client were reported to Routes.OnNomination. A
// connectivity check is a Binding request. One with USE-CANDIDATE nominates (RFC 8445 §7.2.2). Browsers send
// USE-CANDIDATE in each check, so one check is reported for each peer and USERNAME, which changes when ICE restarts.
//
// A client that changes USERNAME or the port of the peer in each check must not cause a write to the journal for each
// packet, because the journal is shared by all clients. So checks are reported at most once in nominationInterval, the
// newest check of each peer.
type nominations struct {
	mu   sync.Mutex
	seen []nomination
	// pending are the checks that are not reported yet, at most one for each peer.
	pending []session.Check
	// reported is when checks were last reported.
	reported time.Time
	// timer reports pending. It is nil if the timer is not running.
	timer *time.Timer
	// memory is what the session is charged for the checks here and in the journal, which keeps those that seen has
	// forgotten: as many as there were at most.
	memory session.Claim
	closed bool
}

type nomination struct {
	peer     netip.AddrPort
	username uint64 // hash
}

// nominationInterval is the shortest time between two reports of a relay.
const nominationInterval = time.Second

var usernames = maphash.MakeSeed()

// isBindingRequest reports whether data from a client starts like a Binding request that is short enough for
// session.Check. It is called for each packet.
func isBindingRequest(b []byte) bool {
	return len(b) >= stunmsg.HeaderSize && b[0] == 0 && b[1] == 1 && len(b) <= session.MaxCheck
}

// magicCookie is in bytes 4 to 7 of each STUN message (RFC 8489 §5).
const magicCookie = 0x2112A442

// observe reports a Binding request from the client to a peer to Routes.OnNomination, now or within nominationInterval,
// if it nominates and no such one was reported. At most session.MaxChecks peers are remembered, the latest ones.
func (r *Relay) observe(message []byte, peer netip.AddrPort) {
	report := r.routes.nominated.Load()
	if report == nil || r.session.Client.Connected() || binary.BigEndian.Uint32(message[4:]) != magicCookie {
		return
	}
	username, nominates := nominatingUser(message)
	if !nominates {
		return
	}
	if r.nominations.Load() == nil {
		r.nominations.CompareAndSwap(nil, &nominations{memory: r.session.Claim(session.Memory)})
	}
	n := r.nominations.Load()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.add(nomination{peer, maphash.Bytes(usernames, username)}) {
		n.hold(session.Check{Peer: peer, Message: bytes.Clone(message)})
		r.reportPending(n)
	}
}

// reportPending reports the pending checks, now or when nominationInterval has passed. The caller holds n.mu.
func (r *Relay) reportPending(n *nominations) {
	report := r.routes.nominated.Load()
	if n.timer != nil || len(n.pending) == 0 || report == nil {
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
	for _, c := range n.pending {
		(*report)(r, c)
	}
	n.pending, n.reported = nil, time.Now()
}

// ReportNominations makes the relay report checks again that it has reported.
func (r *Relay) ReportNominations() {
	if n := r.nominations.Load(); n != nil {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.seen = nil
	}
}

// hold adds a check to those that are pending, in place of an earlier one of the same peer. The caller holds mu.
func (n *nominations) hold(c session.Check) {
	n.pending = slices.DeleteFunc(n.pending, func(old session.Check) bool { return old.Peer == c.Peer })
	if len(n.pending) == session.MaxChecks {
		n.pending = slices.Delete(n.pending, 0, 1)
	}
	n.pending = append(n.pending, c)
}

// add reports false if the nomination is known, or if there is no memory for one more. The caller holds mu.
func (n *nominations) add(fresh nomination) bool {
	if slices.Contains(n.seen, fresh) {
		return false
	}
	n.seen = slices.DeleteFunc(n.seen, func(old nomination) bool { return old.peer == fresh.peer })
	if price := session.PriceOfChecks(len(n.seen) + 1); n.closed || price > n.memory.Held() && n.memory.Set(price) != nil {
		return false
	}
	if len(n.seen) == session.MaxChecks {
		n.seen = slices.Delete(n.seen, 0, 1)
	}
	n.seen = append(n.seen, fresh)
	return true
}

// close ends the charge when the session has ended.
func (n *nominations) close() {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed, n.seen, n.pending = true, nil, nil
	n.memory.Release()
}

// RestoreNominations charges the session for checks that the journal has of it. It must be called before Start.
func (r *Relay) RestoreNominations(checks int) {
	if checks == 0 {
		return
	}
	n := &nominations{memory: r.session.Claim(session.Memory)}
	n.memory.Force(session.PriceOfChecks(checks))
	r.nominations.Store(n)
}

// nominatingUser returns the USERNAME of a Binding request, and whether it has USE-CANDIDATE.
func nominatingUser(message []byte) (username []byte, nominates bool) {
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
	return username, nominates && len(username) > 0
}
