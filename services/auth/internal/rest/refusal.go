package rest

import (
	"fmt"
	"log/slog"
	"net/http"
	"strings"

	"github.com/stunner-gateway/stunner/services/auth/internal/access"
)

// Refusal is a reason for which the service refuses requests. The problem that the client receives, the header
// WWW-Authenticate, the metric, the log line and docs/reference/auth-refusals.md are made from it.
type Refusal struct {
	// Reason is the field reason of the problem and of the log line, and a label of the metric.
	Reason access.Reason
	// Status is the status code of the answer; 0 means that another handler sets it.
	Status int
	// Code is the error code in the header WWW-Authenticate (RFC 6750 §3.1); empty means that the header has none.
	Code string
	// Text is the detail of the problem, and the error_description of the header. The error_description admits neither
	// quotation marks nor characters outside of ASCII (RFC 6750 §3). The text contains no part of the request, and
	// names no setting that a caller may not know, such as the accepted issuer.
	Text string
	// Level is the level of the log line: WARN if the installation causes the refusal, and not the client.
	Level slog.Level
	// Section is the section of docs/reference/auth-refusals.md that has a row for the reason.
	Section string
}

// The sections of docs/reference/auth-refusals.md with the reasons.
const (
	ofTokens   = "Refused tokens"
	ofRequests = "Refused requests"
)

// The error codes of RFC 6750 §3.1.
const (
	invalidToken      = "invalid_token"
	insufficientScope = "insufficient_scope"
)

// The reasons that package access does not have.
const (
	parameterMissing   access.Reason = "parameter_missing"
	parameterUnknown   access.Reason = "parameter_unknown"
	parameterRepeated  access.Reason = "parameter_repeated"
	parameterInvalid   access.Reason = "parameter_invalid"
	queryUnreadable    access.Reason = "query_unreadable"
	bodyUnreadable     access.Reason = "body_unreadable"
	bodyTooLarge       access.Reason = "body_too_large"
	bodyNotJSON        access.Reason = "body_not_json"
	bodyNotForm        access.Reason = "body_not_form"
	urlTooLong         access.Reason = "url_too_long"
	pathUnknown        access.Reason = "path_unknown"
	methodNotAllowed   access.Reason = "method_not_allowed"
	apiKeyMismatch     access.Reason = "api_key_mismatch"
	userNotSubject     access.Reason = "user_not_subject"
	gatewayNotServed   access.Reason = "gateway_not_served"
	gatewayNotInToken  access.Reason = "gateway_not_in_token"
	gatewayNotInPolicy access.Reason = "gateway_not_in_policy"
	policyWithoutMatch access.Reason = "policy_without_match"
	scopeNotInToken    access.Reason = "scope_not_in_token"
	scopeUnsupported   access.Reason = "scope_unsupported"
	claimEmpty         access.Reason = "claim_empty"
	claimWithoutMatch  access.Reason = "claim_without_match"
	gatewayUnknown     access.Reason = "gateway_unknown"
	noGateway          access.Reason = "no_gateway"
	noGatewayServed    access.Reason = "no_gateway_served"
	noPublicAddress    access.Reason = "no_public_address"
	noRelay            access.Reason = "no_relay"
	sourceRateLimited  access.Reason = "source_rate_limited"
	subjectRateLimited access.Reason = "subject_rate_limited"
	noConfig           access.Reason = "no_config"
	clocksDiffer       access.Reason = "clocks_differ"
	userRevoked        access.Reason = "user_revoked"
	revokeNotAllowed   access.Reason = "revoke_not_allowed"
	revokeStatic       access.Reason = "revoke_static"
	revocationUnknown  access.Reason = "revocation_unknown"
	revocationsFull    access.Reason = "revocations_full"
	revocationsOff     access.Reason = "revocations_off"
	revocationsDenied  access.Reason = "revocations_denied"
	revocationsFailed  access.Reason = "revocations_failed"
	usageNotAllowed    access.Reason = "usage_not_allowed"
	usageOff           access.Reason = "usage_off"
	usageDenied        access.Reason = "usage_denied"
	usageUnavailable   access.Reason = "usage_unavailable"
	internalError      access.Reason = "internal_error"
	testPage           access.Reason = "test_page"
)

const (
	info = slog.LevelInfo
	warn = slog.LevelWarn
)

