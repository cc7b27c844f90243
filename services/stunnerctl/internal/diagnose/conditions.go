package diagnose

import (
	"cmp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stunner-gateway/stunner/services/api/finding"
)

// IsWrong reports whether a condition of the operator reports a problem. It returns false for conditions of other
// controllers.
func IsWrong(c metav1.Condition) bool { return finding.OfCondition(c.Type, string(c.Status)) != "" }

// wrong returns the conditions of the given types that report a problem. Without types it checks all types that the
// operator writes.
func wrong(all []metav1.Condition, types ...string) (found []metav1.Condition) {
	for _, c := range all {
		if c.Reason == "Pending" && c.ObservedGeneration == 0 && c.LastTransitionTime.Unix() == 0 {
			continue // the default of the CRD: no operator has written the condition
		}
		if IsWrong(c) && (len(types) == 0 || slices.Contains(types, c.Type)) {
			found = append(found, c)
		}
	}
	return found
}

// fromCondition returns the findings of a condition that reports a problem, as the operator serves them. object is the
// object with the condition, and part is the field path of the part of the object that has it. If the operator was not
// asked, or is of a release without findings, the message of the condition is the problem. It contains the remedy.
func (s *Snapshot) fromCondition(object, part string, c metav1.Condition, command string) (found []Finding) {
	for _, f := range s.findingsOf(object, part, c) {
		found = append(found, Finding{
			Severity: f.Severity, Object: f.Object, Problem: f.Problem, Command: command,
			Field:  cmp.Or(f.Field, "status.conditions["+c.Type+"]"),
			Remedy: cmp.Or(f.Remedy, "see the message of the condition"),
		})
	}
	return found
}

func (s *Snapshot) findingsOf(object, part string, c metav1.Condition) []finding.Finding {
	if s.Operator != nil {
		for _, p := range s.Operator.Problems {
			if p.Object == object && p.Condition == c.Type && p.Message == c.Message && (part == "" || p.Field == part) &&
				len(p.Findings) > 0 {
				return p.Findings
			}
		}
	}
	f := finding.Finding{
		Severity: finding.OfCondition(c.Type, string(c.Status)), Object: object, Field: strings.TrimPrefix(part+".status.conditions["+c.Type+"]", "."),
		Problem: cmp.Or(Clean(c.Message), c.Reason),
	}
	return []finding.Finding{f}
}
