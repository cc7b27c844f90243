// Package access says who asks: it turns the headers of a request into an Identity, or refuses.
//
// Without keys the service is open: everyone who can reach it is an anonymous Identity. With keys, only a JSON Web Token that those keys signed is good enough. Nothing that a token says about itself chooses how it is
// checked: algorithms, keys, issuer and audience come from Config alone (RFC 8725 §3).
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

// leeway is how far the clocks of issuer and service may be apart.
const leeway = 30 * time.Second

// Limits of what a token may bring.
const (
	maxKeyID  = 128 // bytes of the header "kid"
	maxUserID = 128 // bytes of a user id
)

// ErrNoToken is returned for a request without a bearer token, when one is needed.
var ErrNoToken = errors.New("request carries no bearer token")

// Identity is who asks.
type Identity struct {
	// Known is false for an anonymous caller of an open service.
	Known bool
	// Subject is the claim "sub".
	Subject string
	// UserID stands for the subject in a TURN user name. It never holds a colon, which separates expiry and user id there.
	UserID string
	// Expires is when the token ends; zero for an anonymous caller.
	Expires time.Time

	// Gateways are those that the claim "stunner" names; every gateway without the claim.
	Gateways Gateways
}

// Policy decides who may ask. The zero Policy is open.
type Policy struct {
	parser *jwt.Parser
	// claims checks issuer, audience and times before a key is looked for.
	claims *jwt.Validator
	maxAge time.Duration
	key    func(t *jwt.Token, from string) (any, error)
}

// Open tells whether everyone may ask.
func (p *Policy) Open() bool { return p.parser == nil }

// Identify returns who sent these headers. The error says why nobody did; it is for logs, never for the client, who learns only whether a token was
// missing (ErrNoToken) or not good. From names the source of the request: one source cannot use up what others need to be identified.
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
		// Everything that can be known without the key comes first: a key may have to be fetched.
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

// bearer reads the token of RFC 6750 §2.1.
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

// userID makes a subject fit into a TURN user name. Two subjects never get the same user id, since quotas count by it; Kubernetes
// service accounts have colons in theirs.
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
