package translate

import (
	"fmt"
	"slices"
	"strings"

	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/share"
)

// admission decides which routes a Gateway serves. All that they lead to is counted before any of it is written down.
type admission struct {
	view    *resource.View
	gateway *gwapiv1.Gateway
	gates   gates
	backers backers
	budget  stunnerv1.Budget
	room    Room

	served []ask
	// kept are what is left to routes that wait, and keptBy the listeners that lead there.
	kept   []config.Cluster
	keptBy map[int][]string
	held   map[string]resource.BudgetRefusal
	demand Demand
}

func (d draft) admit() *admission {
	a := &admission{
		view: d.view, gateway: d.gateway, gates: newGates(d.view, d.gateway), backers: newBackers(d.view, d.parameters, d.opt, shields(d.view)), budget: d.budget, room: d.opt.Room,
		keptBy: map[int][]string{}, held: map[string]resource.BudgetRefusal{},
	}
	limit := a.limit(d.listeners)
	served, denied, used := a.divide(limit)
	a.demand = Demand{Wanted: used[share.Endpoints], Given: used[share.Endpoints], PerNamespace: int(d.budget.EndpointsPerNamespace)}
	why := a.ownBudgets()
	if room, budget := a.roomFor(limit[share.Endpoints]); used[share.Endpoints] > room {
		limit[share.Endpoints], why[share.Endpoints] = room, budget
		served, denied, used = a.divide(limit)
		a.demand.Given = used[share.Endpoints]
	}
	for _, s := range served {
		switch {
		case s.tooWide > 0:
			a.hold(s, condition.RouteTooWide(s.tooWide, int(d.budget.EndpointsPerRoute)))
		case len(s.listeners) > 0:
			a.served = append(a.served, *s)
		}
	}
	for _, no := range denied {
		a.hold(no.Of, condition.GatewayFull(resource.KeyOf(a.gateway).String(), why[no.Kind], no.Asks, nouns[no.Kind]))
	}
	a.keep(d.opt.Published, limit, used)
	return a
}

// nouns name what is bounded.
var nouns = map[int]string{share.Routes: "routes", share.Endpoints: "endpoints", share.Bytes: "bytes", share.Names: "host names"}

// overhead is how many bytes of a config are neither certificates nor of routes, at most: what is said once, and what is said of each listener.
const overhead, overheadOfListener = 64 << 10, 4 << 10

func (a *admission) limit(listeners []*listener) share.Load {
	bytes := config.MaxDocument - overhead - len(listeners)*overheadOfListener
	for _, l := range listeners {
		for _, c := range l.certificates {
			bytes -= len(c.encoded().Cert) + len(c.encoded().Key)
		}
	}
	return share.Load{share.Routes: int(a.budget.Routes), share.Endpoints: int(a.budget.Endpoints), share.Bytes: max(bytes, 0), share.Names: config.MaxHostNames}
}

// ownBudgets say where each bound comes from.
func (a *admission) ownBudgets() map[int]string {
	return map[int]string{
		share.Routes:    fmt.Sprintf("spec.budget.routes of the GatewayConfig allows %d", a.budget.Routes),
		share.Endpoints: fmt.Sprintf("spec.budget.endpoints of the GatewayConfig allows %d for all routes", a.budget.Endpoints),
		share.Bytes:     fmt.Sprintf("a config has at most %d", config.MaxDocument),
		share.Names:     fmt.Sprintf("a config has at most %d", config.MaxHostNames),
	}
}

// roomFor returns how many endpoints the other Gateways leave to this one, and what bounds them.
func (a *admission) roomFor(own int) (room int, budget string) {
	room = own
	if left := max(0, int(a.budget.EndpointsPerNamespace)-a.room.Namespace); left < room {
		room, budget = left, fmt.Sprintf("spec.budget.endpointsPerNamespace of the GatewayConfig allows %d for all Gateways of namespace %s", a.budget.EndpointsPerNamespace, a.gateway.Namespace)
	}
	if a.room.Bounded && a.room.Operator < room {
		room, budget = a.room.Operator, fmt.Sprintf("the memory of the operator allows %d for this Gateway", a.room.Operator)
	}
	return room, budget
}

// divide admits routes as long as there is room: each namespace has an equal share, and the oldest routes of a namespace come first. A route of a
// namespace that no listener admits takes part in nothing.
func (a *admission) divide(limit share.Load) ([]*ask, []share.Denied[*ask], share.Load) {
	claims := map[string][]share.Claim[*ask]{}
	for _, r := range a.view.RoutesOf(resource.KeyOf(a.gateway)) {
		namespace := r.Ref.Namespace
		if r.MaskedBy != nil || !slices.Contains(a.gates.admitted(namespace), true) {
			continue
		}
		s := &ask{route: r}
		least := share.Load{share.Routes: 1, share.Endpoints: len(r.Backends)}
		claims[namespace] = append(claims[namespace], share.Claim[*ask]{Of: s, Least: least, Measure: func() share.Load { return a.measure(s, least) }})
	}
	for _, of := range claims {
		slices.SortStableFunc(of, func(x, y share.Claim[*ask]) int {
			return x.Of.route.Origin.GetCreationTimestamp().Compare(y.Of.route.Origin.GetCreationTimestamp().Time)
		})
	}
	return share.Divide(limit, claims)
}

