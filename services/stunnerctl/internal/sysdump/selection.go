package sysdump

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/connect"
)

// Groups and labels of the product.
const (
	ownAPI     = "stunner.l7mp.io"
	gatewayAPI = "gateway.networking.k8s.io"
	leaseName  = "stunner-operator"
	partOf     = "app.kubernetes.io/part-of"
)

type object = unstructured.Unstructured

// selection selects, from all objects of a cluster, the objects of STUNner and the objects that a Gateway refers to
// directly or indirectly.
type selection struct {
	all  []object
	kept []object
	// names are the kinds, namespaces and names of kept.
	names map[[3]string]bool
	// controls reports whether an operator of STUNner has a controller name.
	controls func(controller string) bool
}

// selected returns the objects for the archive.
func selected(all []object, controls func(string) bool) []object {
	s := &selection{all: all, names: map[[3]string]bool{}, controls: controls}
	chosen := make([]bool, len(all))
	for _, rule := range selectionRules {
		for i, o := range all {
			if !chosen[i] && (rule.kind == "" || rule.kind == o.GetKind()) && rule.keep(s, o) {
				chosen[i], s.kept = true, append(s.kept, o)
				s.names[[3]string{o.GetKind(), o.GetNamespace(), o.GetName()}] = true
			}
		}
	}
	return s.kept
}

// selectionRules are applied in order, so that a rule can use the selection of the rules before it. A rule without a
// kind is for all kinds.
var selectionRules = []struct {
	kind string
	keep func(*selection, object) bool
}{
	{"", (*selection).own},
	{"Pod", (*selection).pod},
	{"GatewayClass", func(s *selection, o object) bool { return s.controls(text(o, "spec", "controllerName")) }},
	{"Gateway", (*selection).gateway},
	{"UDPRoute", (*selection).route},
	{"ReferenceGrant", (*selection).grant},
	{"Service", (*selection).backend},
	{"EndpointSlice", func(s *selection, o object) bool {
		return s.keeps("Service", o.GetNamespace(), o.GetLabels()[discoveryv1.LabelServiceName])
	}},
	{"NetworkPolicy", (*selection).policy},
	{"Node", (*selection).node},
	{"Event", (*selection).event},
	{"Namespace", func(s *selection, o object) bool {
		return slices.ContainsFunc(s.kept, func(k object) bool { return k.GetNamespace() == o.GetName() })
	}},
}

func (s *selection) keeps(kind, namespace, name string) bool {
	return s.names[[3]string{kind, namespace, name}]
}

// own selects the kinds of the product, its CRDs and the CRDs of the Gateway API, and the objects with its labels.
func (s *selection) own(o object) bool {
	switch o.GetKind() {
	case "CustomResourceDefinition":
		group := text(o, "spec", "group")
		return group == ownAPI || group == gatewayAPI
	case "Lease":
		return o.GetName() == leaseName
	}
	if o.GroupVersionKind().Group == ownAPI {
		return true
	}
	template, _, _ := unstructured.NestedStringMap(o.Object, "spec", "template", "metadata", "labels")
	return hasProductLabel(o.GetLabels()) || hasProductLabel(template)
}

// hasProductLabel reports whether one of the labels marks an object of STUNner.
func hasProductLabel(labels map[string]string) bool {
	for name, value := range labels {
		switch {
		case strings.HasPrefix(name, ownAPI+"/"), name == partOf && value == "stunner",
			name == "app" && slices.Contains([]string{"stunner", "stunner-operator", "stunner-auth"}, value):
			return true
		}
	}
	return false
}

// pod selects the pods of the Deployments of the chart: with fullnameOverride their label app has another value.
func (s *selection) pod(o object) bool {
	return slices.ContainsFunc(s.kept, func(d object) bool {
		selector, _, _ := unstructured.NestedStringMap(d.Object, "spec", "selector", "matchLabels")
		return d.GetKind() == "Deployment" && d.GetLabels()[partOf] == "stunner" && d.GetNamespace() == o.GetNamespace() && len(selector) > 0 &&
			labels.SelectorFromSet(selector).Matches(labels.Set(o.GetLabels()))
	})
}

