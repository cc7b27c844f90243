package condition

import (
	"slices"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxMessage is the maximum length of a message in metav1.Condition.
const maxMessage = 32768

// True returns a condition with status True.
func True(kind string, why Finding) metav1.Condition { return state(kind, metav1.ConditionTrue, why) }

// False returns a condition with status False.
func False(kind string, why Finding) metav1.Condition { return state(kind, metav1.ConditionFalse, why) }

// Holds returns a condition of type kind for a finding. If the finding is OK, the status is True with reason good.
// Otherwise the status is False with the reason and the message of the finding.
func Holds(kind, good string, found Finding) metav1.Condition {
	if found.OK() {
		return True(kind, Finding{Reason: good})
	}
	return False(kind, found)
}

func state(kind string, status metav1.ConditionStatus, why Finding) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: why.Reason, Message: bounded(why.Message)}
}

// bounded truncates a condition message to maxMessage at a character boundary.
func bounded(message string) string {
	if len(message) <= maxMessage {
		return message
	}
	const ellipsis = "…"
	end := maxMessage - len(ellipsis)
	for !utf8.RuneStart(message[end]) {
		end--
	}
	return message[:end] + ellipsis
}

// Merge returns the new conditions of an object: want, followed by the conditions of other controllers in have, the
// current conditions. Other conditions of this operator in have are dropped. The transition time of a condition changes
// only if its status changes.
func Merge(have []metav1.Condition, generation int64, now metav1.Time, want ...metav1.Condition) []metav1.Condition {
	merged := make([]metav1.Condition, 0, len(want))
	for _, c := range want {
		c.ObservedGeneration = generation
		c.LastTransitionTime = now
		if before := find(have, c.Type); before != nil && before.Status == c.Status &&
			!before.LastTransitionTime.IsZero() {
			c.LastTransitionTime = before.LastTransitionTime
		}
		merged = append(merged, c)
	}
	for _, c := range have {
		if _, ours := types[c.Type]; !ours && find(merged, c.Type) == nil {
			merged = append(merged, c)
		}
	}
	return merged
}

func find(conditions []metav1.Condition, kind string) *metav1.Condition {
	i := slices.IndexFunc(conditions, func(c metav1.Condition) bool { return c.Type == kind })
	if i < 0 {
		return nil
	}
	return &conditions[i]
}
