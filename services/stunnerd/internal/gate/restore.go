package gate

import (
	"errors"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/journal"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/limit"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// Saved is a session that a previous process has created, and that this process restores.
type Saved struct {
	journal.Entry
	// Socket is the relay socket, on the port that the session had.
	Socket relay.Socket
}

// sourced is a client over UDP.
type sourced interface {
	// Source returns the binary form of the datagram.Source from which answers to the client are sent.
	Source() []byte
	// At returns the transport address to which the client sends, also while it uses another pod.
	At() netip.AddrPort
	// Away reports whether the client uses another pod.
	Away() bool
}

// store stores a session in the journal, unless the journal already has it. Sessions over connections are not stored,
// because their connections end with the process. It reports whether the journal has the session. The caller must hold
// f.refreshing.
func (g *Gate) store(f *flow) bool {
	client, ok := f.Client.(sourced)
	if g.journal == nil || !ok || f.Client.Connected() {
		return false
	}
	f.id.Store(uint64(g.journal.Add(g.record(f, client))))
	if f.relay.Closed() { // ended may have run before the ID was stored
		g.unstore(f)
	}
	return f.stored() != 0
}

// record returns the record of a session over UDP, without its checks. The caller must hold f.refreshing.
func (g *Gate) record(f *flow, client sourced) *session.Record {
	return &session.Record{
		Generation: f.generation, Usage: f.UsageID,
		Listener: g.name, Client: f.Client.Addr(), Local: client.At(), Source: client.Source(),
		Username: f.Username, UserID: f.UserID, Realm: *f.realm.Load(), Relay: f.Session.Relay,
		Transaction: f.allocated, Lifetime: f.lifetime, Started: f.Started, Until: f.until,
		Permissions: f.permitted.records(time.Now()), Channels: f.relay.ChannelRecords(),
		Away: client.Away(),
	}
}

// unstore stores the end of a session in the journal.
func (g *Gate) unstore(f *flow) { g.journal.End(journal.ID(f.id.Swap(0))) }

// storeLifetime stores the lifetime of a session. If the journal does not hold the session, it is added again. The
// caller must hold f.refreshing.
func (g *Gate) storeLifetime(f *flow) {
	if id := f.stored(); g.journal.Holds(id) {
		g.journal.Refresh(id, f.lifetime, f.until)
		return
	}
	if g.store(f) {
		f.relay.ReportNominations()
		g.table.Touch()
	}
}

// Unstored returns the numbers of sessions that are not in the journal. connected counts the sessions over connections.
// lost counts the sessions over UDP that are not stored because of an error, or because their user has used up its
// share of the journal.
func (g *Gate) Unstored() (connected, lost int) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	for _, f := range g.flows {
		switch {
		case f.Client.Connected():
			connected++
		case !g.journal.Stores(f.stored()):
			lost++
		}
	}
	return connected, lost
}

// stored returns the ID of a session in the journal. It is 0 for a session that is not stored.
func (f *flow) stored() journal.ID { return journal.ID(f.id.Load()) }

// storePermissions stores permissions that CreatePermission has installed.
func (g *Gate) storePermissions(f *flow, peers []netip.AddrPort) {
	if f.stored() == 0 {
		return
	}
	addrs := make([]netip.Addr, 0, len(peers))
	for _, p := range peers {
		addrs = append(addrs, p.Addr())
	}
	g.journal.Permit(f.stored(), addrs, time.Now().Add(permissionLifetime))
}

// storeChannel stores a channel binding. The channel and the permission that ChannelBind installs have the same end:
// see relay.Relay.Restore.
func (g *Gate) storeChannel(f *flow, number uint16, peer netip.AddrPort) {
	if f.stored() == 0 {
		return
	}
	now := time.Now()
	g.journal.Bind(f.stored(), session.ChannelRecord{
		Number: number, Peer: peer, Until: now.Add(relay.ChannelLifetime), Installed: f.relay.BoundSince(number, peer, now),
	})
}

// nominated stores a nominating connectivity check.
func (g *Gate) nominated(r *relay.Relay, c session.Check) {
	if f := g.flow(r.Session().Client.Addr()); f != nil && f.relay == r {
		g.journal.Check(f.stored(), c)
		f.changed()
	}
}

// checked sends other pods a copy of a session that has a new connectivity check.
func (g *Gate) checked(r *relay.Relay) {
	if f := g.flow(r.Session().Client.Addr()); f != nil && f.relay == r {
		f.changed()
	}
}

