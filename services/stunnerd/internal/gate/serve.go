package gate

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/cluster"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// Lifetimes of an allocation, in seconds (RFC 8656 §7.2).
const (
	defaultLifetime = 600
	maxLifetime     = 3600
)

// service says what is done with an admitted request of each method.
var service = map[stun.Method]func(*Gate, *request) ([]byte, error){
	stun.MethodBinding:          (*Gate).binding,
	stun.MethodAllocate:         (*Gate).allocate,
	stun.MethodRefresh:          (*Gate).refresh,
	stun.MethodCreatePermission: (*Gate).createPermission,
	stun.MethodChannelBind:      (*Gate).channelBind,
}

// request answers one request.
func (g *Gate) request(r *request) {
	rules, known := admission[r.Type.Method]
	if !known {
		g.drop(r.client, meter.UnknownMethod)
		return
	}
	r.flow = g.flowOf(r.client)
	if g.retransmitted(r) {
		return
	}
	for _, objects := range rules {
		if objection := objects(g, r); objection != nil {
			g.refuse(r, objection)
			return
		}
	}
	if r.flow != nil && r.key != nil {
		r.flow.speaks(r.realm)
	}
	answer, err := service[r.Type.Method](g, r)
	var refused *refusal
	if errors.As(err, &refused) {
		g.refuse(r, refused)
		return
	}
	tell := func() { g.send(r, answer, err) }
	if r.Type.Method == stun.MethodChannelBind {
		g.bind(r, tell)
		return
	}
	tell()
}

// retransmitted gives a repeated Allocate the answer that the first one got; RFC 8656 §7.2 wants the client not to notice. The
// repetition must come from the same user, and is judged like any other request until that is known.
func (g *Gate) retransmitted(r *request) bool {
	f := r.flow
	if f == nil || r.Type.Method != stun.MethodAllocate || r.TransactionID != f.allocated || !r.signed {
		return false
	}
	for _, objects := range sameUser {
		if objection := objects(g, r); objection != nil {
			g.refuse(r, objection)
			return true
		}
	}
	answer, err := f.allocatedAnswer(r)
	g.send(r, answer, err)
	return true
}

// sameUser are the rules for a repeated Allocate.
var sameUser = append(authentication, owner)

func (g *Gate) refuse(r *request, why *refusal) {
	if why.code == 0 || r.key == nil && !g.answerable(r, why.reason) {
		g.drop(r.client, meter.RateLimited)
		return
	}
	name, _ := r.value(stun.AttrUsername)
	g.meter.RefuseNote(why.reason, meter.Note{Listener: g.name, Client: r.client.Addr(), Peer: why.peer, User: string(name)})
	var code stun.Setter = why.code
	if why.terse {
		code = stun.ErrorCodeAttribute{Code: why.code}
	}
	attrs := append([]stun.Setter{code}, why.attrs...)
	answer, err := r.answer(stun.ClassErrorResponse, attrs...)
	g.send(r, answer, err)
}

// drop counts a message that is not answered.
func (g *Gate) drop(client session.Client, why meter.Reason) {
	g.meter.DropNote(why, meter.Note{Listener: g.name, Client: client.Addr()})
}

// Error makes a refusal an error, for a request that was admitted and failed nonetheless.
func (f *refusal) Error() string { return f.reason.String() }

func (g *Gate) binding(r *request) ([]byte, error) {
	return r.answer(stun.ClassSuccessResponse, address{stun.AttrXORMappedAddress, r.client.Addr()})
}

