package condition

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// problem says which status of a condition means a problem.
type problem int

const (
	ifNotTrue problem = iota
	ifNotFalse
	never
)

// types are the condition types of the operator. Merge removes a condition of these types that no translation sets any
// more, and keeps conditions of other types, which belong to other controllers.
var types = map[string]problem{
	Accepted: ifNotTrue, Programmed: ifNotTrue, ResolvedRefs: ifNotTrue, Autoscaled: ifNotTrue,
	Conflicted: ifNotFalse, RealmNotDNSName: ifNotFalse, InsecureInlineCredentials: ifNotFalse,
	GuessableCredentials: ifNotFalse, OffloadUnavailable: ifNotFalse,
	InUse: never,
}

// Wrong reports whether a condition means a problem.
func Wrong(c metav1.Condition) bool {
	switch types[c.Type] {
	case ifNotFalse:
		return c.Status != metav1.ConditionFalse
	case never:
		return false
	}
	return c.Status != metav1.ConditionTrue
}
