package gate

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/cluster"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/engine"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/limit"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/stunmsg"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/usage"
)

// handlers maps each method to the function that executes an admitted request and returns the answer.
var handlers = map[stun.Method]func(*Gate, *request) ([]byte, error){
	stun.MethodBinding:          (*Gate).binding,
	stun.MethodAllocate:         (*Gate).allocate,
	stun.MethodRefresh:          (*Gate).refresh,
	stun.MethodCreatePermission: (*Gate).createPermission,
	stun.MethodChannelBind:      (*Gate).channelBind,
}

// request checks one request with the rules of its method, executes it and answers the client.
func (g *Gate) request(r *request) {
	rules, known := admission[r.Type.Method]
	if !known {
		g.drop(r.client, meter.UnknownMethod)
		return
	}
	r.flow = g.flowOf(r.client)
	if r.flow != nil && r.Type.Method != stun.MethodBinding {
		if !r.flow.enter() {
			g.drop(r.client, meter.Draining)
			return
		}
		defer r.flow.changing.RUnlock()
	}
	if g.retransmitted(r) {
		return
	}
	for _, objects := range rules {
		if objection := objects(g, r); objection != nil {
			if objection.reason != meter.Draining || !g.beginElsewhere(r) {
				g.refuse(r, objection)
			}
			return
		}
	}
	if r.key != nil {
		g.countIgnored(r)
	}
	if r.flow != nil && r.key != nil {
		r.flow.setRealm(r.realm)
		g.follow(r.flow, r.client, nil, true)
	}
	answer, err := handlers[r.Type.Method](g, r)
	var refused *refusal
	if errors.As(err, &refused) {
		g.refuse(r, refused)
		return
	}
	if r.begun != nil {
		g.await(r, answer, err)
		return
	}
	g.reply(r, answer, err)
}

// countIgnored counts the attributes of an authenticated request that follow MESSAGE-INTEGRITY. They are not protected,
// so RFC 8489 §9 requires that they are ignored. Clients of pion/turn v5.0 send REQUESTED-ADDRESS-FAMILY there, and
// therefore get a relay of the default family.
func (g *Gate) countIgnored(r *request) {
	for _, attr := range r.Ignored() {
		if attr == stun.AttrRequestedAddressFamily {
			g.meter.IgnoredFamilies.Add(1)
		} else {
			g.meter.IgnoredOthers.Add(1)
		}
	}
}

// reply sends the answer to a request that has succeeded. If the request has changed a session that is in the journal,
// the answer is sent after the change is stored, perhaps by another goroutine.
func (g *Gate) reply(r *request, answer []byte, err error) {
	answered := func() {}
	if err == nil && r.Type.Method == stun.MethodChannelBind {
		answered = g.bind(r)
	}
	if !g.stores(r.client) || r.Type.Method == stun.MethodBinding {
		g.send(r.client, answer, err)
		answered()
		return
	}
	g.sendStored(r.client, bytes.Clone(answer), err, answered) // r is reused when Receive returns
}

// stores reports whether sessions of a client are stored in the journal.
func (g *Gate) stores(client session.Client) bool { return g.journal != nil && !client.Connected() }

// sendStored sends the answer to a request when the change of the request is in the journal.
func (g *Gate) sendStored(client session.Client, answer []byte, err error, answered func()) {
	g.journal.After(func() {
		defer answered()
		defer g.meter.RecoverPanic("answer a request")
		g.send(client, answer, err)
	})
}

// await answers an Allocate request when the pods of the Gateway have decided whether the user may have the session. A
// refused session ends. The session exists meanwhile, so that the answer does not also wait for its relay socket.
func (g *Gate) await(r *request, answer []byte, err error) {
	f, client, over := r.begun, r.client, overQuota(r.admission.Over)
	answer = bytes.Clone(answer) // r and the memory of its answer are reused when Receive returns
	refused, refusedErr := r.refusal(over)
	refused = bytes.Clone(refused)
	note := g.note(r, over)
	g.quotas.Admit(r.admission, func(ok bool) {
		defer g.meter.RecoverPanic("answer a request")
		if !ok {
			g.unstore(f)
			g.end(f, usage.Unknown)
			g.meter.RefuseNote(over.reason, note)
			g.send(client, refused, refusedErr)
			return
		}
		f.waiting.Store(false)
		g.begin(f)
		if g.stores(client) {
			g.sendStored(client, answer, err, func() {})
		} else {
			g.send(client, answer, err)
		}
	})
}

