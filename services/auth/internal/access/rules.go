package access

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/stunner-gateway/stunner/services/api/credential"
)

// Rules is the policy of a service as a value: the accepted callers, and the rights and limits of each. The policy file
// (ParseRules) is one way to write it, and the --jwt-… flags (Config.Rules) are another.
type Rules struct {
	// Issuers are the issuers of accepted tokens. Their names are unique.
	Issuers []Issuer
	// Keys are the accepted API keys. Their names are unique.
	Keys []APIKey
	// Open is the grant of callers without credentials; nil means that they are refused.
	Open *Grant
}

// Issuer is an issuer of tokens, with the grants of its tokens.
type Issuer struct {
	Config
	Grant
	// Rules are tried in their order. The grant of the first Rule that matches the claims of a token replaces Grant.
	Rules []Rule
}

// Rule is the grant for tokens that have given claims.
type Rule struct {
	Claims Claims
	Grant
}

// Grant contains the rights and limits of a caller. It applies in addition to the limits of the service and of each
// gateway. The lowest limit applies.
type Grant struct {
	// Gateways are the gateways for which the caller gets credentials. The claim "stunner" of a token can narrow them.
	Gateways Gateways
	// MaxTTL is the longest lifetime of a credential; 0 means the maximum of the service.
	MaxTTL time.Duration
	// Rate is the rate limit of the caller. The zero Rate means the rate limit of the service.
	Rate Rate
	// User is the form of the user ids in credentials.
	User Template
	// Scope are the caveats that all credentials of the caller carry. The claim "stunner" of a token, and a request,
	// can narrow them.
	Scope credential.Caveats
	// Revoke selects the users whose credentials the caller may revoke.
	Revoke Whose
	// Usage selects the users whose usage the caller may read.
	Usage Whose
}

// Whose selects the user ids to which a right of a caller applies, at the gateways for which the caller gets
// credentials.
type Whose string

// The values of Whose.
const (
	// Nobody means that the caller does not have the right.
	Nobody Whose = ""
	// Own means the user ids that the caller gets credentials with itself.
	Own Whose = "own"
	// Anybody means all user ids.
	Anybody Whose = "any"
)

// Rate is a rate limit of one caller.
type Rate struct {
	PerSecond float64
	Burst     int
}

// APIKey is a named key. Two hashes are valid at once, so that a key can be replaced without an interruption.
type APIKey struct {
	Name   string
	Hashes []Hash
	// Expires is the zero time for a key that does not expire.
	Expires time.Time
	Grant
}

// Claims are claims that a token must have, by name. The value of a claim must equal one of the values.
type Claims map[string][]any

// match reports whether the claims of a token have all required values. A claim that is a list needs one of the values.
// The claim "scope" is a list of words (RFC 8693 §4.2).
func (c Claims) match(token map[string]json.RawMessage) bool {
	for name, allowed := range c {
		var value any
		if json.Unmarshal(token[name], &value) != nil {
			return false
		}
		values, list := value.([]any)
		if text, ok := value.(string); ok && name == "scope" {
			for word := range strings.FieldsSeq(text) {
				values = append(values, word)
			}
		} else if !list {
			values = []any{value}
		}
		if !slices.ContainsFunc(values, func(v any) bool { return scalar(v) && slices.Contains(allowed, v) }) {
			return false
		}
	}
	return true
}

// scalar reports whether a decoded JSON value is a string, a number or a boolean, which == can compare.
func scalar(v any) bool {
	switch v.(type) {
	case string, float64, bool:
		return true
	}
	return false
}
