// Package manifest builds the Kubernetes objects that a Gateway needs. It is pure, and it sets only the fields that are the operator's:
// what is left out belongs to whoever else writes to the object.
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

// Names and values that tools select generated objects by.
const (
	AppLabel     = "app"
	AppValue     = "stunner"
	OwnedByLabel = "stunner.l7mp.io/owned-by"
)

// Owner is the Gateway that objects belong to, with what people want to stand on each of them.
type Owner struct {
	Namespace   string
	Name        string
	UID         types.UID
	Labels      map[string]string
	Annotations map[string]string
}

// OwnerOf returns the owner that a Gateway is. Its own labels and annotations go onto its objects; defaults are annotations that give way to
// them, and spec.infrastructure, which exists for nothing else, has the last word.
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

// bookkeeping are the labels and annotations with which other tools remember what they made. On a copy they would make those tools believe that
// the copy is theirs, and delete it.
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

// controls are the domains, and the single names, by which Kubernetes itself steers what becomes of an object. A Service with such a label is left out by
// kube-proxy; a Deployment with such an annotation has another history.
var controls = []string{
	"kubernetes.io/", "deployment.kubernetes.io/", "endpoints.kubernetes.io/", "endpointslice.kubernetes.io/", "controller.kubernetes.io/",
	"control-plane.alpha.kubernetes.io/", "pod-security.kubernetes.io/", "service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless",
}

// copied are the labels or annotations that may stand on another object.
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

// meta is the metadata of an object called name. Labels and annotations that tools rely on cannot be overridden.
func (o Owner) meta(name string) metav1.ObjectMeta {
	labels, annotations := maps.Clone(o.Labels), maps.Clone(o.Annotations)
	maps.Copy(labels, map[string]string{
		OwnedByLabel:                     AppValue,
		resource.RelatedGatewayName:      o.Name,
		resource.RelatedGatewayNamespace: o.Namespace,
		gwapiv1.GatewayNameLabelKey:      o.Name, // by which tools of the Gateway API find what was made for a Gateway
	})
	annotations[resource.RelatedGatewayName] = o.Namespace + "/" + o.Name
	return metav1.ObjectMeta{
		Name:        name,
		Namespace:   o.Namespace,
		Labels:      labels,
		Annotations: annotations,
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: gwapiv1.GroupVersion.String(),
			Kind:       "Gateway",
			Name:       o.Name,
			UID:        o.UID,
			Controller: new(true),
		}},
	}
}

// podLabels are the labels by which Services and workloads find the pods of a Gateway.
func (o Owner) podLabels() map[string]string {
	return map[string]string{
		AppLabel:                         AppValue,
		resource.RelatedGatewayName:      o.Name,
		resource.RelatedGatewayNamespace: o.Namespace,
	}
}
