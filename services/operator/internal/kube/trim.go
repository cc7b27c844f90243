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

// trimForCache removes the fields of an object that are not read, before it enters a cache. Users may create objects of
// a megabyte with the labels of generated objects. It is a cache.TransformFunc.
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

// identityOf returns the metadata that identifies an object and its version.
func identityOf(o metav1.Object) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(),
		ResourceVersion: o.GetResourceVersion(), CreationTimestamp: o.GetCreationTimestamp(),
	}
}

// trimService keeps the fields of a backend, unless the Service exposes a Gateway.
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
	// routes must not reach their addresses
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

// trimEndpointSlice keeps the addresses, and the pods behind them.
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

// trimGenerated keeps the compared fields of an object that a Gateway owns, and the identity of any other object.
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

// condenseFrom is the length in bytes from which a text is replaced by its hash.
const condenseFrom = 256

// condensedPrefix is the prefix of a hash that replaces a text.
const condensedPrefix = "sha256:"

// condense returns a text, or its hash if it is long.
func condense(text string) string {
	if len(text) < condenseFrom {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	return condensedPrefix + hex.EncodeToString(sum[:])
}

// condenseKey condenses an entry of a ConfigMap. The hash of a config is followed by the names of its listeners.
func condenseKey(key, value string) string {
	if key != manifest.ConfigMapKey || len(value) < condenseFrom {
		return condense(value)
	}
	if strings.HasPrefix(value, condensedPrefix) {
		return value
	}
	condensed := []string{condense(value)}
	if c, _, err := config.Parse([]byte(value)); err == nil {
		for _, l := range c.Listeners {
			condensed = append(condensed, l.Name)
		}
	}
	return strings.Join(condensed, "\n")
}

// listenerNames returns the names of the listeners in a config, which may be condensed.
func listenerNames(condensed string) (names []string) {
	if !strings.HasPrefix(condensed, condensedPrefix) {
		c, _, err := config.Parse([]byte(condensed))
		if err != nil {
			return nil
		}
		for _, l := range c.Listeners {
			names = append(names, l.Name)
		}
		return names
	}
	return strings.Split(condensed, "\n")[1:]
}

func condenseAll(texts map[string]string) {
	for key, text := range texts {
		texts[key] = condense(text)
	}
}

// asCached returns a generated object as the cache would hold it.
func asCached(o resource.Object) resource.Object {
	_, service := o.(*corev1.Service)
	if !service && !isGenerated(o) {
		return o
	}
	o = o.DeepCopyObject().(resource.Object)
	_, _ = trimForCache(o) // it returns no errors
	return o
}
