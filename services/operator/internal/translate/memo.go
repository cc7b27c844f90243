package translate

import (
	"maps"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/share"
)

// Memo keeps the translations of Gateways. Each route contributes a cluster, which stays as it is until the endpoints
// of its own Services change. If nothing else has changed, the cost of translating the Gateway depends only on these
// routes. The zero value is ready to use.
type Memo struct {
	kept map[types.NamespacedName]*kept
}

// kept is the translation of one Gateway.
type kept struct {
	draft  draft
	result Result
	// routes are the indexes in admission.served of the routes that lead to the endpoints of a Service.
	routes map[types.NamespacedName][]int
	// changed are the Services whose endpoints have changed since then.
	changed map[types.NamespacedName]struct{}
}

// Observe records that facts have changed on which the given translations depend. It forgets the translation of a
// Gateway if the facts are not only EndpointSlices of Services of its routes.
func (m *Memo) Observe(changed resource.Facts, concerned map[ObjectRef]struct{}) {
	services, only := changed.EndpointSlices()
	for ref := range concerned {
		k := m.kept[ref.NamespacedName]
		if k == nil || ref.Kind != KindGateway {
			continue
		}
		for _, service := range services {
			k.changed[service] = struct{}{}
		}
		if !only || slices.ContainsFunc(services, k.isOther) {
			m.Forget(ref)
		}
	}
}

// isOther reports whether no route leads to a Service.
func (k *kept) isOther(service types.NamespacedName) bool { return len(k.routes[service]) == 0 }

// Forget removes the translation of a Gateway, because something else has changed on which it depends.
func (m *Memo) Forget(ref ObjectRef) {
	if ref.Kind == KindGateway {
		delete(m.kept, ref.NamespacedName)
	}
}

// keep stores the translation of a Gateway if later changes of endpoints affect nothing but the clusters of routes and
// the number of endpoints: everything is served, and all routes fit into the budgets.
func (m *Memo) keep(d draft, r Result) {
	if m == nil {
		return
	}
	delete(m.kept, r.Key)
	unserved := func(l *listener) bool { return !l.served() || l.published != nil }
	if r.Decision != Served || r.NeedsPublished || r.Demand.MoreCertificates ||
		len(d.admission.refused)+len(d.admission.keptClusters) > 0 || slices.ContainsFunc(d.listeners, unserved) {
		return
	}
	k := &kept{
		draft: d, result: r, routes: map[types.NamespacedName][]int{}, changed: map[types.NamespacedName]struct{}{},
	}
	for i, route := range d.admission.served {
		for _, s := range route.sets {
			if s.service == (types.NamespacedName{}) {
				continue
			}
			if s.service == apiServer || s.service.Namespace == metav1.NamespaceSystem {
				return // the guard reads the endpoints of these Services too
			}
			if !slices.Contains(k.routes[s.service], i) {
				k.routes[s.service] = append(k.routes[s.service], i)
			}
		}
	}
	if m.kept == nil {
		m.kept = map[types.NamespacedName]*kept{}
	}
	m.kept[r.Key] = k
}

// Translate translates a Gateway again, if nothing but endpoints has changed since its last translation. If the view
// records, it records only the facts that this update looks up. The facts of the last translation remain dependencies.
// Translate returns false if the Gateway needs a whole translation.
func (m *Memo) Translate(ref ObjectRef, v *resource.View, opt Options) (Outcome, bool) {
	k := m.kept[ref.NamespacedName]
	if ref.Kind != KindGateway || k == nil || len(k.changed) == 0 {
		return Outcome{}, false
	}
	m.Forget(ref) // the translation is kept again when it is complete
	k.draft.view, k.draft.opt = v, opt
	a := k.draft.admission
	a.look(v, opt)
	clusters := slices.Clone(k.draft.clusters)
	done := map[int]bool{}
	for service := range k.changed {
		for _, i := range k.routes[service] {
			if done[i] {
				continue
			}
			done[i] = true
			if !a.updateEndpoints(&a.served[i], clusters) {
				return Outcome{}, false
			}
		}
	}
	if !a.fits() {
		return Outcome{}, false
	}
	c := *k.result.Config
	c.Clusters = clusters
	if estimatedSize(c) >= config.MaxDocument/2 {
		return Outcome{}, false
	}
	k.draft.clusters, k.result.Config = clusters, &c
	k.result.Demand.Endpoints = a.endpointDemand()
	clear(k.changed)
	m.kept[ref.NamespacedName] = k
	return outcomeOf(k.result), true
}

