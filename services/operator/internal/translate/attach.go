package translate

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// attachRoutes gives each listener the routes that it takes. Whether the listener itself is served does not matter (Gateway API,
// ListenerStatus.attachedRoutes), nor whether the backends of a route exist.
func attachRoutes(v *resource.View, gw *gwapiv1.Gateway, listeners []*listener) {
	for _, r := range v.RoutesOf(resource.KeyOf(gw)) {
		for _, parent := range r.Parents {
			if key, ok := r.GatewayOf(parent); !ok || key != resource.KeyOf(gw) {
				continue
			}
			taken, _ := attach(v, gw, r, parent)
			for _, i := range taken {
				if l := listeners[i]; len(l.routes) == 0 || l.routes[len(l.routes)-1] != r { // by another of its parents
					l.routes = append(l.routes, r)
				}
			}
		}
	}
}

// attach returns the indexes of the listeners that take a route by one of its parent references, and if there are none, why.
func attach(v *resource.View, gw *gwapiv1.Gateway, r *resource.Route, parent gwapiv1.ParentReference) ([]int, condition.Finding) {
	if r.MaskedBy != nil {
		return nil, condition.Masked(r.MaskedBy.String())
	}
	var taken []int
	refused := condition.NoListener(resource.KeyOf(gw).String(), string(valueOr(parent.SectionName, "")), int32(valueOr(parent.Port, 0)))
	for i := range gw.Spec.Listeners {
		a := attachment{view: v, gateway: gw, listener: gw.Spec.Listeners[i], route: r, parent: parent}
		if !a.selected() {
			continue
		}
		found := attachmentRules.judge(a)
		if found.OK() {
			taken = append(taken, i)
		} else if refused.Reason == condition.ReasonNoMatchingParent {
			refused = found
		}
	}
	if len(taken) > 0 {
		return taken, condition.Finding{}
	}
	return nil, refused
}

// attachment is one route at one listener.
type attachment struct {
	view     *resource.View
	gateway  *gwapiv1.Gateway
	listener gwapiv1.Listener
	route    *resource.Route
	parent   gwapiv1.ParentReference
}

// selected tells whether the parent reference means this listener.
func (a attachment) selected() bool {
	section, port := valueOr(a.parent.SectionName, ""), valueOr(a.parent.Port, 0)
	return (section == "" || section == a.listener.Name) && (port == 0 || port == a.listener.Port)
}

var attachmentRules = rules[attachment]{attachment.kindAllowed, attachment.namespaceAllowed}

func (a attachment) kindAllowed() condition.Finding {
	group := gwapiv1.Group(a.route.Ref.GroupVersion.Group)
	kinds, _ := kindsOf(a.listener)
	for _, k := range kinds {
		if *k.Group == group {
			return condition.Finding{}
		}
	}
	return condition.KindNotAllowed(string(a.listener.Name), string(group))
}

func (a attachment) namespaceAllowed() condition.Finding {
	from, selector := gwapiv1.NamespacesFromSame, (*metav1.LabelSelector)(nil)
	if allowed := a.listener.AllowedRoutes; allowed != nil && allowed.Namespaces != nil {
		from, selector = valueOr(allowed.Namespaces.From, from), allowed.Namespaces.Selector
	}
	if a.admits(from, selector) {
		return condition.Finding{}
	}
	return condition.NamespaceNotAllowed(string(a.listener.Name), a.route.Ref.Namespace, string(from))
}

// admits lets nobody in by a word or a selector that it does not understand.
func (a attachment) admits(from gwapiv1.FromNamespaces, selector *metav1.LabelSelector) bool {
	switch from {
	case gwapiv1.NamespacesFromAll:
		return true
	case gwapiv1.NamespacesFromSame:
		return a.route.Ref.Namespace == a.gateway.Namespace
	case gwapiv1.NamespacesFromSelector:
		s, err := metav1.LabelSelectorAsSelector(selector)
		return err == nil && s.Matches(labels.Set(a.view.NamespaceLabels(a.route.Ref.Namespace)))
	}
	return false
}
