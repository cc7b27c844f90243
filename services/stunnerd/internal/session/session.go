// Package session knows who is connected: one Session per allocation, and the Table of all of them.
//
// A session belongs to a client that authenticated. It is the unit of quotas, of the session list and of draining. It does
// not know sockets or STUN: the gate makes sessions, the relay counts their traffic, the table says how many there are.
package session

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
)

// Client is the way back to a client: a UDP socket and an address, or a connection.
type Client interface {
	// Send sends one whole STUN message or ChannelData frame. It never waits: the error is datagram.ErrCongested when there is no room for the
	// frame. It may be called from several goroutines at a time.
	Send(frame []byte) error
	// Addr is the client's transport address as the listener sees it.
	Addr() netip.AddrPort
	// Connected tells whether the client came over a connection of its own: TCP, TLS or DTLS. ChannelData is padded to four bytes there.
	// RFC 8656 §12.5 wants that on streams and allows it on DTLS, which some clients read like a stream.
	Connected() bool
	// Admitted gives the client room of its own for what is sent to it from now on. It is called before a session begins, which does not
	// come about if there is an error.
	Admitted() error
	// Released takes back what Admitted gave: the session is over.
	Released()
}

// Session is one allocation and its owner.
type Session struct {
	// ID is unique among the sessions of the process. Add sets it.
	ID uint64
	// Client is where answers and media go.
	Client Client
	// Listener is the name of the listener on which the session was made, and Protocol what it spoke then.
	Listener string
	Protocol config.Protocol
	// Username is the name that authenticated; every later request must carry it (RFC 8656 §5).
	Username string
	// UserID is the part of the name that stands for a person.
	UserID string
	// Source is the network that the client's address belongs to, as Source returns it.
	Source netip.Prefix
	// Shared tells that Source may be the address of many clients, for example of a load balancer. SourceSessions does not bound it.
	Shared bool
	// Relay is the relayed transport address.
	Relay netip.AddrPort
	// Started is when the allocation was made.
	Started time.Time
	// Traffic is what passed, seen from the relay: Rx from the peers, Tx to the peers.
	Traffic meter.Traffic
	// Channels tells the number of live channel bindings; the relay knows.
	Channels func() int

	// place is taken by Reserve or Inherit.
	place Place
	paces paces
}

// Table is the set of live sessions. The zero Table is not usable: call NewTable.
type Table struct {
	bounds atomic.Pointer[Bounds]
	epoch  time.Time

	mu       sync.Mutex
	sessions map[*Session]struct{}
	added    uint64
	users    map[string]*holder
	sources  map[netip.Prefix]*holder
	// places is the number of places that are taken: those of sessions, and those of reserved ports.
	places   int
	draining bool
	changed  chan struct{}
}

// NewTable returns an empty table without bounds.
func NewTable() *Table {
	t := &Table{
		epoch: time.Now(), sessions: map[*Session]struct{}{}, users: map[string]*holder{}, sources: map[netip.Prefix]*holder{}, changed: make(chan struct{}),
	}
	t.bounds.Store(&Bounds{})
	return t
}

// SetBounds puts bounds in force. Rates hold for live sessions too; a quota ends none.
func (t *Table) SetBounds(b Bounds) { t.bounds.Store(&b) }

// Reserve takes the place that a session will hold, of its user, its source and the process, so that two requests in flight cannot both
// take the last one. The error is ErrUserQuota, ErrSourceQuota or ErrCapacity. The place is given back by Remove, or by Cancel when the
// session does not come about.
func (t *Table) Reserve(s *Session) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.admits(s); err != nil {
		return err
	}
	s.place = t.take(s, false)
	return nil
}

// admits tells whether there is a place for the user and the source of a session. It takes the same time however many there are. It
// needs the lock.
func (t *Table) admits(s *Session) error {
	b, none := t.bounds.Load(), new(holder)
	user, source := cmp.Or(t.users[s.UserID], none), cmp.Or(t.sources[s.Source], none)
	switch {
	case b.UserSessions > 0 && user.places >= b.UserSessions:
		return ErrUserQuota
	case b.SourceSessions > 0 && !s.Shared && source.places >= b.SourceSessions:
		return ErrSourceQuota
	case !t.fits(b.Capacity, user, source):
		return ErrCapacity
	}
	return nil
}

// Cancel gives back the place that Reserve took.
func (t *Table) Cancel(s *Session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.release(&s.place)
}

// Add registers a session whose place is reserved.
func (t *Table) Add(s *Session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.added++
	s.ID = t.added
	t.sessions[s] = struct{}{}
	t.notify()
}

// Remove forgets a session and gives its place back. It reports whether the session was there.
func (t *Table) Remove(s *Session) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.sessions[s]; !ok {
		return false
	}
	delete(t.sessions, s)
	t.release(&s.place)
	t.notify()
	return true
}

// Len is the number of live sessions.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.sessions)
}

// Added is the number of sessions that there ever were.
func (t *Table) Added() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.added
}

// List returns the live sessions, oldest first.
func (t *Table) List() []*Session {
	t.mu.Lock()
	list := slices.Collect(maps.Keys(t.sessions))
	t.mu.Unlock() // sorting takes its time: nobody who wants to start a call waits for it
	slices.SortFunc(list, func(a, b *Session) int {
		return cmp.Or(a.Started.Compare(b.Started), a.Relay.Compare(b.Relay))
	})
	return list
}

// Drain makes Draining true: no new session is admitted any more.
func (t *Table) Drain() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.draining = true
	t.notify()
}

// Draining tells whether Drain was called.
func (t *Table) Draining() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.draining
}

// Changed returns a channel that is closed at the next change of the table.
func (t *Table) Changed() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.changed
}

func (t *Table) notify() {
	close(t.changed)
	t.changed = make(chan struct{})
}
