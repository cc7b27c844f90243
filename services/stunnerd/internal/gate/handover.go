package gate

import (
	"errors"
	"net/netip"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/stunmsg"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/usage"
)

// provisionalTime is how long a session that another pod hands over waits until that pod confirms the handover.
const provisionalTime = 5 * time.Second

// Errors of Depart and Take.
var (
	// ErrPeer is the error for a session that stays in this pod because one of its peers would lose data.
	ErrPeer = errors.New("a peer in use is not known to take a new relayed address")
	// ErrTransport is the error for a session that cannot leave its pod: its client uses a connection.
	ErrTransport = errors.New("the connection of the client ends in this pod")
	// ErrNotTaken is the error for a session that this listener cannot continue.
	ErrNotTaken = errors.New("the session cannot be continued here")
	errEnded    = errors.New("the session has ended")
	errLeaving  = errors.New("the session is being handed over already")
	errWaiting  = errors.New("other pods have not admitted the session yet")
)

// Departure is a session that is ready for its handover to another pod. Its requests are dropped, and its data is
// forwarded, until Stay or Go is called.
type Departure struct {
	Record session.Record
	gate   *Gate
	flow   *flow
}

// enter begins a request. It reports false if the session is being handed over. Otherwise the caller must call
// changing.RUnlock.
func (f *flow) enter() bool {
	f.changing.RLock()
	if f.leaving {
		f.changing.RUnlock()
		return false
	}
	return true
}

// setLeaving sets whether the session is being handed over. It reports whether that has changed.
func (f *flow) setLeaving(leaving bool) bool {
	f.changing.Lock()
	defer f.changing.Unlock()
	changed := f.leaving != leaving
	f.leaving = leaving
	return changed
}

// Depart prepares the session of a client for another pod. A session stays if excluded reports true for the address of
// an active peer. The error is ErrTransport or ErrPeer, or says that the session has ended, has not begun or is already
// being handed over.
func (g *Gate) Depart(client netip.AddrPort, excluded func(netip.Addr) bool) (*Departure, error) {
	f := g.flow(client)
	if f == nil {
		return nil, errEnded
	}
	at, ok := f.Client.(sourced)
	if !ok || f.Client.Connected() {
		return nil, ErrTransport
	}
	if f.waiting.Load() {
		return nil, errWaiting
	}
	if !f.setLeaving(true) { // Server.Adopt and Server.HandOver may run at the same time
		return nil, errLeaving
	}
	d := &Departure{gate: g, flow: f}
	checks, ok := f.relay.Depart(excluded)
	switch {
	case f.relay.Closed(): // the allocation has ended since the lookup
		return nil, errEnded
	case !ok:
		d.Stay()
		return nil, ErrPeer
	}
	f.refreshing.Lock()
	defer f.refreshing.Unlock()
	d.Record = *g.record(f, at)
	d.Record.Generation++
	d.Record.Checks = checks
	d.Record.Former = g.policy.Load().former(f.Started, time.Now())
	return d, nil
}

// Stay cancels the handover. The session stays in this pod.
func (d *Departure) Stay() {
	d.flow.relay.Stay()
	d.flow.setLeaving(false)
}

// Ended returns an error if the session has ended since Depart, for example because the operator has ended it. The
// other pod must then not become the owner.
func (d *Departure) Ended() error {
	if d.flow.relay.Closed() {
		return errEnded
	}
	return nil
}

// Socket returns the relay socket of the session.
func (d *Departure) Socket() relay.Socket { return d.flow.relay.Socket() }

// Go ends the session at this pod, but does not close its relay socket. Datagrams of peers go to pass.
func (d *Departure) Go(pass func([]relay.Datagram)) {
	d.flow.relay.Hand(pass)
	d.gate.end(d.flow, usage.Moved)
}

// Take continues the session of a client from another pod, with a new relay socket. former is the socket that peers use
// until they have accepted the new address. Nothing is sent until Confirm. A session without Confirm ends after
// provisionalTime. If former is nil, the other pod is lost: this pod is the owner at once, and the checks of the client
// are sent to the peers when its first datagram has arrived.
func (g *Gate) Take(r *session.Record, client session.Client, former relay.Socket) error {
	now := time.Now()
	left := min(r.Until.Sub(now), time.Duration(r.Lifetime)*time.Second)
	name, err := nameOf(r)
	advertised, ok := g.policy.Load().relayAddr(stunmsg.Family(r.Relay.Addr()))
	switch {
	case err != nil:
		return err
	case left <= 0 || !ok || g.table.Draining() || g.retiring.Load() || g.flow(client.Addr()) != nil:
		return ErrNotTaken
	}
	f := g.continued(r, client, name, now, left)
	s := f.Session
	if err := g.table.Continue(s); err != nil {
		return err
	}
	socket, err := g.network.Open(advertised, 0)
	if err != nil {
		g.table.Cancel(s)
		return err
	}
	f.refreshing.Lock() // makes expire wait until the session is complete
	defer f.refreshing.Unlock()
	g.open(f, relay.Reserved{Socket: socket, Advertised: advertised}, true)
	f.relay.Restore(r.Channels, r.Permissions)
	g.table.Add(s)
	f.relay.RestoreNominations(r.Checks) // after Add, because only then the session can be charged
	f.permitted.charge(f.relay.Channels())
	f.relay.From(former, r.Checks)
	if former != nil {
		f.waits.Store(true)
		f.provisional = time.AfterFunc(provisionalTime, func() { g.end(f, usage.Unknown) })
	}
	if err := g.start(f); err != nil {
		return err
	}
	if g.policy.Load().refuses(s.Username, s.UserID, s.Caveats, now) {
		// The session may have been inserted after Update had searched for sessions.
		g.end(f, usage.Unknown)
		return ErrNotTaken
	}
	if former == nil {
		g.own(f)
		g.meter.SessionsRescued.Add(1)
	}
	return nil
}

// own makes this pod the owner of a session of another pod. The caller holds refreshing.
func (g *Gate) own(f *flow) {
	g.table.Settle(f.Session)
	f.held()
	f.changed()
	if g.store(f) {
		f.relay.ReportNominations()
	}
}

// Taken returns the relay of a session that Take continues, if peers still use its former socket and is reports true
// for that socket. Otherwise it returns nil.
func (g *Gate) Taken(client netip.AddrPort, is func(former relay.Socket) bool) *relay.Relay {
	f := g.flow(client)
	if f == nil {
		return nil
	}
	if former := f.relay.Former(); former == nil || !is(former) {
		return nil
	}
	return f.relay
}

// Confirm makes this pod the owner of a session that Take continues. Later calls do nothing.
func (g *Gate) Confirm(client netip.AddrPort) {
	f := g.flow(client)
	if f == nil || f.provisional == nil || !f.provisional.Stop() {
		return
	}
	f.waits.Store(false)
	f.refreshing.Lock()
	g.own(f)
	f.refreshing.Unlock()
	f.relay.Move()
	g.meter.SessionsTaken.Add(1)
}
