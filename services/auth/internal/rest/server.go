// Package rest is the HTTP side of the auth service. Types, routing and parameter binding are generated from
// openapi/auth.yaml; what is written by hand is the order of the middleware (router.go), the checks that the generator cannot make
// (check.go) and the operations (server.go).
//
// A request passes: limits → origin → identity → readiness → binding → checks → gateways → credentials → answer. Whatever goes wrong on
// the way is a failure, which becomes an RFC 9457 problem in one place (problem.go).
package rest

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/auth/internal/access"
	"github.com/stunner-gateway/stunner/services/auth/internal/gateway"
)

// maxGateways bounds the gateways that one request may name.
const maxGateways = 100

// server implements the operations of openapi/auth.yaml.
type server struct {
	Options
	buckets *buckets
}

// demand is what each operation comes down to.
type demand struct {
	userID string
	ttl    time.Duration // 0 means the default of the gateway
	view   gateway.View
	// gateways are those asked for by name; none means all.
	gateways []gateway.Filter
	// parameter names the one that holds the i-th gateway, for errors.
	parameter func(i int) string
	// one is set when the answer has room for one gateway that relays: what others would say to the request is nobody's business then.
	one bool
}

// named tells whether the caller names each gateway.
func (d demand) named() bool {
	return len(d.gateways) > 0 && !slices.ContainsFunc(d.gateways, func(f gateway.Filter) bool { return f.Name == "" })
}

// grant is one gateway's part of an answer.
type grant struct {
	gateway    gateway.Gateway
	urls       []string
	ttl        time.Duration
	credential credential.Credential
	stunOnly   bool
}

// CreateIceServers answers POST /v1/ice-servers.
func (s server) CreateIceServers(ctx context.Context, r CreateIceServersRequestObject) (CreateIceServersResponseObject, error) {
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
	who := identityOf(ctx)
	user := who.UserID
	if !who.Known {
		user = rand.Text() // nobody shares a quota with a stranger
	}
	grants, err := s.grant(ctx, demand{
		userID:    user,
		ttl:       seconds(body.TTL),
		view:      gateway.View{Host: s.PublicAddr, DTLS: deref(body.Dtls)},
		gateways:  filters,
		parameter: func(i int) string { return fmt.Sprintf("gateways[%d]", i) },
	})
	if err != nil {
		return nil, err
	}
	return CreateIceServers201JSONResponse{
		IceServers:         iceServers(grants),
		IceTransportPolicy: transport,
		ExpiresAt:          firstExpiry(grants),
	}, nil
}

// GetTurnAuth answers GET /.
func (s server) GetTurnAuth(ctx context.Context, r GetTurnAuthRequestObject) (GetTurnAuthResponseObject, error) {
	answer, err := s.turnAuth(ctx, r.Params)
	return GetTurnAuth200JSONResponse(answer), err
}

// PostTurnAuth answers POST /, which some clients of TURN REST send instead of GET.
func (s server) PostTurnAuth(ctx context.Context, r PostTurnAuthRequestObject) (PostTurnAuthResponseObject, error) {
	answer, err := s.turnAuth(ctx, GetTurnAuthParams(r.Params))
	return PostTurnAuth200JSONResponse(answer), err
}

