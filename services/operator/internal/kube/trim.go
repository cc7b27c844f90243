package kube

import (
	"crypto/sha256"
	"encoding/hex"
	"reflect"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// trimForCache removes the fields that the operator does not need from an object before it enters a cache. This limits
// memory: users can create objects of a megabyte, even with the labels of generated objects. It is a
// cache.TransformFunc.
func trimForCache(o any) (any, error) {
	object, ok := o.(client.Object)
	if !ok {
		return o, nil // cache.DeletedFinalStateUnknown
	}
	var managed []metav1.ManagedFieldsEntry
	if _, ok := object.(*appsv1.Deployment); ok {
		managed = trimmedScaleEntry(object.GetManagedFields())
	}
	object.SetManagedFields(managed)
	switch o := object.(type) {
	case *metav1.PartialObjectMetadata: // a Secret: only its version is read
		o.Labels, o.Annotations, o.OwnerReferences, o.Finalizers = nil, nil, nil, nil
	case *gwapiv1.Gateway: // its annotations are copied to generated objects
		delete(o.Annotations, corev1.LastAppliedConfigAnnotation)
	case *corev1.Service:
		trimService(o)
	case *discoveryv1.EndpointSlice:
		trimEndpointSlice(o)
	case *corev1.Node:
		*o = corev1.Node{
			ObjectMeta: identityOf(o),
			Spec: corev1.NodeSpec{
				PodCIDR: o.Spec.PodCIDR, PodCIDRs: o.Spec.PodCIDRs,
				ProviderID: resource.ProviderScheme(o.Spec.ProviderID),
			},
			Status: corev1.NodeStatus{Addresses: o.Status.Addresses},
		}
	case *corev1.Namespace:
		meta := identityOf(o)
		meta.Labels, meta.DeletionTimestamp = o.Labels, o.DeletionTimestamp
		*o = corev1.Namespace{ObjectMeta: meta}
	default:
		if isGenerated(object) {
			trimGenerated(object)
		} else {
			object.SetAnnotations(nil)
		}
	}
	return o, nil
}

// identityOf returns only the metadata that identifies an object and its version.
func identityOf(o metav1.Object) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(),
		ResourceVersion: o.GetResourceVersion(), CreationTimestamp: o.GetCreationTimestamp(),
	}
}

// trimService removes unneeded fields of a Service. A Service that a Gateway owns keeps all fields, because it is
// compared with the wanted Service; long annotations are replaced by hashes. A Service that only has the annotation
// RelatedGatewayName keeps its spec and status. Of other Services, only the fields that matter for a backend are kept.
func trimService(o *corev1.Service) {
	if _, ours := ownerOf(o); ours {
		condenseAll(o.Annotations)
		return
	}
	gateway, claims := o.Annotations[resource.RelatedGatewayName]
	if o.Annotations = nil; claims && len(gateway) < condenseFrom {
		o.Annotations = map[string]string{resource.RelatedGatewayName: gateway}
		return
	}
	// Services in these namespaces keep their addresses, because routes must not reach them, see
	// translate.clusterAddresses.
	if o.Namespace == metav1.NamespaceSystem || o.Namespace == metav1.NamespaceDefault {
		o.Spec = corev1.ServiceSpec{
			Type: o.Spec.Type, ClusterIP: o.Spec.ClusterIP, ClusterIPs: o.Spec.ClusterIPs,
			ExternalIPs: o.Spec.ExternalIPs,
		}
		o.Status = corev1.ServiceStatus{LoadBalancer: o.Status.LoadBalancer}
		return
	}
	var both []string // of most Services, clusterIPs repeats clusterIP
	if len(o.Spec.ClusterIPs) > 1 {
		both = o.Spec.ClusterIPs
	}
	o.Spec = corev1.ServiceSpec{Type: o.Spec.Type, ClusterIP: o.Spec.ClusterIP, ClusterIPs: both}
	o.Status = corev1.ServiceStatus{}
}

// trimEndpointSlice removes unneeded fields of an EndpointSlice. It keeps the label with the name of the Service, the
// ports, and of each endpoint the addresses, the conditions ready and terminating, and the name of the pod. A cluster
// may have hundreds of thousands of endpoints, so the endpoints of a slice share their memory.
func trimEndpointSlice(o *discoveryv1.EndpointSlice) {
	meta := identityOf(o)
	meta.Labels = map[string]string{discoveryv1.LabelServiceName: o.Labels[discoveryv1.LabelServiceName]}
	o.ObjectMeta = meta
	var texts strings.Builder
	count, targets := 0, 0
	for _, e := range o.Endpoints {
		count += len(e.Addresses)
		for _, a := range e.Addresses {
			texts.WriteString(a)
		}
		if e.TargetRef != nil {
			targets++
			texts.WriteString(e.TargetRef.Name)
		}
	}
	rest := texts.String()
	next := func(length int) (text string) {
		text, rest = rest[:length], rest[length:]
		return text
	}
	addresses, refs := make([]string, 0, count), make([]corev1.ObjectReference, 0, targets)
	endpoints := make([]discoveryv1.Endpoint, len(o.Endpoints))
	for i, e := range o.Endpoints {
		endpoints[i].Conditions = discoveryv1.EndpointConditions{
			Ready: shared(e.Conditions.Ready), Terminating: shared(e.Conditions.Terminating),
		}
		first := len(addresses)
		for _, a := range e.Addresses {
			addresses = append(addresses, next(len(a)))
		}
		endpoints[i].Addresses = addresses[first:len(addresses):len(addresses)]
		if e.TargetRef != nil {
			refs = append(refs, corev1.ObjectReference{Kind: sharedKind(e.TargetRef.Kind), Name: next(len(e.TargetRef.Name))})
			endpoints[i].TargetRef = &refs[len(refs)-1]
		}
	}
	o.Endpoints = endpoints
}

