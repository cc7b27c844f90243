package translate

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// routeMatcher matches routes to the listeners of a Gateway. It computes the parts that are the same for all routes, or
// for all routes of a namespace, only once. Its slices are indexed by listener.
type routeMatcher struct {
	view    *resource.View
	gateway *gwapiv1.Gateway
	// groups are the API groups of the route kinds that a listener allows.
	groups [][]gwapiv1.Group
	// selectors report whether a listener allows routes of a namespace.
	selectors []func(namespace string) bool
	// byNamespace caches the results of selectors.
	byNamespace map[string][]bool
	// all are the indexes of all listeners.
	all []int
	// byName maps each listener name to the indexes of the listeners with this name. Only an invalid Gateway has
	// several listeners with one name.
	byName map[gwapiv1.SectionName][]int
	// held are, by listener, the ports of Services that lead to a held listener. A parent reference with such a port still
	// selects the listener, because an invalid port in its spec must not end its calls.
	held map[int][]gwapiv1.PortNumber
}

func newRouteMatcher(v *resource.View, gw *gwapiv1.Gateway) routeMatcher {
	m := routeMatcher{
		view: v, gateway: gw, byNamespace: map[string][]bool{}, byName: map[gwapiv1.SectionName][]int{},
		held: map[int][]gwapiv1.PortNumber{},
	}
	for i, spec := range gw.Spec.Listeners {
		m.all, m.byName[spec.Name] = append(m.all, i), append(m.byName[spec.Name], i)
		var groups []gwapiv1.Group
		kinds, _ := kindsOf(spec)
		for _, k := range kinds {
			groups = append(groups, *k.Group)
		}
		m.groups = append(m.groups, groups)
		m.selectors = append(m.selectors, m.namespaceSelector(spec))
	}
	return m
}

// namespaceSelector returns a function that reports whether allowedRoutes.namespaces of a listener allows a namespace.
// An unknown value or an invalid selector allows no namespace.
func (m routeMatcher) namespaceSelector(spec gwapiv1.Listener) func(namespace string) bool {
	from, _ := allowedNamespaces(spec)
	switch from {
	case gwapiv1.NamespacesFromAll:
		return func(string) bool { return true }
	case gwapiv1.NamespacesFromSame:
		return func(namespace string) bool { return namespace == m.gateway.Namespace }
	case gwapiv1.NamespacesFromSelector:
		if s, err := selectorOf(spec); err == nil {
			return func(namespace string) bool { return s.Matches(labels.Set(m.view.NamespaceLabels(namespace))) }
		}
	}
	return func(string) bool { return false }
}

// selectorOf returns the selector of the namespaces from which a listener allows routes. Without one it selects none.
func selectorOf(spec gwapiv1.Listener) (labels.Selector, error) {
	if from, selector := allowedNamespaces(spec); from == gwapiv1.NamespacesFromSelector {
		return metav1.LabelSelectorAsSelector(selector)
	}
	return labels.Nothing(), nil
}

func allowedNamespaces(spec gwapiv1.Listener) (gwapiv1.FromNamespaces, *metav1.LabelSelector) {
	if allowed := spec.AllowedRoutes; allowed != nil && allowed.Namespaces != nil {
		return ptr.Deref(allowed.Namespaces.From, gwapiv1.NamespacesFromSame), allowed.Namespaces.Selector
	}
	return gwapiv1.NamespacesFromSame, nil
}

// allows returns for each listener whether it allows routes of a namespace.
func (m routeMatcher) allows(namespace string) []bool {
	allowed, known := m.byNamespace[namespace]
	if !known {
		for _, selects := range m.selectors {
			allowed = append(allowed, selects(namespace))
		}
		m.byNamespace[namespace] = allowed
	}
	return allowed
}

// listenersFor returns the sorted indexes of the listeners that a route attaches to. Following the Gateway API
// (ListenerStatus.attachedRoutes), a route also attaches to an invalid listener, and a route whose backends do not
// exist attaches as well.
func (m routeMatcher) listenersFor(r *resource.Route) (attached []int) {
	group, allowed := gwapiv1.Group(r.Ref.GroupVersion.Group), m.allows(r.Ref.Namespace)
	if r.MaskedBy != nil || !slices.Contains(allowed, true) {
		return nil
	}
	own := resource.KeyOf(m.gateway)
	for _, parent := range r.Parents {
		if key, ok := r.GatewayOf(parent); !ok || key != own {
			continue
		}
		candidates := m.all
		if section := ptr.Deref(parent.SectionName, ""); section != "" {
			candidates = m.byName[section]
		}
		for _, i := range candidates {
			if allowed[i] && m.selects(parent, i) && slices.Contains(m.groups[i], group) {
				attached = append(attached, i)
			}
		}
	}
	slices.Sort(attached)
	return slices.Compact(attached)
}

// selects reports whether a listener, or the published form of a held one, matches a parent reference.
func (m routeMatcher) selects(parent gwapiv1.ParentReference, listener int) bool {
	spec := &m.gateway.Spec.Listeners[listener]
	return selects(parent, spec) || slices.ContainsFunc(m.held[listener], func(port gwapiv1.PortNumber) bool {
		return selects(parent, &gwapiv1.Listener{Name: spec.Name, Port: port})
	})
}

// hold applies the published form of held listeners: the ports of Services that lead to them, and, if the selector in
// the spec is invalid, the namespaces of their published routes.
func (m *routeMatcher) hold(listeners []*listener) {
	for i, l := range listeners {
		if l.published == nil {
			continue
		}
		for _, p := range l.published.ports {
			m.held[i] = append(m.held[i], gwapiv1.PortNumber(p.port.Port))
		}
		if _, err := selectorOf(l.spec); err != nil {
			m.selectors[i] = func(namespace string) bool {
				return slices.ContainsFunc(l.published.config.Routes, func(route string) bool {
					return strings.HasPrefix(route, namespace+"/")
				})
			}
		}
	}
}

// refusal returns the reason why no listener accepts a route for the given parent reference. It is zero if a listener
// accepts the route.
func (m routeMatcher) refusal(r *resource.Route, parent gwapiv1.ParentReference) condition.Finding {
	if r.MaskedBy != nil {
		return condition.Masked(r.MaskedBy.String())
	}
	section, port := ptr.Deref(parent.SectionName, ""), ptr.Deref(parent.Port, 0)
	refused := condition.NoListener(resource.KeyOf(m.gateway).String(), string(section), int32(port))
	for i := range m.gateway.Spec.Listeners {
		a := attachment{routeMatcher: m, listener: i, route: r}
		if !selects(parent, a.spec()) {
			continue
		}
		found := attachmentRules.firstFinding(a)
		if found.OK() {
			return condition.Finding{}
		}
		if refused.Reason == condition.ReasonNoMatchingParent {
			refused = found
		}
	}
	return refused
}

// attachment is a route together with a listener to which it may attach.
type attachment struct {
	routeMatcher
	listener int
	route    *resource.Route
}

func (a attachment) spec() *gwapiv1.Listener { return &a.gateway.Spec.Listeners[a.listener] }

// selects reports whether a listener matches sectionName and port of a parent reference.
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
	if a.allows(a.route.Ref.Namespace)[a.listener] {
		return condition.Finding{}
	}
	from, _ := allowedNamespaces(*a.spec())
	return condition.NamespaceNotAllowed(string(a.spec().Name), a.route.Ref.Namespace, string(from))
}
