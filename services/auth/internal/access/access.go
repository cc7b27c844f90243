// Package access identifies callers: it turns the credentials of a request into an Identity, or refuses the request.
//
// A Policy contains Rules. Without Rules, the service is open: every caller is an anonymous Identity. Otherwise a
// request needs a JSON Web Token that was signed with a key of one of the issuers, or an API key. The accepted
// algorithms, keys, issuers and audiences come from the Rules only (RFC 8725 §3). The header of a token only selects
// one of these algorithms and keys.
//
// # Files
//
//	rules.go template.go        the policy as a value: the accepted callers, and the grants of each
//	rulesfile.go                the policy file
//	policy.go reload.go         the policy in force
//	claims.go                   claims of a token
//	apikey.go                   API keys
//	remember.go                 verified tokens
//	gateways.go                 patterns of gateways
//	scope.go                    caveats that a token imposes
//	config.go                   accepted algorithms, issuer and audience
//	jwks.go oidc.go keyfile.go  keys of issuers
//	keystate.go                 whether the keys are current
//	refusal.go                  reasons for refusing a request
package access

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/stunner-gateway/stunner/services/api/credential"
)

// leeway is the allowed difference between the clocks of the token issuer and the service.
const leeway = 30 * time.Second

// Limits of a token in bytes. A token is limited by the size of the headers of a request.
const (
	maxKeyID  = 128 // of the header "kid"
	maxUserID = 128 // of a user id; the hash replaces a longer user id
)

// Identity is the identity of a caller.
type Identity struct {
	// Known is false for a caller without credentials.
	Known bool
	// Caller identifies the caller for rate limits: by its API key, or by the issuer and the subject of its token. It
	// has a bounded length. It is empty for a caller without credentials.
	Caller string
	// Key is the name of the caller's API key.
	Key string
	// Subject is the claim "sub" of the caller's token.
	Subject string
	// UserID is the user id that the policy makes for TURN user names. It has at most 128 bytes. It never contains a
	// colon, because a colon separates expiry and user id. It is empty if the request chooses the user name; see User.
	UserID string
	// Expires is the expiry of the token or of the API key; zero if there is none.
	Expires time.Time
	// Caveats are the caveats of all credentials of the caller: Grant.Scope, narrowed by the claim "stunner".
	Caveats credential.Caveats
	// Region is the region in the claim "stunner"; empty without one. The service may not have a region of this name.
	Region string
	// Gateways are the gateways in the claim "stunner". A token without the claim has all gateways.
	Gateways Gateways
	// Grant contains the rights and limits of the caller in the policy.
	Grant Grant

	user Template
}

// Chooses reports whether the request chooses the user name of its credentials.
func (i Identity) Chooses() bool { return i.user.parts == nil || i.user.chosen() }

// User returns the user id for a user name that the request has chosen. It must not contain a colon.
func (i Identity) User(username string) (string, error) {
	if i.user.parts == nil {
		return username, nil
	}
	return i.user.id(username)
}

// MayRevoke reports whether the caller may revoke the credentials of a user id.
func (i Identity) MayRevoke(userID string) bool { return i.covers(i.Grant.Revoke, userID) }

// MayReadUsage reports whether the caller may read the usage of a user id.
func (i Identity) MayReadUsage(userID string) bool { return i.covers(i.Grant.Usage, userID) }

// covers reports whether a right of the caller includes a user id.
func (i Identity) covers(whose Whose, userID string) bool {
	switch {
	case whose == Anybody:
		return true
	case whose != Own:
		return false
	case !i.Chooses():
		return userID == i.UserID
	}
	return i.user.canProduce(userID)
}

// withUserID completes an identity with the user id that the policy imposes.
func (i Identity) withUserID() (Identity, error) {
	if i.Chooses() {
		return i, nil
	}
	id, err := i.user.id("")
	if err != nil {
		return Identity{}, refuse(TokenSubject, "form the user id: %w", err)
	}
	i.UserID = id
	return i, nil
}

// bearer returns the token or API key of the Authorization header (RFC 6750 §2.1).
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

// escaper escapes a colon, and its own escape character.
var escaper = strings.NewReplacer("%", "%25", ":", "%3A")

// hashedID matches the user id of a long subject.
var hashedID = regexp.MustCompile(`^sha256-[0-9a-f]{64}$`)

// userID encodes the claim "sub" as the user id of a TURN user name, in which a colon separates expiry and user id.
// Different subjects have different user ids, because quotas depend on them. Subjects of Kubernetes service accounts
// contain colons, so colons are escaped and not refused.
func userID(subject string) (string, error) { return boundedID(subject, escaper.Replace(subject)) }

// boundedID returns id. If id is too long, it returns "sha256-" with the hash of text instead. It also hashes a text
// that already has this form, so that two different texts never have the same user id.
func boundedID(text, id string) (string, error) {
	switch {
	case text == "":
		return "", errors.New("it is missing")
	case !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl):
		return "", errors.New("it holds control characters or is no UTF-8")
	}
	if credential.Marked(id) { // id would be parsed as caveats
		id = "%7E" + id[1:]
	}
	if len(id) > maxUserID || hashedID.MatchString(id) {
		return fmt.Sprintf("sha256-%x", sha256.Sum256([]byte(text))), nil
	}
	return id, nil
}