// measure finds out what a route asks for. One that no listener takes asks for nothing, and neither does one that is too wide to be served.
func (a *admission) measure(s *ask, least share.Load) share.Load {
	if s.listeners = a.gates.takes(s.route); len(s.listeners) == 0 {
		return least
	}
	a.resolve(s)
	l, count := least, 0
	name := len(s.route.Ref.NamespacedName.String())
	l[share.Bytes] = overheadOfRoute + name + len(s.listeners)*(name+len(`"",`))
	for _, to := range s.reaches {
		count += to.count()
		l[share.Bytes] += to.bytes()
	}
	if count > int(a.budget.EndpointsPerRoute) {
		s.tooWide = count
		return least
	}
	for _, address := range exceptOf(s.reaches) { // a dataplane holds them as well
		count++
		l[share.Bytes] += len(address) + len(`"",`)
	}
	l[share.Endpoints] = max(count, least[share.Endpoints])
	if s.kind == config.StrictDNS {
		l[share.Names] = count
	}
	return l
}

// overheadOfRoute is how many bytes of a cluster are neither its name nor its endpoints, at most.
const overheadOfRoute = 80

func (a *admission) resolve(s *ask) {
	backends, _ := a.backers.of(s.route)
	s.reaches, s.kind = reachesOf(backends), clusterTypeOf(s.route, a.backers.opt)
}

func (a *admission) hold(s *ask, why condition.Finding) {
	a.held[s.route.Ref.NamespacedName.String()] = resource.BudgetRefusal{Reason: why.Reason, Message: why.Message}
}

// effort bounds what it costs to find out what routes keep that wait: so many times the endpoints that they may have.
const effort = 4

// keep leaves to routes that wait what they have published and still lead to, as far as there is room. An operator that has published nothing yet finds
// it where pods find it that start without an operator.
func (a *admission) keep(published *config.Config, limit, used share.Load) {
	if len(a.held) == 0 {
		return
	}
	if published == nil {
		published = manifest.ReadStandby(a.view.Secret(manifest.StandbyKey(resource.KeyOf(a.gateway))), a.gateway.UID)
	}
	if published == nil {
		return
	}
	left := effort * limit[share.Endpoints]
	for _, r := range a.view.RoutesOf(resource.KeyOf(a.gateway)) {
		name := r.Ref.NamespacedName.String()
		if _, held := a.held[name]; !held || r.MaskedBy != nil {
			continue
		}
		i := slices.IndexFunc(published.Clusters, func(c config.Cluster) bool { return c.Name == name })
		s := &ask{route: r, listeners: a.gates.takes(r)}
		if i < 0 || len(s.listeners) == 0 {
			continue
		}
		if a.resolve(s); published.Clusters[i].Type != s.kind {
			continue
		}
		endpoints, except, looked := keep(published.Clusters[i], s.reaches, left)
		left = max(0, left-looked)
		cost := share.Load{share.Endpoints: len(endpoints) + len(except), share.Bytes: overheadOfRoute + (1+len(s.listeners))*(len(name)+len(`"",`))}
		for _, e := range slices.Concat(endpoints, except) {
			cost[share.Bytes] += len(e) + len(`"",`)
		}
		if s.kind == config.StrictDNS {
			cost[share.Names] = len(endpoints)
		}
		if _, over := used.Plus(cost).Over(limit); over || len(endpoints) == 0 {
			continue
		}
		used = used.Plus(cost)
		a.kept = append(a.kept, config.Cluster{Name: name, Type: s.kind, Protocol: "UDP", Endpoints: endpoints, Except: except})
		for _, l := range s.listeners {
			a.keptBy[l] = append(a.keptBy[l], name)
		}
	}
	a.demand.Given = used[share.Endpoints]
}

// attach gives each listener the routes that it serves, and the names of those that wait and keep something.
func (a *admission) attach(listeners []*listener) {
	for _, s := range a.served {
		for _, i := range s.listeners {
			listeners[i].routes = append(listeners[i].routes, s.route)
		}
	}
	for i, names := range a.keptBy {
		listeners[i].kept = names
	}
}

// holds says which routes wait, for the translation of each of them.
func (a *admission) holds() *resource.OverBudget {
	h := &resource.OverBudget{Routes: a.held}
	h.Namespace, h.Name = a.gateway.Namespace, a.gateway.Name
	return h
}

// splitPorts takes an endpoint apart.
func splitPorts(endpoint string) (address, ports string) {
	if i := strings.LastIndex(endpoint, ":<"); i >= 0 {
		return endpoint[:i], endpoint[i:]
	}
	return endpoint, ""
}

// keep returns those endpoints of a published cluster that the reaches still lead to, and the addresses inside them that routes do not reach: what was taken away from a route does not stay because the route
// asks for too much. It looks at no more than most addresses, and returns how many it has looked at.
func keep(published config.Cluster, reaches []reach, most int) (endpoints, except []string, looked int) {
	has := map[string]map[string]bool{} // by ports and address
	for _, e := range published.Endpoints {
		address, ports := splitPorts(e)
		if has[ports] == nil {
			has[ports] = map[string]bool{}
		}
		has[ports][address] = true
	}
	var kept []reach
	for _, s := range reaches {
		addresses := has[s.ports]
		if len(addresses) == 0 {
			continue
		}
		if looked += s.count(); looked > most {
			return nil, nil, looked
		}
		kept = append(kept, s)
		for a := range s.addresses() {
			if addresses[a] {
				endpoints = append(endpoints, a+s.ports)
			}
		}
	}
	slices.Sort(endpoints)
	return slices.Compact(endpoints), exceptOf(kept), looked
}