// allocate opens a relay, has pion/turn make the allocation with it, and registers the session before the client hears of it.
func (g *Gate) allocate(r *request) ([]byte, error) {
	lane, handle := g.machine.place()
	s := &session.Session{
		Handle: handle, Client: r.client, Listener: g.name, Protocol: g.protocol,
		Username: r.username, UserID: r.userID, Started: time.Now(),
	}
	client := r.client.Addr().Addr()
	s.Source, s.Shared = session.Source(client), hides(client)
	held, err := g.place(r, s)
	if err != nil {
		return nil, err
	}
	f := &flow{Session: s, lane: lane, allocated: r.TransactionID}
	f.speaks(r.realm)
	f.begin(r.lifetime())
	if held.Socket == nil {
		held, err = g.socket(r, f)
	}
	if err == nil {
		if err = r.client.Admitted(); err != nil {
			err = errors.Join(err, held.Socket.Close(), g.dropToken(f))
		}
	}
	if err != nil {
		g.table.Cancel(s)
		g.log.Debug("refuse allocation", "error", err)
		return nil, overQuota(err)
	}
	f.due = time.AfterFunc(f.next(), func() { g.expire(f) })
	opened := relay.New(s, held.Socket, held.Advertised, &g.routes, g.meter, func(*relay.Relay) { g.ended(f) })
	f.relay = opened
	lane.own(s, opened)
	g.table.Add(s)
	if !g.insert(f) {
		return nil, errors.Join(&refusal{code: stun.CodeAllocMismatch, reason: meter.AllocationExists}, opened.Close())
	}
	transport := number{stun.AttrRequestedTransport, 17 << 24}
	if err := g.pass(f, stun.MethodAllocate, opened, transport, pionLifetime); err != nil {
		return nil, errors.Join(err, opened.Close())
	}
	g.log.Debug("session started", "relay", s.Relay)
	if !s.Client.Connected() {
		g.meter.Sessions.Add(1) // connections were counted when they were accepted
	}
	return f.allocatedAnswer(r)
}

// overQuota is the answer to a user or a source that has as many allocations as it may have (486), and to anybody for whom there is no
// place or no port (508).
func overQuota(err error) *refusal {
	switch {
	case errors.Is(err, session.ErrUserQuota):
		return &refusal{code: stun.CodeAllocQuotaReached, reason: meter.Quota}
	case errors.Is(err, session.ErrSourceQuota):
		return &refusal{code: stun.CodeAllocQuotaReached, reason: meter.SourceQuota}
	case errors.Is(err, session.ErrCapacity):
		return &refusal{code: stun.CodeInsufficientCapacity, reason: meter.Capacity}
	}
	return &refusal{code: stun.CodeInsufficientCapacity, reason: meter.NoRelay}
}

// place takes a place for a session: a new one, or that of the reserved port behind a RESERVATION-TOKEN, which comes with it. A token of
// another user is none.
func (g *Gate) place(r *request, s *session.Session) (relay.Reserved, error) {
	v, ok := r.value(stun.AttrReservationToken)
	if !ok {
		if err := g.table.Reserve(s); err != nil {
			return relay.Reserved{}, overQuota(err)
		}
		return relay.Reserved{}, nil
	}
	refused := &refusal{code: stun.CodeInsufficientCapacity, reason: meter.NoRelay}
	held, ok := g.held.Take(relay.Token(v), s.UserID)
	if !ok {
		return relay.Reserved{}, refused
	}
	if !g.table.Inherit(s, held.Place) {
		return relay.Reserved{}, errors.Join(refused, held.Socket.Close())
	}
	return held, nil
}

// dropToken closes the port that is held for the token of a flow. It belongs to the allocation that asked for it.
func (g *Gate) dropToken(f *flow) error {
	if f.token == nil {
		return nil
	}
	return g.held.Drop(*f.token)
}

// socket opens the relay socket that a request asks for: any, an even one, or an even one with the next held for a token (RFC 8656 §7.2);
// with the address that the client is told. A port that is held belongs to the flow: it is closed with the flow unless a client came for it.
func (g *Gate) socket(r *request, f *flow) (relay.Reserved, error) {
	advertised, _ := g.policy.Load().relayAddr(r.family())
	v, ok := r.value(stun.AttrEvenPort)
	if !ok {
		socket, err := g.network.Open(advertised, 0)
		return relay.Reserved{Socket: socket, Advertised: advertised}, err
	}
	if v[0]&0x80 == 0 {
		even, _, err := relay.OpenEven(g.network, advertised, false)
		return relay.Reserved{Socket: even, Advertised: advertised}, err
	}
	place, err := g.table.Hold(f.Session)
	if err != nil {
		return relay.Reserved{}, err
	}
	even, odd, err := relay.OpenEven(g.network, advertised, true)
	if err != nil {
		place.Release()
		return relay.Reserved{}, err
	}
	token, err := g.held.Hold(relay.Reserved{Socket: odd, Advertised: advertised, User: f.UserID, Place: place})
	if err != nil {
		return relay.Reserved{}, errors.Join(err, even.Close())
	}
	f.token = &token
	return relay.Reserved{Socket: even, Advertised: advertised}, nil
}