// begin counts an admitted session.
func (g *Gate) begin(f *flow) {
	g.table.Settle(f.Session)
	g.log.Debug("session started", "relay", f.Session.Relay)
	if !f.Client.Connected() {
		g.meter.Sessions.Add(1) // connections are counted when they are accepted
	}
}

// retransmitted answers a retransmitted Allocate like the original request (RFC 8656 §7.2). It reports false, and sends
// nothing, for any other request. The retransmission must be authenticated as the user of the original request.
func (g *Gate) retransmitted(r *request) bool {
	f := r.flow
	if f == nil || r.Type.Method != stun.MethodAllocate || r.TransactionID != f.allocated || !r.Signed {
		return false
	}
	for _, objects := range sameUser {
		if objection := objects(g, r); objection != nil {
			g.refuse(r, objection)
			return true
		}
	}
	if f.waiting.Load() {
		return true // the original request will be answered
	}
	answer, err := f.allocatedAnswer(r)
	g.reply(r, answer, err)
	return true
}

// sameUser lists the rules for a retransmitted Allocate.
var sameUser = append(authentication, owner)

func (g *Gate) refuse(r *request, why *refusal) {
	if why.code == 0 || r.key == nil && !g.answerable(r, why.reason) {
		g.drop(r.client, meter.RateLimited)
		return
	}
	g.meter.RefuseNote(why.reason, g.note(r, why))
	if r.flow != nil && (why.reason == meter.PeerDenied || why.reason == meter.PortDenied) {
		r.flow.Session.Deny(why.peer, why.reason == meter.PortDenied, time.Now())
	}
	answer, err := r.refusal(why)
	g.send(r.client, answer, err)
}

// note returns the context of a refusal for the log and for /refusals.
func (g *Gate) note(r *request, why *refusal) meter.Note {
	name, _ := r.Value(stun.AttrUsername)
	return meter.Note{Listener: g.name, Client: r.client.Addr(), Peer: why.peer, User: string(name)}
}

// refusal returns the error response to a request.
func (r *request) refusal(why *refusal) ([]byte, error) {
	var code stun.Setter = why.code
	if why.terse || r.Classic { // RFC 3489 §11.2.9: the length of a reason phrase is a multiple of 4, such as 0
		code = stun.ErrorCodeAttribute{Code: why.code}
	}
	return r.answer(stun.ClassErrorResponse, append([]stun.Setter{code}, why.attrs...)...)
}

// drop counts a message that the gate does not answer.
func (g *Gate) drop(client session.Client, why meter.Reason) {
	g.meter.DropNote(why, meter.Note{Listener: g.name, Client: client.Addr()})
}

// Error implements error, so that the functions in handlers can return a refusal.
func (f *refusal) Error() string { return f.reason.String() }

// binding returns the address of the client. Clients of RFC 3489 support only MAPPED-ADDRESS (RFC 5389 §12.2). If the
// request has PADDING, the answer has it too (RFC 5780 §7.6). So a client can find out whether the path passes long
// packets in both directions. The source may be forged, so the answer is not longer than the request and repeats no
// content of it. If PADDING is shorter than the address in the answer, the answer has no PADDING.
func (g *Gate) binding(r *request) ([]byte, error) {
	mapped := stunmsg.Address{Type: stun.AttrXORMappedAddress, Addr: r.client.Addr()}
	if r.Classic {
		mapped.Type = stun.AttrMappedAddress
	}
	padding, padded := r.Value(stun.AttrPadding)
	if !padded || len(padding) < mappedSize {
		return r.answer(stun.ClassSuccessResponse, mapped)
	}
	n := min(len(padding)-mappedSize, maxPadding)
	return r.answer(stun.ClassSuccessResponse, mapped, stun.RawAttribute{Type: stun.AttrPadding, Value: zeros[:n]})
}

// mappedSize is the length of XOR-MAPPED-ADDRESS with an IPv6 address. maxPadding is the longest PADDING of an answer.
// Longer PADDING would exceed the MTU of Ethernet, and the answer would not test the path.
const (
	mappedSize = 24
	maxPadding = 1500
)

var zeros [maxPadding]byte

