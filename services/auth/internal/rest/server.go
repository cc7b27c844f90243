package rest

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/auth/internal/access"
	"github.com/stunner-gateway/stunner/services/auth/internal/gateway"
)

// maxGateways is the maximum number of gateways in one request, and in one answer.
const maxGateways = 100

// credentialRequest contains the parameters of a request for credentials, in the same form for all operations of the
// API.
type credentialRequest struct {
	userID string
	ttl    time.Duration // 0 means the default of the gateway
	view   gateway.URLOptions
	// caveats are the caveats of the request, without the caveats of the token.
	caveats credential.Caveats
	// region is the requested region; empty if the request names none.
	region string
	// gateways are the requested gateways; an empty list means all.
	gateways []gateway.Filter
	// parameter returns the name of the request parameter that selects the i-th gateway, for errors.
	parameter func(i int) string
	// single is set if the answer contains the credentials of one gateway only (GET /). Gateways after the first one
	// that relays are then ignored.
	single bool
	// stun is set if the answer has the stun: URLs of the gateways.
	stun bool
	// clampTTL reduces a ttl above the maximum of a gateway to the maximum, instead of refusing the request.
	clampTTL bool
}

// named reports whether the request names every gateway by its name, and not by its namespace only.
func (d credentialRequest) named() bool {
	return len(d.gateways) > 0 && !slices.ContainsFunc(d.gateways, func(f gateway.Filter) bool { return f.Name == "" })
}

// CreateIceServers answers POST /v1/ice-servers.
func (s server) CreateIceServers(
	ctx context.Context, r CreateIceServersRequestObject,
) (CreateIceServersResponseObject, error) {
	body := deref(r.Body)
	transport := IceServersIceTransportPolicyAll
	if body.Transport != nil {
		if !body.Transport.Valid() {
			return nil, bad("transport", "must be all or relay")
		}
		transport = IceServersIceTransportPolicy(*body.Transport)
	}
	if err := checkTTL(body.TTL); err != nil {
		return nil, err
	}
	filters, err := filtersFor(body.Gateways)
	if err != nil {
		return nil, err
	}
	caveats, err := caveatsOf(body.Scope)
	if err != nil {
		return nil, err
	}
	if err := checkRegion(fleetOf(ctx).Regions, body.Region); err != nil {
		return nil, err
	}
	// Callers that choose no user name must not share a quota.
	user, err := userIDFor(identityOf(ctx), "username", body.Username, rand.Text)
	if err != nil {
		return nil, err
	}
	grants, err := s.grant(ctx, credentialRequest{
		userID:    user,
		ttl:       seconds(body.TTL),
		caveats:   caveats,
		view:      gateway.URLOptions{Host: s.PublicAddr, DTLS: deref(body.Dtls), Max: s.MaxURLs, Limit: true},
		region:    deref(body.Region),
		gateways:  filters,
		parameter: func(i int) string { return fmt.Sprintf("gateways[%d]", i) },
		stun:      deref(body.Stun),
	})
	if err != nil {
		return nil, err
	}
	servers := iceServers(grants)
	if deref(body.Stun) {
		servers = withSTUN(grants)
	}
	expires := firstExpiry(grants)
	return CreateIceServers201JSONResponse{
		IceServers:         servers,
		IceTransportPolicy: transport,
		ExpiresAt:          expires,
		TTL:                secondsUntil(expires, s.Now()),
	}, nil
}

// GetTurnAuth answers GET /.
func (s server) GetTurnAuth(ctx context.Context, r GetTurnAuthRequestObject) (GetTurnAuthResponseObject, error) {
	answer, err := s.turnAuth(ctx, r.Params)
	return GetTurnAuth200JSONResponse(answer), err
}

// PostTurnAuth answers POST /, which some TURN REST clients send instead of GET.
func (s server) PostTurnAuth(ctx context.Context, r PostTurnAuthRequestObject) (PostTurnAuthResponseObject, error) {
	answer, err := s.turnAuth(ctx, GetTurnAuthParams(r.Params))
	return PostTurnAuth200JSONResponse(answer), err
}

func (s server) turnAuth(ctx context.Context, p GetTurnAuthParams) (TurnAuth, error) {
	grants, err := s.query(ctx, query{
		service: &p.Service, username: p.Username, ttl: p.TTL,
		namespace: p.Namespace, gateway: p.Gateway, listener: p.Listener,
		publicAddr: p.PublicAddr, dtls: p.Dtls, single: true,
	})
	if err != nil {
		return TurnAuth{}, err
	}
	// The answer cannot describe a gateway without credentials.
	i := slices.IndexFunc(grants, func(g grant) bool { return !g.stunOnly })
	if i < 0 {
		return TurnAuth{}, fail(noRelay)
	}
	g := grants[i]
	return TurnAuth{
		Username: g.credential.Username,
		Password: string(g.credential.Password),
		TTL:      int64(g.ttl / time.Second),
		Uris:     g.urls,
	}, nil
}

