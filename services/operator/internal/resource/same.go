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

// same reports whether two versions of an object are equal in everything that a translation reads. A status that the
// operator writes is not compared, because it is a fact of its own. Most updates change only other fields: a kubelet,
// for example, writes the status of its node every few seconds.
func same(a, b Object) bool {
	return reflect.DeepEqual(headOf(a), headOf(b)) && reflect.DeepEqual(bodyOf(a), bodyOf(b))
}

// head contains the metadata of an object that translations read.
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
		all := o.GetAnnotations()
		return head{
			annotations: map[string]string{GeneratedSecret: all[GeneratedSecret], SharedUntil: all[SharedUntil]},
		}
	case *corev1.Node, *discoveryv1.EndpointSlice:
		return head{labels: serviceLabel(o)}
	case *corev1.Namespace:
		return head{labels: o.GetLabels()}
	}
	return head{
		uid: o.GetUID(), generation: o.GetGeneration(),
		created: o.GetCreationTimestamp(), deleting: o.GetDeletionTimestamp() != nil,
		labels: o.GetLabels(), annotations: o.GetAnnotations(), owners: o.GetOwnerReferences(),
	}
}

func serviceLabel(o Object) map[string]string {
	return map[string]string{discoveryv1.LabelServiceName: o.GetLabels()[discoveryv1.LabelServiceName]}
}

// bodyOf returns the parts of an object other than metadata that translations read.
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

// statusOf returns the status of an object if the operator writes it, or nil. It returns nil for a route too, because
// setRoute compares the status in Route.
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
