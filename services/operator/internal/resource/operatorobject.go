package resource

import (
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Trust is what dataplanes are told to believe of config discovery. It is an object so that it reaches a View like any other, and no API server
// knows it; there is one, which needs no name.
type Trust struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	// Bundle are the certificates of CAs, in PEM.
	Bundle string
}

// DeepCopyObject is part of runtime.Object.
func (t *Trust) DeepCopyObject() runtime.Object {
	return &Trust{TypeMeta: t.TypeMeta, ObjectMeta: *t.ObjectMeta.DeepCopy(), Bundle: t.Bundle}
}

// Scaling is what a provider has found out about the autoscaler of the cluster. It is an object so that it reaches a View like any other, and no
// API server knows it; there is one, which needs no name.
type Scaling struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	// Missing says that the cluster does not know the kinds of KEDA.
	Missing bool
}

// DeepCopyObject is part of runtime.Object.
func (s *Scaling) DeepCopyObject() runtime.Object {
	return &Scaling{TypeMeta: s.TypeMeta, ObjectMeta: *s.ObjectMeta.DeepCopy(), Missing: s.Missing}
}

// Fleet is what a provider has found out about the dataplanes of the Gateway with its name, from what they report. It is an object so that it
// reaches a View like any other, and no API server knows it. It changes seldom: what changes with every report is not in it.
type Fleet struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	FleetState
}

// FleetState is all that counts of a Fleet. The zero value has nothing to say: all is well, or nobody reports.
type FleetState struct {
	// Pod is one of the dataplanes when all of them have turned the config down, or serve it in part only, and Problem is what it says.
	Pod, Problem string
	// Behind is the number of dataplanes when none runs what is published, for longer than the way there takes.
	Behind int
	// Draining is the number of dataplanes that take no new clients and serve the ones that they have.
	Draining int
}

// DeepCopyObject is part of runtime.Object.
func (f *Fleet) DeepCopyObject() runtime.Object {
	return &Fleet{TypeMeta: f.TypeMeta, ObjectMeta: *f.ObjectMeta.DeepCopy(), FleetState: f.FleetState}
}

// Refusal is what an API server has against what was made for the Gateway with its name. It is an object so that it reaches a View like any
// other, and no API server knows it.
type Refusal struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	RefusalState
}

// RefusalState is all that counts of a Refusal. The zero value means that everything is taken.
type RefusalState struct {
	// Serving is about what the Gateway is served by, Scaling about what changes the number of its pods, without which it is served all the same.
	Serving, Scaling Refused
	// ExternalIPs is about the external addresses of a Service, which is there without them.
	ExternalIPs Refused
}

// Refused is an object that is not taken, and the problem that the API server has with it.
type Refused struct {
	Object, Problem string
}

// DeepCopyObject is part of runtime.Object.
func (r *Refusal) DeepCopyObject() runtime.Object {
	return &Refusal{TypeMeta: r.TypeMeta, ObjectMeta: *r.ObjectMeta.DeepCopy(), RefusalState: r.RefusalState}
}

// OverBudget lists the routes that the Gateway with its name does not serve because they exceed a budget. The translation of the Gateway makes it, and the
// translation of a route reads it: that of a route alone cannot tell without counting all other routes. It is an object so that it reaches a View like
// any other, and no API server knows it.
type OverBudget struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	// Routes are the routes by NAMESPACE/NAME, each with the condition that it gets.
	Routes map[string]BudgetRefusal
}

// BudgetRefusal is the condition of a route that waits.
type BudgetRefusal struct {
	Reason, Message string
}

// DeepCopyObject is part of runtime.Object.
func (h *OverBudget) DeepCopyObject() runtime.Object {
	return &OverBudget{TypeMeta: h.TypeMeta, ObjectMeta: *h.ObjectMeta.DeepCopy(), Routes: maps.Clone(h.Routes)}
}
