package resource

import (
	"maps"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// OverBudget lists the routes that the Gateway with its name does not serve because they exceed a budget. The translation of the Gateway makes it, and the
// translation of a route reads it: that of a route alone cannot tell without counting all other routes. It is an object so that it reaches a View like
// any other, and no API server knows it.
type OverBudget struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	// Routes are the routes by NAMESPACE/NAME, each with the condition that it gets.
	Routes map[string]BudgetRefusal
}

// BudgetRefusal is the condition of a route that waits.
type BudgetRefusal struct {
	Reason, Message string
}

// DeepCopyObject is part of runtime.Object.
func (h *OverBudget) DeepCopyObject() runtime.Object {
	return &OverBudget{TypeMeta: h.TypeMeta, ObjectMeta: *h.ObjectMeta.DeepCopy(), Routes: maps.Clone(h.Routes)}
}

// OverBudget says why a Gateway does not serve a route; the zero value says that it does.
func (v *View) OverBudget(gateway, route types.NamespacedName) BudgetRefusal {
	v.tell(anOverBudget, route)
	if h := v.overBudget[gateway]; h != nil {
		return h.Routes[route.String()]
	}
	return BudgetRefusal{}
}

// setOverBudget replaces what a Gateway holds. Only those routes are concerned for which that makes a difference.
func (v *View) setOverBudget(key types.NamespacedName, h *OverBudget, gone bool, changed Facts) {
	var before, now map[string]BudgetRefusal
	if old := v.overBudget[key]; old != nil {
		before = old.Routes
	}
	if gone || len(h.Routes) == 0 {
		delete(v.overBudget, key)
	} else {
		v.overBudget[key], now = h, h.Routes
	}
	for route, held := range now {
		if before[route] != held {
			changed.add(anOverBudget, nameOf(route))
		}
	}
	for route := range before {
		if _, still := now[route]; !still {
			changed.add(anOverBudget, nameOf(route))
		}
	}
}

func nameOf(route string) types.NamespacedName {
	namespace, name, _ := strings.Cut(route, "/")
	return types.NamespacedName{Namespace: namespace, Name: name}
}
