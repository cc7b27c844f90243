// Package access says who asks: it turns the headers of a request into an Identity, or refuses.
//
// Without keys the service is open: everyone who can reach it is an anonymous Identity. With keys, only a JSON Web Token that those keys signed is good enough. Nothing that a token says about itself chooses how it is
// checked: algorithms, keys, issuer and audience come from Config alone (RFC 8725 §3).
package access

import (
	"encoding/json"
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
	key    jwt.Keyfunc
}

// Open tells whether everyone may ask.
func (p *Policy) Open() bool { return p.parser == nil }

// Identify returns who sent these headers. The error says why nobody did; it is for logs, never for the client, who
// learns only whether a token was missing (ErrNoToken) or not good.
func (p *Policy) Identify(h http.Header) (Identity, error) {
	if p.Open() {
		return Identity{}, nil
	}
	token, err := bearer(h)
	if err != nil {
		return Identity{}, err
	}
	var c claims
	if _, err := p.parser.ParseWithClaims(token, &c, p.keyOf); err != nil {
		return Identity{}, fmt.Errorf("check token: %w", err)
	}
	return c.identity()
}

// keyOf looks at the header only as far as it must: jku, x5u, jwk and x5c are never read, so that a token cannot bring its own key.
func (p *Policy) keyOf(t *jwt.Token) (any, error) {
	if _, ok := t.Header["crit"]; ok {
		return nil, errors.New("header crit: no extension is understood") // RFC 7515 §4.1.11
	}
	if kid, ok := t.Header["kid"]; ok {
		if s, ok := kid.(string); !ok || len(s) > maxKeyID {
			return nil, fmt.Errorf("header kid: must be a string of at most %d bytes", maxKeyID)
		}
	}
	return p.key(t)
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

type claims struct {
	jwt.RegisteredClaims
	Gateways json.RawMessage `json:"stunner"`
}

// UnmarshalJSON reads claims. Times are numbers (RFC 7519 §2): the library takes texts as well that hold one.
func (c *claims) UnmarshalJSON(raw []byte) error {
	var times struct {
		Expires   *float64 `json:"exp"`
		NotBefore *float64 `json:"nbf"`
		Issued    *float64 `json:"iat"`
	}
	if err := json.Unmarshal(raw, &times); err != nil {
		return fmt.Errorf("read claims exp, nbf and iat: %w", err)
	}
	type plain claims
	return json.Unmarshal(raw, (*plain)(c))
}

func (c claims) identity() (Identity, error) {
	id, err := userID(c.Subject)
	if err != nil {
		return Identity{}, fmt.Errorf("read claim sub: %w", err)
	}
	who := Identity{Known: true, Subject: c.Subject, UserID: id, Expires: c.ExpiresAt.Time}
	if c.Gateways == nil {
		return who, nil
	}
	// A claim that cannot be read must not mean "everything".
	var entries []string
	if err := json.Unmarshal(c.Gateways, &entries); err != nil || entries == nil {
		return Identity{}, errors.New("read claim stunner: it must be a list of NAMESPACE/NAME")
	}
	if who.Gateways, err = ParseGateways(entries); err != nil {
		return Identity{}, fmt.Errorf("read claim stunner: %w", err)
	}
	return who, nil
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