// GetIceAuth answers GET /ice.
func (s server) GetIceAuth(ctx context.Context, r GetIceAuthRequestObject) (GetIceAuthResponseObject, error) {
	answer, err := s.iceAuth(ctx, r.Params)
	return GetIceAuth200JSONResponse(answer), err
}

// PostIceAuth answers POST /ice, which some clients send instead of GET.
func (s server) PostIceAuth(ctx context.Context, r PostIceAuthRequestObject) (PostIceAuthResponseObject, error) {
	answer, err := s.iceAuth(ctx, GetIceAuthParams(r.Params))
	return PostIceAuth200JSONResponse(answer), err
}

func (s server) iceAuth(ctx context.Context, p GetIceAuthParams) (IceConfig, error) {
	policy := IceTransportPolicyAll
	if p.IceTransportPolicy != nil {
		if policy = *p.IceTransportPolicy; !policy.Valid() {
			return IceConfig{}, bad("iceTransportPolicy", "must be all, public or relay")
		}
	}
	grants, err := s.query(ctx, query{
		service: p.Service, username: p.Username, ttl: p.TTL,
		namespace: p.Namespace, gateway: p.Gateway, listener: p.Listener,
		publicAddr: p.PublicAddr, dtls: p.Dtls,
	})
	if err != nil {
		return IceConfig{}, err
	}
	return IceConfig{IceServers: iceServers(grants), IceTransportPolicy: policy}, nil
}

// query holds the parameters of GET / and GET /ice.
type query struct {
	service                      *Service
	username                     *string
	ttl                          *int64
	namespace, gateway, listener *string
	publicAddr                   *string
	dtls                         *bool
	single                       bool
}

func (s server) query(ctx context.Context, q query) ([]grant, error) {
	if q.service != nil && !q.service.Valid() {
		return nil, bad("service", "must be turn")
	}
	err := cmp.Or(checkTTL(q.ttl), checkFilter(q.namespace, q.gateway, q.listener), checkHost(q.publicAddr))
	if err != nil {
		return nil, err
	}
	who := identityOf(ctx)
	// A caller without credentials and without a user name gets a user name without user id, as in the existing
	// service.
	missing := rand.Text
	if !who.Known {
		missing = func() string { return "" }
	}
	user, err := userIDFor(who, "username", q.username, missing)
	if err != nil {
		return nil, err
	}
	view := gateway.URLOptions{Host: s.PublicAddr, DTLS: q.dtls == nil || *q.dtls, Max: s.MaxURLs}
	d := credentialRequest{userID: user, ttl: seconds(q.ttl), view: view, single: q.single, clampTTL: true}
	if q.publicAddr != nil {
		d.view.Host, d.view.FromRequest = *q.publicAddr, true
	}
	if q.namespace != nil {
		d.gateways = []gateway.Filter{{Namespace: *q.namespace, Name: deref(q.gateway), Listener: deref(q.listener)}}
		d.parameter = func(int) string { return mostSpecific(q) }
	}
	return s.grant(ctx, d)
}

// mostSpecific returns the name of the narrowest parameter of a query that selects gateways (listener, gateway or
// namespace), for errors.
func mostSpecific(q query) string {
	switch {
	case q.listener != nil:
		return "listener"
	case q.gateway != nil:
		return "gateway"
	}
	return "namespace"
}

