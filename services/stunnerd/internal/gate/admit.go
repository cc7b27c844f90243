package gate

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/cluster"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
)

// refusal is the error answer to a request, or silence when the code is 0.
type refusal struct {
	code   stun.ErrorCode
	reason meter.Reason
	attrs  []stun.Setter
	// terse leaves the reason phrase out.
	terse bool
	// peer is the one that the refusal is about, if it is about one.
	peer netip.AddrPort
}

// A rule looks at one thing. It returns nil when there is nothing against the request.
type rule func(g *Gate, r *request) *refusal

// admission lists, for every method, the rules in the order in which they are asked; the first that objects decides the answer.
var admission = map[stun.Method][]rule{
	stun.MethodBinding:          {unknownAttributes, bindingRate},
	stun.MethodAllocate:         append(authentication, noAllocationYet, transport, lifetimeReadable, reservation, family, staying),
	stun.MethodRefresh:          append(authentication, allocation, owner, lifetimeReadable, sameFamily),
	stun.MethodCreatePermission: append(authentication, allocation, owner, permissionPeers, permissionRoutes, permissionRoom),
	stun.MethodChannelBind:      append(authentication, allocation, owner, channelNumber, channelPeer, channelFree, channelRoute, permissionRoom),
}

// authentication is the long-term credential mechanism (RFC 8489 §9.2.4); what is asked comes after who asks (§6.3.1). It is bounded, so that every append makes a list of its own.
var authentication = []rule{turnServed, somethingAsked, credentialPresent, credentialComplete, nonceFresh, judged, credentialGood, unknownAttributes}[:8:8]

// unknownAttributes answers 420 to a comprehension-required attribute that is not understood (RFC 8489 §6.3.1).
func unknownAttributes(_ *Gate, r *request) *refusal {
	if unknown := r.unknown(); len(unknown) > 0 {
		return &refusal{code: stun.CodeUnknownAttribute, reason: meter.UnknownAttribute, attrs: []stun.Setter{unknown}}
	}
	return nil
}

// bindingRate keeps silent when a source asks too often: it may be forged, and the answers go to somebody else.
func bindingRate(g *Gate, r *request) *refusal {
	if !g.challenges.allow(r, bindings) {
		return &refusal{reason: meter.RateLimited}
	}
	return nil
}

// turnServed answers 403 on a listener that serves STUN only; a 401 would make clients look for credentials.
func turnServed(g *Gate, _ *request) *refusal {
	if !g.policy.Load().serves() {
		return &refusal{code: stun.CodeForbidden, reason: meter.STUNOnly}
	}
	return nil
}

// somethingAsked answers 400, as short as can be, to a request without any attribute. No client sends one; whoever does wants a long answer
// to go somewhere else.
func somethingAsked(_ *Gate, r *request) *refusal {
	if len(r.Attributes) == 0 {
		return &refusal{code: stun.CodeBadRequest, reason: meter.BadRequest, terse: true}
	}
	return nil
}

// credentialPresent challenges a request without MESSAGE-INTEGRITY with 401.
func credentialPresent(g *Gate, r *request) *refusal {
	if !r.signed {
		return g.challenge(r, stun.CodeUnauthorized, meter.NoCredential)
	}
	return nil
}

// maxCredential bounds USERNAME, REALM and NONCE: 508 bytes for the first (RFC 8489 §14.3), 763 for the others (§14.9, §14.10).
var maxCredential = map[stun.AttrType]int{stun.AttrUsername: 508, stun.AttrRealm: 763, stun.AttrNonce: 763}

// credentialComplete answers 400 when USERNAME, REALM or NONCE is missing beside MESSAGE-INTEGRITY, or longer than it may be.
func credentialComplete(_ *Gate, r *request) *refusal {
	for t, most := range maxCredential {
		if v, ok := r.value(t); !ok || len(v) == 0 || len(v) > most {
			return &refusal{code: stun.CodeBadRequest, reason: meter.IncompleteCredential}
		}
	}
	return nil
}

// nonceFresh answers 438 with a new nonce to one that was not made here, or too long ago.
func nonceFresh(g *Gate, r *request) *refusal {
	nonce, _ := r.value(stun.AttrNonce)
	if !g.nonces.Valid(nonce, r.client.Addr().Addr(), time.Now()) {
		return g.challenge(r, stun.CodeStaleNonce, meter.StaleNonce)
	}
	g.challenges.proven(r)
	return nil
}

