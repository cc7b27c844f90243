// Package session knows who is connected: one Session per allocation, and the Table of all of them.
//
// A session belongs to a client that authenticated. It is the unit of quotas, of the session list and of draining. It does
// not know sockets or STUN: the gate makes sessions, the relay counts their traffic, the table says how many there are.
package session

import (
	"cmp"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
)

// Client is the way back to a client: a UDP socket and an address, or a connection.
type Client interface {
	// Send writes one whole STUN message or ChannelData frame. It may be called from several goroutines at once.
	Send(frame []byte) error
	// Addr is the client's transport address as the listener sees it.
	Addr() netip.AddrPort
	// Connected tells whether the client came over a connection of its own: TCP, TLS or DTLS. ChannelData is padded to four bytes there.
	// RFC 8656 §12.5 wants that on streams and allows it on DTLS, which some clients read like a stream.
	Connected() bool
	// Released tells the transport that the client's session is over.
	Released()
}

// Session is one allocation and its owner.
type Session struct {
	// Handle is the address under which pion/turn knows the session. It is ours, not the client's: the session may move to another
	// 5-tuple without pion noticing.
	Handle *net.UDPAddr
	// Client is where answers and media go.
	Client Client
	// Listener is the name of the listener on which the session was made, and Protocol what it spoke then.
	Listener string
	Protocol config.Protocol
	// Username is the name that authenticated; every later request must carry it (RFC 8656 §5).
	Username string
	// UserID is the part of the name that stands for a person.
	UserID string
	// Relay is the relayed transport address.
	Relay netip.AddrPort
	// Started is when the allocation was made.
	Started time.Time
	// Traffic is what passed, seen from the relay: Rx from the peers, Tx to the peers.
	Traffic meter.Traffic
	// Channels tells the number of live channel bindings; the relay knows.
	Channels func() int
}

// Table is the set of live sessions. The zero Table is not usable: call NewTable.
type Table struct {
	mu       sync.Mutex
	sessions map[*Session]struct{}
	users    map[string]int
	draining bool
	changed  chan struct{}
}

// NewTable returns an empty table.
func NewTable() *Table {
	return &Table{sessions: map[*Session]struct{}{}, users: map[string]int{}, changed: make(chan struct{})}
}

// Reserve takes one place of a user's quota, so that two requests in flight cannot both take the last one. A quota of 0 has no
// bound. The place is given back by Remove, or by Cancel when no session came of it.
func (t *Table) Reserve(userID string, quota int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if quota > 0 && t.users[userID] >= quota {
		return false
	}
	t.users[userID]++
	return true
}

// Cancel gives back a place that Reserve took.
func (t *Table) Cancel(userID string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.release(userID)
}

// Add registers a session whose user's place is reserved.
func (t *Table) Add(s *Session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sessions[s] = struct{}{}
	t.notify()
}

// Remove forgets a session and gives its user's place back. It reports whether the session was there.
func (t *Table) Remove(s *Session) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.sessions[s]; !ok {
		return false
	}
	delete(t.sessions, s)
	t.release(s.UserID)
	t.notify()
	return true
}

// Len is the number of live sessions.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.sessions)
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

func (t *Table) release(userID string) {
	if t.users[userID]--; t.users[userID] <= 0 {
		delete(t.users, userID)
	}
}
