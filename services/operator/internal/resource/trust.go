package resource

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
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

// TrustBundle returns the CA certificates by which dataplanes know config discovery; "" when it shows no certificate.
func (v *View) TrustBundle() string {
	if t := find(v, v.trust, theTrust, types.NamespacedName{}); t != nil {
		return t.Bundle
	}
	return ""
}