// allocate reserves a session in the session table, opens a relay socket or takes the reserved socket, registers the
// session and starts the allocation.
func (g *Gate) allocate(r *request) ([]byte, error) {
	s := &session.Session{
		Client: r.client, Listener: g.name, Protocol: g.protocol,
		Username: r.username, UserID: r.userID, Caveats: r.caveats, Started: time.Now(),
		UsageID: usage.New(),
	}
	if c, ok := r.client.(session.Counted); ok {
		s.Connection = c.Counted()
	}
	client := r.client.Addr().Addr()
	s.Source, s.Shared = session.Source(client), limit.PrivateOrLoopback(client)
	held, err := g.reservePort(r, s)
	if err != nil {
		return nil, err
	}
	f := &flow{Session: s, allocated: r.TransactionID, permitted: permissions{memory: s.Claim(session.Memory)}}
	f.setRealm(r.realm)
	f.setLifetime(r.lifetime())
	if held.Socket == nil {
		held, err = g.socket(r, f)
	}
	if err != nil {
		g.table.Cancel(s)
		g.log.Debug("refuse allocation", "error", err)
		return nil, overQuota(err)
	}
	admission, waits := g.table.Admission(s)
	f.waiting.Store(waits)
	g.open(f, held, false)
	g.table.Add(s)
	if err := g.start(f); err != nil {
		return nil, err
	}
	if g.policy.Load().refuses(s.Username, s.UserID, s.Caveats, s.Started) {
		// The policy has changed since the rules were checked, and Update may have looked for sessions before the
		// insertion.
		g.end(f, meter.RevokedCredential.String())
		return nil, g.challenge(r, stun.CodeUnauthorized, meter.RevokedCredential)
	}
	f.held()
	f.refreshing.Lock() // the client may already have sent a Refresh
	g.store(f)
	f.refreshing.Unlock()
	if waits {
		r.begun, r.admission = f, admission
	} else {
		g.begin(f)
	}
	return f.allocatedAnswer(r)
}

// open gives a new flow an account, a relay on a socket and an allocation that is not started. continued reports
// whether another process or pod has had the session.
func (g *Gate) open(f *flow, held relay.Reserved, continued bool) {
	f.Usage = g.recorder.Begin(usage.Identity{
		ID: f.UsageID, Gateway: g.policy.Load().Gateway, Listener: g.name, Protocol: string(f.Protocol),
		User: f.UserID, Caveats: f.Caveats.String(), Started: f.Started, Continued: continued,
	})
	f.relay = relay.New(f.Session, held.Socket, held.Advertised, &g.routes, g.meter, func(*relay.Relay) { g.ended(f) })
	f.allocation = g.engine.New(f.relay)
	f.expiry = time.AfterFunc(time.Until(f.until), func() { g.expire(f) })
}

// start registers a flow that open has prepared and starts its allocation. After an error the session has ended.
func (g *Gate) start(f *flow) (err error) {
	if !g.insert(f) {
		return errors.Join(&refusal{code: stun.CodeAllocMismatch, reason: meter.AllocationExists}, f.relay.Close())
	}
	if err = f.relay.Start(f.permits); err != nil {
		g.log.Debug("refuse allocation", "error", err)
		err = overQuota(err)
	} else {
		err = refusalOf(f.allocation.Start())
	}
	if err != nil {
		return errors.Join(err, f.relay.Close())
	}
	return nil
}

// overQuota returns the refusal for an error of the session table or of a relay socket: 486 for a user, a source or a
// credential that has reached its quota, and 508 if the process has no capacity or no port.
func overQuota(err error) *refusal {
	switch {
	case errors.Is(err, session.ErrUserQuota):
		return &refusal{code: stun.CodeAllocQuotaReached, reason: meter.Quota}
	case errors.Is(err, session.ErrCaveatAllocations):
		return &refusal{code: stun.CodeAllocQuotaReached, reason: meter.CaveatAllocations}
	case errors.Is(err, session.ErrCaveatBytes):
		return &refusal{code: stun.CodeAllocQuotaReached, reason: meter.CaveatBytes}
	case errors.Is(err, session.ErrSourceQuota):
		return &refusal{code: stun.CodeAllocQuotaReached, reason: meter.SourceQuota}
	case errors.Is(err, session.ErrCapacity):
		return &refusal{code: stun.CodeInsufficientCapacity, reason: meter.Capacity}
	}
	return &refusal{code: stun.CodeInsufficientCapacity, reason: meter.NoRelay}
}

// reservePort counts a relay port for a session in the session table, which limits the sessions of a user, of a source
// and of the process. A reserved port is already counted. So for a request with RESERVATION-TOKEN, reservePort moves it
// to the session and returns it. A token of another user is invalid.
func (g *Gate) reservePort(r *request, s *session.Session) (relay.Reserved, error) {
	v, ok := r.Value(stun.AttrReservationToken)
	if !ok {
		if err := g.table.Reserve(s); err != nil {
			return relay.Reserved{}, overQuota(err)
		}
		return relay.Reserved{}, nil
	}
	refused := &refusal{code: stun.CodeInsufficientCapacity, reason: meter.NoRelay}
	held, ok := g.reservations.Take(relay.Token(v), s.UserID)
	if !ok {
		return relay.Reserved{}, refused
	}
	switch err := g.table.Inherit(s, held.Port); {
	case errors.Is(err, session.ErrReleased):
		return relay.Reserved{}, errors.Join(refused, held.Socket.Close())
	case err != nil:
		return relay.Reserved{}, errors.Join(overQuota(err), held.Socket.Close())
	}
	return held, nil
}

