package translate

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/share"
)

// admission decides which routes a Gateway serves. It counts the endpoints of routes before it builds them, so that a
// tenant cannot use up the memory of the operator.
type admission struct {
	view    *resource.View
	gateway types.NamespacedName
	opt     Options
	matcher routeMatcher
	policy  backendPolicy
	budget  stunnerv1.Budget

	served []attachedRoute
	// keptClusters contain the endpoints that routes over budget keep from the published config, see keepPublished.
	keptClusters []config.Cluster
	// keptRoutes are, by listener index, the names of the routes over budget that keep published endpoints.
	keptRoutes map[int][]string
	// refused are the routes that are not served because they exceed a budget, by NAMESPACE/NAME.
	refused map[string]resource.BudgetRefusal
	// rooms are the remaining endpoint budgets of the namespaces with routes.
	rooms map[string]room
	// max is the limit of all routes, and used is the load of the routes of each namespace.
	max    share.Load
	used   map[string]share.Load
	demand Demand
}

// admit divides the budgets of a Gateway among its routes. It first divides the Gateway's own budget, within the
// budgets of the namespaces of the routes; the endpoints of the routes that fit are EndpointDemand.Wanted. If the
// memory of the operator allows fewer endpoints, it divides again with that limit.
func admit(v *resource.View, gw *gwapiv1.Gateway, p parameters, listeners []*listener, opt Options) *admission {
	a := &admission{
		view: v, gateway: resource.KeyOf(gw), opt: opt, budget: p.budget(),
		matcher: newRouteMatcher(v, gw), policy: newBackendPolicy(v, p, opt, newClusterGuards(v)),
		keptRoutes: map[int][]string{}, refused: map[string]resource.BudgetRefusal{}, rooms: map[string]room{},
	}
	a.matcher.hold(listeners)
	limit, reasons := a.limit(listeners), a.limitReasons()
	claims := a.claims()
	for namespace := range claims {
		a.rooms[namespace] = a.namespaceRoom(namespace)
	}
	d := a.divide(limit, claims)
	a.demand.Endpoints = map[string]EndpointDemand{}
	wanted := map[string]int{}
	for namespace := range claims {
		wanted[namespace] = d.used[namespace][share.Endpoints]
	}
	if a.limitByMemory(wanted) {
		d = a.divide(limit, claims)
	}
	for namespace := range claims {
		a.demand.Endpoints[namespace] = EndpointDemand{
			Wanted: wanted[namespace], Given: d.used[namespace][share.Endpoints],
			Limit: a.rooms[namespace].endpoints, PerNamespace: int(a.budget.EndpointsPerNamespace),
		}
	}
	a.max, a.used = limit, d.used
	for _, r := range d.served {
		switch {
		case r.tooManyEndpoints > 0:
			a.refuse(r, condition.TooManyEndpoints(r.tooManyEndpoints, int(a.budget.EndpointsPerRoute)))
		case len(r.listeners) > 0:
			a.served = append(a.served, *r)
		}
	}
	for _, denied := range d.denied {
		reason := reasons[denied.Kind]
		if namespace := denied.Of.route.Ref.Namespace; denied.Own {
			reason = a.rooms[namespace].reason
			demand := a.demand.Endpoints[namespace]
			demand.Waiting = true
			a.demand.Endpoints[namespace] = demand
		}
		a.refuse(denied.Of, condition.GatewayOverBudget(a.gateway.String(), reason, denied.Needed, nouns[denied.Kind]))
	}
	a.keepPublished(limit, d.used)
	return a
}

// room is the remaining endpoint budget of a namespace: the number of endpoints that other Gateways leave for its
// routes. reason describes the budget that sets this number, for condition messages.
type room struct {
	endpoints int
	reason    string
}

// division is a result of share.Divide.
type division struct {
	served []*attachedRoute
	denied []share.Denied[*attachedRoute]
	used   map[string]share.Load
}

