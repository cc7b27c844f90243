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
// operator writes is not compared, because it is a separate Fact. Most updates change only other fields: a kubelet, for
// example, writes the status of its node every few seconds.
func same(a, b Object) bool {
	return reflect.DeepEqual(metadataOf(a), metadataOf(b)) && reflect.DeepEqual(contentOf(a), contentOf(b))
}

// metadata contains the part of an object's metadata that translations read.
type metadata struct {
	uid                 types.UID
	generation          int64
	created             metav1.Time
	deleting            bool
	labels, annotations map[string]string
	owners              []metav1.OwnerReference
}

func metadataOf(o Object) metadata {
	switch o.(type) {
	case *corev1.Secret:
		all := o.GetAnnotations()
		return metadata{
			annotations: map[string]string{
				GeneratedSecret: all[GeneratedSecret], SharedUntil: all[SharedUntil],
				UnreadAnnotation: all[UnreadAnnotation], EmptyAnnotation: all[EmptyAnnotation],
			},
			owners: o.GetOwnerReferences(),
		}
	case *corev1.Node, *discoveryv1.EndpointSlice:
		return metadata{labels: serviceLabel(o)}
	case *corev1.Namespace:
		return metadata{labels: o.GetLabels()}
	}
	return metadata{
		uid: o.GetUID(), generation: o.GetGeneration(),
		created: o.GetCreationTimestamp(), deleting: o.GetDeletionTimestamp() != nil,
		labels: o.GetLabels(), annotations: o.GetAnnotations(), owners: o.GetOwnerReferences(),
	}
}

func serviceLabel(o Object) map[string]string {
	return map[string]string{discoveryv1.LabelServiceName: o.GetLabels()[discoveryv1.LabelServiceName]}
}

// contentOf returns the parts of an object that translations read, except its metadata.
func contentOf(o Object) []any {
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
	case *stunnerv1.Revocation:
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
		return []any{o.Status.Addresses, o.Spec.PodCIDR, o.Spec.PodCIDRs, o.Spec.ProviderID}
	case *gwapiv1.ReferenceGrant:
		return []any{o.Spec}
	case *Trust:
		return []any{o.Bundle}
	case *Scaling:
		return []any{o.Missing}
	case *Installations:
		return []any{o.Own, o.Gone}
	case *Rollout:
		return []any{o.RolloutState}
	case *Rejection:
		return []any{o.RejectionState}
	case *NodePorts:
		return []any{o.Sockets, o.Pod}
	}
	return nil
}

// statusOf returns the status of an object if the operator writes this status, and otherwise nil. It returns nil for a
// route too, because setRoute compares Route.Status.
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
	case *stunnerv1.Revocation:
		return o.Status
	}
	return nil
}
