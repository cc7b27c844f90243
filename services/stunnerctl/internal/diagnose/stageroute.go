package diagnose

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
)

func udproute(r *Route) string {
	group := "udproutes." + ownAPI
	if r.GroupVersionKind().Group == gatewayAPI {
		group = "udproutes." + gatewayAPI
	}
	return describe(group, r)
}

// routeRules check the routes that name the Gateway.
var routeRules = []Rule{
	{"routes are attached", func(s *Snapshot, g *Gateway) (found []Finding) {
		for _, r := range g.Routes {
			for _, p := range r.Parents {
				for _, c := range wrong(p.Conditions, "Accepted") {
					found = append(found, s.fromCondition(ref("UDPRoute", r), "", c, udproute(r))...)
				}
			}
			if len(r.Parents) == 0 {
				found = append(found, Finding{
					Severity: Error, Object: ref("UDPRoute", r), Field: "status.parents",
					Problem: "no operator has processed the route",
					Remedy:  "correct parentRefs, or see the log of the operator: it may not watch namespace " + r.Namespace,
					Command: udproute(r),
				})
			}
		}
		return found
	}},
	{"a route names the Gateway", func(s *Snapshot, g *Gateway) (found []Finding) {
		if len(g.Routes) > 0 {
			return nil
		}
		if !s.readable("UDPRoute", g.Namespace) || g.attached() > 0 {
			return nil
		}
		f := Finding{
			Severity: Error, Object: ref("Gateway", g), Field: "status.listeners[].attachedRoutes",
			Problem: "no route is attached: clients reach no peer",
			Remedy:  fmt.Sprintf("create a UDPRoute with parentRefs: [{name: %s}]", g.Name),
			Command: "kubectl get udproutes." + ownAPI + " -A",
		}
		if r, named := s.misnamed(g); r != nil {
			f.Problem += fmt.Sprintf("; %s names Gateway %s, which does not exist", ref("UDPRoute", r), named)
			var right []string
			if named.Name != g.Name {
				right = append(right, "name: "+g.Name)
			}
			if named.Namespace != g.Namespace {
				right = append(right, "namespace: "+g.Namespace)
			}
			f.Remedy = fmt.Sprintf("set %s in parentRefs of that route", strings.Join(right, ", "))
			if r.Namespace != g.Namespace {
				f.Remedy += ", and allowedRoutes of the listener"
			}
			f.Remedy += fmt.Sprintf("; or create a UDPRoute with parentRefs: [{name: %s}]", g.Name)
		}
		return []Finding{f}
	}},
}

// misnamed returns a route that probably means the Gateway but names a Gateway that does not exist, and the name in the
// route. It prefers a route that names a Gateway of the same name in another namespace.
func (s *Snapshot) misnamed(g *Gateway) (route *stunnerv1.UDPRoute, named types.NamespacedName) {
	for _, r := range list[stunnerv1.UDPRoute](s, "UDPRoute") {
		for _, p := range s.parentRefs(r) {
			parent := types.NamespacedName{Namespace: r.Namespace, Name: string(p.Name)}
			if p.Namespace != nil {
				parent.Namespace = string(*p.Namespace)
			}
			switch {
			case p.Kind != nil && *p.Kind != "Gateway" || !s.readable("Gateway", parent.Namespace) ||
				find[gwapiv1.Gateway](s, "Gateway", parent.Namespace, parent.Name) != nil:
			case parent.Name == g.Name:
				return r, parent
			case parent.Namespace == g.Namespace && route == nil:
				route, named = r, parent
			}
		}
	}
	return route, named
}

// parentRefs returns the parentRefs of a route. Routes of a folder have only their status, which contains the parentRefs
// that name no Gateway.
func (s *Snapshot) parentRefs(r *stunnerv1.UDPRoute) (all []gwapiv1.ParentReference) {
	if !s.Folder {
		return r.Spec.ParentRefs
	}
	for _, p := range r.Status.Parents {
		if c := conditionOf(p.Conditions, "Accepted"); c != nil && c.Reason == string(gwapiv1.RouteReasonNoMatchingParent) {
			all = append(all, p.ParentRef)
		}
	}
	return all
}

// attached returns the number of routes that are attached to the listeners, as the operator counts them.
func (g *Gateway) attached() (n int) {
	for _, l := range g.Status.Listeners {
		n = max(n, int(l.AttachedRoutes))
	}
	return n
}

func routeFact(_ *Snapshot, g *Gateway) string {
	var names []string
	for _, r := range g.Routes {
		names = append(names, r.Namespace+"/"+r.Name)
	}
	slices.Sort(names)
	if len(names) == 0 {
		return count(g.attached(), "route") + " attached"
	}
	return few(names)
}

