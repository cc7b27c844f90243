// Package manifest builds the Kubernetes objects of a Gateway. It is pure. It sets only the fields that the operator
// owns: with server-side apply, other fields remain with other field managers.
package manifest

import (
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// Labels of generated objects.
const (
	AppLabel     = "app"
	AppValue     = "stunner"
	OwnedByLabel = "stunner.l7mp.io/owned-by"
)

// Owner is the Gateway that owns the objects, with the labels and annotations of each of them.
type Owner struct {
	Namespace   string
	Name        string
	UID         types.UID
	Labels      map[string]string
	Annotations map[string]string
}

// OwnerOf returns the owner for a Gateway. Labels and annotations are those of spec.infrastructure, of the metadata of
// the Gateway, and of defaults, in this order of precedence.
func OwnerOf(gw *gwapiv1.Gateway, defaults map[string]string) Owner {
	o := Owner{
		Namespace:   gw.Namespace,
		Name:        gw.Name,
		UID:         gw.UID,
		Labels:      copied(gw.Labels),
		Annotations: copied(defaults),
	}
	maps.Copy(o.Annotations, copied(gw.Annotations))
	if infra := gw.Spec.Infrastructure; infra != nil {
		maps.Copy(o.Labels, copied(infra.Labels))
		maps.Copy(o.Annotations, copied(infra.Annotations))
	}
	return o
}

// bookkeeping are the labels and annotations with which deployment tools mark their objects. They are not copied: a
// tool would delete an object with its mark that is not in its source.
var bookkeeping = map[string]bool{
	"app.kubernetes.io/managed-by":                     true,
	"applyset.k8s.io/part-of":                          true,
	"applyset.kubernetes.io/part-of":                   true,
	"argocd.argoproj.io/instance":                      true,
	"argocd.argoproj.io/tracking-id":                   true,
	"kubectl.kubernetes.io/last-applied-configuration": true,
	"kustomize.toolkit.fluxcd.io/name":                 true,
	"kustomize.toolkit.fluxcd.io/namespace":            true,
}

// controls are prefixes of labels and annotations that change how Kubernetes handles an object. They are not copied.
// For example, kube-proxy ignores a Service with label service.kubernetes.io/service-proxy-name.
var controls = []string{
	"kubernetes.io/", "deployment.kubernetes.io/", "endpoints.kubernetes.io/", "endpointslice.kubernetes.io/",
	"controller.kubernetes.io/", "control-plane.alpha.kubernetes.io/", "pod-security.kubernetes.io/",
	"service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless",
}

// copied returns the labels or annotations that may be copied to another object.
func copied[K, V ~string](from map[K]V) map[string]string {
	to := make(map[string]string, len(from))
	for key, value := range from {
		steers := slices.ContainsFunc(controls, func(c string) bool { return strings.HasPrefix(string(key), c) })
		if !bookkeeping[string(key)] && !steers {
			to[string(key)] = string(value)
		}
	}
	return to
}

// meta returns the metadata of an object. The labels and annotations of the operator override those of the owner.
func (o Owner) meta(name string) metav1.ObjectMeta {
	labels, annotations := maps.Clone(o.Labels), maps.Clone(o.Annotations)
	maps.Copy(labels, map[string]string{
		OwnedByLabel:                     AppValue,
		resource.RelatedGatewayName:      o.Name,
		resource.RelatedGatewayNamespace: o.Namespace,
		gwapiv1.GatewayNameLabelKey:      o.Name,
	})
	annotations[resource.RelatedGatewayName] = o.Namespace + "/" + o.Name
	return metav1.ObjectMeta{
		Name:        name,
		Namespace:   o.Namespace,
		Labels:      labels,
		Annotations: annotations,
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: gwapiv1.GroupVersion.String(),
			Kind:       resource.KindGateway,
			Name:       o.Name,
			UID:        o.UID,
			Controller: new(true),
		}},
	}
}

// podLabels returns the labels that Services and workloads select the pods of a Gateway by.
func (o Owner) podLabels() map[string]string {
	return map[string]string{
		AppLabel:                         AppValue,
		resource.RelatedGatewayName:      o.Name,
		resource.RelatedGatewayNamespace: o.Namespace,
	}
}
