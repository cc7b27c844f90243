package kube

import (
	"crypto/sha256"
	"encoding/hex"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// trimForCache removes the fields of an object that are not needed before it enters a cache. This limits memory: users
// can create objects of a megabyte, even with the labels of generated objects. It is a cache.TransformFunc.
func trimForCache(o any) (any, error) {
	object, ok := o.(client.Object)
	if !ok {
		return o, nil // cache.DeletedFinalStateUnknown
	}
	object.SetManagedFields(nil)
	switch o := object.(type) {
	case *metav1.PartialObjectMetadata: // a Secret, of which only the version is read
		o.Labels, o.Annotations, o.OwnerReferences, o.Finalizers = nil, nil, nil, nil
	case *gwapiv1.Gateway: // its annotations are copied to generated objects
		delete(o.Annotations, corev1.LastAppliedConfigAnnotation)
	case *corev1.Service:
		trimService(o)
	case *discoveryv1.EndpointSlice:
		trimEndpointSlice(o)
	case *corev1.Node:
		*o = corev1.Node{ObjectMeta: identityOf(o), Status: corev1.NodeStatus{Addresses: o.Status.Addresses}}
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

// trimService trims a Service. A Service that exposes a Gateway is kept, because it is compared with the wanted one. Of
// other Services, only the fields that matter for a backend are kept.
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
	// Routes must not reach the addresses of these Services, see translate.clusterAddresses.
	if o.Namespace == metav1.NamespaceSystem || o.Namespace == metav1.NamespaceDefault {
		o.Spec = corev1.ServiceSpec{
			Type: o.Spec.Type, ClusterIP: o.Spec.ClusterIP, ClusterIPs: o.Spec.ClusterIPs,
			ExternalIPs: o.Spec.ExternalIPs,
		}
		o.Status = corev1.ServiceStatus{LoadBalancer: o.Status.LoadBalancer}
		return
	}
	o.Spec = corev1.ServiceSpec{Type: o.Spec.Type, ClusterIP: o.Spec.ClusterIP}
	o.Status = corev1.ServiceStatus{}
}

// trimEndpointSlice keeps the addresses, their conditions, and the pods to which they belong.
func trimEndpointSlice(o *discoveryv1.EndpointSlice) {
	meta := identityOf(o)
	meta.Labels = map[string]string{discoveryv1.LabelServiceName: o.Labels[discoveryv1.LabelServiceName]}
	o.ObjectMeta = meta
	for i, e := range o.Endpoints {
		is := discoveryv1.Endpoint{Addresses: e.Addresses, Conditions: discoveryv1.EndpointConditions{
			Ready: e.Conditions.Ready, Terminating: e.Conditions.Terminating,
		}}
		if e.TargetRef != nil {
			is.TargetRef = &corev1.ObjectReference{Kind: e.TargetRef.Kind, Name: e.TargetRef.Name}
		}
		o.Endpoints[i] = is
	}
}

// trimGenerated trims an object of a generated kind. If a Gateway owns it, the fields that are compared with the wanted
// object are kept. Of any other object, only the identity is kept.
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

// condenseFrom is the length in bytes from which the cache contains the hash of a text instead of the text.
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

// condenseKey condenses the value of a key in a ConfigMap. The hash of a config is followed by the names of its
// listeners, which previousListeners needs.
func condenseKey(key, value string) string {
	if key != manifest.ConfigMapKey || len(value) < condenseFrom {
		return condense(value)
	}
	if strings.HasPrefix(value, condensedPrefix) {
		return value
	}
	return strings.Join(append([]string{condense(value)}, listenerNames(value)...), "\n")
}

// listenerNames returns the names of the listeners in a config, which may be condensed by condenseKey.
func listenerNames(condensed string) (names []string) {
	if strings.HasPrefix(condensed, condensedPrefix) {
		return strings.Split(condensed, "\n")[1:]
	}
	if c, _, err := config.Parse([]byte(condensed)); err == nil {
		for _, l := range c.Listeners {
			names = append(names, l.Name)
		}
	}
	return names
}

func condenseAll(texts map[string]string) {
	for key, text := range texts {
		texts[key] = condense(text)
	}
}

// asCached returns a generated object in the form that it would have in the cache, so that the two can be compared.
func asCached(o resource.Object) resource.Object {
	_, service := o.(*corev1.Service)
	if !service && !isGenerated(o) {
		return o
	}
	o = o.DeepCopyObject().(resource.Object)
	_, _ = trimForCache(o) // it returns no errors
	return o
}