// look makes the admission read another version of the view.
func (a *admission) look(v *resource.View, opt Options) {
	a.view, a.opt, a.policy.view, a.policy.opt = v, opt, v, opt
	if a.policy.guard.view != nil {
		a.policy.guard.view = v
	}
}

// maxMemoEndpoints is the maximum number of endpoints of a route whose cluster is updated. It is below the limit of a
// cluster in a config, so that the cluster is valid.
const maxMemoEndpoints = 50_000

// updateEndpoints replaces the cluster of a route after the endpoints of its Services have changed. It returns false if
// the cluster must be rebuilt.
func (a *admission) updateEndpoints(r *attachedRoute, clusters []config.Cluster) bool {
	i, found := slices.BinarySearchFunc(clusters, r.route.Ref.NamespacedName.String(),
		func(c config.Cluster, name string) int { return strings.Compare(c.Name, name) })
	was := *r
	load := a.measure(r, r.floor)
	if !found || r.tooManyEndpoints > 0 || len(r.sets) != len(was.sets) || !slices.Equal(r.listeners, was.listeners) ||
		was.contributed != len(clusters[i].Endpoints) { // an address in several slices stays when one slice loses it
		return false
	}
	var gone, come []string
	for j, s := range r.sets {
		before := was.sets[j]
		if s.service != before.service || s.ports != before.ports {
			return false
		}
		old, next := before.without(s.slices), s.without(before.slices)
		if slices.ContainsFunc(slices.Concat(old.slices, next.slices), hasNames) {
			return false
		}
		gone, come = append(gone, old.endpoints()...), append(come, next.endpoints()...)
	}
	endpoints, ok := config.PatchSet(clusters[i].Endpoints, gone, come)
	r.contributed += len(come) - len(gone)
	if !ok || len(endpoints) != r.contributed || len(endpoints) > maxMemoEndpoints {
		return false
	}
	clusters[i].Endpoints = endpoints
	namespace := r.route.Ref.Namespace
	a.used[namespace] = a.used[namespace].Plus(load).Minus(was.load)
	return true
}

// without returns the part of a set that consists of its EndpointSlices that are not among others.
func (s endpointSet) without(others []*discoveryv1.EndpointSlice) endpointSet {
	part := endpointSet{ports: s.ports, guard: s.guard}
	for _, slice := range s.slices {
		if !slices.Contains(others, slice) {
			part.slices = append(part.slices, slice)
		}
	}
	return part
}

// endpoints returns the endpoints of a set in the syntax of config.ParseEndpoint, in any order.
func (s endpointSet) endpoints() (endpoints []string) {
	for address := range s.addresses() {
		endpoints = append(endpoints, address+s.ports)
	}
	return endpoints
}

// hasNames reports whether an EndpointSlice has host names. A note of the Gateway warns about them.
func hasNames(s *discoveryv1.EndpointSlice) bool { return s.AddressType == discoveryv1.AddressTypeFQDN }

// fits reports whether all routes fit into the budgets. If so, all are served, and the order of admission does not
// matter.
func (a *admission) fits() bool {
	var all share.Load
	wanted := map[string]int{}
	for namespace, used := range a.used {
		all = all.Plus(used)
		wanted[namespace] = used[share.Endpoints]
		a.rooms[namespace] = a.namespaceRoom(namespace)
	}
	if a.limitByMemory(wanted) {
		return false
	}
	for namespace, used := range a.used {
		if used[share.Endpoints] > a.rooms[namespace].endpoints {
			return false
		}
	}
	_, over := all.Over(a.max)
	return !over
}

// endpointDemand returns Demand.Endpoints if all routes fit into the budgets.
func (a *admission) endpointDemand() map[string]EndpointDemand {
	demand := maps.Clone(a.demand.Endpoints)
	for namespace, used := range a.used {
		demand[namespace] = EndpointDemand{
			Wanted: used[share.Endpoints], Given: used[share.Endpoints],
			Limit: a.rooms[namespace].endpoints, PerNamespace: int(a.budget.EndpointsPerNamespace),
		}
	}
	return demand
}