// gateway selects the Gateways of selected classes, and the Gateways whose class does not exist.
func (s *selection) gateway(o object) bool {
	class := text(o, "spec", "gatewayClassName")
	return s.keeps("GatewayClass", "", class) || !slices.ContainsFunc(s.all, func(c object) bool {
		return c.GetKind() == "GatewayClass" && c.GetName() == class
	})
}

// route selects the routes of the Gateway API with a parentRef to a selected Gateway.
func (s *selection) route(o object) bool {
	return slices.ContainsFunc(references(o.Object, "spec", "parentRefs"), func(ref map[string]any) bool {
		name, _ := ref["name"].(string)
		return s.keeps("Gateway", namespaceOf(ref, o), name)
	})
}

// grant selects the grants for routes and Gateways.
func (s *selection) grant(o object) bool {
	return slices.ContainsFunc(references(o.Object, "spec", "from"), func(from map[string]any) bool {
		return from["kind"] == "UDPRoute" || from["kind"] == "Gateway" || from["group"] == ownAPI
	})
}

// backend selects the Services that the selected routes name.
func (s *selection) backend(o object) bool {
	return slices.ContainsFunc(s.kept, func(route object) bool {
		return route.GetKind() == "UDPRoute" &&
			slices.ContainsFunc(references(route.Object, "spec", "rules"), func(rule map[string]any) bool {
				return slices.ContainsFunc(references(rule, "backendRefs"), func(ref map[string]any) bool {
					return ref["name"] == o.GetName() && namespaceOf(ref, route) == o.GetNamespace()
				})
			})
	})
}

// policy selects the NetworkPolicies that apply to a selected pod.
func (s *selection) policy(o object) bool {
	selector := metav1.LabelSelector{}
	fields, _, _ := unstructured.NestedMap(o.Object, "spec", "podSelector")
	if runtime.DefaultUnstructuredConverter.FromUnstructured(fields, &selector) != nil {
		return false
	}
	matches, err := metav1.LabelSelectorAsSelector(&selector)
	return err == nil && slices.ContainsFunc(s.kept, func(pod object) bool {
		return pod.GetKind() == "Pod" && pod.GetNamespace() == o.GetNamespace() && matches.Matches(labels.Set(pod.GetLabels()))
	})
}

// node selects the nodes of the selected pods.
func (s *selection) node(o object) bool {
	return slices.ContainsFunc(s.kept, func(pod object) bool {
		return pod.GetKind() == "Pod" && text(pod, "spec", "nodeName") == o.GetName()
	})
}

// event selects the events about selected objects, and about the ReplicaSets of selected Deployments.
func (s *selection) event(o object) bool {
	kind, name := text(o, "involvedObject", "kind"), text(o, "involvedObject", "name")
	if at := strings.LastIndexByte(name, '-'); kind == "ReplicaSet" && at > 0 {
		kind, name = "Deployment", name[:at]
	}
	return s.keeps(kind, text(o, "involvedObject", "namespace"), name)
}

// text returns a field, or "".
func text(o object, fields ...string) string {
	value, _, _ := unstructured.NestedString(o.Object, fields...)
	return value
}

// references returns the objects in a list.
func references(from map[string]any, fields ...string) (all []map[string]any) {
	list, _, _ := unstructured.NestedSlice(from, fields...)
	for _, element := range list {
		if fields, ok := element.(map[string]any); ok {
			all = append(all, fields)
		}
	}
	return all
}

// namespaceOf returns the namespace of a reference. The default is the namespace of its object.
func namespaceOf(reference map[string]any, of object) string {
	namespace, _ := reference["namespace"].(string)
	return cmp.Or(namespace, of.GetNamespace(), corev1.NamespaceDefault)
}

// inFolder reports whether all objects of a source belong to STUNner.
func inFolder(s connect.Source) bool {
	_, ok := s.(*connect.Folder)
	return ok
}
