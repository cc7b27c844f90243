package decode

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	gatewayv1alpha2 "sigs.k8s.io/gateway-api/apis/v1alpha2"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

const defaultNamespace = "default"

// kind says how the documents of one kind are read.
type kind struct {
	new     func() resource.Object
	cluster bool                                  // it has no namespace
	texts   bool                                  // it takes plain texts under stringData
	fill    func(resource.Object)                 // defaults of the API
	check   func(resource.Object) field.ErrorList // what the API server would refuse
}

// kinds is every kind that is read; others are passed through.
var kinds = map[schema.GroupVersionKind]kind{
	gateway("GatewayClass"):   {new: blank[gatewayv1.GatewayClass], cluster: true, check: on(checkClass)},
	gateway("Gateway"):        {new: blank[gatewayv1.Gateway], fill: filling(fillGateway), check: on(checkGateway)},
	gateway("UDPRoute"):       {new: blank[gatewayv1.UDPRoute], fill: filling(fillUDPRoute), check: on(checkUDPRoute)},
	gateway("ReferenceGrant"): {new: blank[gatewayv1.ReferenceGrant], check: on(checkGrant)},
	alpha("UDPRoute"):         {new: blank[gatewayv1alpha2.UDPRoute], fill: filling(fillAlphaUDPRoute), check: on(checkAlphaUDPRoute)},
	own("UDPRoute"):           {new: blank[stunnerv1.UDPRoute], fill: filling(fillOwnUDPRoute), check: on(checkOwnUDPRoute)},
	own("GatewayConfig"):      {new: blank[stunnerv1.GatewayConfig], fill: filling(fillGatewayConfig), check: on(checkGatewayConfig)},
	own("Dataplane"):          {new: blank[stunnerv1.Dataplane], cluster: true, fill: filling(fillDataplane), check: on(checkDataplane)},
	own("StaticService"):      {new: blank[stunnerv1.StaticService], check: on(checkStaticService)},
	core("Service"):           {new: blank[corev1.Service], fill: filling(fillService), check: on(checkService)},
	core("Secret"):            {new: blank[corev1.Secret], texts: true, fill: filling(fillSecret)},
	core("Namespace"):         {new: blank[corev1.Namespace], cluster: true},
	core("Node"):              {new: blank[corev1.Node], cluster: true},
	slice("EndpointSlice"):    {new: blank[discoveryv1.EndpointSlice], fill: filling(fillEndpointSlice), check: on(checkEndpointSlice)},
}

// sameSchema names versions whose kinds read as those of a newer one, unless they have a row of their own.
var sameSchema = map[schema.GroupVersion]schema.GroupVersion{
	{Group: stunnerv1.GroupName, Version: retiredVersion}: stunnerv1.GroupVersion,
	{Group: gatewayv1.GroupName, Version: "v1beta1"}:      schema.GroupVersion(gatewayv1.GroupVersion),
	{Group: gatewayv1.GroupName, Version: "v1alpha2"}:     schema.GroupVersion(gatewayv1.GroupVersion),
}

// retired are the fields that a GatewayConfig had in its first version and that mean nothing any more.
var retired = []string{"spec.stunnerConfig", "spec.metricsEndpoint", "spec.healthCheckEndpoint", "spec.minPort", "spec.maxPort"}

const retiredVersion = "v1alpha1"

func gateway(k string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: gatewayv1.GroupName, Version: "v1", Kind: k}
}

func alpha(k string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: gatewayv1.GroupName, Version: "v1alpha2", Kind: k}
}

func own(k string) schema.GroupVersionKind   { return stunnerv1.GroupVersion.WithKind(k) }
func core(k string) schema.GroupVersionKind  { return corev1.SchemeGroupVersion.WithKind(k) }
func slice(k string) schema.GroupVersionKind { return discoveryv1.SchemeGroupVersion.WithKind(k) }

// readAs returns how the objects of gvk are read, and the version that they get.
func readAs(gvk schema.GroupVersionKind) (kind, schema.GroupVersionKind, bool) {
	if k, ok := kinds[gvk]; ok {
		return k, gvk, true
	}
	newer := sameSchema[gvk.GroupVersion()].WithKind(gvk.Kind)
	k, ok := kinds[newer]
	return k, newer, ok
}

// versionsOf returns the versions in which a kind is read, none for a kind that is not.
func versionsOf(gk schema.GroupKind) (versions []string) {
	for gvk := range maps.Keys(kinds) {
		if gvk.GroupKind() == gk {
			versions = append(versions, gvk.GroupVersion().String())
		}
	}
	slices.Sort(versions)
	return versions
}

// pointer is *T for a resource.Object.
type pointer[T any] interface {
	*T
	resource.Object
}

func blank[T any, P pointer[T]]() resource.Object { return P(new(T)) }

// filling and on let a row hold a function of its own type.
func filling[P resource.Object](fill func(P)) func(resource.Object) {
	return func(o resource.Object) { fill(o.(P)) }
}

func on[P resource.Object](check func(P, *field.Path) field.ErrorList) func(resource.Object) field.ErrorList {
	return func(o resource.Object) field.ErrorList { return check(o.(P), field.NewPath("spec")) }
}
