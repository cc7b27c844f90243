package condition

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/stunner-gateway/stunner/services/api/finding"
	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// maxMessage is the maximum length of a message in metav1.Condition.
const maxMessage = 32768

// Condition is a condition that the translation sets, and the finding from which it results.
type Condition struct {
	metav1.Condition
	Finding Finding
}

// True returns a condition with status True.
func True(kind string, why Finding) Condition { return state(kind, metav1.ConditionTrue, why) }

// False returns a condition with status False.
func False(kind string, why Finding) Condition { return state(kind, metav1.ConditionFalse, why) }

// Holds returns a condition of type kind for a finding. If the finding is OK, the status is True with reason good.
// Otherwise the status is False with the reason and the message of the finding.
func Holds(kind, good string, found Finding) Condition {
	if found.OK() {
		return True(kind, Finding{Reason: good})
	}
	return False(kind, found)
}

func state(kind string, status metav1.ConditionStatus, why Finding) Condition {
	return Condition{metav1.Condition{Type: kind, Status: status, Reason: why.Reason, Message: bounded(why.Message())}, why}
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

// Merge returns the new conditions of an object, and those that report a problem. have are the current conditions. The
// result has the conditions of want, followed by the conditions of other controllers in have. If want has no condition
// of a type that the operator writes, the condition of this type in have is dropped. The transition time of a condition
// changes only if its status changes.
func Merge(have []metav1.Condition, generation int64, now metav1.Time, want ...Condition) Merged {
	merged := make([]metav1.Condition, 0, len(want))
	var problems []Problem
	for _, w := range want {
		c := w.Condition
		c.ObservedGeneration = generation
		c.LastTransitionTime = now
		if before := find(have, c.Type); before != nil && before.Status == c.Status &&
			!before.LastTransitionTime.IsZero() {
			c.LastTransitionTime = before.LastTransitionTime
		}
		merged = append(merged, c)
		if Wrong(c) {
			problems = append(problems, Problem{Condition: c, Findings: w.Finding.Findings()})
		}
	}
	for _, c := range have {
		if !api.IsCondition(c.Type) && find(merged, c.Type) == nil {
			merged = append(merged, c)
		}
	}
	return Merged{merged, problems}
}

// Merged are the conditions of an object or of a part of it.
type Merged struct {
	Conditions []metav1.Condition
	// Problems are those conditions of the operator that report a problem.
	Problems []Problem
}

// Problem is a condition that reports a problem.
type Problem struct {
	metav1.Condition
	// Part is the field path of the part of the object that has the condition; empty for the whole object.
	Part string
	// Findings are the causes. Findings about the object that has the condition have no Object.
	Findings []api.Finding
}

// Inspected returns the problem as the inspection API shows it. object is the object that has the condition.
func (p Problem) Inspected(object string) inspection.Problem {
	shown := inspection.Problem{
		Object: object, Field: p.Part, Condition: p.Type, Status: string(p.Status), Reason: p.Reason, Message: p.Message,
		Findings: slices.Clone(p.Findings),
	}
	for i := range shown.Findings {
		f := &shown.Findings[i]
		f.Severity = p.Severity()
		f.Since = p.LastTransitionTime.Time
		f.Evidence = fmt.Sprintf("condition %s of %s is %s", p.Type, object, p.Status)
		if f.Object == "" {
			f.Object, f.Field = object, FieldPath(p.Part, f.Field)
		}
	}
	return shown
}

// FieldPath returns the path of a field of a part of an object. The path may start at the object.
func FieldPath(part, field string) string {
	if strings.HasPrefix(field, "spec.") || strings.HasPrefix(field, "metadata.") {
		return field
	}
	return strings.Trim(part+"."+field, ".")
}

// ProblemsOf returns problems of a part of an object.
func (m Merged) ProblemsOf(part string) []Problem {
	for i := range m.Problems {
		m.Problems[i].Part = part
	}
	return m.Problems
}

func find(conditions []metav1.Condition, kind string) *metav1.Condition {
	i := slices.IndexFunc(conditions, func(c metav1.Condition) bool { return c.Type == kind })
	if i < 0 {
		return nil
	}
	return &conditions[i]
}