// grant returns the ICE URLs of every requested gateway that the caller may use and that has a public address, each
// with a new credential. A gateway that serves STUN only has no credential. grant also counts the credentials, and
// records them for the audit log and the log of grants.
func (s server) grant(ctx context.Context, d credentialRequest) ([]grant, error) {
	who := identityOf(ctx)
	gateways, err := s.gateways(ctx, who, d)
	if err != nil {
		return nil, err
	}
	if !who.Caveats.IsZero() {
		if d.caveats, err = d.caveats.Narrow(who.Caveats); err != nil {
			return nil, refuse(scopeNotInToken, "scope.routes", "has no route in common with the scope of the caller")
		}
	}
	out, m := make([]grant, 0, len(gateways)), mint{user: d.userID, now: s.Now()}
	var uncarried, refused error
	for _, g := range gateways {
		urls := g.URLs(d.view)
		if len(urls) == 0 {
			continue
		}
		if !d.caveats.IsZero() && !carriesCaveats(g) {
			uncarried = refuse(scopeUnsupported, "scope", "needs a gateway with a shared secret: "+
				"set authType ephemeral in its GatewayConfig, or name other gateways")
			if d.named() {
				return nil, uncarried
			}
			continue
		}
		one, err := s.grantOne(who, g, d, &m, urls)
		if err != nil {
			f := failureFor(err)
			if f == nil || d.named() {
				return nil, err
			}
			// The names and the Revocations of a tenant's gateways must not keep callers from other gateways.
			refused = cmp.Or(refused, error(f))
			continue
		}
		out = append(out, one)
		if d.single && !one.stunOnly {
			break
		}
	}
	switch {
	case refused != nil && !slices.ContainsFunc(out, func(g grant) bool { return !g.stunOnly }):
		return nil, refused
	case len(out) == 0 && uncarried != nil:
		return nil, uncarried
	case len(out) == 0:
		return nil, fail(noPublicAddress)
	}
	// If a request does not name each gateway, a gateway with a short lifetime only limits the ttl of its own
	// credential, and does not fail the request for all other gateways. The request is refused only if its ttl exceeds
	// the maximum of every gateway.
	if longest := longestTTL(out); !d.clampTTL && !d.named() && d.ttl > longest && longest > 0 {
		return nil, bad("ttl", "must be at most %d", int64(longest/time.Second))
	}
	for _, g := range out {
		if !g.stunOnly {
			s.Metrics.credentials.Inc()
		}
	}
	s.record(ctx, d.userID, out)
	return out, nil
}

func (s server) grantOne(
	who *access.Identity, g *gateway.Gateway, d credentialRequest, m *mint, urls []string,
) (grant, error) {
	if g.STUNOnly {
		return grant{gateway: g, urls: urls, stunURLs: urls, stunOnly: true}, nil
	}
	standard, most := s.lifetimes(who, g)
	if !d.clampTTL && d.named() && d.ttl > most {
		return grant{}, bad("ttl", "must be at most %d for gateway %s", int64(most/time.Second), g.ID())
	}
	ttl := min(cmp.Or(d.ttl, standard), most)
	if s.CapToToken && !who.Expires.IsZero() {
		ttl = min(ttl, max(who.Expires.Sub(m.now).Truncate(time.Second), time.Second))
	}
	caveats := caveatsFor(g, d.caveats)
	if before := s.issuedBefore(g, m.user, m.now); before > 0 {
		if before > m.now.Add(clockLeeway).Unix() {
			return grant{}, fail(userRevoked)
		}
		caveats.IssuedAt = max(before, m.now.Unix())
	}
	c, err := m.credential(g, caveats, ttl)
	if errors.Is(err, credential.ErrTooLong) {
		return grant{}, bad("scope.routes", "must be fewer, or the user id shorter: the user name of a credential has 508 bytes")
	}
	if err != nil {
		return grant{}, fmt.Errorf("make credential for gateway %s: %w", g.ID(), err)
	}
	out := grant{gateway: g, urls: urls, ttl: ttl, maxTTL: most, credential: c}
	if d.stun {
		out.stunURLs = g.STUNURLs(d.view)
	}
	return out, nil
}

// lifetimes returns the default and the maximum time to live of a gateway's credentials: the lifetime in the config of
// the gateway, or else the settings of the service. The policy can lower both.
func (s server) lifetimes(who *access.Identity, g *gateway.Gateway) (standard, most time.Duration) {
	standard, most = s.DefaultTTL, s.MaxTTL
	if g.Lifetime > 0 {
		standard, most = g.Lifetime, g.Lifetime
	}
	if limit := who.Grant.MaxTTL; limit > 0 {
		standard, most = min(standard, limit), min(most, limit)
	}
	return standard, most
}

// gateways looks up the gateways that a request selects. It checks permissions before existence, so that a caller
// cannot find out which other gateways exist.
func (s server) gateways(ctx context.Context, who *access.Identity, d credentialRequest) ([]*gateway.Gateway, error) {
	near := preference(ctx, d)
	if len(d.gateways) == 0 {
		all, err := s.all(ctx, who, near)
		return roundRobin(idleLast(all), maxGateways), err
	}
	var out []*gateway.Gateway
	for i, f := range d.gateways {
		if err := s.permits(who, f, d.parameter(i)); err != nil {
			return nil, err
		}
		found := fleetOf(ctx).All.Select(f, near, keepAllowed(s.Gateways, who.Grant.Gateways, who.Gateways))
		if len(found) == 0 {
			return nil, refuse(gatewayUnknown, d.parameter(i), "names no gateway")
		}
		out = append(out, found...)
	}
	return roundRobin(idleLast(out), maxGateways), nil
}

