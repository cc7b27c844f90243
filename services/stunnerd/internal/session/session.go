// Package session holds the sessions of clients: one Session for each allocation, and the Table of all of them.
//
// Quotas, the session list and draining count sessions. The gate creates a session and the relay counts its traffic.
//
// # Files
//
//	session.go          sessions and their table
//	bounds.go           quotas and rates (defaults: ../server/policy.go)
//	allowance.go        the bytes that a credential allows
//	ledger.go           resources that clients use, and their shares when the capacity is used up
//	connection.go       connections of clients without a session
//	price.go            the memory of these resources
//	holdings.txt        all memory and resources that depend on input, with bounds and charges
//	relayport.go        relay ports
//	pods.go             sessions of a user in all pods of the Gateway
//	evidence.go         the traffic of a peer
//	denied.go           peers that the routes have denied
//	record.go codec.go  sessions that another process continues, in binary form
package session

import (
	"cmp"
	"container/list"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/usage"
)

// Client is the transport to a client: a UDP socket and an address, or a connection.
type Client interface {
	// Send sends the answer to a request. It never blocks. If the send buffer is full, the error over UDP is
	// datagram.ErrCongested. Over TCP and TLS the frame is queued, and over DTLS it is dropped and counted. It does not
	// retain the frame. Send may be called from several goroutines at a time.
	Send(frame []byte) error
	// SendAll sends data of peers: the payloads of packets are whole ChannelData frames or STUN messages. It sends each
	// packet as Send does, and sets the Err of the packet. It ignores the addresses.
	SendAll(packets []datagram.Packet)
	// Addr returns the transport address of the client, as the listener sees it.
	Addr() netip.AddrPort
	// Local returns the transport address to which a client over plain UDP sends. It is invalid for other transports.
	Local() netip.AddrPort
	// Connected reports whether the client uses a connection: TCP, TLS or DTLS. ChannelData over a connection is padded
	// to four bytes. RFC 8656 §12.5 requires that for streams and allows it for DTLS, which some clients read like a
	// stream.
	Connected() bool
	// Released frees what SendAll and Send have opened for the session. It is called when the session has ended.
	Released()
}

// Movable is a Client whose datagrams may arrive at a pod that does not have its session.
type Movable interface {
	// Pass passes a message of a client without a session in this pod to the pod that has it. It reports false if there
	// is none, or if the message has already been passed on. It does not retain the message.
	Pass(message []byte, now time.Time) bool
	// Begin passes an Allocate request, which this pod has authenticated, to a pod that accepts new sessions. It
	// reports false if there is none, or if another pod has passed the request on. It does not retain the message.
	Begin(message []byte) bool
	// Authenticated reports whether another pod has authenticated the Allocate request, with a nonce of its own, and
	// has passed it on by Begin.
	Authenticated() bool
	// Follow records the path on which a message of the client has arrived. The client uses this path from now on if
	// the message is an authentic request.
	Follow(from Client, message []byte, authentic bool) Move
	// Held announces to the other pods that this pod has the session of the client. Released ends the announcement.
	Held()
	// Changed gives the other pods a copy of the session, if they may have to continue it.
	Changed()
	// Front returns the address of the pod through which data for the client leaves, or the zero AddrPort if it leaves
	// from this pod.
	Front() netip.AddrPort
}

// Move is how a datagram changes the path to a Movable client. 0 means not at all.
type Move uint8

const (
	// MovedAway: the client has sent only to this pod until now, and may use another pod from now on. The kernel must
	// stop sending to the client.
	MovedAway Move = iota + 1
	// MovedHere: from now on the client sends only to this pod.
	MovedHere
	// Reached: another process had the session before, and the first datagram of the client has now arrived at another
	// pod.
	Reached
)

