package decode

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	gatewayv1alpha2 "sigs.k8s.io/gateway-api/apis/v1alpha2"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/crd"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

const defaultNamespace = "default"

// kind describes how objects of a kind are decoded.
type kind struct {
	new     func() resource.Object
	cluster bool // cluster-scoped
}

// kinds contains every kind that is decoded into a Go type. An object of another kind is passed through unchanged, but
// an unknown kind of group stunner.l7mp.io and an unknown version of a kind in this table are errors.
var kinds = map[schema.GroupVersionKind]kind{
	gateway("GatewayClass"):   {new: blank[gatewayv1.GatewayClass], cluster: true},
	gateway("Gateway"):        {new: blank[gatewayv1.Gateway]},
	gateway("UDPRoute"):       {new: blank[gatewayv1.UDPRoute]},
	gateway("ReferenceGrant"): {new: blank[gatewayv1.ReferenceGrant]},
	alpha("UDPRoute"):         {new: blank[gatewayv1alpha2.UDPRoute]},
	own("UDPRoute"):           {new: blank[stunnerv1.UDPRoute]},
	own("GatewayConfig"):      {new: blank[stunnerv1.GatewayConfig]},
	own("Dataplane"):          {new: blank[stunnerv1.Dataplane], cluster: true},
	own("StaticService"):      {new: blank[stunnerv1.StaticService]},
	own("Revocation"):         {new: blank[stunnerv1.Revocation]},
	core("Service"):           {new: blank[corev1.Service]},
	core("Secret"):            {new: blank[corev1.Secret]},
	core("Namespace"):         {new: blank[corev1.Namespace], cluster: true},
	core("Node"):              {new: blank[corev1.Node], cluster: true},
	slice("EndpointSlice"):    {new: blank[discoveryv1.EndpointSlice]},
}

// sameSchema maps an older API version to the newer version as which its kinds are decoded, if their CRDs serve the
// older version. Its schema may have further fields, which have no effect. It is not used for a kind that has its own
// entry in kinds.
var sameSchema = map[schema.GroupVersion]schema.GroupVersion{
	{Group: stunnerv1.GroupName, Version: "v1alpha1"}: stunnerv1.GroupVersion,
	{Group: gatewayv1.GroupName, Version: "v1beta1"}:  schema.GroupVersion(gatewayv1.GroupVersion),
}

func gateway(k string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: gatewayv1.GroupName, Version: "v1", Kind: k}
}

func alpha(k string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: gatewayv1.GroupName, Version: "v1alpha2", Kind: k}
}

func own(k string) schema.GroupVersionKind   { return stunnerv1.GroupVersion.WithKind(k) }
func core(k string) schema.GroupVersionKind  { return corev1.SchemeGroupVersion.WithKind(k) }
func slice(k string) schema.GroupVersionKind { return discoveryv1.SchemeGroupVersion.WithKind(k) }

// decodedAs returns how objects of a kind are decoded, and the API version that they have after decoding. The result is
// false if objects of this kind are not decoded.
func decodedAs(gvk schema.GroupVersionKind) (kind, schema.GroupVersionKind, bool) {
	if k, ok := kinds[gvk]; ok {
		return k, gvk, true
	}
	newer := sameSchema[gvk.GroupVersion()].WithKind(gvk.Kind)
	k, ok := kinds[newer]
	return k, newer, ok
}

// versionsOf returns the API versions in which an API server accepts a kind that is decoded. It returns no versions if
// the kind is not decoded.
func versionsOf(gk schema.GroupKind) (versions []string) {
	for gvk := range maps.Keys(kinds) {
		if gvk.GroupKind() == gk {
			versions = append(versions, gvk.GroupVersion().String())
		}
	}
	slices.Sort(versions)
	served := crd.Served(gk)
	if len(versions) == 0 || len(served) == 0 {
		return versions
	}
	versions = nil
	for _, version := range served {
		versions = append(versions, schema.GroupVersion{Group: gk.Group, Version: version}.String())
	}
	return versions
}

// pointer is the constraint that *T is a resource.Object.
type pointer[T any] interface {
	*T
	resource.Object
}

func blank[T any, P pointer[T]]() resource.Object { return P(new(T)) }