// permits returns an error if a filter can match no gateway that the service, the policy and the token of the caller
// allow. parameter is the name of the request parameter, for the error.
func (s server) permits(who *access.Identity, f gateway.Filter, parameter string) error {
	switch {
	case !reaches(s.Gateways, f):
		return refuse(gatewayNotServed, parameter,
			"is not in the flag --gateways of this service, which lists the gateways with credentials")
	case !reaches(who.Grant.Gateways, f):
		return refuse(gatewayNotInPolicy, parameter, "is not in the policy of the caller")
	case !reaches(who.Gateways, f):
		return refuse(gatewayNotInToken, parameter, `is outside the claim "stunner" of the token`)
	}
	return nil
}

// all returns all gateways that the service, the policy and the token of the caller allow. If no gateway is left, the
// error names the first of the three that excludes all.
func (s server) all(ctx context.Context, who *access.Identity, near gateway.Preference) ([]*gateway.Gateway, error) {
	if who.Gateways.Empty() {
		return nil, fail(claimEmpty)
	}
	sets := []access.Gateways{s.Gateways, who.Grant.Gateways, who.Gateways}
	clusters := fleetOf(ctx).All
	usable := clusters.Select(gateway.Filter{}, near, keepAllowed(sets...))
	if len(usable) > 0 {
		return usable, nil
	}
	// reasons[i] is the reason if no gateway is left after the first i sets.
	reasons := []access.Reason{noGateway, noGatewayServed, policyWithoutMatch, claimWithoutMatch}
	for i := range sets {
		if len(clusters.Select(gateway.Filter{}, near, keepAllowed(sets[:i]...))) == 0 {
			return nil, fail(reasons[i])
		}
	}
	return nil, fail(reasons[len(sets)])
}

// preference decides the clusters whose gateways a request gets. Only a service with several regions uses it.
func preference(ctx context.Context, d credentialRequest) gateway.Preference {
	regions := fleetOf(ctx).Regions
	if regions == nil {
		return gateway.Preference{}
	}
	client := sourceOf(ctx)
	if client.unnamed {
		client.addr = netip.Addr{} // the address belongs to a proxy
	}
	return gateway.Preference{
		Regions: regions.Order(cmp.Or(d.region, identityOf(ctx).Region), client.addr), User: d.userID,
	}
}

// reaches reports whether a filter can match a gateway in the set of allowed gateways.
func reaches(set access.Gateways, f gateway.Filter) bool {
	if f.Name == "" {
		return set.CoversNamespace(f.Namespace)
	}
	return set.Contains(f.Namespace, f.Name)
}

// keepAllowed returns a function that removes the gateways that are not in all sets. The function does not change the
// given list, because requests share it.
func keepAllowed(sets ...access.Gateways) func([]*gateway.Gateway) []*gateway.Gateway {
	return func(in []*gateway.Gateway) []*gateway.Gateway {
		for _, set := range sets {
			outside := func(g *gateway.Gateway) bool { return !set.Contains(g.Namespace, g.Name) }
			if !set.All() && slices.ContainsFunc(in, outside) {
				in = slices.DeleteFunc(slices.Clone(in), outside)
			}
		}
		return in
	}
}

// idleLast returns gateways in their order, gateways without a dataplane last, because some clients use only the first
// URL. No gateway is left out, because the operator may have lost its connection to a dataplane that clients reach.
func idleLast(all []*gateway.Gateway) []*gateway.Gateway {
	if !slices.ContainsFunc(all, func(g *gateway.Gateway) bool { return g.Idle }) {
		return all
	}
	out := make([]*gateway.Gateway, 0, len(all))
	for _, idle := range []bool{false, true} {
		for _, g := range all {
			if g.Idle == idle {
				out = append(out, g)
			}
		}
	}
	return out
}

// roundRobin returns at most n gateways, in their order. It selects one gateway of each namespace in turn, so that a
// namespace with many gateways does not displace others.
func roundRobin(all []*gateway.Gateway, n int) []*gateway.Gateway {
	if len(all) <= n {
		return all
	}
	round, seen := make([]int, len(all)), map[string]int{}
	for i, g := range all {
		round[i] = seen[g.Namespace]
		seen[g.Namespace]++
	}
	sorted := slices.Sorted(slices.Values(round))
	// The result contains all gateways of the rounds before lastRound, and the first left gateways of lastRound.
	lastRound, left := sorted[n], 0
	for _, t := range sorted[:n] {
		if t == lastRound {
			left++
		}
	}
	out := make([]*gateway.Gateway, 0, n)
	for i, g := range all {
		switch {
		case round[i] == lastRound && left > 0:
			left--
		case round[i] >= lastRound:
			continue
		}
		out = append(out, g)
	}
	return out
}

// seconds converts a ttl in seconds to a duration. It first limits the ttl to a value above every allowed ttl, so that
// the conversion cannot overflow.
func seconds(ttl *int64) time.Duration {
	return time.Duration(min(deref(ttl), int64(2*credential.MaxTTL/time.Second))) * time.Second
}