// Session is the client and the accounting of one allocation.
type Session struct {
	// ID is unique among the sessions of the process. Add sets it.
	ID uint64
	// Client is the transport to the client.
	Client Client
	// Listener is the name of the listener that created the session.
	Listener string
	// Protocol is the protocol of the listener when it created the session.
	Protocol config.Protocol
	// Username is the authenticated user name. Every later request must have the same user name (RFC 8656 §5).
	Username string
	// UserID is the part of the user name that identifies a user.
	UserID string
	// Caveats are the limits of the credential. They are a part of Username, so they are the same for each request.
	Caveats credential.Caveats
	// Source is the result of Source for the address of the client.
	Source netip.Prefix
	// Shared reports whether Source may be the address of many clients, for example of a load balancer. SourceSessions
	// does not apply then.
	Shared bool
	// Connection is the connection of the client; nil over UDP.
	Connection *Connection
	// Relay is the relayed transport address.
	Relay netip.AddrPort
	// Started is when the allocation was created.
	Started time.Time
	// Traffic is seen from the relay: Rx from peers, Tx to peers.
	Traffic meter.Traffic
	// Channels returns the number of channel bindings. The relay sets it.
	Channels func() int
	// Usage counts the traffic for usage records. It is nil if there are none.
	Usage *usage.Account
	// UsageID identifies the session in usage records, also at other pods.
	UsageID usage.ID
	// Peers calls a function with the traffic of each peer that the relay counts. The relay sets it.
	Peers func(show func(PeerTraffic))

	// port is the relay port that the session uses. Reserve, Continue or Inherit sets it.
	port    RelayPort
	account account
	rates   rates

	// deniedAt is when a denied datagram was last recorded, in nanoseconds since 1970.
	deniedAt atomic.Int64
	// denied are the IDs of the denied peers that count the session, and deniedEnded is set when it has ended.
	// denials.mu guards both.
	denied      []uint64
	deniedEnded bool
}

// Table is the set of live sessions. Use NewTable.
type Table struct {
	bounds atomic.Pointer[Bounds]
	epoch  time.Time

	mu       sync.Mutex
	sessions map[*Session]struct{}
	added    uint64
	restored uint64
	// unsettled counts the sessions with a provisional relay port, also those that have ended.
	unsettled uint64
	// allowances are the bytes of credentials with a caveat about them.
	allowances map[allowanceKey]*allowance
	// idleAllowances is the number of allowances without a session.
	idleAllowances int
	users          map[string]*holder
	sources        map[netip.Prefix]*holder
	networks       map[netip.Prefix]*holder
	// total is the sum of the amounts of all sessions.
	total    Amounts
	idle     idleConnections
	draining bool
	// lateAll and lateStaying are the arguments of AdmitLate.
	lateAll, lateStaying bool

	changed chan struct{}
	// withoutMedia counts the sessions that have ended without a packet to a peer.
	withoutMedia uint64
	// report is nil if no other pod counts the sessions of users.
	report func(user User, ports int64, fewer bool)

	denials denials
}

// NewTable returns an empty table without bounds.
func NewTable() *Table {
	t := &Table{
		epoch: time.Now(), sessions: map[*Session]struct{}{}, changed: make(chan struct{}),
		allowances: map[allowanceKey]*allowance{},
		users:      map[string]*holder{}, sources: map[netip.Prefix]*holder{}, networks: map[netip.Prefix]*holder{},
		idle: idleConnections{all: list.New(), networks: map[netip.Prefix]int64{}},
	}
	t.bounds.Store(&Bounds{})
	return t
}

// SetBounds replaces the bounds. New rates apply to live sessions too. Lower quotas end no session, and only prevent
// new sessions.
func (t *Table) SetBounds(b Bounds) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.bounds.Store(&b)
	if b.UserSessions <= 0 {
		return
	}
	for id, h := range t.users {
		t.count(id, h)
		t.tell(h)
	}
}

// Reserve counts a relay port for a session: one unit of the quotas of its user and source, and of the capacity of the
// process, with the memory of the session. It does so before the relay socket is opened, so that concurrent requests
// cannot exceed a limit. The error is ErrUserQuota, ErrSourceQuota, ErrCaveatAllocations, ErrCaveatBytes or
// ErrCapacity. Remove releases the relay port, or Cancel if the session is never added. If other pods count the
// sessions of the user, the relay port is provisional until Settle.
func (t *Table) Reserve(s *Session) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.admits(s, false); err != nil {
		return err
	}
	s.port = t.take(s, false, true)
	return nil
}

// Continue is Reserve for a session that another pod has admitted. The quotas of users and sources, and the allocations
// of the credential, refuse new sessions only: a quota may have been lowered since, and SourceSessions counts in each
// pod. So the error is ErrCaveatBytes or ErrCapacity.
func (t *Table) Continue(s *Session) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := cmp.Or(t.caveatsAdmit(s, 0), t.hasRoom(s, false)); err != nil {
		return err
	}
	s.port = t.take(s, false, true)
	return nil
}