// judged refuses a request with a guessable name, without a look at its password, when there were too many wrong ones. A public source hears nothing
// (T-07). A private one may be a load balancer: its clients get 401, so that one with a wrong password gives up instead of waiting for an answer.
func judged(g *Gate, r *request) *refusal {
	name, _ := r.value(stun.AttrUsername)
	if g.policy.Load().Authority.Guessable(string(name)) && !g.limits.guesses.open(r) {
		if hides(r.client.Addr().Addr()) {
			return g.challenge(r, stun.CodeUnauthorized, meter.RateLimited)
		}
		return &refusal{reason: meter.RateLimited}
	}
	return nil
}

// leeway is how far this clock may be ahead of that of whoever mints ephemeral credentials.
const leeway = 5 * time.Second

// credentialGood answers 401 to an unknown user, a wrong password and an expired credential, all alike. A session may go on with a
// credential of an authority that was replaced a while ago; a new allocation may not.
func credentialGood(g *Gate, r *request) *refusal {
	username, _ := r.value(stun.AttrUsername)
	realm, _ := r.value(stun.AttrRealm)
	policy, now := g.policy.Load(), time.Now()
	reason := meter.UnknownUser
	for _, a := range g.authorities(r, policy, now) {
		if a.Realm != string(realm) {
			continue
		}
		known, err := a.Verify(string(username), now.Add(-leeway))
		key := known.Key
		if errors.Is(err, credential.ErrUnknownUser) {
			// The MAC is computed for nobody too, so that time does not tell who exists.
			key = credential.Key(string(username), a.Realm, "")
		}
		signed := r.signedWith(key)
		switch {
		case errors.Is(err, credential.ErrUnknownUser):
		case !signed:
			reason = meter.WrongPassword
		case err != nil && !g.inGrace(r, known, policy, now):
			reason = meter.ExpiredCredential
		default:
			r.key, r.realm, r.username, r.userID = key, a.Realm, string(username), known.UserID
			if policy.Authority.Guessable(r.username) {
				g.limits.guesses.right(r, r.username)
			}
			return nil
		}
	}
	if reason != meter.ExpiredCredential && policy.Authority.Guessable(string(username)) && !formerlyGood(r, policy, now) {
		g.limits.guesses.wrong(r)
	}
	return g.challenge(r, stun.CodeUnauthorized, reason)
}

// formerlyGood tells whether a credential that is wrong was good before the config changed. Clients that have not heard of the change must
// not use up what their colleagues behind the same address have.
func formerlyGood(r *request, p *Policy, now time.Time) bool {
	username, _ := r.value(stun.AttrUsername)
	for _, f := range p.Former {
		if known, err := f.Authority.Verify(string(username), now); err == nil && r.signedWith(known.Key) {
			return true
		}
	}
	return false
}

// inGrace tells whether a session may go on with a credential that has expired. A new allocation may not begin with one.
func (g *Gate) inGrace(r *request, known credential.Verified, p *Policy, now time.Time) bool {
	return r.flow != nil && r.Type.Method != stun.MethodAllocate && now.Before(known.Expires.Add(p.SessionGrace))
}

// authorities returns the authorities that may vouch for the request: the current one, and the former ones whose time is not over, for a client without
// a session only those that are good for new sessions. For a client with a session all of them do so in the realm of the session too: another realm ends no session, however long it lasts.
func (g *Gate) authorities(r *request, p *Policy, now time.Time) []credential.Authority {
	list := []credential.Authority{p.Authority}
	begins := r.flow == nil || r.Type.Method == stun.MethodAllocate
	for _, f := range p.Former {
		if now.Before(f.Until) && (f.New || !begins) {
			list = append(list, f.Authority)
		}
	}
	if begins {
		return list
	}
	realm := *r.flow.realm.Load()
	for _, a := range list {
		if same := a.In(realm); !slices.Contains(list, same) {
			list = append(list, same)
		}
	}
	return list
}

// noAllocationYet answers 437 to a second allocation on a 5-tuple (RFC 8656 §7.2).
func noAllocationYet(_ *Gate, r *request) *refusal {
	if r.flow != nil {
		return &refusal{code: stun.CodeAllocMismatch, reason: meter.AllocationExists}
	}
	return nil
}

// transport wants REQUESTED-TRANSPORT to be UDP: 400 without, 442 for any other (RFC 8656 §7.2).
func transport(_ *Gate, r *request) *refusal {
	const udp = 17
	v, ok := r.value(stun.AttrRequestedTransport)
	switch {
	case !ok || len(v) != 4:
		return &refusal{code: stun.CodeBadRequest, reason: meter.BadRequest}
	case v[0] != udp:
		return &refusal{code: stun.CodeUnsupportedTransProto, reason: meter.TransportUnsupported}
	}
	return nil
}

