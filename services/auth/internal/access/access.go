// Package access identifies callers: it turns the headers of a request into an Identity, or refuses the request.
//
// Without configuration the service is open: every caller is an anonymous Identity. Otherwise a request needs a JSON
// Web Token that was signed with one of the configured keys. The accepted algorithms, keys, issuer and audience come
// from Config only (RFC 8725 §3). The header of a token only selects one of these algorithms and keys.
//
// # Files
//
//	claims.go           claims of a token
//	gateways.go         patterns of the gateways that a token allows
//	config.go           accepted algorithms, issuer and audience
//	jwks.go keyfile.go  keys
package access

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/golang-jwt/jwt/v5"
)

// leeway is the allowed difference between the clocks of the token issuer and the service.
const leeway = 30 * time.Second

// Limits of a token.
const (
	maxKeyID  = 128 // bytes of the header "kid"
	maxUserID = 128 // bytes of a user id
)

// ErrNoToken is the error for a request without a bearer token, unless the service is open.
var ErrNoToken = errors.New("request carries no bearer token")

// Identity is the identity of a caller.
type Identity struct {
	// Known is false for an anonymous caller of an open service.
	Known bool
	// Subject is the claim "sub".
	Subject string
	// UserID is the claim "sub", encoded as the user id in a TURN user name. It never contains a colon, because a colon
	// separates expiry and user id.
	UserID string
	// Expires is the expiry of the token; zero for an anonymous caller.
	Expires time.Time

	// Gateways are the gateways in the claim "stunner". A token without the claim has all gateways.
	Gateways Gateways
}

// Policy identifies callers. The zero Policy is open.
type Policy struct {
	parser *jwt.Parser
	// claims validates the claims of a token (issuer, audience, times) before the key of the token is looked up.
	claims *jwt.Validator
	maxAge time.Duration
	key    func(t *jwt.Token, from string) (any, error)
}

// Open reports whether requests need no token.
func (p *Policy) Open() bool { return p.parser == nil }

// Identify returns the identity of the caller that sent the HTTP headers. The error is for logs: a client only learns
// whether its token was missing (ErrNoToken) or invalid. from is the source of the request: the number of requests of
// one source that wait for a fetch of the key set is limited.
func (p *Policy) Identify(h http.Header, from string) (Identity, error) {
	if p.Open() {
		return Identity{}, nil
	}
	token, err := bearer(h)
	if err != nil {
		return Identity{}, err
	}
	var c claims
	keyOf := func(t *jwt.Token) (any, error) {
		// The header and the claims of a token are checked before its key is looked up, because the service may have to
		// fetch the key.
		if err := errors.Join(checkHeader(t), p.claims.Validate(&c), c.checkAge(p.maxAge, time.Now())); err != nil {
			return nil, err
		}
		return p.key(t, from)
	}
	if _, err := p.parser.ParseWithClaims(token, &c, keyOf); err != nil {
		return Identity{}, fmt.Errorf("check token: %w", err)
	}
	return c.identity()
}

// bearer returns the token of the Authorization header (RFC 6750 §2.1).
func bearer(h http.Header) (string, error) {
	values := h.Values("Authorization")
	if len(values) == 0 {
		return "", ErrNoToken
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	switch {
	case len(values) > 1:
		return "", errors.New("read header Authorization: it is there more than once")
	case !strings.EqualFold(scheme, "Bearer"):
		return "", ErrNoToken
	}
	return strings.TrimSpace(token), nil
}

// userID encodes the claim "sub" as the user id of a TURN user name, in which a colon separates expiry and user id.
// Different subjects have different user ids, because quotas depend on them. Subjects of Kubernetes service accounts
// contain colons, so colons are escaped and not refused.
func userID(subject string) (string, error) {
	id := strings.NewReplacer("%", "%25", ":", "%3A").Replace(subject)
	switch {
	case id == "":
		return "", errors.New("it is missing")
	case len(id) > maxUserID:
		return "", fmt.Errorf("it is longer than %d bytes", maxUserID)
	case !utf8.ValidString(id) || strings.ContainsFunc(id, unicode.IsControl):
		return "", errors.New("it holds control characters or is no UTF-8")
	}
	return id, nil
}
