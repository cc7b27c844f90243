package translate

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	// Conditions are all conditions in Status. The types of those of listeners and parents are prefixed with the
	// listener or parent: "listener NAME TYPE", "parent NAME TYPE".
	Conditions []metav1.Condition
	// Problems are those conditions in Status that report a problem.
	Problems []condition.Problem
}

// Statuses returns the statuses that the operator writes, first those of the given Gateways of the view, then those of
// all other objects.
func Statuses(v *resource.View, gateways []Result, opt Options) (all []ObjectStatus) {
	add := func(o resource.Object, ours bool, status any, conditions []metav1.Condition, problems []condition.Problem) {
		if ours {
			all = append(all, ObjectStatus{o, status, conditions, problems})
		}
	}
	for _, r := range gateways {
		add(v.Gateway(r.Key), r.Decision.Ours(), r.Status, prefixedByListener(r.Status), r.Problems)
	}
	for _, ref := range v.Routes() {
		r := Route(v, ref, opt)
		add(v.Route(ref).Origin, r.Ours, gwapiv1.RouteStatus{Parents: r.Parents}, prefixedByParent(r.Parents), r.Problems)
	}
	for _, name := range v.Classes() {
		r := Class(v, name, opt)
		add(v.Class(name), r.Ours, r.Status, r.Status.Conditions, r.Problems)
	}
	own := func(o resource.Object, r ConditionsResult) {
		add(o, r.Ours, stunnerv1.Status{Conditions: r.Conditions}, r.Conditions, r.Problems)
	}
	for _, key := range v.GatewayConfigs() {
		own(v.GatewayConfig(key), GatewayConfig(v, key, opt))
	}
	for _, name := range v.Dataplanes() {
		own(v.Dataplane(name), Dataplane(v, name, opt))
	}
	for _, key := range v.StaticServices() {
		own(v.StaticService(key), StaticService(v, key, opt))
	}
	for _, key := range v.Revocations() {
		own(v.Revocation(key), Revocation(v, key, opt))
	}
	return all
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