// admits returns the error of Reserve if a limit of the user, the source or the process is reached. The caller holds
// mu.
func (t *Table) admits(s *Session, reserved bool) error {
	b, none := t.bounds.Load(), new(holder)
	user, source := cmp.Or(t.users[s.UserID], none), cmp.Or(t.sources[s.Source], none)
	switch {
	case b.UserSessions > 0 && user.held[RelayPorts] >= int64(b.UserSessions):
		return ErrUserQuota
	case b.SourceSessions > 0 && !s.Shared && source.held[RelayPorts] >= int64(b.SourceSessions):
		return ErrSourceQuota
	}
	return cmp.Or(t.caveatsAdmit(s, user.held[RelayPorts]), t.hasRoom(s, reserved))
}

// hasRoom returns ErrCapacity if the process cannot hold another relay port. The caller holds mu.
func (t *Table) hasRoom(s *Session, reserved bool) error {
	none := new(holder)
	user, wide := cmp.Or(t.users[s.UserID], none), cmp.Or(t.networks[network(s.Source)], none)
	for k, n := range (Amounts{RelayPorts: 1, Memory: s.price(reserved)}) {
		if n > 0 && !t.fits(Kind(k), n, s.account.held[k], user, wide) {
			return kinds[k].full
		}
	}
	return nil
}

// Cancel releases the relay port of a session that was not added.
func (t *Table) Cancel(s *Session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.release(&s.port)
}

// Add adds a session for which Reserve, Continue or Inherit has succeeded, and sets its ID.
func (t *Table) Add(s *Session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.added++
	if s.port.provisional {
		t.unsettled++
	}
	s.ID = t.added
	t.sessions[s] = struct{}{}
	t.notify()
}

// Restore adds a session that a previous process has created, and creates its relay port. The relay port counts, but no
// limit applies.
func (t *Table) Restore(s *Session) {
	t.mu.Lock()
	s.port = t.take(s, false, false)
	t.restored++
	t.mu.Unlock()
	t.Add(s)
}

// Remove removes a session and releases its relay port. It reports false if the session is not in the table.
func (t *Table) Remove(s *Session) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.sessions[s]; !ok {
		return false
	}
	delete(t.sessions, s)
	if s.Traffic.Tx.Packets.Load() == 0 && !s.port.provisional {
		t.withoutMedia++
	}
	t.denials.end(s)
	t.release(&s.port)
	t.notify()
	return true
}

// Len returns the number of live sessions.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.sessions)
}

// Added returns the number of sessions since the start. Restored sessions do not count. A session with a provisional
// relay port counts from Settle on.
func (t *Table) Added() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.added - t.restored - t.unsettled
}

// WithoutMedia returns the number of sessions since the start that have ended without a packet to a peer.
func (t *Table) WithoutMedia() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.withoutMedia
}

// All returns the live sessions in no order.
func (t *Table) All() []*Session {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Keys(t.sessions))
}

// List returns the live sessions, the oldest first.
func (t *Table) List() []*Session {
	list := t.All() // without mu, because sorting many sessions takes long
	slices.SortFunc(list, func(a, b *Session) int {
		return cmp.Or(a.Started.Compare(b.Started), a.Relay.Compare(b.Relay))
	})
	return list
}

// Drain makes gates refuse new sessions, except those that AdmitLate admits.
func (t *Table) Drain() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.draining = true
	t.notify()
}

// Draining reports whether Drain was called.
func (t *Table) Draining() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.draining
}

// AdmitLate sets whether gates admit new sessions after Drain: all, or those that stay at this pod because their
// clients cannot be passed to another one.
func (t *Table) AdmitLate(all, staying bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lateAll, t.lateStaying = all, staying
}

// Refuses reports whether gates refuse a new session. stays reports whether its client cannot be passed to another pod.
func (t *Table) Refuses(stays bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.draining && !t.lateAll && !(stays && t.lateStaying)
}

// Changed returns a channel that is closed at the next change of the table, and by Touch.
func (t *Table) Changed() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.changed
}

// Touch makes Changed report a change of a session.
func (t *Table) Touch() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.notify()
}

func (t *Table) notify() {
	close(t.changed)
	t.changed = make(chan struct{})
}
