package resource

import (
	"reflect"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"
	gwapiv1a2 "sigs.k8s.io/gateway-api/apis/v1alpha2"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
)

// same tells whether two forms of an object differ in nothing that has a meaning for a Gateway, its own status excepted. Kubelets write the status of their node
// every few seconds, and every object gets a new version with every write.
func same(a, b Object) bool {
	return reflect.DeepEqual(headOf(a), headOf(b)) && reflect.DeepEqual(bodyOf(a), bodyOf(b))
}

// head is what counts of the metadata.
type head struct {
	uid                 types.UID
	generation          int64
	created             metav1.Time
	deleting            bool
	labels, annotations map[string]string
	owners              []metav1.OwnerReference
}

func headOf(o Object) head {
	switch o.(type) {
	case *corev1.Secret:
		return head{annotations: map[string]string{GeneratedSecret: o.GetAnnotations()[GeneratedSecret], SharedUntil: o.GetAnnotations()[SharedUntil]}}
	case *corev1.Node, *discoveryv1.EndpointSlice:
		return head{labels: serviceLabel(o)}
	case *corev1.Namespace:
		return head{labels: o.GetLabels()}
	}
	return head{
		uid: o.GetUID(), generation: o.GetGeneration(), created: o.GetCreationTimestamp(), deleting: o.GetDeletionTimestamp() != nil,
		labels: o.GetLabels(), annotations: o.GetAnnotations(), owners: o.GetOwnerReferences(),
	}
}

func serviceLabel(o Object) map[string]string {
	return map[string]string{discoveryv1.LabelServiceName: o.GetLabels()[discoveryv1.LabelServiceName]}
}

// bodyOf is what counts of the rest.
func bodyOf(o Object) []any {
	switch o := o.(type) {
	case *gwapiv1.GatewayClass:
		return []any{o.Spec}
	case *gwapiv1.Gateway:
		return []any{o.Spec}
	case *stunnerv1.GatewayConfig:
		return []any{o.Spec}
	case *stunnerv1.Dataplane:
		return []any{o.Spec}
	case *stunnerv1.StaticService:
		return []any{o.Spec}
	case *stunnerv1.UDPRoute:
		return []any{o.Spec}
	case *gwapiv1.UDPRoute:
		return []any{o.Spec}
	case *gwapiv1a2.UDPRoute:
		return []any{o.Spec}
	case *corev1.Service:
		return []any{o.Spec, o.Status}
	case *discoveryv1.EndpointSlice:
		return []any{o.AddressType, o.Endpoints, o.Ports}
	case *corev1.Secret:
		return []any{o.Type, o.Data}
	case *corev1.Node:
		return []any{o.Status.Addresses}
	case *gwapiv1.ReferenceGrant:
		return []any{o.Spec}
	case *Trust:
		return []any{o.Bundle}
	case *Scaling:
		return []any{o.Missing}
	case *Fleet:
		return []any{o.FleetState}
	case *Refusal:
		return []any{o.RefusalState}
	}
	return nil
}

// statusOf returns a status that is ours to write; nil for an object that has none. The status of a route is part of Route.
func statusOf(o Object) any {
	switch o := o.(type) {
	case *gwapiv1.GatewayClass:
		return o.Status
	case *gwapiv1.Gateway:
		return o.Status
	case *stunnerv1.GatewayConfig:
		return o.Status
	case *stunnerv1.Dataplane:
		return o.Status
	case *stunnerv1.StaticService:
		return o.Status
	}
	return nil
}
