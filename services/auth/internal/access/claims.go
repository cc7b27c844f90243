package access

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
	strict "sigs.k8s.io/json"
)

// The names of JWT header parameters and claims that this package uses. They are case-sensitive.
var (
	headerNames = []string{"alg", "kid", "typ", "crit"}
	claimNames  = []string{"iss", "sub", "aud", "exp", "nbf", "iat", "jti", "stunner"}
)

// parseExact parses a JSON object without duplicate names. It refuses an object with a name that differs from one of
// names only in case, such as "Exp", because another implementation might accept it as that name.
func parseExact(raw []byte, names []string) (map[string]json.RawMessage, error) {
	var all map[string]json.RawMessage
	twice, err := strict.UnmarshalStrict(raw, &all, strict.DisallowDuplicateFields)
	switch {
	case err != nil:
		return nil, err
	case all == nil:
		return nil, errors.New("it is no object")
	case len(twice) > 0:
		return nil, errors.New("a name is there more than once")
	}
	for found := range all {
		for _, name := range names {
			if found != name && strings.EqualFold(found, name) {
				return nil, fmt.Errorf("name %s is written in another case", name)
			}
		}
	}
	return all, nil
}

// types are the accepted values of the header "typ" for tokens that authorize a request (RFC 7519 §5.1, RFC 9068 §2.1).
var types = []string{"JWT", "at+jwt"}

// stringHeaders are registered header parameters of a JWT (RFC 7515 §4.1, RFC 7516 §4.1, RFC 8555 §6.5.2) whose values
// must be strings. keyHeaders are the header parameters that contain a key. A token must not have them.
var (
	stringHeaders = []string{"alg", "kid", "typ", "cty", "enc", "zip", "jku", "x5u", "x5t", "x5t#S256", "nonce"}
	keyHeaders    = []string{"jwk", "x5c"}
)

// checkHeader checks the header of a JWT. It ignores URLs in the header, and refuses a token that contains a key.
func checkHeader(t *jwt.Token) error {
	encoded, _, _ := strings.Cut(t.Raw, ".")
	raw, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil {
		return refuse(TokenHeader, "read header: %w", err)
	}
	if _, err := parseExact(raw, headerNames); err != nil {
		return refuse(TokenHeader, "read header: %w", err)
	}
	if _, ok := t.Header["crit"]; ok {
		return refuse(TokenHeader, "header crit: no extension is understood") // RFC 7515 §4.1.11
	}
	if _, ok := t.Header["b64"]; ok {
		return refuse(TokenHeader, "header b64: the payload must be encoded") // only valid with crit, RFC 7797 §6
	}
	for _, name := range keyHeaders {
		if _, ok := t.Header[name]; ok {
			return refuse(TokenHeader, "header %s: a token cannot bring its own key", name)
		}
	}
	for _, name := range stringHeaders {
		if value, ok := t.Header[name]; ok {
			if _, ok := value.(string); !ok {
				return refuse(TokenHeader, "header %s: must be a string", name)
			}
		}
	}
	if kid, _ := t.Header["kid"].(string); len(kid) > maxKeyID {
		return refuse(TokenHeader, "header kid: must have at most %d bytes", maxKeyID)
	}
	if typ, ok := t.Header["typ"]; ok && !isType(typ) {
		return refuse(TokenType, "header typ: must be one of %s", strings.Join(types, ", "))
	}
	return nil
}

// isType reports whether a value of the header "typ" is in types (RFC 7515 §4.1.9): the prefix "application/" is
// optional, and case does not matter.
func isType(typ any) bool {
	text, ok := typ.(string)
	if !ok {
		return false
	}
	if prefix := "application/"; len(text) > len(prefix) && strings.EqualFold(text[:len(prefix)], prefix) {
		text = text[len(prefix):]
	}
	return slices.ContainsFunc(types, func(known string) bool { return strings.EqualFold(text, known) })
}

type claims struct {
	jwt.RegisteredClaims
	Stunner json.RawMessage `json:"stunner"`

	all map[string]json.RawMessage // including claims that are not in claimNames
}

