package translate

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// ObjectStatus is the translated status of an object.
type ObjectStatus struct {
	Object resource.Object
	// Status is a gwapiv1.GatewayStatus, gwapiv1.RouteStatus, gwapiv1.GatewayClassStatus or stunnerv1.Status.
	Status any
	// Conditions are all conditions in Status. The types of conditions of listeners and parents are prefixed with the
	// listener or parent: "listener NAME TYPE", "parent NAME TYPE".
	Conditions []metav1.Condition
	// Problems are those conditions in Status that report a problem.
	Problems []condition.Problem
}

// StatusesBy returns the statuses that the operator writes, first those of the given Gateways of the view, then those
// of all other objects, which a function translates. An object for which the function returns false is left out.
func StatusesBy(
	v *resource.View, gateways []Result, translate func(ObjectRef) (Outcome, bool),
) (all []ObjectStatus) {
	add := func(o resource.Object, out Outcome) {
		if out.Ours {
			all = append(all, ObjectStatus{o, out.Status, conditionsOf(out.Status), out.Problems})
		}
	}
	for _, r := range gateways {
		add(v.Gateway(r.Key), outcomeOf(r))
	}
	for _, ref := range others(v) {
		if out, ok := translate(ref); ok {
			add(ref.Object(v), out)
		}
	}
	return all
}

// others returns references to the objects of a view that are translated, except Gateways.
func others(v *resource.View) (refs []ObjectRef) {
	for _, r := range v.Routes() {
		refs = append(refs, ObjectRef{KindRoute, r.NamespacedName, r.GroupVersion})
	}
	cluster := func(kind string, names []string) {
		for _, name := range names {
			refs = append(refs, ObjectRef{Kind: kind, NamespacedName: types.NamespacedName{Name: name}})
		}
	}
	namespaced := func(kind string, keys []types.NamespacedName) {
		for _, key := range keys {
			refs = append(refs, ObjectRef{Kind: kind, NamespacedName: key})
		}
	}
	cluster(KindClass, v.Classes())
	namespaced(KindGatewayConfig, v.GatewayConfigs())
	cluster(KindDataplane, v.Dataplanes())
	namespaced(KindStaticService, v.StaticServices())
	namespaced(KindRevocation, v.Revocations())
	return refs
}

// conditionsOf returns ObjectStatus.Conditions of a status.
func conditionsOf(status any) []metav1.Condition {
	switch s := status.(type) {
	case gwapiv1.GatewayStatus:
		return prefixedByListener(s)
	case gwapiv1.RouteStatus:
		return prefixedByParent(s.Parents)
	case gwapiv1.GatewayClassStatus:
		return s.Conditions
	}
	return status.(stunnerv1.Status).Conditions
}

// Problems returns those of ObjectStatus.Conditions that report a problem.
func Problems(conditions []metav1.Condition) (problems []metav1.Condition) {
	for _, c := range conditions {
		unprefixed := c
		unprefixed.Type = c.Type[strings.LastIndexByte(c.Type, ' ')+1:]
		if condition.Wrong(unprefixed) {
			problems = append(problems, c)
		}
	}
	return problems
}

func prefixedByListener(s gwapiv1.GatewayStatus) []metav1.Condition {
	all := append([]metav1.Condition{}, s.Conditions...)
	for _, l := range s.Listeners {
		all = appendPrefixed(all, "listener "+string(l.Name), l.Conditions)
	}
	return all
}

func prefixedByParent(parents []gwapiv1.RouteParentStatus) (all []metav1.Condition) {
	for _, p := range parents {
		all = appendPrefixed(all, "parent "+string(p.ParentRef.Name), p.Conditions)
	}
	return all
}

// appendPrefixed appends conditions to all, with the prefix before their types.
func appendPrefixed(all []metav1.Condition, prefix string, conditions []metav1.Condition) []metav1.Condition {
	for _, c := range conditions {
		c.Type = prefix + " " + c.Type
		all = append(all, c)
	}
	return all
}
