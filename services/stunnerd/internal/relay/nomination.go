package relay

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"net/netip"
	"slices"
	"sync"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/stunmsg"
)

// nominations remembers which nominating connectivity checks of the client were reported to Routes.OnNomination. A
// connectivity check is a Binding request. One with USE-CANDIDATE nominates (RFC 8445 §7.2.2). Browsers send
// USE-CANDIDATE in each check, so one check is reported for each peer and USERNAME, which changes when ICE restarts.
type nominations struct {
	mu   sync.Mutex
	seen []nomination
}

type nomination struct {
	peer     netip.AddrPort
	username uint64 // hash
}

var usernames = maphash.MakeSeed()

// isBindingRequest reports whether data from a client starts like a Binding request that is short enough for
// session.Check. It is called for each packet.
func isBindingRequest(b []byte) bool {
	return len(b) >= stunmsg.HeaderSize && b[0] == 0 && b[1] == 1 && len(b) <= session.MaxCheck
}

// magicCookie is in bytes 4 to 7 of each STUN message (RFC 8489 §5).
const magicCookie = 0x2112A442

// observe reports a Binding request from the client to a peer to Routes.OnNomination if it nominates and no such one was
// reported. At most session.MaxChecks peers are remembered, the latest ones.
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
		r.nominations.CompareAndSwap(nil, new(nominations))
	}
	if r.nominations.Load().add(nomination{peer, maphash.Bytes(usernames, username)}) {
		(*report)(r, session.Check{Peer: peer, Message: bytes.Clone(message)})
	}
}

// add reports false if the nomination is known.
func (n *nominations) add(fresh nomination) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if slices.Contains(n.seen, fresh) {
		return false
	}
	n.seen = slices.DeleteFunc(n.seen, func(old nomination) bool { return old.peer == fresh.peer })
	if len(n.seen) == session.MaxChecks {
		n.seen = slices.Delete(n.seen, 0, 1)
	}
	n.seen = append(n.seen, fresh)
	return true
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
