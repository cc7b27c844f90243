// Package condition defines the conditions that the operator writes: their types, reasons and messages.
//
// A rule of the translation returns a Finding if an object does not satisfy the rule. Types and reasons are an API.
// Messages are for users; they contain the problem, the field and the remedy.
//
// # Files
//
//	condition.go   types and reasons
//	finding.go     findings, and how they become messages
//	hint.go        remedies that are not a part of a message
//	verdict.go     which status of a type is a problem
//	merge.go       one condition from several findings
//	gateway.go     messages of Gateways and listeners
//	route.go       messages of UDPRoutes
//	parameters.go  messages of the other kinds
//	conflict.go    messages of condition ControllerConflict, and their content
//	rollout.go     messages about dataplanes
//	usage.go       messages of condition InUse
//	balancer.go    messages of condition LoadBalancerLimited
//	revocation.go  messages of Revocations
//	ignored.go     messages about input without effect
//	deprecated.go  messages about notations of the existing system (table: ../translate/former_test.go)
package condition

import (
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
	// InsecureInlineCredentials warns that the GatewayConfig itself contains a secret. Everyone who may read the
	// GatewayConfig sees the secret.
	InsecureInlineCredentials = "InsecureInlineCredentials"
	// OffloadUnavailable warns, on a Dataplane and on a Gateway, that the kernel does not forward media, or not by the
	// requested engine.
	OffloadUnavailable = "OffloadUnavailable"
	// LoadBalancerLimited warns, on a Gateway, that the load balancers of the provider lack features that its Services
	// need.
	LoadBalancerLimited = "LoadBalancerLimited"
	// DeprecatedInput warns that an object has a notation that is accepted only for migration from the existing system.
	DeprecatedInput = "DeprecatedInput"
	// InputIgnored warns that a value of the object has no effect.
	InputIgnored = "InputIgnored"
	// GuessableCredentials warns that a password or a shared secret is so short that an attacker can guess it.
	GuessableCredentials = "GuessableCredentials"
	// Autoscaled on a Dataplane reports whether autoscaling is available. A Gateway has the condition only with status
	// False, if the API server rejected its ScaledObject.
	Autoscaled = "Autoscaled"
	// ControllerConflict on a GatewayClass reports whether several installations of the operator have its controller
	// name. Its message names the installation that manages the GatewayClass, and a paused one if there is one.
	ControllerConflict = "ControllerConflict"
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
	ReasonSole        = "SoleInstallation"
	ReasonUnused      = "Unused"
	ReasonExpired     = "Expired"
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
	ReasonInvalidRevocation  = "InvalidRevocation"
	ReasonBudgetExceeded     = "BudgetExceeded"
	ReasonSecretNotFound     = "SecretNotFound"
	ReasonSecretKeyNotFound  = "SecretKeyNotFound"
	ReasonWarning            = "Warning"
	ReasonSecond             = "SecondInstallation"
)
