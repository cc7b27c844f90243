package translate

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// gates say which routes the listeners of a Gateway take. What is the same for all routes, or for all routes of a namespace, is found out once.
type gates struct {
	view    *resource.View
	gateway *gwapiv1.Gateway
	groups  [][]gwapiv1.Group // of the kinds that each listener takes
	admit   []func(namespace string) bool
	open    map[string][]bool // by namespace, for each listener
	all     []int
	named   map[gwapiv1.SectionName][]int
}

func newGates(v *resource.View, gw *gwapiv1.Gateway) gates {
	g := gates{view: v, gateway: gw, open: map[string][]bool{}, named: map[gwapiv1.SectionName][]int{}}
	for i, spec := range gw.Spec.Listeners {
		g.all, g.named[spec.Name] = append(g.all, i), append(g.named[spec.Name], i)
		var groups []gwapiv1.Group
		kinds, _ := kindsOf(spec)
		for _, k := range kinds {
			groups = append(groups, *k.Group)
		}
		g.groups = append(g.groups, groups)
		g.admit = append(g.admit, g.admitsOf(spec))
	}
	return g
}

// admitsOf reads allowedRoutes.namespaces of a listener. It lets nobody in by a word or a selector that it does not understand.
func (g gates) admitsOf(spec gwapiv1.Listener) func(namespace string) bool {
	from, selector := fromOf(spec)
	switch from {
	case gwapiv1.NamespacesFromAll:
		return func(string) bool { return true }
	case gwapiv1.NamespacesFromSame:
		return func(namespace string) bool { return namespace == g.gateway.Namespace }
	case gwapiv1.NamespacesFromSelector:
		if s, err := metav1.LabelSelectorAsSelector(selector); err == nil {
			return func(namespace string) bool { return s.Matches(labels.Set(g.view.NamespaceLabels(namespace))) }
		}
	}
	return func(string) bool { return false }
}

func fromOf(spec gwapiv1.Listener) (gwapiv1.FromNamespaces, *metav1.LabelSelector) {
	if allowed := spec.AllowedRoutes; allowed != nil && allowed.Namespaces != nil {
		return valueOr(allowed.Namespaces.From, gwapiv1.NamespacesFromSame), allowed.Namespaces.Selector
	}
	return gwapiv1.NamespacesFromSame, nil
}

// admitted tells for each listener whether it takes routes of a namespace.
func (g gates) admitted(namespace string) []bool {
	open, known := g.open[namespace]
	if !known {
		for _, admits := range g.admit {
			open = append(open, admits(namespace))
		}
		g.open[namespace] = open
	}
	return open
}

// takes returns the indexes of the listeners that take a route by any of its parent references. Whether the listener itself is served does not
// matter (Gateway API, ListenerStatus.attachedRoutes), nor whether the backends of the route exist.
func (g gates) takes(r *resource.Route) (taken []int) {
	group, open := gwapiv1.Group(r.Ref.GroupVersion.Group), g.admitted(r.Ref.Namespace)
	if r.MaskedBy != nil || !slices.Contains(open, true) {
		return nil
	}
	own := resource.KeyOf(g.gateway)
	for _, parent := range r.Parents {
		if key, ok := r.GatewayOf(parent); !ok || key != own {
			continue
		}
		candidates := g.all
		if section := valueOr(parent.SectionName, ""); section != "" {
			candidates = g.named[section]
		}
		for _, i := range candidates {
			if open[i] && selects(parent, &g.gateway.Spec.Listeners[i]) && slices.Contains(g.groups[i], group) {
				taken = append(taken, i)
			}
		}
	}
	slices.Sort(taken)
	return slices.Compact(taken)
}

// refusal says why no listener takes a route by one of its parent references; nothing if one does.
func (g gates) refusal(r *resource.Route, parent gwapiv1.ParentReference) condition.Finding {
	if r.MaskedBy != nil {
		return condition.Masked(r.MaskedBy.String())
	}
	refused := condition.NoListener(resource.KeyOf(g.gateway).String(), string(valueOr(parent.SectionName, "")), int32(valueOr(parent.Port, 0)))
	for i := range g.gateway.Spec.Listeners {
		a := attachment{gates: g, listener: i, route: r}
		if !selects(parent, a.spec()) {
			continue
		}
		found := attachmentRules.judge(a)
		if found.OK() {
			return condition.Finding{}
		}
		if refused.Reason == condition.ReasonNoMatchingParent {
			refused = found
		}
	}
	return refused
}

// attachment is one route at one listener.
type attachment struct {
	gates
	listener int
	route    *resource.Route
}

func (a attachment) spec() *gwapiv1.Listener { return &a.gateway.Spec.Listeners[a.listener] }

// selects tells whether a parent reference means a listener.
func selects(parent gwapiv1.ParentReference, spec *gwapiv1.Listener) bool {
	if parent.SectionName != nil && *parent.SectionName != "" && *parent.SectionName != spec.Name {
		return false
	}
	return parent.Port == nil || *parent.Port == 0 || *parent.Port == spec.Port
}

var attachmentRules = rules[attachment]{attachment.kindAllowed, attachment.namespaceAllowed}

func (a attachment) kindAllowed() condition.Finding {
	group := gwapiv1.Group(a.route.Ref.GroupVersion.Group)
	if slices.Contains(a.groups[a.listener], group) {
		return condition.Finding{}
	}
	return condition.KindNotAllowed(string(a.spec().Name), string(group))
}

func (a attachment) namespaceAllowed() condition.Finding {
	if a.admitted(a.route.Ref.Namespace)[a.listener] {
		return condition.Finding{}
	}
	from, _ := fromOf(*a.spec())
	return condition.NamespaceNotAllowed(string(a.spec().Name), a.route.Ref.Namespace, string(from))
}
