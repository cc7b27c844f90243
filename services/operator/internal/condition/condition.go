// Package condition defines the conditions that the operator writes: types, reasons and messages.
//
// A rule of the translation returns a Finding if it is not satisfied. Types and reasons are an API. Messages are for
// users; they contain the problem, the field and the remedy.
package condition

import (
	"fmt"
	"strings"

	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// Condition types.
const (
	Accepted     = string(gwapiv1.GatewayConditionAccepted)
	Programmed   = string(gwapiv1.GatewayConditionProgrammed)
	Conflicted   = string(gwapiv1.ListenerConditionConflicted)
	ResolvedRefs = string(gwapiv1.ListenerConditionResolvedRefs)
	// RealmNotDNSName warns that the realm is not a DNS name. Tools that expect a domain may reject it.
	RealmNotDNSName = "RealmNotDNSName"
	// InsecureInlineCredentials warns that the GatewayConfig itself contains a secret, which everyone who can read the
	// object sees.
	InsecureInlineCredentials = "InsecureInlineCredentials"
	// OffloadUnavailable warns that a Dataplane requests an offload engine. This release does not implement any.
	OffloadUnavailable = "OffloadUnavailable"
	// GuessableCredentials warns of a password or a shared secret that is short enough to be guessed.
	GuessableCredentials = "GuessableCredentials"
	// Autoscaled on a Dataplane reports whether autoscaling is available. A Gateway has the condition only with status
	// False, if the API server rejected its ScaledObject.
	Autoscaled = "Autoscaled"
	// InUse reports which objects refer to the object.
	InUse = "InUse"
)

// Reasons of healthy conditions.
const (
	ReasonAccepted    = string(gwapiv1.GatewayReasonAccepted)
	ReasonProgrammed  = string(gwapiv1.GatewayReasonProgrammed)
	ReasonNoConflicts = string(gwapiv1.ListenerReasonNoConflicts)
	ReasonResolved    = string(gwapiv1.ListenerReasonResolvedRefs)
	ReasonKEDAFound   = "KEDAFound"
	ReasonUsed        = "Used"
	ReasonUnused      = "Unused"
)

// Reasons of conditions that report a problem.
const (
	ReasonPending               = string(gwapiv1.GatewayReasonPending)
	ReasonInvalid               = string(gwapiv1.GatewayReasonInvalid)
	ReasonInvalidParameters     = string(gwapiv1.GatewayReasonInvalidParameters)
	ReasonListenersNotValid     = string(gwapiv1.GatewayReasonListenersNotValid)
	ReasonAddressNotAssigned    = string(gwapiv1.GatewayReasonAddressNotAssigned)
	ReasonAddressNotUsable      = string(gwapiv1.GatewayReasonAddressNotUsable)
	ReasonUnsupportedAddress    = string(gwapiv1.GatewayReasonUnsupportedAddress)
	ReasonPortUnavailable       = string(gwapiv1.ListenerReasonPortUnavailable)
	ReasonProtocolConflict      = string(gwapiv1.ListenerReasonProtocolConflict)
	ReasonUnsupportedProtocol   = string(gwapiv1.ListenerReasonUnsupportedProtocol)
	ReasonUnsupportedValue      = string(gwapiv1.ListenerReasonUnsupportedValue)
	ReasonInvalidCertificateRef = string(gwapiv1.ListenerReasonInvalidCertificateRef)
	ReasonInvalidRouteKinds     = string(gwapiv1.ListenerReasonInvalidRouteKinds)
	ReasonRefNotPermitted       = string(gwapiv1.ListenerReasonRefNotPermitted)
	ReasonNoMatchingParent      = string(gwapiv1.RouteReasonNoMatchingParent)
	ReasonNotAllowed            = string(gwapiv1.RouteReasonNotAllowedByListeners)
	ReasonBackendNotFound       = string(gwapiv1.RouteReasonBackendNotFound)
	ReasonInvalidKind           = string(gwapiv1.RouteReasonInvalidKind)

	// Reasons on the kinds of group stunner.l7mp.io.
	ReasonDataplaneNotFound  = "DataplaneNotFound"
	ReasonInvalidDenial      = "InvalidDeniedBackends"
	ReasonInvalidAnnotations = "InvalidAnnotations"
	ReasonInvalidPatch       = "InvalidPatch"
	ReasonInvalidAutoscaling = "InvalidAutoscaling"
	ReasonKEDAMissing        = "KEDAMissing"
	ReasonMetricsOff         = "MetricsOff"
	ReasonOneHost            = "OneHost"
	ReasonInvalidCredentials = "InvalidCredentials"
	ReasonInvalidRealm       = "InvalidRealm"
	ReasonInvalidPrefix      = "InvalidPrefix"
	ReasonBudgetExceeded     = "BudgetExceeded"
	ReasonSecretNotFound     = "SecretNotFound"
	ReasonSecretKeyNotFound  = "SecretKeyNotFound"
	ReasonWarning            = "Warning"
)

// Finding is the reason and the message of a condition, from a rule that is not satisfied. The zero Finding means that
// there is no problem.
type Finding struct {
	Reason  string
	Message string
}

// OK reports whether the rule is satisfied.
func (f Finding) OK() bool { return f.Reason == "" }

// As returns the finding with another reason, because a problem may have different reasons on different objects.
func (f Finding) As(reason string) Finding {
	if f.OK() {
		return f
	}
	return Finding{Reason: reason, Message: f.Message}
}

func finding(reason, format string, args ...any) Finding {
	return Finding{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// Join joins findings: the result has the reason of the first one that is not OK, and the messages of all.
func Join(findings []Finding) Finding {
	var joined Finding
	var messages []string
	for _, f := range findings {
		if f.OK() {
			continue
		}
		if joined.OK() {
			joined.Reason = f.Reason
		}
		messages = append(messages, f.Message)
	}
	joined.Message = strings.Join(messages, "; ")
	return joined
}