// nouns name the limited quantities in messages.
var nouns = map[int]string{
	share.Routes: "routes", share.Endpoints: "endpoints", share.Bytes: "bytes", share.Names: "host names",
}

// Upper bounds of the size of parts of a config in bytes. Certificates are counted separately.
const (
	// overhead is the maximum size of a config without its listeners, routes and certificates.
	overhead = 64<<10 + resource.MaxRevocationBytes
	// overheadOfListener is the size of a listener without its routes.
	overheadOfListener = 4 << 10
	// overheadOfRoute is the size of the cluster of a route without its name and endpoints.
	overheadOfRoute = 80
)

// limit returns the maximum of routes, endpoints, bytes and host names for all routes of the Gateway together. It
// results from the Gateway's own budget and from the maximum size of a config. Budgets shared with other Gateways are
// not included, see rooms.
func (a *admission) limit(listeners []*listener) share.Load {
	bytes := config.MaxDocument - overhead - len(listeners)*overheadOfListener
	for _, l := range listeners {
		for _, c := range l.certificates {
			bytes -= c.Size()
		}
	}
	return share.Load{
		share.Routes: int(a.budget.Routes), share.Endpoints: int(a.budget.Endpoints),
		share.Bytes: max(bytes, 0), share.Names: config.MaxHostNames,
	}
}

// limitReasons describes for condition messages, by limited resource, which budget or config limit a route exceeds.
func (a *admission) limitReasons() map[int]string {
	return map[int]string{
		share.Routes:    condition.RouteBudget(a.budget.Routes),
		share.Endpoints: condition.EndpointBudget(a.budget.Endpoints),
		share.Bytes:     condition.ConfigLimit(config.MaxDocument),
		share.Names:     condition.ConfigLimit(config.MaxHostNames),
	}
}

// namespaceRoom returns the part of spec.budget.endpointsPerNamespace that is left for the routes of a namespace. Their
// endpoints at older Gateways of any namespace count, so no namespace uses up the budget of another namespace.
func (a *admission) namespaceRoom(namespace string) room {
	limit, elsewhere := a.budget.EndpointsPerNamespace, a.opt.Room.elsewhere(namespace)
	return room{
		endpoints: max(0, int(limit)-elsewhere), reason: condition.NamespaceBudget(limit, namespace, elsewhere),
	}
}

// limitByMemory reduces the remaining endpoint budgets of the namespaces to their shares of the operator's memory.
// wanted are the endpoints of this Gateway. It reports whether a budget was reduced.
func (a *admission) limitByMemory(wanted map[string]int) (less bool) {
	for namespace, level := range a.opt.Room.levels(wanted) {
		r := a.rooms[namespace]
		elsewhere := int(a.budget.EndpointsPerNamespace) - r.endpoints
		// Endpoints that another namespace does not use at this Gateway are not given to this namespace, because memory
		// is scarce.
		if left := max(0, min(level-elsewhere, wanted[namespace])); left < r.endpoints {
			a.rooms[namespace] = room{endpoints: left, reason: condition.OperatorBudget(level, namespace)}
			less = true
		}
	}
	return less
}

// claims returns the routes of the Gateway as claims of their namespaces. Within a namespace, the oldest routes are
// first. Routes of a namespace that no listener allows are ignored.
func (a *admission) claims() map[string][]share.Claim[*attachedRoute] {
	claims := map[string][]share.Claim[*attachedRoute]{}
	for _, route := range a.view.RoutesOf(a.gateway) {
		namespace := route.Ref.Namespace
		if route.MaskedBy != nil || !slices.Contains(a.matcher.allows(namespace), true) {
			continue
		}
		minCost := share.Load{share.Routes: 1, share.Endpoints: len(route.Backends)}
		r := &attachedRoute{route: route, floor: minCost}
		measure := func() share.Load { return a.measure(r, minCost) }
		claims[namespace] = append(claims[namespace],
			share.Claim[*attachedRoute]{Of: r, MinCost: minCost, Measure: measure})
	}
	for _, of := range claims {
		slices.SortStableFunc(of, func(x, y share.Claim[*attachedRoute]) int {
			return x.Of.route.Origin.GetCreationTimestamp().Compare(y.Of.route.Origin.GetCreationTimestamp().Time)
		})
	}
	return claims
}

