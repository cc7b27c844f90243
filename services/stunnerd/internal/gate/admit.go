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
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/limit"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/stunmsg"
)

// refusal is the error response to a request. If code is 0, the request gets no answer.
type refusal struct {
	code   stun.ErrorCode
	reason meter.Reason
	attrs  []stun.Setter
	// If terse is set, the response has no reason phrase.
	terse bool
	// peer is the peer that is refused, if any.
	peer netip.AddrPort
}

func refuseIf(failed bool, code stun.ErrorCode, reason meter.Reason) *refusal {
	if !failed {
		return nil
	}
	return &refusal{code: code, reason: reason}
}

// rule checks a request. It returns nil if the request passes.
type rule func(g *Gate, r *request) *refusal

// admission lists the rules of each method in the order in which they are checked. The first refusal determines the
// answer.
var admission = map[stun.Method][]rule{
	stun.MethodBinding: {unknownAttributes, bindingRate},
	stun.MethodAllocate: append(authentication,
		noAllocationYet, transport, wholeDatagrams, lifetimeReadable, reservation, relayFamily, notRetiring),
	stun.MethodRefresh: append(authentication, allocationExists, owner, lifetimeReadable, sameFamily),
	stun.MethodCreatePermission: append(authentication,
		allocationExists, owner, permissionPeers, permissionRoutes, permissionLimit),
	stun.MethodChannelBind: append(authentication,
		allocationExists, owner, channelNumber, channelPeer, channelFree, channelRoute, permissionLimit),
}

// authentication is the long-term credential mechanism (RFC 8489 §9.2.4). A request is authenticated before its
// attributes are checked (§6.3.1). The full slice expression sets the capacity to the length, so that append copies the
// slice.
var authentication = []rule{
	turnServed, credentialPresent, credentialComplete, nonceFresh, guessesLeft, credentialValid, unknownAttributes,
}[:7:7]

// unknownAttributes refuses with 420 a request that has comprehension-required attributes that the server does not
// understand (RFC 8489 §6.3.1).
func unknownAttributes(_ *Gate, r *request) *refusal {
	if unknown := r.Unknown(); len(unknown) > 0 {
		return &refusal{code: stun.CodeUnknownAttribute, reason: meter.UnknownAttribute, attrs: []stun.Setter{unknown}}
	}
	return nil
}

// bindingRate drops Binding requests above a rate limit, because their source address may be forged.
func bindingRate(g *Gate, r *request) *refusal {
	if !g.answers.Allow(r.limited(), limit.Binding) {
		return &refusal{reason: meter.RateLimited}
	}
	return nil
}

// turnServed refuses TURN on a listener that serves only STUN, with 403. After a 401, clients would ask for
// credentials.
func turnServed(g *Gate, _ *request) *refusal {
	return refuseIf(!g.policy.Load().serves(), stun.CodeForbidden, meter.STUNOnly)
}

// credentialPresent challenges a request without MESSAGE-INTEGRITY with 401, before its attributes are checked (RFC
// 8489 §9.2.4, RFC 8656 §7.2). If the source address is forged, the answer goes to another host. So the challenge for a
// request without any attribute has no reason phrase. No client sends such a request, and its challenge is shorter than
// any other, so it does not amplify traffic.
func credentialPresent(g *Gate, r *request) *refusal {
	if r.Signed {
		return nil
	}
	challenge := g.challenge(r, stun.CodeUnauthorized, meter.NoCredential)
	challenge.terse = len(r.Attributes) == 0
	return challenge
}

// maxCredential is the maximum size of USERNAME, REALM and NONCE in bytes (RFC 8489 §14.3, §14.9, §14.10).
var maxCredential = []struct {
	attr stun.AttrType
	most int
}{{stun.AttrUsername, 508}, {stun.AttrRealm, 763}, {stun.AttrNonce, 763}}

// credentialComplete refuses a request that has MESSAGE-INTEGRITY with 400 if its USERNAME, REALM or NONCE is missing,
// empty or too long.
func credentialComplete(_ *Gate, r *request) *refusal {
	for _, m := range maxCredential {
		if v, ok := r.Value(m.attr); !ok || len(v) == 0 || len(v) > m.most {
			return &refusal{code: stun.CodeBadRequest, reason: meter.IncompleteCredential}
		}
	}
	return nil
}

