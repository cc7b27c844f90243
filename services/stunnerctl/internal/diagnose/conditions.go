package diagnose

import (
	"cmp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stunner-gateway/stunner/services/api/finding"
)

// wrongStatus is, for each condition type of the operator, the status that means a problem. With "True" the condition
// is a warning.
var wrongStatus = map[string]metav1.ConditionStatus{
	"Accepted": metav1.ConditionFalse, "Programmed": metav1.ConditionFalse, "ResolvedRefs": metav1.ConditionFalse,
	"Autoscaled": metav1.ConditionFalse, "Conflicted": metav1.ConditionTrue,
	"RealmNotDNSName": metav1.ConditionTrue, "InsecureInlineCredentials": metav1.ConditionTrue,
	"GuessableCredentials": metav1.ConditionTrue, "OffloadUnavailable": metav1.ConditionTrue,
	"DeprecatedInput": metav1.ConditionTrue, "LoadBalancerLimited": metav1.ConditionTrue,
	"InputIgnored": metav1.ConditionTrue,
}

// warnings are the condition types whose objects are in force nevertheless.
var warnings = []string{
	"Autoscaled", "RealmNotDNSName", "InsecureInlineCredentials", "GuessableCredentials", "OffloadUnavailable",
	"DeprecatedInput", "LoadBalancerLimited",
}

// IsWrong reports whether a condition of the operator reports a problem. Conditions of other controllers do not.
func IsWrong(c metav1.Condition) bool {
	bad, known := wrongStatus[c.Type]
	return known && (c.Status == bad || c.Status == metav1.ConditionUnknown && bad == metav1.ConditionFalse)
}

// wrong returns those conditions of the types that report a problem. Without types it returns those of all types that
// the operator writes.
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
// object with the condition, and part the field path of the part of the object that has it. The operator may not have
// been asked, or be of a release without findings: then the message, which contains the remedy, is the problem.
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
		Severity: Error, Object: object, Field: strings.TrimPrefix(part+".status.conditions["+c.Type+"]", "."),
		Problem: cmp.Or(Clean(c.Message), c.Reason),
	}
	switch {
	case c.Type == "InputIgnored":
		f.Severity = Info
	case slices.Contains(warnings, c.Type):
		f.Severity = Warning
	}
	return []finding.Finding{f}
}
