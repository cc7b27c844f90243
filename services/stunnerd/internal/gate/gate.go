// Package gate admits the requests of clients and answers them. Every STUN message of a client passes through the gate
// of its listener.
//
// A message is parsed once. A request that a rule of admit.go refuses gets an error response, or no answer if a rate
// limit is exceeded. The gate executes an admitted request, if necessary with the allocation engine, and answers the
// client. The gate registers a session for each allocation, and ends it when its lifetime is over, the client ends it
// or the connection of the client ends.
//
//	listener ─ Receive ─▶ parse ─▶ rules ─▶ allocation engine ─▶ success response
//	                        │        └─▶ error response
//	                        └─▶ dropped, counted
//	listener ─ Relay ─▶ relay.FromClient         ChannelData: the gate only returns the relay of the client
//
// # Files
//
//	admit.go                         rules and their error codes, also while draining
//	permission.go                    permissions of an allocation
//	serve.go                         execution of an admitted request
//	classic.go                       requests of RFC 3489
//	request.go                       parsed requests, lifetimes of allocations
//	elsewhere.go                     clients whose session another pod has
//	restore.go                       sessions of a crashed process
//	handover.go copies.go            sessions that move between pods, and their copies
//	inspect.go                       reachable peers, and the end of sessions, for package admin
//	model_*_test.go                  random sequences against a model of RFC 8656
//	timers_test.go *_timers_test.go  lifetimes in virtual time
package gate

import (
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/cluster"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/engine"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/journal"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/limit"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/nonce"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/offload"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/stunmsg"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/usage"
)

// Policy is the part of a listener's config that concerns admission. A config change replaces it.
type Policy struct {
	// Authority verifies credentials, and names the realm. With the zero Authority the listener serves STUN only.
	Authority credential.Authority
	// Former are earlier authorities, in the order in which they were replaced. An existing session may use a
	// credential of a former authority until Former.Until. A new session may use it only if Former.New is set, too.
	Former []Former
	// RelayAddrs are the IP addresses of relayed transport addresses, at most one for each family. The first one is
	// used if the client requests no family.
	RelayAddrs []netip.Addr
	// Gateway is the name of the Gateway, NAMESPACE/NAME. A credential with a caveat for another Gateway is not valid.
	Gateway string
	// SessionGrace is how long an existing session may use its credential after the credential has expired.
	SessionGrace time.Duration
	// Revoked are the ephemeral credentials that are refused although they have not expired.
	Revoked *credential.Revocations
}

// refuses reports whether a credential is revoked. A static credential cannot be revoked: its user name is the user id.
func (p *Policy) refuses(username, userID string, caveats credential.Caveats, now time.Time) bool {
	return userID != username &&
		p.Revoked.Revoked(username, credential.Username{UserID: userID, Caveats: caveats}, now)
}

// Former is an authority that a config change has replaced.
type Former = session.Former

// former returns the authorities for the record of a session that goes to another pod: those that were replaced since
// the session began, and that are still valid. A session that began after the replacement of an authority does not need
// that authority. Authorities with New are not in the record, because the config of each pod has them.
func (p *Policy) former(started, now time.Time) (list []Former) {
	for _, f := range p.Former {
		if !f.New && !f.Replaced.Before(started) && now.Before(f.Until) && f.Storable() && len(list) < session.MaxFormer {
			list = append(list, f)
		}
	}
	return list
}