// insert registers a flow unless its client has one.
func (g *Gate) insert(f *flow) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, taken := g.flows[f.Client.Addr()]; taken {
		return false
	}
	g.flows[f.Client.Addr()] = f
	return true
}

func (f *flow) allocatedAnswer(r *request) ([]byte, error) {
	attrs := []stun.Setter{
		address{stun.AttrXORRelayedAddress, f.Session.Relay},
		number{stun.AttrLifetime, f.lifetime},
		address{stun.AttrXORMappedAddress, f.Client.Addr()},
	}
	if _, ok := r.value(attrAdditionalFamily); ok {
		attrs = append(attrs, familyMissing(f.Session.Relay.Addr()))
	}
	if f.token != nil {
		attrs = append(attrs, stun.RawAttribute{Type: stun.AttrReservationToken, Value: f.token[:]})
	}
	return r.answer(stun.ClassSuccessResponse, attrs...)
}

// familyMissing is ADDRESS-ERROR-CODE (RFC 8656 §18.12) with 440: who asks for two relays gets one, and is told which family is missing.
func familyMissing(given netip.Addr) stun.RawAttribute {
	missing := byte(familyIPv4)
	if given.Is4() {
		missing = familyIPv6
	}
	return stun.RawAttribute{Type: attrAddressError, Value: []byte{missing, 0, 4, 40}}
}

// pion/turn must not end an allocation by itself. Its timer closes one in a goroutine of its own, and when the lane is making a permission at
// that moment, pion stops a timer that is not there yet: the process dies. So the gate ends sessions, in their lane. pion is told the longest
// lifetime that it takes, whatever the client is granted, and again every pionRenewal for as long as that lasts: its timer is always half an hour away.
const pionRenewal = 30 * time.Minute

// pionLifetime is the longest lifetime that pion/turn takes: it reads one of an hour or more as ten minutes.
var pionLifetime = number{stun.AttrLifetime, maxLifetime - 1}

// speaks notes the realm in which the client has authenticated.
func (f *flow) speaks(realm string) {
	if was := f.realm.Load(); was == nil || *was != realm {
		f.realm.Store(new(realm))
	}
}

// begin begins a lifetime of so many seconds.
func (f *flow) begin(lifetime uint32) {
	f.lifetime, f.until = lifetime, time.Now().Add(time.Duration(lifetime)*time.Second)
}

// next is in what time something has to be done about the lifetime.
func (f *flow) next() time.Duration { return min(time.Until(f.until), pionRenewal) }

// wait sets the timer anew.
func (f *flow) wait() {
	f.due.Reset(f.next())
	if f.relay.Closed() { // it ended between the lines above and those of the caller: ended may have stopped the timer too early
		f.due.Stop()
	}
}

// expire ends a session that its client has not refreshed. To pion/turn it makes one last that goes on.
func (g *Gate) expire(f *flow) {
	defer g.survive(f, "end or prolong session")
	f.renewing.Lock()
	defer f.renewing.Unlock()
	if !time.Now().Before(f.until) {
		g.end(f)
		return
	}
	if err := g.pass(f, stun.MethodRefresh, nil, pionLifetime); err != nil {
		g.log.Debug("prolong session", "error", err)
	}
	f.wait()
}

func (g *Gate) refresh(r *request) ([]byte, error) {
	f := r.flow
	if v, ok := r.value(stun.AttrLifetime); ok && binary.BigEndian.Uint32(v) == 0 {
		g.end(f)
		return r.answer(stun.ClassSuccessResponse, number{stun.AttrLifetime, 0})
	}
	f.renewing.Lock()
	defer f.renewing.Unlock()
	if err := g.pass(f, stun.MethodRefresh, nil, pionLifetime); err != nil {
		return nil, err
	}
	f.begin(r.lifetime())
	f.wait()
	return r.answer(stun.ClassSuccessResponse, number{stun.AttrLifetime, f.lifetime})
}

