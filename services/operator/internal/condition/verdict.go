package condition

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/stunner-gateway/stunner/services/api/finding"
)

// Severity returns how serious the problem is. An object with a warning is in force.
func (p Problem) Severity() api.Severity { return api.OfCondition(p.Type, string(p.Status)) }

// Wrong reports whether a condition of the operator reports a problem.
func Wrong(c metav1.Condition) bool { return api.OfCondition(c.Type, string(c.Status)) != "" }