// UnmarshalJSON decodes the claims in claimNames. Times must be numbers (RFC 7519 §2); the JWT library would also
// accept strings.
func (c *claims) UnmarshalJSON(raw []byte) error {
	all, err := parseExact(raw, claimNames)
	if err != nil {
		return refuse(TokenClaims, "read claims: %w", err)
	}
	known := map[string]json.RawMessage{}
	for _, name := range claimNames {
		if value, ok := all[name]; ok {
			known[name] = value
		}
	}
	for _, name := range []string{"exp", "nbf", "iat"} {
		var number *float64
		if value, ok := known[name]; ok && json.Unmarshal(value, &number) != nil {
			return refuse(TokenClaims, "read claim %s: it must be a number", name)
		}
	}
	if raw, err = json.Marshal(known); err != nil {
		return refuse(TokenClaims, "read claims: %w", err)
	}
	type plain claims
	if err := json.Unmarshal(raw, (*plain)(c)); err != nil {
		return refuse(TokenClaims, "read claims: %w", err)
	}
	c.all = all
	return nil
}

// checkPresent refuses a token without a claim that every token must have. The JWT library reports the same error for
// each of them.
func (c *claims) checkPresent() error {
	switch {
	case c.Issuer == "":
		return refuse(TokenIssuer, "claim iss: it is missing")
	case len(c.Audience) == 0 || len(c.Audience) == 1 && c.Audience[0] == "":
		return refuse(TokenAudience, "claim aud: it is missing")
	case c.ExpiresAt == nil:
		return refuse(TokenExpiryMissing, "claim exp: it is missing")
	}
	return nil
}

// checkAge refuses a token that was issued longer ago than the duration longest plus leeway, and a token without the
// claim iat. If longest is 0, the age is not limited, and iat is not needed.
func (c *claims) checkAge(longest time.Duration, now time.Time) error {
	switch {
	case longest == 0:
		return nil
	case c.IssuedAt == nil:
		return refuse(TokenTooOld, "claim iat: it is missing, and the age of tokens is limited")
	case now.Sub(c.IssuedAt.Time) > longest+leeway:
		return refuse(TokenTooOld, "claim iat: the token is too old")
	}
	return nil
}

// identity returns the identity of the caller with a valid token of an issuer.
func (c *claims) identity(of *verifier) (Identity, error) {
	subject, err := userID(c.Subject)
	if err != nil {
		return Identity{}, refuse(TokenSubject, "read claim sub: %w", err)
	}
	if !of.required.match(c.all) {
		return Identity{}, refuse(TokenClaimRequired, "a claim that the policy requires is missing or has another value")
	}
	who := Identity{
		Known: true, Subject: c.Subject, Caller: of.caller + subject, Expires: c.ExpiresAt.Time,
		Grant: of.grantOf(c.all),
	}
	who.Caveats = who.Grant.Scope
	if who.user, err = who.Grant.User.expand(map[string]string{fieldSubject: c.Subject}, c.all); err != nil {
		return Identity{}, err
	}
	if who, err = who.withUserID(); err != nil || c.Stunner == nil {
		return who, err
	}
	list, scope := c.Stunner, json.RawMessage(nil)
	if strings.HasPrefix(string(c.Stunner), "{") {
		if list, scope, who.Region, err = parseStunner(c.Stunner); err != nil {
			return Identity{}, refuse(TokenScope, "read claim stunner: %w", err)
		}
	}
	if scope != nil {
		own, err := parseScope(scope)
		if err == nil {
			who.Caveats, err = who.Caveats.Narrow(own)
		}
		if err != nil {
			return Identity{}, refuse(TokenScope, "read claim stunner: field scope: %w", err)
		}
	}
	if list == nil {
		return who, nil
	}
	// An invalid claim must not mean all gateways.
	var entries []string
	if err := json.Unmarshal(list, &entries); err != nil || entries == nil {
		return Identity{}, refuse(TokenGateways, "read claim stunner: it must be a list of NAMESPACE/NAME")
	}
	if who.Gateways, err = ParseGateways(entries); err != nil {
		return Identity{}, refuse(TokenGateways, "read claim stunner: %w", err)
	}
	return who, nil
}
