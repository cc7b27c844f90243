package kube

import (
	"errors"
	"reflect"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"
	gwapiv1a2 "sigs.k8s.io/gateway-api/apis/v1alpha2"
	gwapiv1b1 "sigs.k8s.io/gateway-api/apis/v1beta1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// newScheme returns a scheme with every kind that the operator reads or writes.
func newScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	return s, errors.Join(clientgoscheme.AddToScheme(s), gwapiv1.Install(s), gwapiv1a2.Install(s), gwapiv1b1.Install(s),
		stunnerv1.AddToScheme(s))
}

// watchedKind is a kind that the operator watches in one API version.
type watchedKind struct {
	// variants are objects of this kind in the possible API versions. The first version that the API server serves is
	// watched.
	variants []client.Object
	// optional means that the operator starts even if the API server does not serve the kind. For other kinds, the
	// start waits until the API server serves them.
	optional bool
}

// watchedKinds returns the kinds whose changes the translation loop receives. Only the metadata of Secrets is watched;
// the content of a Secret is fetched when a translation needs it.
func watchedKinds() []watchedKind {
	one := func(o client.Object) watchedKind { return watchedKind{variants: []client.Object{o}} }
	secrets := &metav1.PartialObjectMetadata{}
	secrets.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	return []watchedKind{
		one(&gwapiv1.GatewayClass{}), one(&gwapiv1.Gateway{}),
		one(&stunnerv1.GatewayConfig{}), one(&stunnerv1.Dataplane{}),
		one(&stunnerv1.StaticService{}), one(&stunnerv1.UDPRoute{}),
		{variants: []client.Object{&stunnerv1.Revocation{}}, optional: true},
		{variants: []client.Object{&gwapiv1.UDPRoute{}, &gwapiv1a2.UDPRoute{}}, optional: true},
		{variants: []client.Object{&gwapiv1.ReferenceGrant{}, &gwapiv1b1.ReferenceGrant{}}, optional: true},
		one(&corev1.Service{}), one(&discoveryv1.EndpointSlice{}),
		one(&corev1.Namespace{}), one(&corev1.Node{}), one(secrets),
	}
}

// generatedKinds returns the kinds of the objects that the operator generates for Gateways. Services are not included,
// because they belong to watchedKinds, nor are the kinds of KEDA, which are optional.
func generatedKinds() []client.Object {
	return []client.Object{
		&appsv1.Deployment{}, &appsv1.DaemonSet{}, &corev1.ConfigMap{}, &corev1.Secret{},
		&networkingv1.NetworkPolicy{}, &policyv1.PodDisruptionBudget{},
	}
}

// isGenerated reports whether an object is of one of the generatedKinds.
func isGenerated(o client.Object) bool {
	return slices.ContainsFunc(generatedKinds(),
		func(like client.Object) bool { return reflect.TypeOf(o) == reflect.TypeOf(like) })
}

// kedaKinds returns the KEDA kinds that the operator generates for Gateways.
func kedaKinds() (kinds []client.Object) {
	for _, kind := range []string{manifest.KindScaledObject, manifest.KindTriggerAuthentication} {
		o := &unstructured.Unstructured{}
		o.SetGroupVersionKind(manifest.KEDA.WithKind(kind))
		kinds = append(kinds, o)
	}
	return kinds
}

// isKEDA reports whether an object is of a KEDA kind.
func isKEDA(o resource.Object) bool {
	return o.GetObjectKind().GroupVersionKind().Group == manifest.KEDA.Group
}

// isWorkload reports whether an object runs pods. A Gateway has at most one such object.
func isWorkload(o client.Object) bool {
	switch o.(type) {
	case *appsv1.Deployment, *appsv1.DaemonSet:
		return true
	}
	return false
}

func isService(o client.Object) bool {
	_, is := o.(*corev1.Service)
	return is
}

// ownerOf returns the Gateway that owns a generated object, according to the owner references. Labels are not reliable,
// because users and tools copy and remove them.
func ownerOf(o client.Object) (ref translate.ObjectRef, ok bool) {
	for _, owner := range o.GetOwnerReferences() {
		if owner.Kind == translate.KindGateway && strings.HasPrefix(owner.APIVersion, gwapiv1.GroupName+"/") {
			ref.Kind, ref.Namespace, ref.Name = translate.KindGateway, o.GetNamespace(), owner.Name
			return ref, true
		}
	}
	return ref, false
}
