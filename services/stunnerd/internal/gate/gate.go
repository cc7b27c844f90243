// Package gate is the door of a listener: every STUN message from a client passes it, and pion/turn sees only what the gate lets
// through.
//
// A message is parsed once, strictly. A request that will fail is answered here, with the code that the RFC asks for, signed
// as soon as the client is known; a request that will succeed is handed to the Machine, and its success is where events
// come from: sessions, quotas and metrics learn of an allocation here. What is admitted, and what each refusal is, stands in
// admit.go as lists of rules.
//
//	listener ─ Receive ─▶ parse ─▶ rules ─▶ Machine (pion/turn) ─▶ success, signed for the client
//	                        │        └─▶ error answer
//	                        └─▶ drop, counted
//	listener ─ Relay ─▶ relay.FromClient         ChannelData of a bound channel: the gate only says whose relay it is
package gate

import (
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/cluster"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// Policy is what a listener's config says about admission. It is replaced as a whole when the config changes.
type Policy struct {
	// Authority says which credentials are good, and in which realm. The zero Authority admits nobody: the listener serves STUN only.
	Authority credential.Authority
	// Former are authorities that were in force before, with other credentials; a session that they admitted may go on under them for a while.
	Former []Former
	// RelayAddrs are the addresses that clients may be told of as their relayed transport address, at most one a family. A client
	// that does not ask for a family gets the first.
	RelayAddrs []netip.Addr
	// SessionGrace is how long a session may outlive the credential that began it.
	SessionGrace time.Duration
}

// Former is an authority that a changed config has replaced.
type Former struct {
	Authority credential.Authority
	// Until is when its sessions must have moved to a new credential.
	Until time.Time
	// New says that credentials of this authority are good for new sessions as well.
	New bool
}

// relayAddr returns the relay address of a family; 0 asks for none, and gets the first. RFC 8656 §7.2 has IPv4 in mind there, but where a
// config names an IPv6 address, an IPv6 relay serves a client better than an error.
func (p *Policy) relayAddr(family byte) (netip.Addr, bool) {
	for _, a := range p.RelayAddrs {
		if family == 0 || familyOf(a) == family {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// serves tells whether TURN is offered at all.
func (p *Policy) serves() bool { return p.Authority.Username != "" || p.Authority.SharedSecret != "" }

// Gate admits the clients of one listener.
type Gate struct {
	name     string
	protocol config.Protocol
	machine  *Machine
	nonces   *Nonces
	network  relay.Network
	held     *relay.Reservations
	limits   *Limits
	table    *session.Table
	// challenges is what this listener may answer to clients without a good credential.
	challenges *challenges
	meter      *meter.Meter
	log        *slog.Logger

	policy   atomic.Pointer[Policy]
	routes   relay.Routes
	retiring atomic.Bool

	mu    sync.RWMutex
	flows map[netip.AddrPort]*flow
}

// flow is a client that has an allocation. A client without one leaves no trace: its address may be forged.
type flow struct {
	*session.Session
	relay *relay.Relay
	lane  *lane
	// allocated is the transaction that made the allocation and lifetime what it was told: a retransmission gets the same answer
	// (RFC 8656 §7.2).
	allocated [stun.TransactionIDSize]byte
	lifetime  uint32
	// realm is that of its latest request. The session may go on in it.
	realm atomic.Pointer[string]
	// until is when the session ends, unless its client refreshes it. renewing keeps a refresh apart from the end.
	until    time.Time
	renewing sync.Mutex
	// due is the timer of expire.
	due *time.Timer
	// token is what gets the port above this one, if the client asked for it.
	token *relay.Token
	// permitted are the peers that the client may hear from.
	permitted permissions
	// wrong counts wrong passwords on this 5-tuple in the name of the session's user.
	wrong atomic.Int32
}

// Shared is what all gates of a process have in common.
type Shared struct {
	Machine *Machine
	Nonces  *Nonces
	Network relay.Network
	Held    *relay.Reservations
	Limits  *Limits
	Table   *session.Table
	Meter   *meter.Meter
	Log     *slog.Logger
}

// New returns the gate of the listener of that name and protocol. It admits nobody before Update.
func New(name string, protocol config.Protocol, s Shared) *Gate {
	g := &Gate{
		name: name, protocol: protocol, machine: s.Machine, nonces: s.Nonces, network: s.Network, held: s.Held, limits: s.Limits, table: s.Table, meter: s.Meter,
		challenges: newChallenges(s.Limits.silenced), log: s.Log.With("listener", name), flows: map[netip.AddrPort]*flow{},
	}
	g.policy.Store(&Policy{})
	return g
}

// Update puts a policy and routes in force, for live sessions too: a datagram that is judged after Update returns is judged
// by the new routes.
func (g *Gate) Update(p *Policy, routes *cluster.View) {
	g.policy.Store(p)
	g.routes.Store(routes)
}

// Receive handles one message that is not ChannelData. It returns once the message is handled, so the caller may reuse b.
func (g *Gate) Receive(b []byte, client session.Client) {
	r, err := parse(b, client)
	switch {
	case err == errFingerprint:
		g.drop(client, meter.BadFingerprint)
		return
	case err != nil:
		g.drop(client, meter.Malformed)
		return
	}
	switch r.Type.Class {
	case stun.ClassRequest:
		g.request(r)
	case stun.ClassIndication:
		g.indication(r)
	default:
		// A response that nobody asked for: answering it could start a loop between two servers.
		g.drop(client, meter.Malformed)
	}
}

// Relay returns the relay of a client, or nil. Listeners keep it while it is not Closed.
func (g *Gate) Relay(client netip.AddrPort) *relay.Relay {
	if f := g.flow(client); f != nil {
		return f.relay
	}
	return nil
}

// Hangup ends the session of a connection that is gone.
func (g *Gate) Hangup(client session.Client) {
	if f := g.flowOf(client); f != nil {
		g.end(f)
	}
}

// Retire refuses new allocations and keeps the ones that there are.
func (g *Gate) Retire() { g.retiring.Store(true) }

// Resume takes Retire back.
func (g *Gate) Resume() { g.retiring.Store(false) }

// Sessions is the number of live sessions on this listener.
func (g *Gate) Sessions() int {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return len(g.flows)
}

// Close ends all sessions of this listener.
func (g *Gate) Close() {
	g.Retire()
	g.mu.RLock()
	flows := make([]*flow, 0, len(g.flows))
	for _, f := range g.flows {
		flows = append(flows, f)
	}
	g.mu.RUnlock()
	for _, f := range flows {
		g.end(f)
	}
}

func (g *Gate) flow(client netip.AddrPort) *flow {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.flows[client]
}

// flowOf returns the flow of whoever has sent something, or nil. A connection has none but its own: there can be another one from the same address and
// port, to another address of this host, and one that was there before may be late to notice that it is gone.
func (g *Gate) flowOf(client session.Client) *flow {
	f := g.flow(client.Addr())
	if f != nil && client.Connected() && f.Client != client {
		return nil
	}
	return f
}

// end makes pion/turn delete the allocation, which closes the relay, which calls ended.
func (g *Gate) end(f *flow) {
	_, err := f.lane.request(stun.MethodRefresh, f.Handle, nil, number{stun.AttrLifetime, 0})
	if err != nil {
		g.log.Debug("end session", "error", err)
	}
	_ = f.relay.Close()
}

// survive makes a panic end one session instead of the process. It is deferred.
func (g *Gate) survive(f *flow, task string) {
	if cause := recover(); cause != nil {
		g.meter.Panicked(task, cause)
		_ = f.relay.Close()
	}
}

// ended is called when a relay has closed: the session expired, was refreshed to zero, or was ended from here.
func (g *Gate) ended(f *flow) {
	f.lane.disown(f.Session)
	f.due.Stop()
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
	f.Client.Released()
}

func (g *Gate) send(r *request, answer []byte, err error) {
	if err != nil {
		g.log.Error("build answer", "error", err)
		return
	}
	if err := r.client.Send(answer); err != nil {
		g.drop(r.client, relay.Undelivered(err))
	}
}
