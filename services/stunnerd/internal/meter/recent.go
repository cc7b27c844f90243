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
	// Client is the client that sent the message, or to which the datagram of a peer was addressed.
	Client netip.AddrPort
	// Peer is the peer to which the message or datagram was sent, or from which it was received.
	Peer netip.AddrPort
	// User is USERNAME of the message. It may not be authenticated.
	User string
}

// Entry is one refusal or drop, or several equal ones.
type Entry struct {
	Note
	Reason Reason
	// Answered reports whether the entry is a refusal, which is answered with an error. A drop is not answered.
	Answered bool
	// First is the time of the first refusal or drop of the entry.
	First time.Time
	// Last is the time of the last refusal or drop of the entry.
	Last time.Time
	// Times is the number of refusals or drops of the entry, without suppressed ones.
	Times int
}

// Bounds of the list of recent refusals and drops. The list is for troubleshooting and may be incomplete. Only the
// counters are exact.
const (
	recentSize = 64
	// recentShare is how many entries of the list one reason may have, so that scans from the internet do not displace
	// the entries of other reasons.
	recentShare  = recentSize / 2
	recentRate   = 50 // a second
	recentPeriod = int64(time.Second)
	// maxUser is the length of the longest user name (RFC 8489 §14.3).
	maxUser = 508
)

// recentDrops holds the latest refusals and drops, in bounded memory and time. It records at most recentRate notes a
// second, and counts further notes with one comparison and without a lock. Equal notes share an entry, so that a client
// that repeats its request does not replace the entries of other clients.
type recentDrops struct {
	epoch time.Time
	// suppressedUntil is the time before which notes are suppressed, as a duration since epoch.
	suppressedUntil atomic.Int64
	suppressed      atomic.Uint64

	mu sync.Mutex
	// entries are ordered by the field Last. The slice is allocated with its full capacity.
	entries []Entry
	// times is a ring buffer with the times of the last recentRate notes.
	times [recentRate]int64
	// oldest is the index of the oldest time in times.
	oldest int
}

func newRecentDrops() *recentDrops {
	t := &recentDrops{epoch: time.Now(), entries: make([]Entry, 0, recentSize)}
	for i := range t.times {
		t.times[i] = -recentPeriod
	}
	return t
}

// add records a note, or counts it as suppressed.
func (t *recentDrops) add(r Reason, answered bool, n Note) {
	now := time.Since(t.epoch)
	if int64(now) < t.suppressedUntil.Load() {
		t.suppressed.Add(1)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if int64(now) < t.times[t.oldest]+recentPeriod { // another goroutine has used the last entry of the period
		t.suppressed.Add(1)
		return
	}
	t.times[t.oldest] = int64(now)
	t.oldest = (t.oldest + 1) % recentRate
	t.suppressedUntil.Store(t.times[t.oldest] + recentPeriod)
	t.store(r, answered, n, t.epoch.Add(now))
}

// store adds an entry to the recent refusals and drops. If there is an equal entry, it is replaced. Otherwise makeRoom
// may remove an older one.
func (t *recentDrops) store(r Reason, answered bool, n Note, now time.Time) {
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

// makeRoom removes an entry if the list has no space for an entry with reason r. It removes the oldest entry of that
// reason if there are recentShare of them, or else the oldest of all entries if there are recentSize.
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

// same reports whether two entries are equal except for their times and their number.
func (e Entry) same(other Entry) bool {
	return e.Note == other.Note && e.Reason == other.Reason && e.Answered == other.Answered
}

// RefuseNote counts a refusal like Refuse, and adds it with its listener, client, peer and user to the recent refusals
// that the admin endpoint /refusals shows, and to the log. A request without a credential is only counted, because
// every client starts with such a request.
func (m *Meter) RefuseNote(r Reason, n Note) {
	m.Refuse(r)
	if r != NoCredential {
		m.recent.add(r, true, n)
		m.lines.Note(r, n)
	}
}

// DropNote counts a drop like Drop, and adds it to the recent refusals and to the log. It allocates only for a log
// line, so it may be called for every datagram.
func (m *Meter) DropNote(r Reason, n Note) {
	m.Drop(r)
	m.recent.add(r, false, n)
	m.lines.Note(r, n)
}

// Recent returns the latest refusals and drops, the latest first, and the number of notes that were suppressed.
func (m *Meter) Recent() (entries []Entry, suppressed uint64) {
	m.recent.mu.Lock()
	defer m.recent.mu.Unlock()
	entries = slices.Clone(m.recent.entries)
	slices.Reverse(entries)
	return entries, m.recent.suppressed.Load()
}
