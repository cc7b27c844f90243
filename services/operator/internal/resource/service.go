package resource

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// Names of the labels and the annotation by which a generated object refers to its Gateway. As a label,
// RelatedGatewayName is the name of the Gateway. As an annotation, it is NAMESPACE/NAME.
const (
	RelatedGatewayName      = "stunner.l7mp.io/related-gateway-name"
	RelatedGatewayNamespace = "stunner.l7mp.io/related-gateway-namespace"
)

// GatewayOf returns the Gateway that a Service exposes. It requires that an owner reference names the Gateway in
// addition to the annotation, because users copy annotations between objects.
func GatewayOf(svc *corev1.Service) (types.NamespacedName, bool) {
	namespace, name, ok := strings.Cut(svc.Annotations[RelatedGatewayName], "/")
	if !ok || namespace != svc.Namespace {
		return types.NamespacedName{}, false
	}
	for _, owner := range svc.OwnerReferences {
		isGateway := owner.Kind == KindGateway && strings.HasPrefix(owner.APIVersion, gwapiv1.GroupName+"/")
		if isGateway && owner.Name == name {
			return types.NamespacedName{Namespace: namespace, Name: name}, true
		}
	}
	return types.NamespacedName{}, false
}
