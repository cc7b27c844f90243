package manifest

import (
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
)

// AlwaysTwoPods reports whether a Gateway always has at least two pods. If not, the Gateway gets no
// PodDisruptionBudget: for a single pod, a PodDisruptionBudget would either have no effect or block the drain of its
// node.
func AlwaysTwoPods(template *stunnerv1.Dataplane) bool {
	more := func(n *int32) bool { return n != nil && *n > 1 }
	switch s := template.Spec; {
	case isDaemonSet(s):
		return false // a drain does not evict pods of a DaemonSet
	case s.Autoscaling != nil:
		return more(s.Autoscaling.MinReplicas)
	default:
		return more(s.Replicas)
	}
}

// DisruptionBudget returns the PodDisruptionBudget of a Gateway. It allows one pod at a time to be evicted. Pods that
// are not ready may always be evicted.
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