// relayAddr returns the relay address of a family. Family 0 means any, and gets the first address. RFC 8656 §7.2
// demands IPv4 in this case, but if the config has no IPv4 address or does not list it first, an IPv6 relay serves a
// client better than an error.
func (p *Policy) relayAddr(family byte) (netip.Addr, bool) {
	for _, a := range p.RelayAddrs {
		if family == 0 || stunmsg.Family(a) == family {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// serves reports whether the listener serves TURN.
func (p *Policy) serves() bool { return p.Authority.Username != "" || p.Authority.SharedSecret != "" }

// Gate admits the clients of one listener.
type Gate struct {
	name         string
	protocol     config.Protocol
	engine       engine.Engine
	nonces       *nonce.Source
	network      relay.Network
	reservations *relay.Reservations
	limits       *limit.Process
	table        *session.Table
	quotas       Quotas
	// answers limits the answers of this listener to unauthenticated requests.
	answers  *limit.Listener
	meter    *meter.Meter
	log      *slog.Logger
	journal  *journal.Journal
	recorder *usage.Recorder

	policy   atomic.Pointer[Policy]
	routes   relay.Routes
	retiring atomic.Bool
	// leaving is set by Leave, and stopping by Stop.
	leaving, stopping atomic.Bool

	mu    sync.RWMutex
	flows map[netip.AddrPort]*flow
}

// flow is the state of a client with an allocation. The gate keeps no state for a client without one, because its
// source address may be forged.
type flow struct {
	*session.Session
	relay      *relay.Relay
	allocation engine.Allocation
	// allocated is the transaction ID of the Allocate request. A retransmitted Allocate has the same transaction ID and
	// gets the same answer (RFC 8656 §7.2).
	allocated [stun.TransactionIDSize]byte
	// lifetime is the granted lifetime in seconds. refreshing guards lifetime and until.
	lifetime uint32
	// realm is the realm of the latest accepted request.
	realm atomic.Pointer[string]
	// until is the end of the lifetime.
	until time.Time
	// refreshing serializes expire and the Refresh requests that prolong the lifetime, so that a session is not ended
	// while its lifetime is prolonged.
	refreshing sync.Mutex
	// expiry runs expire.
	expiry *time.Timer
	// token is the RESERVATION-TOKEN of the port above the relay port, or nil if the client has not reserved that port
	// (EVEN-PORT, RFC 8656 §7.2).
	token *relay.Token
	// permitted counts the permissions of the allocation.
	permitted permissions
	// guesses counts wrong passwords for Username on this 5-tuple.
	guesses limit.Guesses
	// generation is Record.Generation of the session in this process (see forward.Version).
	generation uint32
	// id is the journal.ID of the session, or 0 if it is not stored in the journal.
	id atomic.Uint64
	// changing is read-locked during a request. Depart and Stay lock it for writing. Requests of a session that is
	// being handed over are dropped, so that its record stays valid.
	changing sync.RWMutex
	leaving  bool
	// waiting reports whether the session waits until other pods have admitted it. Until then, its Allocate request is
	// not answered.
	waiting atomic.Bool
	// provisional is the timer that ends a session if the pod that hands it over does not confirm the handover. It is
	// nil for other sessions.
	provisional *time.Timer
	// waits is set while the session is provisional.
	waits atomic.Bool
}

// Shared contains what all gates of a process share.
type Shared struct {
	Engine  engine.Engine
	Nonces  *nonce.Source
	Network relay.Network
	// Reservations contains the relay ports that are reserved for later allocations (EVEN-PORT, RFC 8656 §7.2).
	Reservations *relay.Reservations
	Limits       *limit.Process
	Table        *session.Table
	// Quotas may be nil if Table needs no admissions.
	Quotas Quotas
	Meter  *meter.Meter
	Log    *slog.Logger
	// Journal stores the sessions of clients over UDP. It may be nil.
	Journal *journal.Journal
	// Usage counts the traffic of sessions for usage records. It may be nil.
	Usage *usage.Recorder
}

// Quotas counts the sessions of users in all pods of a Gateway.
type Quotas interface {
	// Admit asks whether the user of a session may have it, and calls answer once: before Admit returns, or within half
	// a second from another goroutine, or never when the process ends.
	Admit(a session.Admission, answer func(ok bool))
}

// New returns the gate of a listener. Before the first Update it serves STUN only.
func New(name string, protocol config.Protocol, s Shared) *Gate {
	g := &Gate{
		name: name, protocol: protocol, engine: s.Engine, nonces: s.Nonces, network: s.Network,
		reservations: s.Reservations, limits: s.Limits, table: s.Table, meter: s.Meter, answers: s.Limits.NewListener(),
		log: s.Log.With("listener", name), journal: s.Journal, recorder: s.Usage, quotas: s.Quotas,
		flows: map[netip.AddrPort]*flow{},
	}
	g.policy.Store(&Policy{})
	g.routes.OnNomination(g.nominated)
	g.routes.OnFreshCheck(g.checked)
	return g
}

// Update replaces the policy and the routes, also for live sessions. Datagrams that arrive after Update has returned
// are checked against the new routes. Sessions whose credential is revoked have ended then.
func (g *Gate) Update(p *Policy, routes *cluster.View) {
	g.policy.Store(p)
	g.routes.Store(routes)
	if p.Revoked == nil {
		return
	}
	now := time.Now()
	revoked := func(s *session.Session) bool { return p.refuses(s.Username, s.UserID, s.Caveats, now) }
	for _, s := range g.EndSessions(revoked, meter.RevokedCredential.String()) {
		note := meter.Note{Listener: g.name, Client: s.Client.Addr(), User: s.Username}
		g.meter.DropNote(meter.RevokedCredential, note)
	}
}

// Offload makes the kernel forward the data of channels, in place of an earlier Offload. A nil Offload is valid.
func (g *Gate) Offload(f *offload.Offload) { g.routes.Offload(f) }

// Receive handles one message that is not ChannelData. The caller may reuse b afterwards.
func (g *Gate) Receive(b []byte, client session.Client) {
	r := requests.Get().(*request)
	defer r.release()
	r.client = client
	err := r.Parse(b)
	switch {
	case err == stunmsg.ErrFingerprint:
		g.drop(client, meter.BadFingerprint)
		return
	case err != nil:
		g.drop(client, meter.Malformed)
		return
	}
	if r.Classic {
		g.classic(r)
		return
	}
	if g.elsewhere(r, b) {
		return
	}
	switch r.Type.Class {
	case stun.ClassRequest:
		g.request(r)
	case stun.ClassIndication:
		g.indication(r)
	default:
		// The gate sends no requests. An answer to a response could start a loop between two servers.
		g.drop(client, meter.Malformed)
	}
}

// Relay returns the relay of the allocation of a client, or nil. Listeners cache the relay until it is closed
// (relay.Relay.Closed).
func (g *Gate) Relay(client netip.AddrPort) *relay.Relay {
	if f := g.flow(client); f != nil {
		return f.relay
	}
	return nil
}

// Owned is like Relay, and returns nil for a provisional session: until the other pod confirms the handover of the
// session, that pod receives the datagrams of the client.
func (g *Gate) Owned(client netip.AddrPort) *relay.Relay {
	if f := g.flow(client); f != nil && !f.waits.Load() {
		return f.relay
	}
	return nil
}

// Connect counts a new connection of a client in the ledger.
func (g *Gate) Connect(client netip.Addr) (*session.Connection, error) {
	return g.table.Connect(session.Source(client), g.protocol)
}

// Disconnected ends the session of a client whose connection has ended.
func (g *Gate) Disconnected(client session.Client) {
	if f := g.flowOf(client); f != nil {
		g.end(f, usage.Disconnected)
	}
}

// Retire makes the gate refuse new allocations. Live sessions stay.
func (g *Gate) Retire() { g.retiring.Store(true) }

// Resume reverts Retire.
func (g *Gate) Resume() { g.retiring.Store(false) }

// Sessions returns the number of live sessions on this listener.
func (g *Gate) Sessions() int {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return len(g.flows)
}

// Leave prepares Close for a process whose sessions another process may continue. From now on, the journal keeps the
// sessions that end, except those that clients end.
func (g *Gate) Leave() { g.leaving.Store(true) }

// Stop says that the process ends. The caller calls Close next.
func (g *Gate) Stop() { g.stopping.Store(true) }

// Close ends all sessions of this listener.
func (g *Gate) Close() {
	g.Retire()
	why := usage.ListenerRemoved
	if g.stopping.Load() {
		why = usage.Shutdown
	}
	g.mu.RLock()
	flows := slices.Collect(maps.Values(g.flows))
	g.mu.RUnlock()
	for _, f := range flows {
		g.end(f, why)
	}
	g.routes.Offload(nil)
}

func (g *Gate) flow(client netip.AddrPort) *flow {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.flows[client]
}

// flowOf returns the state of the allocation of a client, or nil. A connection never gets the state of another
// connection from the same address and port. Two such connections can exist: to different IP addresses of this host, or
// if the end of the earlier one was not detected yet.
func (g *Gate) flowOf(client session.Client) *flow {
	f := g.flow(client.Addr())
	if f != nil && client.Connected() && f.Client != client {
		return nil
	}
	return f
}

// end ends the allocation of a client and closes its relay, even if the engine fails. The relay calls Gate.ended. why
// is the reason, of package usage or meter.
func (g *Gate) end(f *flow, why string) {
	f.Usage.Because(why)
	if err := f.allocation.End(); err != nil {
		g.log.Debug("end session", "error", err)
	}
	_ = f.relay.Close()
}

// ended is called when a relay is closed. It removes the session.
func (g *Gate) ended(f *flow) {
	f.expiry.Stop()
	if f.provisional != nil {
		f.provisional.Stop()
	}
	switch {
	case !g.leaving.Load():
		g.unstore(f)
	case g.journal.Stores(f.stored()):
		f.Usage.Leave()
	}
	f.allocation.RelayClosed()
	if err := g.dropToken(f); err != nil {
		g.log.Debug("close reserved port", "error", err)
	}
	g.mu.Lock()
	if g.flows[f.Client.Addr()] == f {
		delete(g.flows, f.Client.Addr())
	}
	g.mu.Unlock()
	if g.table.Remove(f.Session) {
		g.log.Debug("session ended", "relay", f.Session.Relay, "duration", time.Since(f.Started))
	}
	f.permitted.release() // after Remove, because the session cannot be charged from then on
	f.Client.Released()
	f.Usage.End()
}

// send sends an answer to a client. err is the error of building it.
func (g *Gate) send(client session.Client, answer []byte, err error) {
	if err != nil {
		g.log.Debug("build answer", "error", err)
		g.drop(client, meter.Internal)
		return
	}
	if err := client.Send(answer); err != nil {
		g.drop(client, relay.Undelivered(err))
	}
}
