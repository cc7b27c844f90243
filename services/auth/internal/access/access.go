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
//	keystate.go         whether the keys are current
//	refusal.go          why a request is refused
package access

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/golang-jwt/jwt/v5"
)

// leeway is the allowed difference between the clocks of the token issuer and the service.
const leeway = 30 * time.Second

// Limits of a token in bytes.
const (
	maxKeyID   = 128 // of the header "kid"
	maxUserID  = 128 // of a user id; a longer subject is replaced by its hash
	maxSubject = 1024
)

// Identity is the identity of a caller.
type Identity struct {
	// Known is false for an anonymous caller of an open service.
	Known bool
	// Subject is the claim "sub".
	Subject string
	// UserID is the claim "sub", encoded as the user id in a TURN user name. It has at most 128 bytes. It never contains
	// a colon, because a colon separates expiry and user id.
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
	claims     *jwt.Validator
	algorithms []string
	maxAge     time.Duration
	key        func(t *jwt.Token, from string) (any, error)
	keys       func() KeyState
}

// Open reports whether requests need no token.
func (p *Policy) Open() bool { return p.parser == nil }

// Identify returns the identity of the caller that sent the HTTP headers. Its error is a Refusal. from is the source of
// the request: the number of requests of one source that wait for a fetch of the key set is limited.
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
		err := cmp.Or(checkHeader(t), c.checkPresent(), p.claims.Validate(&c), c.checkAge(p.maxAge, time.Now()))
		if err != nil {
			return nil, err
		}
		return p.key(t, from)
	}
	if t, err := p.parser.ParseWithClaims(token, &c, keyOf); err != nil {
		return Identity{}, p.refusalOf(t, err)
	}
	return c.identity()
}

// bearer returns the token of the Authorization header (RFC 6750 §2.1).
func bearer(h http.Header) (string, error) {
	values := h.Values("Authorization")
	if len(values) == 0 {
		return "", refuse(TokenMissing, "request has no header Authorization")
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	switch {
	case len(values) > 1:
		return "", refuse(TokenRepeated, "request has more than one header Authorization")
	case !strings.EqualFold(scheme, "Bearer"):
		return "", refuse(TokenMissing, "header Authorization has another scheme than Bearer")
	}
	return strings.TrimSpace(token), nil
}

// hashedID matches the user id of a long subject.
var hashedID = regexp.MustCompile(`^sha256-[0-9a-f]{64}$`)

// userID encodes the claim "sub" as the user id of a TURN user name, in which a colon separates expiry and user id.
// Different subjects have different user ids, because quotas depend on them. Subjects of Kubernetes service accounts
// contain colons, so colons are escaped and not refused. The user id of a subject that does not fit is "sha256-" with
// the hash of the subject. A subject that has this form itself is hashed too, so that it has no user id of another one.
func userID(subject string) (string, error) {
	switch {
	case subject == "":
		return "", errors.New("it is missing")
	case len(subject) > maxSubject:
		return "", fmt.Errorf("it is longer than %d bytes", maxSubject)
	case !utf8.ValidString(subject) || strings.ContainsFunc(subject, unicode.IsControl):
		return "", errors.New("it holds control characters or is no UTF-8")
	}
	id := strings.NewReplacer("%", "%25", ":", "%3A").Replace(subject)
	if len(id) > maxUserID || hashedID.MatchString(id) {
		return fmt.Sprintf("sha256-%x", sha256.Sum256([]byte(subject))), nil
	}
	return id, nil
}
