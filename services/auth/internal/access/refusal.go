package access

import (
	"errors"
	"fmt"
	"slices"

	"github.com/MicahParks/jwkset"
	"github.com/golang-jwt/jwt/v5"
)

// Reason is the check that a request has failed. Package rest has the text of each reason.
type Reason string

// The reasons for which a request without an acceptable token is refused.
const (
	TokenMissing       Reason = "token_missing"
	TokenRepeated      Reason = "token_repeated"
	TokenMalformed     Reason = "token_malformed"
	TokenHeader        Reason = "token_header"
	TokenType          Reason = "token_type"
	TokenAlgorithm     Reason = "token_algorithm"
	TokenClaims        Reason = "token_claims"
	TokenIssuer        Reason = "token_issuer"
	TokenAudience      Reason = "token_audience"
	TokenExpiryMissing Reason = "token_expiry_missing"
	TokenExpired       Reason = "token_expired"
	TokenNotYetValid   Reason = "token_not_yet_valid"
	TokenTooOld        Reason = "token_too_old"
	KeyIDMissing       Reason = "key_id_missing"
	KeyUnknown         Reason = "key_unknown"
	KeysUnavailable    Reason = "keys_unavailable"
	KeyLookups         Reason = "key_lookups_limited"
	TokenSignature     Reason = "token_signature"
	TokenSubject       Reason = "token_subject"
	TokenGateways      Reason = "token_gateways"
	TokenClaimRequired Reason = "token_claim_required"
	APIKeyUnknown      Reason = "api_key_unknown"
	APIKeyExpired      Reason = "api_key_expired"
	TokenScope         Reason = "token_scope"
)

// Refusal is the error of Identify. The client receives the reason; the message is for logs.
type Refusal struct {
	Reason Reason
	Err    error
}

func (r *Refusal) Error() string { return string(r.Reason) + ": " + r.Err.Error() }

// Unwrap returns the cause.
func (r *Refusal) Unwrap() error { return r.Err }

func refuse(reason Reason, format string, args ...any) error {
	return &Refusal{Reason: reason, Err: fmt.Errorf(format, args...)}
}

// libraryReasons are the reasons of the errors of the JWT libraries. Of several errors, the first one in this order
// counts.
var libraryReasons = []struct {
	err    error
	reason Reason
}{
	{jwt.ErrTokenMalformed, TokenMalformed},
	{jwt.ErrTokenInvalidIssuer, TokenIssuer},
	{jwt.ErrTokenInvalidAudience, TokenAudience},
	{jwt.ErrTokenExpired, TokenExpired},
	{jwt.ErrTokenNotValidYet, TokenNotYetValid},
	{jwt.ErrTokenUsedBeforeIssued, TokenNotYetValid},
	{jwkset.ErrKeyNotFound, KeyUnknown},
	{jwt.ErrInvalidKeyType, TokenAlgorithm},
	{jwt.ErrTokenSignatureInvalid, TokenSignature},
	{jwt.ErrTokenUnverifiable, TokenAlgorithm}, // the alg is unknown, or does not fit the key
}

// refusalOf returns the refusal for an error of the check of a token.
func (s *state) refusalOf(t *jwt.Token, err error) *Refusal {
	var known *Refusal
	if errors.As(err, &known) {
		return known
	}
	if t != nil && t.Method != nil && !slices.Contains(s.algorithms, t.Method.Alg()) {
		return &Refusal{TokenAlgorithm, err}
	}
	for _, row := range libraryReasons {
		if errors.Is(err, row.err) {
			return &Refusal{row.reason, err}
		}
	}
	return &Refusal{TokenMalformed, err}
}