func (s server) turnAuth(ctx context.Context, p GetTurnAuthParams) (TurnAuth, error) {
	grants, err := s.query(ctx, query{
		service: &p.Service, username: p.Username, ttl: p.TTL,
		namespace: p.Namespace, gateway: p.Gateway, listener: p.Listener,
		publicAddr: p.PublicAddr, dtls: p.Dtls, one: true,
	})
	if err != nil {
		return TurnAuth{}, err
	}
	// There is no room for a gateway without credentials.
	i := slices.IndexFunc(grants, func(g grant) bool { return !g.stunOnly })
	if i < 0 {
		return TurnAuth{}, &failure{status: http.StatusNotFound, detail: "No gateway that matches relays."}
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
	if err != nil {
		return nil, err
	}
	return GetIceAuth200JSONResponse(answer), nil
}

// PostIceAuth answers POST /ice, which some clients send instead of GET.
func (s server) PostIceAuth(ctx context.Context, r PostIceAuthRequestObject) (PostIceAuthResponseObject, error) {
	answer, err := s.iceAuth(ctx, GetIceAuthParams(r.Params))
	if err != nil {
		return nil, err
	}
	return PostIceAuth200JSONResponse(answer), nil
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

// query holds the parameters that GET / and GET /ice share.
type query struct {
	service                      *Service
	username                     *string
	ttl                          *int64
	namespace, gateway, listener *string
	publicAddr                   *string
	dtls                         *bool
	one                          bool
}

func (s server) query(ctx context.Context, q query) ([]grant, error) {
	if q.service != nil && !q.service.Valid() {
		return nil, bad("service", "must be turn")
	}
	if err := checkTTL(q.ttl); err != nil {
		return nil, err
	}
	if err := checkFilter(q.namespace, q.gateway, q.listener); err != nil {
		return nil, err
	}
	if err := checkHost(q.publicAddr); err != nil {
		return nil, err
	}
	who := identityOf(ctx)
	user, err := userIDFor(who, q.username)
	if err != nil {
		return nil, err
	}
	d := demand{userID: user, ttl: seconds(q.ttl), view: gateway.View{Host: s.PublicAddr, DTLS: q.dtls == nil || *q.dtls}, one: q.one}
	if q.publicAddr != nil {
		d.view.Host = *q.publicAddr
	}
	if q.namespace != nil {
		d.gateways = []gateway.Filter{{Namespace: *q.namespace, Name: deref(q.gateway), Listener: deref(q.listener)}}
		d.parameter = func(int) string { return deepest(q) }
	}
	return s.grant(ctx, d)
}

// deepest names the filter parameter that an error about the filter is about.
func deepest(q query) string {
	switch {
	case q.listener != nil:
		return "listener"
	case q.gateway != nil:
		return "gateway"
	}
	return "namespace"
}

// grant makes the credentials for every gateway that is asked for, allowed and reachable.
func (s server) grant(ctx context.Context, d demand) ([]grant, error) {
	who := identityOf(ctx)
	gateways, err := s.gateways(who, d)
	if err != nil {
		return nil, err
	}
	var out []grant
	for _, g := range gateways {
		urls := g.URLs(d.view)
		if len(urls) == 0 {
			continue
		}
		one, err := s.grantOne(who, g, d, urls)
		if err != nil {
			return nil, err
		}
		out = append(out, one)
		if d.one && !one.stunOnly {
			break
		}
	}
	if len(out) == 0 {
		return nil, &failure{status: http.StatusNotFound, detail: "No gateway that matches has a public address."}
	}
	// A gateway that nobody has named gives its longest time, so that it refuses nobody who wants the others.
	if longest := longest(out); !d.named() && d.ttl > longest && longest > 0 {
		return nil, bad("ttl", "must be at most %d", int64(longest/time.Second))
	}
	s.Metrics.granted(out)
	s.audit(ctx, d.userID, out)
	return out, nil
}

// longest is the longest time to live of the credentials; 0 when there are none.
func longest(grants []grant) (ttl time.Duration) {
	for _, g := range grants {
		ttl = max(ttl, g.ttl)
	}
	return ttl
}

func (s server) grantOne(who access.Identity, g gateway.Gateway, d demand, urls []string) (grant, error) {
	if g.STUNOnly {
		return grant{gateway: g, urls: urls, stunOnly: true}, nil
	}
	standard, most := s.lifetimes(g)
	if d.named() && d.ttl > most {
		return grant{}, bad("ttl", "must be at most %d for gateway %s", int64(most/time.Second), g.ID())
	}
	ttl := min(cmp.Or(d.ttl, standard), most)
	if s.CapToToken && who.Known {
		ttl = min(ttl, max(who.Expires.Sub(s.Now()).Truncate(time.Second), time.Second))
	}
	c, err := g.Authority.Mint(d.userID, ttl, s.Now())
	if err != nil {
		return grant{}, fmt.Errorf("make credential for gateway %s: %w", g.ID(), err)
	}
	return grant{gateway: g, urls: urls, ttl: ttl, credential: c}, nil
}

// lifetimes are the default and the longest time to live of credentials of a gateway: its own, or else the service's.
func (s server) lifetimes(g gateway.Gateway) (standard, most time.Duration) {
	if g.Lifetime > 0 {
		return g.Lifetime, g.Lifetime
	}
	return s.DefaultTTL, s.MaxTTL
}

// gateways looks up what is asked for. Permission comes first, so that nobody finds out which gateways exist that he may not use.
func (s server) gateways(who access.Identity, d demand) ([]gateway.Gateway, error) {
	if len(d.gateways) == 0 {
		if who.Gateways.Empty() {
			return nil, fail(http.StatusForbidden)
		}
		return inTurns(s.allowed(who, s.Directory.Select(gateway.Filter{})), maxGateways), nil
	}
	var out []gateway.Gateway
	for i, f := range d.gateways {
		switch {
		case !reaches(s.Gateways, f):
			return nil, refuse(http.StatusForbidden, d.parameter(i), "is outside what this service gives credentials for: its flag --gateways says for which gateways it does")
		case !reaches(who.Gateways, f):
			return nil, refuse(http.StatusForbidden, d.parameter(i), `is outside the claim "stunner" of the token`)
		}
		found := s.allowed(who, s.Directory.Select(f))
		if len(found) == 0 {
			return nil, refuse(http.StatusNotFound, d.parameter(i), "names no gateway")
		}
		out = append(out, found...)
	}
	return inTurns(out, maxGateways), nil
}

// reaches tells whether a filter asks for gateways that may be in the set.
func reaches(set access.Gateways, f gateway.Filter) bool {
	if f.Name == "" {
		return set.Reaches(f.Namespace)
	}
	return set.Holds(f.Namespace, f.Name)
}

// allowed leaves the gateways that the service gives and the caller may use.
func (s server) allowed(who access.Identity, in []gateway.Gateway) []gateway.Gateway {
	return slices.DeleteFunc(in, func(g gateway.Gateway) bool {
		return !s.Gateways.Holds(g.Namespace, g.Name) || !who.Gateways.Holds(g.Namespace, g.Name)
	})
}

// inTurns leaves at most n gateways, in their order. Namespaces take turns, so that one with many gateways leaves room for those of the others.
func inTurns(all []gateway.Gateway, n int) []gateway.Gateway {
	if len(all) <= n {
		return all
	}
	turn, seen := make([]int, len(all)), map[string]int{}
	for i, g := range all {
		turn[i] = seen[g.Namespace]
		seen[g.Namespace]++
	}
	sorted := slices.Sorted(slices.Values(turn))
	last, room := sorted[n], 0 // gateways of an earlier turn than last are in, and some of last
	for _, t := range sorted[:n] {
		if t == last {
			room++
		}
	}
	out := make([]gateway.Gateway, 0, n)
	for i, g := range all {
		switch {
		case turn[i] == last && room > 0:
			room--
		case turn[i] >= last:
			continue
		}
		out = append(out, g)
	}
	return out
}

func iceServers(grants []grant) []IceServer {
	out := make([]IceServer, 0, len(grants))
	for _, g := range grants {
		server := IceServer{Urls: g.urls}
		if !g.stunOnly {
			password := string(g.credential.Password)
			server.Username, server.Credential = &g.credential.Username, &password
		}
		out = append(out, server)
	}
	return out
}

func firstExpiry(grants []grant) *time.Time {
	var first *time.Time
	for _, g := range grants {
		if at := g.credential.Expires.UTC(); !at.IsZero() && (first == nil || at.Before(*first)) {
			first = &at
		}
	}
	return first
}

// seconds caps before it multiplies: no ttl overflows, and what is capped is still above every maximum.
func seconds(ttl *int64) time.Duration {
	return time.Duration(min(deref(ttl), int64(2*credential.MaxTTL/time.Second))) * time.Second
}