// Refusals are all reasons for which the service refuses requests.
var Refusals = []Refusal{
	{access.TokenMissing, 401, "", "The request has no bearer token: send the header Authorization: Bearer TOKEN.", info, ofTokens},
	{access.TokenRepeated, 401, invalidToken, "The request has more than one header Authorization: send one.", info, ofTokens},
	{access.TokenMalformed, 401, invalidToken,
		"The token is not a signed JSON Web Token: it has three base64url parts, separated by dots.", info, ofTokens},
	{access.TokenHeader, 401, invalidToken,
		"The header of the token has a parameter that is not accepted, or one that is repeated, too long or not a string.",
		info, ofTokens},
	{access.TokenType, 401, invalidToken, "The header typ of the token is neither JWT nor at+jwt.", info, ofTokens},
	{access.TokenAlgorithm, 401, invalidToken,
		"The algorithm (header alg) of the token is not accepted, or is not that of its key.", info, ofTokens},
	{access.TokenClaims, 401, invalidToken,
		"A claim of the token cannot be read: names must be exact and not repeated, times must be numbers.", info, ofTokens},
	{access.TokenIssuer, 401, invalidToken, "The issuer (claim iss) of the token is missing or not accepted.", info, ofTokens},
	{access.TokenAudience, 401, invalidToken, "The audience (claim aud) of the token is missing or not accepted.", info, ofTokens},
	{access.TokenExpiryMissing, 401, invalidToken, "The token has no expiry (claim exp).", info, ofTokens},
	{access.TokenExpired, 401, invalidToken, "The token has expired (claim exp): request a new one.", info, ofTokens},
	{access.TokenNotYetValid, 401, invalidToken,
		"The token is not valid yet (claim nbf or iat): compare the clocks of its issuer and of this service.", info, ofTokens},
	{access.TokenTooOld, 401, invalidToken,
		"The token was issued too long ago, or has no claim iat: request a new one.", info, ofTokens},
	{access.KeyIDMissing, 401, invalidToken, "The token has no key id (header kid).", info, ofTokens},
	{access.KeyUnknown, 401, invalidToken, "The key id (header kid) of the token is unknown.", info, ofTokens},
	{access.TokenSignature, 401, invalidToken, "The signature of the token is wrong.", info, ofTokens},
	{access.TokenSubject, 401, invalidToken,
		"The subject (claim sub) of the token is missing or has control characters.", info, ofTokens},
	{access.TokenGateways, 401, invalidToken,
		"The claim stunner of the token is not a list of NAMESPACE/NAME.", info, ofTokens},
	{access.TokenClaimRequired, 403, insufficientScope,
		"A claim that the service requires is missing from the token, or has another value.", info, ofTokens},
	{access.APIKeyUnknown, 401, invalidToken, "The API key is unknown.", info, ofTokens},
	{access.APIKeyExpired, 401, invalidToken, "The API key has expired: use the one that replaces it.", info, ofTokens},
	{access.TokenScope, 401, invalidToken,
		"The claim stunner of the token has a field scope that is invalid, or an unknown field.", info, ofTokens},
	{access.KeysUnavailable, 503, "",
		"The keys that verify tokens are not available yet. The header Retry-After contains the seconds to wait.",
		warn, ofTokens},
	{access.KeyLookups, 429, "",
		"The key id (header kid) of the token is unknown, and too many requests wait for new keys. The header Retry-After contains the seconds to wait.",
		info, ofTokens},

	{parameterMissing, 400, "", "A parameter is missing.", info, ofRequests},
	{parameterUnknown, 400, "", "A parameter is unknown.", info, ofRequests},
	{parameterRepeated, 400, "", "A parameter is repeated.", info, ofRequests},
	{parameterInvalid, 400, "", "A parameter is invalid.", info, ofRequests},
	{queryUnreadable, 400, "", "The query cannot be read.", info, ofRequests},
	{bodyUnreadable, 400, "", "The body cannot be read.", info, ofRequests},
	{bodyTooLarge, 413, "", fmt.Sprintf("The body is larger than %d bytes.", maxBody), info, ofRequests},
	{bodyNotJSON, 415, "", "The body must be application/json.", info, ofRequests},
	{bodyNotForm, 415, "", "The body must be application/x-www-form-urlencoded.", info, ofRequests},
	{urlTooLong, 414, "", fmt.Sprintf("The URL is longer than %d bytes.", maxURL), info, ofRequests},
	{pathUnknown, 404, "", "The path does not exist.", info, ofRequests},
	{methodNotAllowed, 405, "", "The path does not support the method.", info, ofRequests},
	{apiKeyMismatch, 403, insufficientScope, "The request names another API key than the one that it has.", info, ofRequests},
	{userNotSubject, 403, insufficientScope, "The user name is not that of the caller.", info, ofRequests},
	{gatewayNotServed, 403, "", "The service gives no credentials for the gateway.", info, ofRequests},
	{gatewayNotInToken, 403, insufficientScope, "The claim stunner of the token does not contain the gateway.", info, ofRequests},
	{gatewayNotInPolicy, 403, insufficientScope, "The policy gives the caller no credentials for the gateway.",
		info, ofRequests},
	{policyWithoutMatch, 404, "", "The policy gives the caller no credentials for any of the gateways.", info, ofRequests},
	{scopeNotInToken, 403, insufficientScope,
		"The scope of the request and that of the caller, in its token or in the policy, have no route in common.", info, ofRequests},
	{scopeUnsupported, 400, "",
		"The gateway has static credentials, whose user name is fixed: they cannot carry a scope.", info, ofRequests},
	{claimEmpty, 403, insufficientScope, "The claim stunner of the token is an empty list, which allows no gateway.",
		info, ofRequests},
	{claimWithoutMatch, 404, "",
		"The claim stunner of the token matches none of the gateways for which the service gives credentials.", info, ofRequests},
	{gatewayUnknown, 404, "", "There is no such gateway.", info, ofRequests},
	{noGateway, 404, "", "There is no gateway.", warn, ofRequests},
	{noGatewayServed, 404, "", "The flag --gateways of the service matches none of the gateways.", warn, ofRequests},
	{noPublicAddress, 404, "", "No matching gateway has a public address.", info, ofRequests},
	{noRelay, 404, "", "No matching gateway relays.", info, ofRequests},
	{sourceRateLimited, 429, "",
		"Too many requests from this address. The header Retry-After contains the seconds to wait.", info, ofRequests},
	{subjectRateLimited, 429, "",
		"Too many requests of this caller. The header Retry-After contains the seconds to wait.", info, ofRequests},
	{noConfig, 503, "",
		"The service has not received a gateway config yet. The header Retry-After contains the seconds to wait.", warn, ofRequests},
	{clocksDiffer, 503, "",
		"The clocks of the service and of the operator differ, so that credentials would end at a wrong time.", warn, ofRequests},
	{userRevoked, 403, "", "The user is revoked, and gets no credentials before a time that a Revocation names.", info, ofRequests},
	{revokeNotAllowed, 403, insufficientScope,
		"The policy does not let the caller revoke these credentials: its field revoke says whose.", info, ofRequests},
	{revokeStatic, 400, "",
		"The gateways have static credentials, which cannot be revoked: change their password.", info, ofRequests},
	{revocationUnknown, 404, "", "There is no such revocation that the caller could lift.", info, ofRequests},
	{revocationsFull, 409, "", "There are too many revocations: lift some, or wait until some have expired.", warn, ofRequests},
	{revocationsOff, 501, "", "The service stores no revocations: set its flag --revocations.", warn, ofRequests},
	{revocationsDenied, 501, "",
		"The service may not store revocations: set stunnerAuthService.revocations.enabled of the chart, or the rights of the folder.",
		warn, ofRequests},
	{revocationsFailed, 503, "",
		"The revocation could not be stored or read. The header Retry-After contains the seconds to wait.", warn, ofRequests},
	{usageNotAllowed, 403, insufficientScope,
		"The policy does not let the caller read this usage: its field usage says whose.", info, ofRequests},
	{usageOff, 501, "", "The service reads its configs from a file, so it has no operator to ask for usage.", warn, ofRequests},
	{usageDenied, 501, "",
		"The operator gives this service no usage: update it, and let --discovery-readers name the account of the service.",
		warn, ofRequests},
	{usageUnavailable, 503, "",
		"The operator has not answered. The header Retry-After contains the seconds to wait.", warn, ofRequests},
	{internalError, 500, "", "Internal error. The log of the service contains it.", slog.LevelError, ofRequests},
	{testPage, 0, "", "The test page or its echo peer has refused the request.", info, ofRequests},
}

