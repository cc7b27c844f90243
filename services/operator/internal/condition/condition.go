// Package condition holds every word that the operator writes into a status: condition types, reasons and messages.
//
// A rule of the translation that is not satisfied returns one of the findings below. Types and reasons are a contract with the tools that read
// them; messages are for people and say what is wrong, where, and what to do.
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
	// RealmNotDNSName warns of a realm that works with TURN but not with tools that take it for a domain.
	RealmNotDNSName = "RealmNotDNSName"
	// InsecureInlineCredentials warns of a secret that everyone can read who can read the GatewayConfig.
	InsecureInlineCredentials = "InsecureInlineCredentials"
	// OffloadUnavailable warns of a Dataplane that asks for an offload engine, which this release does not have.
	OffloadUnavailable = "OffloadUnavailable"
	// GuessableCredentials warns of a password or a shared secret that clients can find by trying.
	GuessableCredentials = "GuessableCredentials"
	// Autoscaled says of a Dataplane with autoscaling whether there is something that scales, and of a Gateway that it is not given what scales it.
	Autoscaled = "Autoscaled"
	// InUse says who refers to an object.
	InUse = "InUse"
)

// Reasons of conditions that are as they should be.
const (
	ReasonAccepted    = string(gwapiv1.GatewayReasonAccepted)
	ReasonProgrammed  = string(gwapiv1.GatewayReasonProgrammed)
	ReasonNoConflicts = string(gwapiv1.ListenerReasonNoConflicts)
	ReasonResolved    = string(gwapiv1.ListenerReasonResolvedRefs)
	ReasonKEDAFound   = "KEDAFound"
	ReasonUsed        = "Used"
	ReasonUnused      = "Unused"
)

// Reasons of conditions that are not.
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

	// These stand on GatewayConfigs, Dataplanes and StaticServices, which are ours alone.
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

// Finding is what a rule has to say about its subject. The zero Finding has nothing to say.
type Finding struct {
	Reason  string
	Message string
}

// OK tells whether the rule is satisfied.
func (f Finding) OK() bool { return f.Reason == "" }

// As gives the same message another reason: one thing that is wrong has its own word on each object that suffers from it.
func (f Finding) As(reason string) Finding {
	if f.OK() {
		return f
	}
	return Finding{Reason: reason, Message: f.Message}
}

func finding(reason, format string, args ...any) Finding {
	return Finding{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// Join makes one finding of many: the reason of the first, the messages of all.
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
