package resource

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Names with which generated objects say to which Gateway they belong. The annotation carries NAMESPACE/NAME, the labels one each.
const (
	RelatedGatewayName      = "stunner.l7mp.io/related-gateway-name"
	RelatedGatewayNamespace = "stunner.l7mp.io/related-gateway-namespace"
)

// GatewayOf returns the Gateway that a Service exposes. The annotation alone is no proof, because people copy annotations: the Service must
// be owned by the Gateway as well.
func GatewayOf(svc *corev1.Service) (types.NamespacedName, bool) {
	namespace, name, ok := strings.Cut(svc.Annotations[RelatedGatewayName], "/")
	if !ok || namespace != svc.Namespace {
		return types.NamespacedName{}, false
	}
	for _, owner := range svc.OwnerReferences {
		if owner.Kind == "Gateway" && owner.Name == name && strings.HasPrefix(owner.APIVersion, "gateway.networking.k8s.io/") {
			return types.NamespacedName{Namespace: namespace, Name: name}, true
		}
	}
	return types.NamespacedName{}, false
}