// reservation wants EVEN-PORT and RESERVATION-TOKEN to make sense: 400 when both are there, or a token, or a pair of ports, together
// with a family (RFC 8656 §7.2). Whether a token is good shows when allocate takes the port behind it.
func reservation(_ *Gate, r *request) *refusal {
	even, hasEven := r.value(stun.AttrEvenPort)
	token, hasToken := r.value(stun.AttrReservationToken)
	_, hasFamily := r.value(stun.AttrRequestedAddressFamily)
	_, hasSecond := r.value(attrAdditionalFamily)
	switch {
	case hasEven && len(even) != 1, hasToken && len(token) != len(relay.Token{}),
		hasToken && (hasEven || hasFamily || hasSecond), hasSecond && hasEven && even[0]&0x80 != 0:
		return &refusal{code: stun.CodeBadRequest, reason: meter.BadRequest}
	}
	return nil
}

// family answers 440 to a relay family that this listener has no address of (RFC 8656 §7.2). ADDITIONAL-ADDRESS-FAMILY may ask for IPv6
// only, and not beside REQUESTED-ADDRESS-FAMILY: 400.
func family(g *Gate, r *request) *refusal {
	if v, ok := r.value(attrAdditionalFamily); ok {
		_, both := r.value(stun.AttrRequestedAddressFamily)
		if both || len(v) != 4 || v[0] != familyIPv6 {
			return &refusal{code: stun.CodeBadRequest, reason: meter.BadRequest}
		}
	}
	if v, ok := r.value(stun.AttrRequestedAddressFamily); ok && len(v) != 4 {
		return &refusal{code: stun.CodeBadRequest, reason: meter.BadRequest}
	}
	if _, ok := g.policy.Load().relayAddr(r.family()); !ok {
		return &refusal{code: stun.CodeAddrFamilyNotSupported, reason: meter.FamilyUnsupported}
	}
	return nil
}

// staying answers 508 while the process, or the listener, is on its way out: live sessions stay, new ones go elsewhere.
func staying(g *Gate, _ *request) *refusal {
	if g.retiring.Load() || g.table.Draining() {
		return &refusal{code: stun.CodeInsufficientCapacity, reason: meter.Draining}
	}
	return nil
}

// allocation answers 437 where there is none: at once, so that a client whose gateway was restarted starts over instead of
// retransmitting into silence.
func allocation(_ *Gate, r *request) *refusal {
	if r.flow == nil {
		return &refusal{code: stun.CodeAllocMismatch, reason: meter.NoAllocation}
	}
	return nil
}

// owner answers 441 to a user who did not make the allocation (RFC 8656 §5).
func owner(_ *Gate, r *request) *refusal {
	if r.username != r.flow.Username {
		return &refusal{code: stun.CodeWrongCredentials, reason: meter.OtherUser}
	}
	return nil
}

// lifetimeReadable answers 400 to a LIFETIME that is no number of 32 bits.
func lifetimeReadable(_ *Gate, r *request) *refusal {
	if v, ok := r.value(stun.AttrLifetime); ok && len(v) != 4 {
		return &refusal{code: stun.CodeBadRequest, reason: meter.BadRequest}
	}
	return nil
}

// sameFamily answers 443 to a refresh for another family than the allocation's (RFC 8656 §8.2).
func sameFamily(_ *Gate, r *request) *refusal {
	v, ok := r.value(stun.AttrRequestedAddressFamily)
	if ok && (len(v) != 4 || v[0] != familyOf(r.flow.Session.Relay.Addr())) {
		return &refusal{code: stun.CodePeerAddrFamilyMismatch, reason: meter.FamilyMismatch}
	}
	return nil
}

// permissionPeers wants at least one peer, all of the relay's family: 400, 443 (RFC 8656 §10.2).
func permissionPeers(_ *Gate, r *request) *refusal {
	peers, ok := r.peers()
	if !ok || len(peers) == 0 {
		return &refusal{code: stun.CodeBadRequest, reason: meter.BadRequest}
	}
	for _, p := range peers {
		if objection := peerFamily(r, p.Addr()); objection != nil {
			return objection
		}
	}
	return nil
}

// permissionRoutes answers 403 when a route forbids any of the peers, and then installs none of them.
func permissionRoutes(g *Gate, r *request) *refusal {
	peers, _ := r.peers()
	view := g.routes.Load()
	for _, p := range peers {
		if !view.Permits(p) {
			return &refusal{code: stun.CodeForbidden, reason: meter.PeerDenied, peer: p}
		}
	}
	return nil
}