// dropToken closes the port that the allocation of a flow has reserved, because a reservation ends with the allocation
// that requested it.
func (g *Gate) dropToken(f *flow) error {
	if f.token == nil {
		return nil
	}
	return g.reservations.Drop(*f.token)
}

// socket opens the relay socket for an Allocate request: on any port, on an even port, or on an even port with the next
// port reserved (EVEN-PORT, RFC 8656 §7.2).
func (g *Gate) socket(r *request, f *flow) (relay.Reserved, error) {
	advertised, _ := g.policy.Load().relayAddr(r.family())
	v, ok := r.Value(stun.AttrEvenPort)
	if !ok {
		socket, err := g.network.Open(advertised, 0)
		return relay.Reserved{Socket: socket, Advertised: advertised}, err
	}
	if v[0]&0x80 == 0 {
		even, _, err := relay.OpenEven(g.network, advertised, false)
		return relay.Reserved{Socket: even, Advertised: advertised}, err
	}
	port, err := g.table.Hold(f.Session)
	if err != nil {
		return relay.Reserved{}, err
	}
	even, odd, err := relay.OpenEven(g.network, advertised, true)
	if err != nil {
		port.Release()
		return relay.Reserved{}, err
	}
	token, err := g.reservations.Hold(relay.Reserved{Socket: odd, Advertised: advertised, User: f.UserID, Port: port})
	if err != nil {
		return relay.Reserved{}, errors.Join(err, even.Close())
	}
	f.token = &token
	return relay.Reserved{Socket: even, Advertised: advertised}, nil
}

// insert registers the flow of a new allocation under the address of its client. It reports false if the client already
// has an allocation.
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
	f.refreshing.Lock()
	lifetime := f.lifetime
	f.refreshing.Unlock()
	attrs := []stun.Setter{
		stunmsg.Address{Type: stun.AttrXORRelayedAddress, Addr: f.Session.Relay},
		stunmsg.Number{Type: stun.AttrLifetime, Value: lifetime},
		stunmsg.Address{Type: stun.AttrXORMappedAddress, Addr: f.Client.Addr()},
	}
	if _, ok := r.Value(stunmsg.AttrAdditionalFamily); ok {
		attrs = append(attrs, familyMissing(f.Session.Relay.Addr()))
	}
	if f.token != nil {
		attrs = append(attrs, stun.RawAttribute{Type: stun.AttrReservationToken, Value: f.token[:]})
	}
	return r.answer(stun.ClassSuccessResponse, attrs...)
}

// familyMissing returns ADDRESS-ERROR-CODE with 440 (RFC 8656 §18.12). A client that requests relays of both address
// families gets a relay of one family, and this attribute for the other family.
func familyMissing(given netip.Addr) stun.RawAttribute {
	missing := byte(stunmsg.FamilyIPv4)
	if given.Is4() {
		missing = stunmsg.FamilyIPv6
	}
	return stun.RawAttribute{Type: stunmsg.AttrAddressErrorCode, Value: []byte{missing, 0, 4, 40}}
}

// setRealm records the realm of the latest request.
func (f *flow) setRealm(realm string) {
	if was := f.realm.Load(); was == nil || *was != realm {
		f.realm.Store(new(realm))
	}
}

// setLifetime starts a new lifetime, in seconds.
func (f *flow) setLifetime(lifetime uint32) {
	f.lifetime, f.until = lifetime, time.Now().Add(time.Duration(lifetime)*time.Second)
}

// resetExpiry schedules expire for the end of the lifetime.
func (f *flow) resetExpiry() {
	f.expiry.Reset(time.Until(f.until))
	if f.relay.Closed() { // ended may have stopped the timer before the Reset
		f.expiry.Stop()
	}
}

// expire ends a session whose lifetime is over. The expiry timer calls it.
func (g *Gate) expire(f *flow) {
	defer f.relay.EndOnPanic("end session")
	f.refreshing.Lock()
	defer f.refreshing.Unlock()
	if time.Now().Before(f.until) { // a Refresh has extended the lifetime before expire got the mutex
		f.resetExpiry()
		return
	}
	g.end(f, usage.Expired)
}

