package condition

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/stunner-gateway/stunner/services/api/finding"
)

// problem is the status of a condition that means a problem.
type problem int

const (
	ifNotTrue problem = iota
	ifNotFalse
	never
)

// types are the condition types that the operator writes. Merge removes a condition of such a type if the translation
// does not set it any more. Merge keeps conditions of other types, because they belong to other controllers.
var types = map[string]problem{
	Accepted: ifNotTrue, Programmed: ifNotTrue, ResolvedRefs: ifNotTrue, Autoscaled: ifNotTrue,
	Conflicted: ifNotFalse, RealmNotDNSName: ifNotFalse, InsecureInlineCredentials: ifNotFalse,
	GuessableCredentials: ifNotFalse, OffloadUnavailable: ifNotFalse, DeprecatedInput: ifNotFalse,
	LoadBalancerLimited: ifNotFalse, ControllerConflict: ifNotFalse, InputIgnored: ifNotFalse,
	InUse: never,
}

// Severity returns how serious the problem is. An object with a warning is in force.
func (p Problem) Severity() api.Severity {
	if p.Type == InputIgnored {
		return api.Info
	}
	if p.Type == Autoscaled || types[p.Type] == ifNotFalse && p.Type != Conflicted && p.Type != ControllerConflict {
		return api.Warning
	}
	return api.Error
}

// Wrong reports whether a condition reports a problem.
func Wrong(c metav1.Condition) bool {
	switch types[c.Type] {
	case ifNotFalse:
		return c.Status != metav1.ConditionFalse
	case never:
		return false
	}
	return c.Status != metav1.ConditionTrue
}