func (g *Gate) createPermission(r *request) ([]byte, error) {
	peers, _ := r.peers()
	attrs := make([]stun.Setter, 0, len(peers))
	for _, p := range peers {
		attrs = append(attrs, address{stun.AttrXORPeerAddress, p})
	}
	if err := g.pass(r.flow, stun.MethodCreatePermission, nil, attrs...); err != nil {
		return nil, err
	}
	r.flow.permitted.grant(peers, time.Now())
	r.flow.relay.Permit(peers)
	return r.answer(stun.ClassSuccessResponse)
}

func (g *Gate) channelBind(r *request) ([]byte, error) {
	n, _ := r.channel()
	peers, _ := r.peers()
	attrs := []stun.Setter{number{stun.AttrChannelNumber, uint32(n) << 16}, address{stun.AttrXORPeerAddress, peers[0]}}
	if err := g.pass(r.flow, stun.MethodChannelBind, nil, attrs...); err != nil {
		return nil, err
	}
	r.flow.permitted.grant(peers, time.Now())
	return r.answer(stun.ClassSuccessResponse)
}

// bind lets data pass a channel whose client is told of it. Some clients, libnice among them, drop ChannelData that overtake the answer. None is late the
// other way: the messages of a client are handled one by one.
func (g *Gate) bind(r *request, tell func()) {
	n, _ := r.channel()
	peers, _ := r.peers()
	r.flow.relay.Bind(n, peers[0], tell)
}

// pass hands an admitted request to pion/turn. Silence means that the allocation ended a moment ago, an error that pion disagrees
// with the rules above; the client gets a code either way.
func (g *Gate) pass(f *flow, method stun.Method, opened *relay.Relay, attrs ...stun.Setter) error {
	answer, err := f.lane.request(method, f.Handle, opened, attrs...)
	switch {
	case errors.Is(err, errNoAnswer):
		return &refusal{code: stun.CodeAllocMismatch, reason: meter.NoAllocation}
	case err != nil:
		return err
	case answer.Type.Class == stun.ClassSuccessResponse:
		return nil
	}
	refused := &refusal{code: stun.CodeServerError, reason: meter.BadRequest}
	var code stun.ErrorCodeAttribute
	if code.GetFrom(answer) == nil {
		refused.code = code.Code
	}
	return refused
}

// indication handles the one indication that clients send: Send (RFC 8656 §11.2). A wrong one is dropped, never answered.
func (g *Gate) indication(r *request) {
	f := g.flowOf(r.client)
	_, hasData := r.value(stun.AttrData)
	peers, ok := r.peers()
	switch {
	case r.Type.Method != stun.MethodSend:
		// A Binding indication is a keep-alive (RFC 8489 §12.1); there is nothing to do about it.
		if r.Type.Method != stun.MethodBinding {
			g.drop(r.client, meter.UnknownMethod)
		}
		return
	case f == nil:
		g.drop(r.client, meter.NoAllocation)
		return
	case len(r.unknown()) > 0:
		g.drop(r.client, meter.UnknownAttribute)
		return
	case !ok, len(peers) != 1, !hasData:
		g.drop(r.client, meter.Malformed)
		return
	case familyOf(peers[0].Addr()) != familyOf(f.Session.Relay.Addr()):
		g.drop(r.client, meter.FamilyMismatch)
		return
	}
	if _, verdict := g.routes.Load().Match(peers[0]); verdict != cluster.Allowed {
		g.meter.DropNote(relay.ReasonOf(verdict), meter.Note{Listener: g.name, Client: f.Client.Addr(), Peer: peers[0], User: f.Username})
		return
	}
	if to, ok := r.value(stun.AttrXORPeerAddress); ok {
		to[0] = 0 // pion/turn takes the byte that says nothing for half of the family
	}
	f.lane.indicate(r.Raw, f.Handle)
}

// lifetime is the lifetime that the request asks for, within the bounds of RFC 8656 §7.2. lifetimeReadable has looked at its length.
func (r *request) lifetime() uint32 {
	v, ok := r.value(stun.AttrLifetime)
	if !ok {
		return defaultLifetime
	}
	return min(max(binary.BigEndian.Uint32(v), defaultLifetime), maxLifetime)
}