// backendRules check the backends of the routes.
var backendRules = []Rule{
	{"backends are resolved", func(s *Snapshot, g *Gateway) (found []Finding) {
		for _, r := range g.Routes {
			for _, p := range r.Parents {
				for _, c := range wrong(p.Conditions, "ResolvedRefs") {
					found = append(found, s.fromCondition(ref("UDPRoute", r), "", c, udproute(r))...)
				}
			}
		}
		return found
	}},
	{"StaticServices are valid", func(s *Snapshot, g *Gateway) (found []Finding) {
		for _, b := range s.backends(g) {
			if b.static == nil {
				continue
			}
			for _, c := range wrong(b.static.Status.Conditions) {
				found = append(found, s.fromCondition(ref("StaticService", b.static), "", c, describe("staticservice", b.static))...)
			}
		}
		return found
	}},
	{"routes name their peers", func(s *Snapshot, g *Gateway) (found []Finding) {
		for _, b := range s.backends(g) {
			if b.static == nil || !slices.ContainsFunc(b.static.Spec.Prefixes, everyAddress) {
				continue
			}
			found = append(found, Finding{
				Severity: Info, Object: ref("StaticService", b.static), Field: "spec.prefixes",
				Problem: "contains all addresses: with route " + b.route +
					" every user with a credential can relay to the internet",
				Remedy:  "if this is not intended, name the prefixes of the media servers",
				Command: describe("staticservice", b.static),
			})
		}
		return found
	}},
	{"Services have endpoints", func(s *Snapshot, g *Gateway) (found []Finding) {
		for _, b := range s.backends(g) {
			if b.service == nil || !s.readable("EndpointSlice", b.service.Namespace) {
				continue
			}
			ready, all := s.endpointsOf(b.service)
			f := Finding{
				Severity: Error, Object: ref("Service", b.service), Field: "spec.selector",
				Command: fmt.Sprintf(
					"kubectl get endpointslices -n %s -l kubernetes.io/service-name=%s",
					b.service.Namespace,
					b.service.Name,
				),
			}
			switch {
			case all == 0:
				f.Problem = "the Service has no endpoints, so route " + b.route + " allows no peer of this Service"
				f.Remedy = "start the media server, or correct the selector of the Service"
			case ready == 0:
				f.Severity = Warning
				f.Problem = fmt.Sprintf("none of the %s of the Service is ready", count(all, "endpoint"))
				f.Remedy = "see the pods of the media server: clients reach them, and they may not answer"
			default:
				continue
			}
			found = append(found, f)
		}
		return found
	}},
	{"ports of routes are those of clients", func(s *Snapshot, g *Gateway) []Finding {
		if s.Asked.Peer != "" || s.Asked.hasClient() {
			return nil // the stages of the probe test it exactly
		}
		r := s.recentRefusals(g, "port_denied")
		if r.last == nil {
			return nil
		}
		f := s.refused(g, *r.last, r.times)
		f.Severity, f.Object = r.severity(g), g.routeFor(f.Object)
		f.Command = fmt.Sprintf("stunnerctl can-reach %s/%s %s", g.Namespace, g.Name, r.last.Peer)
		return []Finding{f}
	}},
}

// everyAddress reports whether a prefix contains all addresses of its family.
func everyAddress(prefix string) bool { return strings.HasSuffix(prefix, "/0") }

// routeFor returns the only route of the Gateway as an object. If there is not exactly one, it returns other.
func (g *Gateway) routeFor(other string) string {
	if len(g.Routes) == 1 {
		return ref("UDPRoute", g.Routes[0])
	}
	return other
}

// backend is a backend of a route of a Gateway.
type backend struct {
	route   string
	service *corev1.Service
	static  *stunnerv1.StaticService
	// first and last are the ports that the route allows; 0 means all.
	first, last int32
}

// backends returns those backends of the routes that exist, each once.
func (s *Snapshot) backends(g *Gateway) (all []backend) {
	seen := map[string]bool{}
	for _, r := range g.Routes {
		for _, rule := range r.Spec.Rules {
			for _, ref := range rule.BackendRefs {
				namespace := r.Namespace
				if ref.Namespace != nil {
					namespace = string(*ref.Namespace)
				}
				b := backend{route: r.Namespace + "/" + r.Name}
				if ref.Port != nil {
					b.first, b.last = *ref.Port, *ref.Port
					if ref.EndPort != nil {
						b.last = *ref.EndPort
					}
				}
				if ref.Kind != nil && *ref.Kind == "StaticService" {
					b.static = find[stunnerv1.StaticService](s, "StaticService", namespace, string(ref.Name))
				} else {
					b.service = find[corev1.Service](s, "Service", namespace, string(ref.Name))
				}
				kind := "Service"
				if b.static != nil {
					kind = "StaticService"
				}
				key := kind + namespace + "/" + string(ref.Name)
				if (b.static != nil || b.service != nil) && !seen[key] {
					seen[key] = true
					all = append(all, b)
				}
			}
		}
	}
	return all
}

// endpointsOf returns the number of ready endpoints of a Service, and of all its endpoints.
func (s *Snapshot) endpointsOf(svc *corev1.Service) (ready, all int) {
	for _, slice := range list[discoveryv1.EndpointSlice](s, "EndpointSlice") {
		if slice.Namespace != svc.Namespace || slice.Labels[discoveryv1.LabelServiceName] != svc.Name {
			continue
		}
		for _, e := range slice.Endpoints {
			all += len(e.Addresses)
			if e.Conditions.Ready == nil || *e.Conditions.Ready {
				ready += len(e.Addresses)
			}
		}
	}
	return ready, all
}

// resolved reports whether the operator has resolved the backends of all routes, as their status says.
func (g *Gateway) resolved() bool {
	return len(g.Routes) > 0 && !slices.ContainsFunc(g.Routes, func(r *Route) bool {
		return !slices.ContainsFunc(r.Parents, func(p gwapiv1.RouteParentStatus) bool {
			c := conditionOf(p.Conditions, "ResolvedRefs")
			return c != nil && c.Status == "True"
		})
	})
}

func backendFact(s *Snapshot, g *Gateway) string {
	var facts []string
	for _, b := range s.backends(g) {
		if b.static != nil {
			facts = append(facts, ref("StaticService", b.static))
			continue
		}
		ready, all := s.endpointsOf(b.service)
		facts = append(facts, fmt.Sprintf("%s/%s %d/%d ready", b.service.Namespace, b.service.Name, ready, all))
	}
	switch {
	case len(facts) > 0:
		return few(facts)
	case g.resolved():
		return "resolved by the operator"
	}
	return notChecked + ": none is readable"
}
