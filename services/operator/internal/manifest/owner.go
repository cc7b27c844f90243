// Package manifest builds the generated Kubernetes objects of a Gateway. It does no I/O. It sets only the fields that
// the operator owns: with server-side apply, other field managers keep the other fields.
//
// # Files
//
// One file a kind, and:
//
//	pod.go                   pods: probes, grace period, volumes (the journal's too), which pods hand over
//	workload.go              Deployment or DaemonSet, its update strategy
//	owner.go                 labels and annotations of all objects, labels of pods
//	patch.go                 spec.podTemplatePatch
//	nodes.go                 whether two Dataplanes may have pods on one node
//	discovery.go standby.go  config of a pod: from the operator, from a Secret
//	scaledobject.go          all kinds of KEDA
//	offload.go               capabilities of in-kernel forwarding
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

// Owner is the Gateway that owns the generated objects, with the labels and annotations that each generated object
// gets.
type Owner struct {
	Namespace   string
	Name        string
	UID         types.UID
	Labels      map[string]string
	Annotations map[string]string
}

// OwnerOf returns the Owner for a Gateway. Labels and annotations are taken from spec.infrastructure, from the metadata
// of the Gateway, and from defaults (annotations only), in this order of precedence.
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

// toolMarks are the labels and annotations with which deployment tools mark the objects that they manage. They are not
// copied to generated objects: a tool deletes an object that has its mark but is not in its source.
var toolMarks = map[string]bool{
	"app.kubernetes.io/managed-by":                     true,
	"applyset.k8s.io/part-of":                          true,
	"applyset.kubernetes.io/part-of":                   true,
	"argocd.argoproj.io/instance":                      true,
	"argocd.argoproj.io/tracking-id":                   true,
	"kubectl.kubernetes.io/last-applied-configuration": true,
	"kustomize.toolkit.fluxcd.io/name":                 true,
	"kustomize.toolkit.fluxcd.io/namespace":            true,
}

// reservedPrefixes are the prefixes of labels and annotations that change how Kubernetes handles an object. Such labels
// and annotations are not copied to generated objects. For example, kube-proxy ignores a Service with label
// service.kubernetes.io/service-proxy-name.
var reservedPrefixes = []string{
	"kubernetes.io/", "deployment.kubernetes.io/", "endpoints.kubernetes.io/", "endpointslice.kubernetes.io/",
	"controller.kubernetes.io/", "control-plane.alpha.kubernetes.io/", "pod-security.kubernetes.io/",
	"service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless",
}

// copied returns those labels or annotations of a Gateway that may be copied to generated objects.
func copied[K, V ~string](from map[K]V) map[string]string {
	to := make(map[string]string, len(from))
	for key, value := range from {
		skip := slices.ContainsFunc(reservedPrefixes, func(c string) bool { return strings.HasPrefix(string(key), c) })
		if !toolMarks[string(key)] && !skip {
			to[string(key)] = string(value)
		}
	}
	return to
}

// meta returns the metadata of a generated object. The operator's own labels and annotations take precedence over those
// of the Owner.
func (o Owner) meta(name string) metav1.ObjectMeta {
	labels, annotations := maps.Clone(o.Labels), maps.Clone(o.Annotations)
	maps.Copy(labels, map[string]string{
		OwnedByLabel:                     AppValue,
		resource.RelatedGatewayName:      o.Name,
		resource.RelatedGatewayNamespace: o.Namespace,
		gwapiv1.GatewayNameLabelKey:      o.Name,
	})
	maps.Copy(annotations, o.relation())
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

// relation returns the annotation by which generated objects and pods refer to their Gateway.
func (o Owner) relation() map[string]string {
	return map[string]string{resource.RelatedGatewayName: o.Namespace + "/" + o.Name}
}

// podLabels returns the labels by which Services and workloads select the pods of a Gateway.
func (o Owner) podLabels() map[string]string {
	return map[string]string{
		AppLabel:                         AppValue,
		resource.RelatedGatewayName:      o.Name,
		resource.RelatedGatewayNamespace: o.Namespace,
	}
}