// nonceFresh answers an invalid or expired nonce with 438 and a new nonce. A nonce of another pod is valid too, because
// the session may have come from that pod. In an Allocate request it is not valid. Such a request may repeat one that
// the other pod has answered, and a second session of the client would take the datagrams of the first one.
func nonceFresh(g *Gate, r *request) *refusal {
	sent, _ := r.Value(stun.AttrNonce)
	if c, ok := r.client.(session.Movable); ok && c.Authenticated() {
		return nil // the other pod has issued the nonce
	}
	foreign := r.Type.Method == stun.MethodAllocate && !g.nonces.Own(sent)
	if foreign || !g.nonces.Valid(sent, r.client.Addr().Addr(), time.Now()) {
		return g.challenge(r, stun.CodeStaleNonce, meter.StaleNonce)
	}
	g.answers.Verified(r.limited())
	return nil
}

// guessesLeft refuses a request, without comparing the password, if the password of its user name can be guessed
// (credential.Authority.Guessable) and the source of the request has sent too many wrong passwords (see
// limit.SourceGuesses). A public source gets no answer. A private source may be a load balancer, so it gets 401: a
// client behind it that has a wrong password then gives up at once, and does not wait for a timeout.
func guessesLeft(g *Gate, r *request) *refusal {
	name, _ := r.Value(stun.AttrUsername)
	if !g.policy.Load().Authority.Guessable(string(name)) || g.limits.MayCompare(r.limited()) {
		return nil
	}
	if limit.PrivateOrLoopback(r.client.Addr().Addr()) {
		return g.challenge(r, stun.CodeUnauthorized, meter.RateLimited)
	}
	return &refusal{reason: meter.RateLimited}
}

// leeway is how far the clock of this host may be ahead of the clock of the service that issues ephemeral credentials.
const leeway = 5 * time.Second

// credentialValid verifies the credential of a request. An unknown user, a wrong password and an expired credential get
// the same 401, so that the answer does not disclose which users exist. A revoked credential, malformed caveats,
// caveats of another gateway, and caveats whose time of issue is in the future get the same 401. A credential of a
// former authority is valid for an existing session. It is valid for a new allocation only if Former.New is set.
//
// A caveat that this release does not know gets 403. The request is authentic, but the server refuses to perform it
// (RFC 8656 §19), because it cannot enforce an unknown caveat. After a 401, the client might request another credential
// by itself.
func credentialValid(g *Gate, r *request) *refusal {
	username, _ := r.Value(stun.AttrUsername)
	realm, _ := r.Value(stun.AttrRealm)
	policy, now := g.policy.Load(), time.Now()
	reason := meter.UnknownUser
	for _, a := range g.authorities(r, policy, now) {
		if a.Realm != string(realm) {
			continue
		}
		known, err := a.Verify(string(username), now, leeway)
		key := known.Key
		if errors.Is(err, credential.ErrUnknownUser) {
			// The MAC is checked for unknown users too, so that the time to the answer does not disclose which users
			// exist.
			key = credential.Key(string(username), a.Realm, "")
		}
		signed := r.SignedWith(key)
		switch {
		case errors.Is(err, credential.ErrUnknownUser):
		case !signed:
			reason = meter.WrongPassword
		case errors.Is(err, credential.ErrExpired) && !g.inGrace(r, known, policy, now):
			reason = meter.ExpiredCredential
		case policy.refuses(string(username), known.UserID, known.Caveats, now):
			reason = meter.RevokedCredential
		case errors.Is(err, credential.ErrNotYet):
			reason = meter.CaveatNotBefore
		case errors.Is(err, credential.ErrCaveatMalformed):
			reason = meter.CaveatMalformed
		case known.Caveats.Gateway != "" && known.Caveats.Gateway != policy.Gateway:
			reason = meter.CaveatGateway
		default:
			r.key, r.realm, r.username, r.userID, r.caveats = key, a.Realm, string(username), known.UserID, known.Caveats
			if policy.Authority.Guessable(r.username) {
				g.limits.RightPassword(r.client.Addr().Addr(), r.username)
			}
			return refuseIf(errors.Is(err, credential.ErrCaveatUnknown), stun.CodeForbidden, meter.CaveatUnknown)
		}
	}
	guess := (reason == meter.UnknownUser || reason == meter.WrongPassword) &&
		policy.Authority.Guessable(string(username))
	if guess && !formerlyValid(r, policy, now) {
		g.limits.WrongPassword(r.limited())
	}
	return g.challenge(r, stun.CodeUnauthorized, reason)
}