// divide divides the limit among the namespaces of the routes, within their remaining endpoint budgets. The namespace
// of the Gateway has priority for half of the limit. All others get equal shares, so that one tenant cannot use up the
// budget of other tenants.
func (a *admission) divide(limit share.Load, claims map[string][]share.Claim[*attachedRoute]) (d division) {
	own := map[string]share.Load{}
	for namespace, r := range a.rooms {
		if r.endpoints < limit[share.Endpoints] {
			bounded := limit
			bounded[share.Endpoints] = r.endpoints
			own[namespace] = bounded
		}
	}
	d.served, d.denied, d.used = share.Divide(share.Terms{Limit: limit, Own: own, Owner: a.gateway.Namespace}, claims)
	return d
}

// measure returns how many endpoints, bytes and host names a route takes in the config, but at least floor. A route
// that is not served, because it attaches to no listener or exceeds the limit of a single route, counts as floor.
func (a *admission) measure(r *attachedRoute, floor share.Load) share.Load {
	r.load = a.loadOf(r, floor)
	return r.load
}

func (a *admission) loadOf(r *attachedRoute, floor share.Load) share.Load {
	if r.listeners = a.matcher.listenersFor(r.route); len(r.listeners) == 0 {
		return floor
	}
	a.resolve(r)
	load, count := floor, 0
	name := len(r.route.Ref.NamespacedName.String())
	load[share.Bytes] = overheadOfRoute + name + len(r.listeners)*(name+len(`"",`))
	for _, s := range r.sets {
		count += s.count()
		load[share.Bytes] += s.bytes()
	}
	if count > int(a.budget.EndpointsPerRoute) {
		r.tooManyEndpoints = count
		return floor
	}
	for _, excluded := range exceptOf(r.sets) { // excluded addresses take as much memory as endpoints
		count++
		load[share.Bytes] += len(excluded) + len(`"",`)
	}
	load[share.Endpoints] = max(count, floor[share.Endpoints])
	if r.clusterType == config.StrictDNS {
		load[share.Names] = count
	}
	return load
}

func (a *admission) resolve(r *attachedRoute) {
	backends, _ := a.policy.backendsOf(r.route)
	r.sets, r.clusterType = endpointSetsOf(backends), clusterTypeOf(r.route, a.opt)
}

func (a *admission) refuse(r *attachedRoute, why condition.Finding) {
	a.refused[r.route.Ref.NamespacedName.String()] = resource.BudgetRefusal{
		Reason: why.Reason, Message: why.Message(), Remedy: why.Causes[0].Remedy,
	}
}

// maxVisitFactor times the endpoint limit is the number of backend addresses that keepPublished compares at most.
const maxVisitFactor = 4