// Restore continues sessions of a previous process: with the same relayed transport address, and with the remaining
// lifetimes of the allocation, the permissions and the channels. The function client returns the transport to a client.
//
// A listener calls Restore after its port is bound and before it reads the first datagram. Datagrams that arrive
// meanwhile wait in the kernel, so no client gets a 437, after which browsers give up an allocation.
func (g *Gate) Restore(saved []Saved, client func(*session.Record) session.Client) {
	var group sync.WaitGroup
	var next atomic.Int64
	for range runtime.GOMAXPROCS(0) {
		group.Go(func() {
			for i := next.Add(1); i <= int64(len(saved)); i = next.Add(1) {
				s := &saved[i-1]
				g.restore(s, client(&s.Record))
			}
		})
	}
	group.Wait()
}

func (g *Gate) restore(saved *Saved, client session.Client) {
	r, now := &saved.Record, time.Now()
	drop := func(why meter.Reason) {
		g.meter.Unrestore(why, 1, meter.Note{Listener: g.name})
		g.journal.End(saved.ID)
		g.recorder.Abandon(r.Usage, why.String())
		_ = saved.Socket.Close()
	}
	left := min(r.Until.Sub(now), time.Duration(r.Lifetime)*time.Second)
	if left <= 0 {
		drop(meter.Expired)
		return
	}
	name, err := nameOf(r)
	if err != nil {
		g.log.Debug("cannot restore a session", "relay", r.Relay, "error", err)
		drop(meter.Failed)
		return
	}
	if g.policy.Load().refuses(r.Username, name.UserID, name.Caveats, now) {
		drop(meter.Revoked)
		return
	}
	f := g.continued(r, client, name, now, left)
	s := f.Session
	f.refreshing.Lock() // makes expire wait until the session is complete
	defer f.refreshing.Unlock()
	f.id.Store(uint64(saved.ID))
	g.open(f, relay.Reserved{Socket: saved.Socket, Advertised: r.Relay.Addr()}, true)
	f.relay.Restore(r.Channels, r.Permissions)
	g.table.Restore(s)
	f.relay.RestoreNominations(r.Checks) // after Restore, because only then the session can be charged
	f.permitted.charge(f.relay.Channels())
	if err := g.start(f); err != nil {
		g.log.Debug("cannot restore a session", "relay", s.Relay, "error", err)
		g.meter.Unrestore(meter.Failed, 1, meter.Note{Listener: g.name})
		return
	}
	g.meter.Restored.Add(1)
	if g.policy.Load().refuses(r.Username, name.UserID, name.Caveats, now) {
		// The session may have been inserted after Update had searched for sessions.
		g.end(f, meter.RevokedCredential.String())
		return
	}
	f.held()
}

// continued returns the flow of a session that another process has created. The session ends after left.
func (g *Gate) continued(
	r *session.Record, client session.Client, name credential.Username, now time.Time, left time.Duration,
) *flow {
	s := &session.Session{
		Client: client, Listener: g.name, Protocol: g.protocol, Username: r.Username,
		UserID: name.UserID, Caveats: name.Caveats, UsageID: r.Usage,
		// The relay measures times from Started by the monotonic clock, which the times of a record do not have.
		Started: now.Add(-max(0, now.Sub(r.Started))),
	}
	addr := client.Addr().Addr()
	s.Source, s.Shared = session.Source(addr), limit.PrivateOrLoopback(addr)
	f := &flow{Session: s, allocated: r.Transaction, lifetime: r.Lifetime, until: now.Add(left),
		generation: r.Generation, permitted: permissions{memory: s.Claim(session.Memory)}}
	f.setRealm(r.Realm)
	f.permitted.restore(r.Permissions, now)
	return f
}

// nameOf returns the user id and the caveats of a restored session. It parses them from the user name. A static user
// name is also the user id, and has no caveats. In a record of a release without caveats, the user id contains the
// caveats. A session with caveats that this release does not accept is not restored, because this release cannot
// enforce them.
func nameOf(r *session.Record) (credential.Username, error) {
	plain := credential.Username{UserID: r.UserID}
	if r.UserID == r.Username {
		return plain, nil
	}
	name, err := credential.ParseUsername(r.Username)
	if errors.Is(err, credential.ErrUnknownUser) {
		return plain, nil
	}
	return name, err
}
