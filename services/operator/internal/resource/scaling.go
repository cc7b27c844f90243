package resource

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

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

// ScalingMissing tells whether it is known that nobody scales.
func (v *View) ScalingMissing() bool {
	s := find(v, v.scaling, theScaling, types.NamespacedName{})
	return s != nil && s.Missing
}
