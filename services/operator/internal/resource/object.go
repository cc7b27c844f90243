package resource

import (
	"cmp"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

func compareKeys(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// byKey compares objects by namespace and name.
func byKey[T Object](a, b T) int { return compareKeys(KeyOf(a), KeyOf(b)) }

// deref returns *p, or absent if p is nil or points to a zero value. In references of the Gateway API, an empty string
// means unset.
func deref[T comparable](p *T, absent T) T {
	var zero T
	if p == nil || *p == zero {
		return absent
	}
	return *p
}

// Object is any Kubernetes object.
type Object interface {
	metav1.Object
	runtime.Object
}

// Kinds of objects.
const (
	KindGateway       = "Gateway"
	KindGatewayClass  = "GatewayClass"
	KindGatewayConfig = "GatewayConfig"
	KindDataplane     = "Dataplane"
)

// KeyOf returns the namespace and name of an object.
func KeyOf(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}
