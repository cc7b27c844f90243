package meter

import (
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Note says what a refusal or a drop was about. Whatever is not known is zero.
type Note struct {
	Listener string
	// Client is who asked or sent, Peer the address behind the relay that was meant.
	Client, Peer netip.AddrPort
	// User is the name that the client gave; nobody may have checked it.
	User string
}

// Entry is a Note in the trail.
type Entry struct {
	Note
	Reason Reason
	// Answered tells a refusal, which was answered with an error, from a drop, which was not.
	Answered bool
	// First and Last are when it happened, and Times how often, as far as it was not suppressed.
	First, Last time.Time
	Times       int
}

// Bounds of the trail. It is there for a person who asks why something does not work: the counters are what is exact.
const (
	trailSize = 64
	// trailShare is how many entries one reason may hold: noise from the internet does not push out what an operator looks for.
	trailShare  = trailSize / 2
	trailRate   = 50 // a second
	trailPeriod = int64(time.Second)
	// maxUser is the length of the longest user name (RFC 8489 §14.3).
	maxUser = 508
)

// trail remembers the last refusals and drops, in a fixed amount of memory and of time: of a flood it takes trailRate a second and counts
// the rest, with one comparison and without a lock. Repetitions of what it holds make no new entry, so that one client that insists does
// not push the others out.
type trail struct {
	epoch time.Time
	// opens is when the next entry is taken, as time since epoch.
	opens      atomic.Int64
	suppressed atomic.Uint64

	mu sync.Mutex
	// entries are in the order of their last time. The capacity is there from the start.
	entries []Entry
	// taken are the times of the last trailRate entries that were taken, the next one to be overwritten at turn.
	taken [trailRate]int64
	turn  int
}

func newTrail() *trail {
	t := &trail{epoch: time.Now(), entries: make([]Entry, 0, trailSize)}
	for i := range t.taken {
		t.taken[i] = -trailPeriod
	}
	return t
}

// add keeps what happened, if it is not too much.
func (t *trail) add(r Reason, answered bool, n Note) {
	now := time.Since(t.epoch)
	if int64(now) < t.opens.Load() {
		t.suppressed.Add(1)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if int64(now) < t.taken[t.turn]+trailPeriod { // somebody else took the last place meanwhile
		t.suppressed.Add(1)
		return
	}
	t.taken[t.turn] = int64(now)
	t.turn = (t.turn + 1) % trailRate
	t.opens.Store(t.taken[t.turn] + trailPeriod)
	t.keep(r, answered, n, t.epoch.Add(now))
}

// keep puts an entry at the end, in place of the same one further up or of one that has to give way.
func (t *trail) keep(r Reason, answered bool, n Note, now time.Time) {
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

// makeRoom lets the oldest entry go: of this reason when it has its share, of all when the trail is full.
func (t *trail) makeRoom(r Reason) {
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
	case held >= trailShare:
		t.entries = slices.Delete(t.entries, first, first+1)
	case len(t.entries) == trailSize:
		t.entries = slices.Delete(t.entries, 0, 1)
	}
}

// same tells whether two entries differ in time alone.
func (e Entry) same(other Entry) bool {
	return e.Note == other.Note && e.Reason == other.Reason && e.Answered == other.Answered
}

// RefuseNote counts a refusal like Refuse and keeps a note of it. A request without a credential is only counted: every client begins
// with one.
func (m *Meter) RefuseNote(r Reason, n Note) {
	m.Refuse(r)
	if r != NoCredential {
		m.trail.add(r, true, n)
	}
}

// DropNote counts a drop like Drop and keeps a note of it. It may be called for every datagram: it allocates nothing.
func (m *Meter) DropNote(r Reason, n Note) {
	m.Drop(r)
	m.trail.add(r, false, n)
}

// Trail returns the last refusals and drops of which a note was kept, newest first, and how many notes were not kept because there were too
// many at a time.
func (m *Meter) Trail() (entries []Entry, suppressed uint64) {
	m.trail.mu.Lock()
	defer m.trail.mu.Unlock()
	entries = slices.Clone(m.trail.entries)
	slices.Reverse(entries)
	return entries, m.trail.suppressed.Load()
}
