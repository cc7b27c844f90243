package manifest

import (
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
)

// Spare tells whether a Dataplane always has a pod that can do without another. A budget for the only pod would either do nothing or keep
// nodes from being drained.
func Spare(template *stunnerv1.Dataplane) bool {
	more := func(n *int32) bool { return n != nil && *n > 1 }
	switch s := template.Spec; {
	case s.DataplaneResource == stunnerv1.ResourceDaemonSet:
		return false // its pods stay when a node is drained
	case s.Autoscaling != nil:
		return more(s.Autoscaling.MinReplicas)
	default:
		return more(s.Replicas)
	}
}

// DisruptionBudget keeps the nodes of a Gateway's pods from being drained all at once. A pod that is not ready is in nobody's way.
func DisruptionBudget(o Owner) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		TypeMeta:   metav1.TypeMeta{APIVersion: "policy/v1", Kind: "PodDisruptionBudget"},
		ObjectMeta: o.meta(o.Name),
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable:             new(intstr.FromInt32(1)),
			Selector:                   selector(o),
			UnhealthyPodEvictionPolicy: new(policyv1.AlwaysAllow),
		},
	}
}
