package resource

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

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

// Refusal returns what the API server has against the objects of a Gateway.
func (v *View) Refusal(gateway types.NamespacedName) RefusalState {
	if r := find(v, v.refusals, aRefusal, gateway); r != nil {
		return r.RefusalState
	}
	return RefusalState{}
}
