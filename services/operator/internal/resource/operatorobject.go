package resource

import (
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// The types below are state of the provider that a translation depends on. They implement Object so that View.Put
// indexes them and records their facts like those of Kubernetes objects. They do not exist in an API server.

// Trust holds the CA certificates of config discovery. There is one, without a name.
type Trust struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	// Bundle is a list of CA certificates in PEM.
	Bundle string
}

// DeepCopyObject is part of runtime.Object.
func (t *Trust) DeepCopyObject() runtime.Object {
	return &Trust{TypeMeta: t.TypeMeta, ObjectMeta: *t.ObjectMeta.DeepCopy(), Bundle: t.Bundle}
}

// Scaling is the state of the autoscaler of the cluster. There is one, without a name.
type Scaling struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	// Missing means that the CRDs of KEDA are not installed.
	Missing bool
}

// DeepCopyObject is part of runtime.Object.
func (s *Scaling) DeepCopyObject() runtime.Object {
	return &Scaling{TypeMeta: s.TypeMeta, ObjectMeta: *s.ObjectMeta.DeepCopy(), Missing: s.Missing}
}

// Fleet is the state of the dataplanes of the Gateway with the same name, from their reports. It contains nothing that
// changes with every report, because each change translates the Gateway.
type Fleet struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	FleetState
}

// FleetState is the content of a Fleet. The zero value means that there is no problem, or that no dataplane reports.
type FleetState struct {
	// Pod is one of the dataplanes, and Problem its message, if all of them rejected the config or serve it only in
	// part.
	Pod, Problem string
	// Behind is the number of dataplanes if none of them runs the published config, although there was time to deliver
	// it; otherwise 0.
	Behind int
	// Draining is the number of dataplanes that serve their sessions and admit no new clients.
	Draining int
}

// DeepCopyObject is part of runtime.Object.
func (f *Fleet) DeepCopyObject() runtime.Object {
	return &Fleet{TypeMeta: f.TypeMeta, ObjectMeta: *f.ObjectMeta.DeepCopy(), FleetState: f.FleetState}
}

// Refusal holds the objects of the Gateway with the same name that the API server rejected.
type Refusal struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	RefusalState
}

// RefusalState is the content of a Refusal. The zero value means that all objects were accepted.
type RefusalState struct {
	// Serving is an object without which the Gateway is not served; Scaling is an object that only scales its pods.
	Serving, Scaling Refused
	// ExternalIPs is a Service that was accepted only without spec.externalIPs.
	ExternalIPs Refused
}

// Refused is a rejected object with the error of the API server. The zero value means none.
type Refused struct {
	Object, Problem string
}

// DeepCopyObject is part of runtime.Object.
func (r *Refusal) DeepCopyObject() runtime.Object {
	return &Refusal{TypeMeta: r.TypeMeta, ObjectMeta: *r.ObjectMeta.DeepCopy(), RefusalState: r.RefusalState}
}

// OverBudget lists the routes that the Gateway with the same name does not serve because they exceed a budget. The
// translation of the Gateway produces it, and the translation of a route reads it: computing it needs all routes of the
// Gateway.
type OverBudget struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	// Routes are the refusals by NAMESPACE/NAME of the route.
	Routes map[string]BudgetRefusal
}

// BudgetRefusal is reason and message of the condition of a route over budget.
type BudgetRefusal struct {
	Reason, Message string
}

// DeepCopyObject is part of runtime.Object.
func (h *OverBudget) DeepCopyObject() runtime.Object {
	return &OverBudget{TypeMeta: h.TypeMeta, ObjectMeta: *h.ObjectMeta.DeepCopy(), Routes: maps.Clone(h.Routes)}
}