func (g *Gate) refresh(r *request) ([]byte, error) {
	f := r.flow
	if v, ok := r.Value(stun.AttrLifetime); ok && binary.BigEndian.Uint32(v) == 0 {
		g.unstore(f)
		g.end(f, usage.ByClient)
		return r.answer(stun.ClassSuccessResponse, stunmsg.Number{Type: stun.AttrLifetime})
	}
	f.refreshing.Lock()
	defer f.refreshing.Unlock()
	if f.relay.Closed() {
		return nil, refusalOf(engine.ErrNoAllocation)
	}
	f.setLifetime(r.lifetime())
	f.resetExpiry()
	g.storeLifetime(f)
	f.changed()
	return r.answer(stun.ClassSuccessResponse, stunmsg.Number{Type: stun.AttrLifetime, Value: f.lifetime})
}

func (g *Gate) createPermission(r *request) ([]byte, error) {
	peers, _ := r.Peers()
	if err := refusalOf(r.flow.allocation.Permit(peers)); err != nil {
		return nil, err
	}
	r.flow.permitted.grant(peers, time.Now())
	r.flow.relay.Permit(peers)
	g.storePermissions(r.flow, peers)
	r.flow.changed()
	return r.answer(stun.ClassSuccessResponse)
}

func (g *Gate) channelBind(r *request) ([]byte, error) {
	if r.flow.relay.Closed() {
		return nil, refusalOf(engine.ErrNoAllocation)
	}
	peers, _ := r.Peers()
	number, _ := r.Channel()
	r.flow.permitted.grant(peers, time.Now())
	g.storeChannel(r.flow, number, peers[0])
	return r.answer(stun.ClassSuccessResponse)
}

// bind binds the channel of a ChannelBind. Data is sent to the client in the channel when the caller has sent the
// answer and calls answered. Some clients, for example libnice, drop ChannelData that arrives before the answer.
// ChannelData from the client is forwarded at once.
func (g *Gate) bind(r *request) (answered func()) {
	n, _ := r.Channel()
	peers, _ := r.Peers()
	answered = r.flow.relay.Bind(n, peers[0])
	r.flow.changed()
	return answered
}

// refusalOf converts an error of the allocation engine: an allocation that has ended becomes a 437, and an
// engine.Refusal becomes a refusal with its code. Any other error is returned unchanged.
func refusalOf(err error) error {
	var refused engine.Refusal
	switch {
	case errors.Is(err, engine.ErrNoAllocation):
		return &refusal{code: stun.CodeAllocMismatch, reason: meter.NoAllocation}
	case errors.As(err, &refused):
		return &refusal{code: refused.Code, reason: meter.BadRequest}
	}
	return err
}

// indication handles a Send indication (RFC 8656 §11.2). Indications are never answered.
func (g *Gate) indication(r *request) {
	f := g.flowOf(r.client)
	data, hasData := r.Value(stun.AttrData)
	_, whole := r.Value(stun.AttrDontFragment)
	peers, ok := r.Peers()
	switch {
	case r.Type.Method != stun.MethodSend:
		// A Binding indication keeps a NAT binding alive (RFC 8489 §12.1) and has no other effect.
		if r.Type.Method != stun.MethodBinding {
			g.drop(r.client, meter.UnknownMethod)
		}
		return
	case f == nil:
		g.drop(r.client, meter.NoAllocation)
		return
	case len(r.Unknown()) > 0, whole && !g.network.SendsWhole():
		g.drop(r.client, meter.UnknownAttribute)
		return
	case !ok, len(peers) != 1, !hasData:
		g.drop(r.client, meter.Malformed)
		return
	case stunmsg.Family(peers[0].Addr()) != stunmsg.Family(f.Session.Relay.Addr()):
		g.drop(r.client, meter.FamilyMismatch)
		return
	}
	if _, verdict := f.relay.View().Match(peers[0]); verdict != cluster.Allowed {
		f.relay.Deny(verdict, peers[0], time.Now())
		return
	}
	if f.relay.Permitted(peers[0]) || f.permitted.restored(peers[0].Addr(), time.Now()) ||
		whole && f.allocation.Permitted(peers[0]) { // the engine does not handle DONT-FRAGMENT
		f.relay.Send(data, peers[0], whole)
		return
	}
	if whole || !f.allocation.Send(data, peers[0]) {
		note := meter.Note{Listener: g.name, Client: f.Client.Addr(), Peer: peers[0], User: f.Username}
		g.meter.DropNote(meter.NoPermission, note)
	}
}