var sharedTrue, sharedFalse = new(true), new(false)

// shared returns an equal pointer that all objects share.
func shared(b *bool) *bool {
	switch {
	case b == nil:
		return nil
	case *b:
		return sharedTrue
	}
	return sharedFalse
}

// sharedKind returns an equal kind that all endpoints of pods share.
func sharedKind(kind string) string {
	const pod = "Pod"
	if kind == pod {
		return pod
	}
	return kind
}

// trimGenerated removes unneeded fields of an object whose kind is generated by the operator. If a Gateway owns the
// object, the fields that are compared with the wanted object are kept, long texts as hashes. Of any other object, only
// the identity and the operator's label are kept.
func trimGenerated(o client.Object) {
	if _, ours := ownerOf(o); !ours {
		meta := identityOf(o)
		meta.Labels = map[string]string{manifest.OwnedByLabel: o.GetLabels()[manifest.OwnedByLabel]}
		value := reflect.ValueOf(o).Elem()
		value.SetZero()
		value.FieldByName("ObjectMeta").Set(reflect.ValueOf(meta))
		return
	}
	annotations := o.GetAnnotations()
	condenseAll(annotations)
	o.SetAnnotations(annotations)
	switch o := o.(type) {
	case *corev1.ConfigMap:
		for key, value := range o.Data {
			if !manifest.ConfigMapKeys[key] {
				delete(o.Data, key)
				continue
			}
			o.Data[key] = condenseKey(key, value)
		}
		o.BinaryData = nil
	case *corev1.Secret:
		for key, value := range o.Data {
			if key != manifest.StandbyDataKey {
				delete(o.Data, key)
				continue
			}
			o.Data[key] = []byte(condense(string(value)))
		}
	}
}

// trimKEDA removes the fields that the operator does not need from an object of a KEDA kind. Of an object that no
// Gateway owns, only the identity and the operator's label are kept. It is a cache.TransformFunc.
func trimKEDA(o any) (any, error) {
	object, ok := o.(*unstructured.Unstructured)
	if !ok {
		return o, nil // cache.DeletedFinalStateUnknown
	}
	if _, ours := ownerOf(object); ours {
		object.SetManagedFields(nil)
		delete(object.Object, "status")
		return object, nil
	}
	trimmed := &unstructured.Unstructured{}
	trimmed.SetGroupVersionKind(object.GroupVersionKind())
	meta := identityOf(object)
	trimmed.SetNamespace(meta.Namespace)
	trimmed.SetName(meta.Name)
	trimmed.SetUID(meta.UID)
	trimmed.SetResourceVersion(meta.ResourceVersion)
	trimmed.SetLabels(map[string]string{manifest.OwnedByLabel: object.GetLabels()[manifest.OwnedByLabel]})
	return trimmed, nil
}

// condenseFrom is the length in bytes from which the cache contains the hash of a text value instead of the value.
const condenseFrom = 256

// condensedPrefix marks a hash that replaces a text.
const condensedPrefix = "sha256:"

// condense returns the text, or its hash if the text is long.
func condense(text string) string {
	if len(text) < condenseFrom {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	return condensedPrefix + hex.EncodeToString(sum[:])
}

// condenseKey shortens the value of a key in a ConfigMap for the cache. A long value is replaced by its hash. The hash
// of a config is followed by what shownConfig needs.
func condenseKey(key, value string) string {
	if key != manifest.ConfigMapKey || len(value) < condenseFrom {
		return condense(value)
	}
	if strings.HasPrefix(value, condensedPrefix) {
		return value
	}
	return condense(value) + "\n" + string(shownConfig(value).Canonical())
}

// shownConfig returns the config in a ConfigMap, which may have been shortened by condenseKey, with nothing but the
// endpoints of the process and the names and ports of listeners.
func shownConfig(value string) (shown config.Config) {
	if condensed, rest, _ := strings.Cut(value, "\n"); strings.HasPrefix(condensed, condensedPrefix) {
		value = rest
	}
	c, _, err := config.Parse([]byte(value))
	if err != nil {
		return shown
	}
	shown.Admin.HealthcheckEndpoint, shown.Admin.MetricsEndpoint = c.Admin.HealthcheckEndpoint, c.Admin.MetricsEndpoint
	for _, l := range c.Listeners {
		shown.Listeners = append(shown.Listeners, config.Listener{Name: l.Name, Protocol: l.Protocol, Port: l.Port})
	}
	return shown
}

func condenseAll(texts map[string]string) {
	for key, text := range texts {
		texts[key] = condense(text)
	}
}

// asCached returns a generated object with the fields that it would have in the cache, so that it can be compared with
// the object in the cache.
func asCached(o resource.Object) resource.Object {
	_, service := o.(*corev1.Service)
	if !service && !isGenerated(o) {
		return o
	}
	o = o.DeepCopyObject().(resource.Object)
	_, _ = trimForCache(o) // trimForCache returns no errors
	return o
}