// formerlyValid reports whether a credential was valid before a config change. Such a credential is not counted as a
// guess, because a guess counts against other clients behind the same address.
func formerlyValid(r *request, p *Policy, now time.Time) bool {
	username, _ := r.Value(stun.AttrUsername)
	for _, f := range p.Former {
		if known, err := f.Authority.Verify(string(username), now, 0); err == nil && r.SignedWith(known.Key) {
			return true
		}
	}
	return false
}

// inGrace reports whether a credential that has expired may still be used for the requests of an existing session, also
// for its retransmitted Allocate. A new allocation needs a credential that has not expired.
func (g *Gate) inGrace(r *request, known credential.Verified, p *Policy, now time.Time) bool {
	return !r.begins() && now.Before(known.Expires.Add(p.SessionGrace))
}

// authorities returns the authorities that may verify the request: the current authority, and each former authority
// before its Former.Until. For a new allocation a former authority is included only if its Former.New is set. For an
// existing session each authority is also tried with the realm of the session, because a change of the realm must not
// end a session.
func (g *Gate) authorities(r *request, p *Policy, now time.Time) []credential.Authority {
	list := []credential.Authority{p.Authority}
	for _, f := range p.Former {
		if now.Before(f.Until) && (f.New || !r.begins()) {
			list = append(list, f.Authority)
		}
	}
	if r.begins() {
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

// noAllocationYet refuses a second allocation on a 5-tuple with 437 (RFC 8656 §7.2).
func noAllocationYet(_ *Gate, r *request) *refusal {
	return refuseIf(r.flow != nil, stun.CodeAllocMismatch, meter.AllocationExists)
}

// transport refuses a request without REQUESTED-TRANSPORT with 400, and any transport but UDP with 442 (RFC 8656 §7.2).
func transport(_ *Gate, r *request) *refusal {
	const udp = 17
	v, ok := r.Value(stun.AttrRequestedTransport)
	switch {
	case !ok || len(v) != 4:
		return &refusal{code: stun.CodeBadRequest, reason: meter.BadRequest}
	case v[0] != udp:
		return &refusal{code: stun.CodeUnsupportedTransProto, reason: meter.TransportUnsupported}
	}
	return nil
}

// wholeDatagrams refuses DONT-FRAGMENT as an unknown attribute, with 420, if the kernel cannot respect it (RFC 8656
// §7.2). Otherwise the attribute has no effect here: the answer shows the client that Send indications may have it.
func wholeDatagrams(g *Gate, r *request) *refusal {
	if _, ok := r.Value(stun.AttrDontFragment); !ok || g.network.SendsWhole() {
		return nil
	}
	unknown := stunmsg.UnknownAttributes(binary.BigEndian.AppendUint16(nil, uint16(stun.AttrDontFragment)))
	return &refusal{code: stun.CodeUnknownAttribute, reason: meter.UnknownAttribute, attrs: []stun.Setter{unknown}}
}

// reservation refuses malformed EVEN-PORT and RESERVATION-TOKEN attributes, and combinations that RFC 8656 §7.2
// forbids, with 400: EVEN-PORT with RESERVATION-TOKEN, RESERVATION-TOKEN with a family, and a pair of ports with
// ADDITIONAL-ADDRESS-FAMILY. Gate.reservePort checks the token itself.
func reservation(_ *Gate, r *request) *refusal {
	even, hasEven := r.Value(stun.AttrEvenPort)
	token, hasToken := r.Value(stun.AttrReservationToken)
	_, hasFamily := r.Value(stun.AttrRequestedAddressFamily)
	_, hasSecond := r.Value(stunmsg.AttrAdditionalFamily)
	switch {
	case hasEven && len(even) != 1, hasToken && len(token) != len(relay.Token{}),
		hasToken && (hasEven || hasFamily || hasSecond), hasSecond && hasEven && even[0]&0x80 != 0:
		return &refusal{code: stun.CodeBadRequest, reason: meter.BadRequest}
	}
	return nil
}

// relayFamily refuses a relay family for which the listener has no address with 440 (RFC 8656 §7.2). It refuses
// ADDITIONAL-ADDRESS-FAMILY for any family but IPv6, or together with REQUESTED-ADDRESS-FAMILY, with 400.
func relayFamily(g *Gate, r *request) *refusal {
	if v, ok := r.Value(stunmsg.AttrAdditionalFamily); ok {
		_, both := r.Value(stun.AttrRequestedAddressFamily)
		if both || len(v) != 4 || v[0] != stunmsg.FamilyIPv6 {
			return &refusal{code: stun.CodeBadRequest, reason: meter.BadRequest}
		}
	}
	if v, ok := r.Value(stun.AttrRequestedAddressFamily); ok && len(v) != 4 {
		return &refusal{code: stun.CodeBadRequest, reason: meter.BadRequest}
	}
	_, ok := g.policy.Load().relayAddr(r.family())
	return refuseIf(!ok, stun.CodeAddrFamilyNotSupported, meter.FamilyUnsupported)
}

// notRetiring refuses a new allocation with 508 if the listener is retired, or if the process drains and no longer
// admits late clients (session.Table.AdmitLate). Two kinds of clients cannot be passed to another pod: a client over a
// connection, and a client that another pod has passed here because it did not know yet that this pod drains. A request
// is passed on only once.
func notRetiring(g *Gate, r *request) *refusal {
	c, movable := r.client.(session.Movable)
	stays := r.client.Connected() || movable && c.Authenticated()
	return refuseIf(g.retiring.Load() || g.table.Refuses(stays), stun.CodeInsufficientCapacity, meter.Draining)
}

// allocationExists refuses a request of a client without an allocation with 437. So after a restart of the gateway, its
// clients allocate again at once instead of retransmitting until a timeout.
func allocationExists(_ *Gate, r *request) *refusal {
	return refuseIf(r.flow == nil, stun.CodeAllocMismatch, meter.NoAllocation)
}

// owner refuses with 441 any user but the user of the allocation (RFC 8656 §5). The caveats of a credential are a part
// of the user name, so another credential of the same user is refused too: a session cannot change its caveats.
func owner(_ *Gate, r *request) *refusal {
	return refuseIf(r.username != r.flow.Username, stun.CodeWrongCredentials, meter.OtherUser)
}

// lifetimeReadable refuses a LIFETIME attribute whose length is not 32 bits, with 400.
func lifetimeReadable(_ *Gate, r *request) *refusal {
	v, ok := r.Value(stun.AttrLifetime)
	return refuseIf(ok && len(v) != 4, stun.CodeBadRequest, meter.BadRequest)
}

// sameFamily answers 443 to a Refresh for another address family than the allocation has (RFC 8656 §8.2).
func sameFamily(_ *Gate, r *request) *refusal {
	v, ok := r.Value(stun.AttrRequestedAddressFamily)
	other := ok && (len(v) != 4 || v[0] != stunmsg.Family(r.flow.Session.Relay.Addr()))
	return refuseIf(other, stun.CodePeerAddrFamilyMismatch, meter.FamilyMismatch)
}

// permissionPeers refuses a request without a valid peer with 400, and a peer of another family than the relay with 443
// (RFC 8656 §10.2).
func permissionPeers(_ *Gate, r *request) *refusal {
	peers, ok := r.Peers()
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

// permissionRoutes refuses a request with 403 unless the routes that the credential names allow the IP addresses of all
// its peers, on any port (cluster.View.Permits).
func permissionRoutes(_ *Gate, r *request) *refusal {
	peers, _ := r.Peers()
	view := r.flow.relay.View()
	for _, p := range peers {
		if view.Permits(p) {
			continue
		}
		if view.OnlyOthersAllow(p.Addr()) {
			return &refusal{code: stun.CodeForbidden, reason: meter.CaveatRoute, peer: p}
		}
		return &refusal{code: stun.CodeForbidden, reason: meter.PeerDenied, peer: p}
	}
	return nil
}

// permissionLimit refuses a request with 508 if the allocation would have more than MaxPermissions permissions, or if
// the process has no memory for new permissions or a new channel (RFC 8656 §10.2, §12.2). It also applies to
// ChannelBind, which installs a permission.
func permissionLimit(_ *Gate, r *request) *refusal {
	peers, _ := r.Peers()
	channels, added := r.flow.relay.Channels(), false
	if n, ok := r.Channel(); ok && r.Type.Method == stun.MethodChannelBind {
		if bound, _ := r.flow.relay.Bound(n, peers[0]); !bound.IsValid() {
			channels, added = channels+1, true
		}
	}
	switch err := r.flow.permitted.reserve(peers, channels, added, time.Now()); {
	case err == nil:
		return nil
	case errors.Is(err, session.ErrEnded):
		return &refusal{code: stun.CodeAllocMismatch, reason: meter.NoAllocation}
	case errors.Is(err, session.ErrCapacity):
		return &refusal{code: stun.CodeInsufficientCapacity, reason: meter.Capacity}
	}
	return &refusal{code: stun.CodeInsufficientCapacity, reason: meter.PermissionLimit}
}

// channelNumber refuses a channel number outside of 0x4000 to 0x7FFF with 400. The range of RFC 8656 §12.2 ends at
// 0x4FFE, but clients of RFC 5766 use numbers up to 0x7FFF.
func channelNumber(_ *Gate, r *request) *refusal {
	n, ok := r.Channel()
	return refuseIf(!ok || n < 0x4000 || n > 0x7FFF, stun.CodeBadRequest, meter.BadRequest)
}

// channelPeer refuses a request without exactly one peer with 400, and a peer of another family than the relay with
// 443.
func channelPeer(_ *Gate, r *request) *refusal {
	peers, ok := r.Peers()
	if !ok || len(peers) != 1 {
		return &refusal{code: stun.CodeBadRequest, reason: meter.BadRequest}
	}
	return peerFamily(r, peers[0].Addr())
}

// channelFree refuses a channel number that is bound to another peer, and a peer that is bound to another number, with
// 400 (RFC 8656 §12.2). It refuses a new channel with 508 if the allocation has relay.MaxChannels channels.
func channelFree(_ *Gate, r *request) *refusal {
	n, _ := r.Channel()
	peers, _ := r.Peers()
	peer, bound := r.flow.relay.Bound(n, peers[0])
	switch {
	case peer.IsValid() && peer != peers[0], bound != 0 && bound != n:
		return &refusal{code: stun.CodeBadRequest, reason: meter.ChannelConflict}
	case !peer.IsValid() && r.flow.relay.Channels() >= relay.MaxChannels:
		return &refusal{code: stun.CodeInsufficientCapacity, reason: meter.ChannelLimit}
	}
	return nil
}

// channelRoute refuses a peer with 403 if no route that the credential names allows its IP address and port. A
// permission is for an IP address only, but a channel is for an address and port. The relayed transport address of the
// client itself is not allowed as a peer.
func channelRoute(_ *Gate, r *request) *refusal {
	peers, _ := r.Peers()
	if peers[0] == r.flow.Session.Relay {
		return &refusal{code: stun.CodeForbidden, reason: meter.PortDenied, peer: peers[0]}
	}
	if _, verdict := r.flow.relay.View().Match(peers[0]); verdict != cluster.Allowed {
		return &refusal{code: stun.CodeForbidden, reason: relay.ReasonOf(verdict), peer: peers[0]}
	}
	return nil
}

func peerFamily(r *request, peer netip.Addr) *refusal {
	other := stunmsg.Family(peer) != stunmsg.Family(r.flow.Session.Relay.Addr())
	return refuseIf(other, stun.CodePeerAddrFamilyMismatch, meter.FamilyMismatch)
}

// challenge returns a refusal with REALM and a new NONCE.
func (g *Gate) challenge(r *request, code stun.ErrorCode, reason meter.Reason) *refusal {
	now := time.Now()
	realm := stun.NewRealm(g.realm(r, code, now))
	fresh := stun.Nonce(g.nonces.Make(r.client.Addr().Addr(), now))
	return &refusal{code: code, reason: reason, attrs: []stun.Setter{realm, fresh}}
}

// realm returns the realm of a challenge: the current realm, with one exception. A 438 repeats the realm of the request
// if it is the realm of a former authority whose credentials differ from the current ones. A client derives its key
// from the realm of the challenge, and the former credentials are not valid in the current realm.
func (g *Gate) realm(r *request, code stun.ErrorCode, now time.Time) string {
	p := g.policy.Load()
	if sent, _ := r.Value(stun.AttrRealm); code == stun.CodeStaleNonce {
		for _, a := range g.authorities(r, p, now) {
			if a.Realm == string(sent) && a.In(p.Authority.Realm) != p.Authority {
				return a.Realm
			}
		}
	}
	return p.Authority.Realm
}

// answerable reports whether the rate limits allow an answer to a refused request that is not authenticated.
func (g *Gate) answerable(r *request, why meter.Reason) bool {
	switch why {
	case meter.UnknownUser, meter.WrongPassword, meter.ExpiredCredential, meter.RevokedCredential, meter.RateLimited,
		meter.CaveatMalformed, meter.CaveatGateway, meter.CaveatNotBefore:
		return g.limits.AllowFailure(r.limited())
	}
	return g.answers.Allow(r.limited(), limit.Challenge)
}