// keepPublished lets a route that now exceeds a budget keep published endpoints, so that its calls continue. It keeps
// the endpoints that the route's backends still contain, as far as the limit allows.
func (a *admission) keepPublished(limit share.Load, usedBy map[string]share.Load) {
	published := a.opt.Published
	if len(a.refused) == 0 || published == nil {
		return
	}
	var used share.Load
	for _, of := range usedBy {
		used = used.Plus(of)
	}
	left := maxVisitFactor * limit[share.Endpoints]
	for _, route := range a.view.RoutesOf(a.gateway) {
		name := route.Ref.NamespacedName.String()
		if _, refused := a.refused[name]; !refused || route.MaskedBy != nil {
			continue
		}
		i := slices.IndexFunc(published.Clusters, func(c config.Cluster) bool { return c.Name == name })
		r := &attachedRoute{route: route, listeners: a.matcher.listenersFor(route)}
		if i < 0 || len(r.listeners) == 0 {
			continue
		}
		if a.resolve(r); published.Clusters[i].Type != r.clusterType {
			continue
		}
		endpoints, except, visited := keptEndpoints(published.Clusters[i], r.sets, left)
		left = max(0, left-visited)
		cost := share.Load{
			share.Endpoints: len(endpoints) + len(except),
			share.Bytes:     overheadOfRoute + (1+len(r.listeners))*(len(name)+len(`"",`)),
		}
		for _, e := range slices.Concat(endpoints, except) {
			cost[share.Bytes] += len(e) + len(`"",`)
		}
		if r.clusterType == config.StrictDNS {
			cost[share.Names] = len(endpoints)
		}
		demand := a.demand.Endpoints[route.Ref.Namespace]
		if _, over := used.Plus(cost).Over(limit); over || len(endpoints) == 0 ||
			demand.Given+cost[share.Endpoints] > a.rooms[route.Ref.Namespace].endpoints {
			continue
		}
		used = used.Plus(cost)
		demand.Given += cost[share.Endpoints]
		a.demand.Endpoints[route.Ref.Namespace] = demand
		kept := config.Cluster{Name: name, Type: r.clusterType, Protocol: "UDP", Endpoints: endpoints, Except: except}
		a.keptClusters = append(a.keptClusters, kept)
		for _, l := range r.listeners {
			a.keptRoutes[l] = append(a.keptRoutes[l], name)
		}
	}
}

// keptEndpoints returns the endpoints of a published cluster that the endpoint sets still contain. Other
// published endpoints are dropped, because a removed backend must not stay in use. It also returns the excluded
// addresses of these sets, and the number of addresses compared. If more than limit addresses would have to be
// compared, it returns no endpoints.
func keptEndpoints(published config.Cluster, sets []endpointSet, limit int) (endpoints, except []string, visited int) {
	byPorts := map[string]map[string]bool{} // published addresses by port range
	for _, e := range published.Endpoints {
		host, ports := splitPorts(e)
		if byPorts[ports] == nil {
			byPorts[ports] = map[string]bool{}
		}
		byPorts[ports][host] = true
	}
	var kept []endpointSet
	for _, s := range sets {
		hosts := byPorts[s.ports]
		if len(hosts) == 0 {
			continue
		}
		if visited += s.count(); visited > limit {
			return nil, nil, visited
		}
		kept = append(kept, s)
		for host := range s.addresses() {
			if hosts[host] {
				endpoints = append(endpoints, host+s.ports)
			}
		}
	}
	slices.Sort(endpoints)
	return slices.Compact(endpoints), exceptOf(kept), visited
}

// splitPorts splits an endpoint of a config, such as 10.0.0.1:<100-200>, into its address and the rest, its port range.
func splitPorts(endpoint string) (host, ports string) {
	if i := strings.LastIndex(endpoint, ":<"); i >= 0 {
		return endpoint[:i], endpoint[i:]
	}
	return endpoint, ""
}

// attach sets the routes of each listener: the served routes, and the names of the routes over budget that keep
// published endpoints.
func (a *admission) attach(listeners []*listener) {
	for _, r := range a.served {
		for _, i := range r.listeners {
			listeners[i].routes = append(listeners[i].routes, r.route)
		}
	}
	for i, names := range a.keptRoutes {
		listeners[i].keptRoutes = names
	}
}

// overBudget returns the routes that exceed a budget as an object that can be added to the view, see Result.OverBudget.
func (a *admission) overBudget() *resource.OverBudget {
	o := &resource.OverBudget{Routes: a.refused}
	o.Namespace, o.Name = a.gateway.Namespace, a.gateway.Name
	return o
}
