package meter

import (
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Note is the context of a refusal or a drop. Unknown fields are zero.
type Note struct {
	Listener string
	// Client is the sender of the message. Peer is the peer that the message or datagram is about.
	Client, Peer netip.AddrPort
	// User is USERNAME of the message. It may not be authenticated.
	User string
}

// Entry is a refusal or a drop, or several that are equal.
type Entry struct {
	Note
	Reason Reason
	// Answered reports whether it was a refusal, which is answered with an error. A drop is not answered.
	Answered bool
	// First and Last are the times of the first and the last one. Times is their number, without suppressed ones.
	First, Last time.Time
	Times       int
}

// Bounds of recentDrops. It helps a person to find out why something does not work. Only the counters are exact.
const (
	recentSize = 64
	// recentShare is how many entries one reason may have, so that scans from the internet do not replace all others.
	recentShare  = recentSize / 2
	recentRate   = 50 // a second
	recentPeriod = int64(time.Second)
	// maxUser is the length of the longest user name (RFC 8489 §14.3).
	maxUser = 508
)

// recentDrops holds the latest refusals and drops, in bounded memory and time. In a flood it takes recentRate notes a
// second and counts the others with one comparison and without a lock. Equal notes share an entry, so that one client
// that repeats its request does not replace the entries of others.
type recentDrops struct {
	epoch time.Time
	// opens is the time from which the next note is taken, as a duration since epoch.
	opens      atomic.Int64
	suppressed atomic.Uint64

	mu sync.Mutex
	// entries are ordered by Last. The slice is allocated with its full capacity.
	entries []Entry
	// taken is a ring of the times of the last recentRate notes. The oldest one is at turn.
	taken [recentRate]int64
	turn  int
}

func newRecentDrops() *recentDrops {
	t := &recentDrops{epoch: time.Now(), entries: make([]Entry, 0, recentSize)}
	for i := range t.taken {
		t.taken[i] = -recentPeriod
	}
	return t
}

// add takes a note, or counts it as suppressed.
func (t *recentDrops) add(r Reason, answered bool, n Note) {
	now := time.Since(t.epoch)
	if int64(now) < t.opens.Load() {
		t.suppressed.Add(1)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if int64(now) < t.taken[t.turn]+recentPeriod { // another goroutine has taken the last slot
		t.suppressed.Add(1)
		return
	}
	t.taken[t.turn] = int64(now)
	t.turn = (t.turn + 1) % recentRate
	t.opens.Store(t.taken[t.turn] + recentPeriod)
	t.keep(r, answered, n, t.epoch.Add(now))
}

// keep appends an entry. It removes the equal entry, or else one by makeRoom.
func (t *recentDrops) keep(r Reason, answered bool, n Note, now time.Time) {
	if len(n.User) > maxUser {
		n.User = strings.Clone(n.User[:maxUser])
	}
	e := Entry{Note: n, Reason: r, Answered: answered, First: now, Last: now, Times: 1}
	if at := slices.IndexFunc(t.entries, e.same); at >= 0 {
		e.First, e.Times = t.entries[at].First, t.entries[at].Times+1
		t.entries = slices.Delete(t.entries, at, at+1)
	}
	t.makeRoom(r)
	t.entries = append(t.entries, e)
}

// makeRoom removes the oldest entry of a reason that has recentShare entries, or the oldest of all if recentSize is
// reached.
func (t *recentDrops) makeRoom(r Reason) {
	first, held := -1, 0
	for i, e := range t.entries {
		if e.Reason == r {
			held++
			if first < 0 {
				first = i
			}
		}
	}
	switch {
	case held >= recentShare:
		t.entries = slices.Delete(t.entries, first, first+1)
	case len(t.entries) == recentSize:
		t.entries = slices.Delete(t.entries, 0, 1)
	}
}

// same reports whether two entries differ only in time and number.
func (e Entry) same(other Entry) bool {
	return e.Note == other.Note && e.Reason == other.Reason && e.Answered == other.Answered
}

// RefuseNote counts a refusal like Refuse, and records a note. A request without a credential is counted only, because
// every client starts with one.
func (m *Meter) RefuseNote(r Reason, n Note) {
	m.Refuse(r)
	if r != NoCredential {
		m.recent.add(r, true, n)
	}
}

// DropNote counts a drop like Drop, and records a note. It does not allocate, so it may be called for every datagram.
func (m *Meter) DropNote(r Reason, n Note) {
	m.Drop(r)
	m.recent.add(r, false, n)
}

// Recent returns the latest refusals and drops, the latest first, and the number of notes that were suppressed.
func (m *Meter) Recent() (entries []Entry, suppressed uint64) {
	m.recent.mu.Lock()
	defer m.recent.mu.Unlock()
	entries = slices.Clone(m.recent.entries)
	slices.Reverse(entries)
	return entries, m.recent.suppressed.Load()
}