// permissionRoom answers 508 beyond the number of peers that one allocation may have. A channel is a permission too.
func permissionRoom(_ *Gate, r *request) *refusal {
	peers, _ := r.peers()
	if !r.flow.permitted.room(peers, time.Now()) {
		return &refusal{code: stun.CodeInsufficientCapacity, reason: meter.PermissionLimit}
	}
	return nil
}

// channelNumber wants a number between 0x4000 and 0x7FFF: RFC 8656 ends at 0x4FFE, clients of RFC 5766 go on.
func channelNumber(_ *Gate, r *request) *refusal {
	if n, ok := r.channel(); !ok || n < 0x4000 || n > 0x7FFF {
		return &refusal{code: stun.CodeBadRequest, reason: meter.BadRequest}
	}
	return nil
}

// channelPeer wants one peer of the relay's family: 400, 443.
func channelPeer(_ *Gate, r *request) *refusal {
	peers, ok := r.peers()
	if !ok || len(peers) != 1 {
		return &refusal{code: stun.CodeBadRequest, reason: meter.BadRequest}
	}
	return peerFamily(r, peers[0].Addr())
}

// channelFree answers 400 when the number is bound to another peer or the peer to another number (RFC 8656 §12.2), and 508 beyond the
// number of channels that one allocation may have.
func channelFree(_ *Gate, r *request) *refusal {
	n, _ := r.channel()
	peers, _ := r.peers()
	peer, bound := r.flow.relay.Bound(n, peers[0])
	switch {
	case peer.IsValid() && peer != peers[0], bound != 0 && bound != n:
		return &refusal{code: stun.CodeBadRequest, reason: meter.ChannelConflict}
	case !peer.IsValid() && r.flow.relay.Channels() >= relay.MaxChannels:
		return &refusal{code: stun.CodeInsufficientCapacity, reason: meter.ChannelLimit}
	}
	return nil
}

// channelRoute answers 403 when no route allows the peer's address and port: a channel, unlike a permission, names both. A relay is never
// a peer of itself.
func channelRoute(g *Gate, r *request) *refusal {
	peers, _ := r.peers()
	if peers[0] == r.flow.Session.Relay {
		return &refusal{code: stun.CodeForbidden, reason: meter.PortDenied, peer: peers[0]}
	}
	if _, verdict := g.routes.Load().Match(peers[0]); verdict != cluster.Allowed {
		return &refusal{code: stun.CodeForbidden, reason: relay.ReasonOf(verdict), peer: peers[0]}
	}
	return nil
}

func peerFamily(r *request, peer netip.Addr) *refusal {
	if familyOf(peer) != familyOf(r.flow.Session.Relay.Addr()) {
		return &refusal{code: stun.CodePeerAddrFamilyMismatch, reason: meter.FamilyMismatch}
	}
	return nil
}

// challenge refuses with REALM and a new NONCE, for the client to try again.
func (g *Gate) challenge(r *request, code stun.ErrorCode, reason meter.Reason) *refusal {
	now := time.Now()
	nonce := g.nonces.Make(r.client.Addr().Addr(), now)
	realm := stun.NewRealm(g.realm(r, code, now))
	return &refusal{code: code, reason: reason, attrs: []stun.Setter{realm, stun.Nonce(nonce)}}
}

// realm is the realm to try again with: the current one. Only a client with a session that may live on a former password is left with the realm
// that it has sent when its nonce is too old: it makes its key from what it is told, and in the current realm its password is not good.
func (g *Gate) realm(r *request, code stun.ErrorCode, now time.Time) string {
	p := g.policy.Load()
	if sent, _ := r.value(stun.AttrRealm); code == stun.CodeStaleNonce {
		for _, a := range g.authorities(r, p, now) {
			if a.Realm == string(sent) && a.In(p.Authority.Realm) != p.Authority {
				return a.Realm
			}
		}
	}
	return p.Authority.Realm
}

// signedWith checks MESSAGE-INTEGRITY in constant time.
func (r *request) signedWith(key []byte) bool {
	return stun.MessageIntegrity(key).Check(r.Message) == nil
}

// family is the relay family that an Allocate asks for, 0 for any.
func (r *request) family() byte {
	if v, ok := r.value(stun.AttrRequestedAddressFamily); ok {
		return v[0]
	}
	return 0
}

func (r *request) channel() (uint16, bool) {
	v, ok := r.value(stun.AttrChannelNumber)
	if !ok || len(v) != 4 {
		return 0, false
	}
	return binary.BigEndian.Uint16(v), true
}

func familyOf(a netip.Addr) byte {
	if a.Is4() {
		return familyIPv4
	}
	return familyIPv6
}
