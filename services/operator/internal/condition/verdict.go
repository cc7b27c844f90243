package condition

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// negative are the condition types for which True is a problem.
var negative = map[string]bool{
	Conflicted: true, RealmNotDNSName: true, InsecureInlineCredentials: true, GuessableCredentials: true,
	OffloadUnavailable: true,
}

// Wrong reports whether a condition means a problem.
func Wrong(c metav1.Condition) bool {
	if c.Type == InUse {
		return false
	}
	if negative[c.Type] {
		return c.Status != metav1.ConditionFalse
	}
	return c.Status != metav1.ConditionTrue
}
