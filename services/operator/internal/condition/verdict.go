package condition

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// negative are the types that say what is wrong rather than what is right.
var negative = map[string]bool{
	Conflicted: true, RealmNotDNSName: true, InsecureInlineCredentials: true, GuessableCredentials: true, OffloadUnavailable: true,
}

// Wrong tells whether a condition says that something is not as it should be.
func Wrong(c metav1.Condition) bool {
	if c.Type == InUse {
		return false
	}
	if negative[c.Type] {
		return c.Status != metav1.ConditionFalse
	}
	return c.Status != metav1.ConditionTrue
}
