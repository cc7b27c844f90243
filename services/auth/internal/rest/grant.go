package rest

import (
	"time"

	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/auth/internal/gateway"
)

// grant is the part of an answer for one gateway.
type grant struct {
	gateway    *gateway.Gateway
	urls       []string
	stunURLs   []string
	ttl        time.Duration
	maxTTL     time.Duration // the maximum of the gateway, independent of the token
	credential credential.Credential
	stunOnly   bool
}

// mint creates the credentials of one answer. Gateways of one GatewayConfig have one secret, so consecutive gateways
// often share a credential without caveats.
type mint struct {
	user string
	now  time.Time

	authority credential.Authority
	ttl       time.Duration
	last      credential.Credential
}

func (m *mint) credential(
	g *gateway.Gateway, caveats credential.Caveats, ttl time.Duration,
) (c credential.Credential, err error) {
	if !caveats.IsZero() {
		return g.Authority.MintWith(caveats, m.user, ttl, m.now)
	}
	if m.ttl == ttl && m.authority == g.Authority {
		return m.last, nil
	}
	if c, err = g.Authority.Mint(m.user, ttl, m.now); err == nil {
		m.authority, m.ttl, m.last = g.Authority, ttl, c
	}
	return c, err
}

// carriesCaveats reports whether a credential of a gateway can carry caveats. It returns true for a gateway without
// credentials.
func carriesCaveats(g *gateway.Gateway) bool { return g.STUNOnly || g.Authority.SharedSecret != "" }

// caveatsFor returns the caveats of a credential of a gateway. A credential with caveats names its gateway, because
// they are about the routes and the limits of this gateway, and another gateway may have the same shared secret.
func caveatsFor(g *gateway.Gateway, c credential.Caveats) credential.Caveats {
	if !c.IsZero() && g.Namespace != "" {
		c.Gateway = g.ID()
	}
	return c
}

// longestTTL returns the longest of the maximum times to live of several gateways; 0 if none of them has credentials.
func longestTTL(grants []grant) (ttl time.Duration) {
	for _, g := range grants {
		ttl = max(ttl, g.maxTTL)
	}
	return ttl
}

func iceServers(grants []grant) []IceServer {
	out := make([]IceServer, 0, len(grants))
	for _, g := range grants {
		server := IceServer{Urls: g.urls}
		if !g.stunOnly {
			server.Username, server.Credential = &g.credential.Username, new(string(g.credential.Password))
		}
		out = append(out, server)
	}
	return out
}

// withSTUN returns the ICE servers. Before each gateway that has stun: URLs, it inserts a server with these URLs.
func withSTUN(grants []grant) (out []IceServer) {
	for i, server := range iceServers(grants) {
		if g := grants[i]; !g.stunOnly && len(g.stunURLs) > 0 {
			out = append(out, IceServer{Urls: g.stunURLs})
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

// secondsUntil returns the whole seconds that are left until an expiry; nil if there is none.
func secondsUntil(expires *time.Time, now time.Time) *int64 {
	if expires == nil {
		return nil
	}
	return new(max(0, int64(expires.Sub(now)/time.Second)))
}
