package session

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// Denied is a peer that the routes of a listener have denied to sessions.
type Denied struct {
	Listener string
	Peer     netip.AddrPort
	// PortOnly is set if a route allows the IP address of the peer, but not its port.
	PortOnly bool
	// Sessions is the number of sessions to which the peer was denied. Failed counts the sessions among them that have
	// received nothing from any peer, and have ended or are older than inspection.SetupTime.
	Sessions, Failed int
	First, Last      time.Time
}

// Bounds of the list of denied peers.
const (
	// maxDenied is the number of peers in the list.
	maxDenied = 64
	// maxDeniedOfSession is the number of peers that one session adds.
	maxDeniedOfSession = 8
	// deniedMemory is the time without a denial after which the counts of an entry begin at 0 again.
	deniedMemory = time.Hour
)

// denials is the list of denied peers, in bounded memory.
//
// If the list is full, a new peer replaces a peer of the user ID that has added the most peers. Of these peers, the one
// that was denied to the fewest sessions is replaced. If there are several, the one that was denied the longest time
// ago is replaced. So a user with a million denied peers replaces its own entries, and a peer that is denied to many
// sessions stays in the list.
type denials struct {
	mu    sync.Mutex
	list  map[deniedKey]*denied
	added uint64
}

type deniedKey struct {
	listener string
	peer     netip.AddrPort
}

// denied is an entry of the list.
type denied struct {
	Denied
	// id is unique among the entries of the process. Sessions refer to entries by it.
	id uint64
	// user is the ID of the first user that was denied the peer.
	user string
}

// Deny records that a peer was denied to the session. It is called for requests and for datagrams: of the datagrams of
// a session, at most one in denyInterval is recorded.
func (s *Session) Deny(peer netip.AddrPort, portOnly bool, now time.Time) {
	t := s.account.table
	if t == nil {
		return
	}
	d := &t.denials
	d.mu.Lock()
	defer d.mu.Unlock()
	if s.deniedEnded {
		return
	}
	key := deniedKey{s.Listener, peer}
	e := d.list[key]
	if e != nil && now.Sub(e.Last) <= deniedMemory && slices.Contains(s.denied, e.id) {
		e.Last, e.PortOnly = now, portOnly
		return
	}
	if len(s.denied) == maxDeniedOfSession {
		return
	}
	if e == nil || now.Sub(e.Last) > deniedMemory {
		e = d.add(key, s.UserID, now)
	}
	if s.denied == nil {
		s.denied = make([]uint64, 0, maxDeniedOfSession)
	}
	s.denied = append(s.denied, e.id)
	e.Sessions++
	e.Last, e.PortOnly = now, portOnly
}

// denyInterval is the shortest time between two records of denied datagrams of a session.
const denyInterval = 100 * time.Millisecond

// DenyDatagram is Deny for a datagram. It takes no lock for most datagrams of a flood.
func (s *Session) DenyDatagram(peer netip.AddrPort, portOnly bool, now time.Time) {
	last := s.deniedAt.Load()
	if at := now.UnixNano(); at-last >= int64(denyInterval) && s.deniedAt.CompareAndSwap(last, at) {
		s.Deny(peer, portOnly, now)
	}
}

// add adds an entry, in place of another entry if the list is full. The caller holds mu.
func (d *denials) add(key deniedKey, user string, now time.Time) *denied {
	if d.list == nil {
		d.list = map[deniedKey]*denied{}
	}
	if d.list[key] == nil && len(d.list) >= maxDenied {
		delete(d.list, d.replaceable(user))
	}
	d.added++
	e := &denied{Denied: Denied{Listener: key.listener, Peer: key.peer, First: now}, user: user, id: d.added}
	d.list[key] = e
	return e
}

// replaceable returns the entry that a new entry of a user replaces. The caller must hold mu.
func (d *denials) replaceable(user string) (key deniedKey) {
	held := map[string]int{user: 1} // includes the new entry
	for _, e := range d.list {
		held[e.user]++
	}
	var worst *denied
	for k, e := range d.list {
		if worst == nil || cmp.Or(
			cmp.Compare(held[worst.user], held[e.user]), cmp.Compare(e.Sessions, worst.Sessions), e.Last.Compare(worst.Last),
		) < 0 {
			key, worst = k, e
		}
	}
	return key
}

// end counts the end of a session.
func (d *denials) end(s *Session) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s.deniedEnded = true
	if len(s.denied) == 0 || !s.gotNothing() {
		return
	}
	for _, e := range d.list {
		if slices.Contains(s.denied, e.id) {
			e.Failed++
		}
	}
}

// gotNothing reports whether no peer has sent a packet to the client.
func (s *Session) gotNothing() bool { return s.Traffic.Rx.Packets.Load() == 0 }

// Denied returns the peers that were denied after the time since, sorted by the number of sessions, the highest first.
func (t *Table) Denied(since, now time.Time) (list []Denied) {
	sessions, d := t.All(), &t.denials
	d.mu.Lock()
	defer d.mu.Unlock()
	failed := map[uint64]int{} // by entry
	for _, s := range sessions {
		if len(s.denied) > 0 && !s.deniedEnded && s.gotNothing() && now.Sub(s.Started) >= inspection.SetupTime {
			for _, id := range s.denied {
				failed[id]++
			}
		}
	}
	for _, e := range d.list {
		if !e.Last.Before(since) {
			shown := e.Denied
			shown.Failed += failed[e.id]
			list = append(list, shown)
		}
	}
	slices.SortFunc(list, func(a, b Denied) int {
		return cmp.Or(
			cmp.Compare(b.Failed, a.Failed), cmp.Compare(b.Sessions, a.Sessions), a.Peer.Compare(b.Peer),
			cmp.Compare(a.Listener, b.Listener),
		)
	})
	return list
}