// refusals are the Refusals by reason.
var refusals = func() map[access.Reason]Refusal {
	all := make(map[access.Reason]Refusal, len(Refusals))
	for _, r := range Refusals {
		all[r.Reason] = r
	}
	return all
}()

// realm is the protection space of the service (RFC 9110 §11.5).
const realm = `Bearer realm="stunner"`

// challenge returns the header WWW-Authenticate of an answer, or "" if it has none (RFC 6750 §3).
func (r Refusal) challenge() string {
	switch {
	case r.Code != "":
		return fmt.Sprintf(`%s, error="%s", error_description="%s"`, realm, r.Code, r.Text)
	case r.Status == http.StatusUnauthorized:
		return realm // without an error code, because the request has no token
	}
	return ""
}

// failure is a refusal of a request, with the parameters that are wrong. Its messages never repeat text of the request.
// Its parameter names may be names of parameters of the request.
type failure struct {
	Refusal
	errors []ParameterError
}

func (f *failure) Error() string {
	parts := []string{f.Text}
	for _, e := range f.errors {
		parts = append(parts, e.Parameter+": "+e.Message)
	}
	return strings.Join(parts, " ")
}

// logged returns the text for logs, without the names of parameters.
func (f *failure) logged() string {
	parts := []string{f.Text}
	for _, e := range f.errors {
		parts = append(parts, e.Message)
	}
	return strings.Join(parts, " ")
}

// fail returns a failure with a reason. A reason that is not in the table is a programming error.
func fail(reason access.Reason) *failure {
	r, ok := refusals[reason]
	if !ok {
		panic("no refusal has the reason " + string(reason))
	}
	return &failure{Refusal: r}
}

// maxShown is the maximum length of the name of a parameter in an answer, in bytes.
const maxShown = 128

// refuse returns a failure with a reason, about one parameter.
func refuse(reason access.Reason, parameter, message string) *failure {
	f := fail(reason)
	if len(parameter) > maxShown {
		parameter = strings.ToValidUTF8(parameter[:maxShown], "") + "…"
	}
	f.errors = []ParameterError{{Parameter: parameter, Message: message}}
	return f
}

// bad returns a failure about one parameter whose value is invalid.
func bad(parameter, format string, args ...any) *failure {
	return refuse(parameterInvalid, parameter, fmt.Sprintf(format, args...))
}
