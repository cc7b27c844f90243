package rest

import (
	"time"

	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/auth/internal/gateway"
)

// grant is the part of an answer that belongs to one gateway.
type grant struct {
	gateway    *gateway.Gateway
	urls       []string
	stunURLs   []string
	ttl        time.Duration
	maxTTL     time.Duration // of the gateway, whatever the token allows
	credential credential.Credential
	stunOnly   bool
}

// mint mints the credentials of one answer. Gateways of one GatewayConfig have one secret, so that consecutive ones
// often share a credential.
type mint struct {
	user string
	now  time.Time

	authority credential.Authority
	ttl       time.Duration
	last      credential.Credential
}

func (m *mint) credential(a credential.Authority, ttl time.Duration) (c credential.Credential, err error) {
	if m.ttl == ttl && m.authority == a {
		return m.last, nil
	}
	if c, err = a.Mint(m.user, ttl, m.now); err == nil {
		m.authority, m.ttl, m.last = a, ttl, c
	}
	return c, err
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

// withSTUN returns the ICE servers with a server of stun: URLs before that of each gateway that has some.
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
