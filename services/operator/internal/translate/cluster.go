package translate

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/config"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// clustersOf returns one cluster for each route that the Gateway serves, and the same clusters with names in the place of the addresses of
// Services; both are sorted by name.
func clustersOf(served []ask, kept []config.Cluster) (clusters, named []config.Cluster) {
	for _, a := range served {
		cluster, shown := a.clusters()
		clusters, named = append(clusters, cluster), append(named, shown...)
	}
	clusters, named = append(clusters, kept...), append(named, kept...)
	byName := func(a, b config.Cluster) int { return cmp.Compare(a.Name, b.Name) }
	slices.SortFunc(clusters, byName)
	slices.SortFunc(named, byName)
	return clusters, named
}

// servicesSuffix marks the names among the backends of a route that has prefixes as well: one cluster cannot hold both.
const servicesSuffix = "/services"

// clusters returns the union of all backends of a route that are right: one that is wrong takes nothing from the others. named is the same as people
// see it: an endpoint that comes or goes makes no difference there. What both have in common is written down once.
func (a ask) clusters() (cluster config.Cluster, named []config.Cluster) {
	name, r := a.route.Ref.NamespacedName.String(), a.route
	var prefixes, addresses, names []reach
	for _, s := range a.reaches {
		switch {
		case s.static != nil:
			prefixes = append(prefixes, s)
			continue
		case s.name == "":
			addresses = append(addresses, s)
		}
		names = append(names, s.byName())
	}
	static := config.Cluster{Name: name, Type: config.Static, Protocol: "UDP", Endpoints: endpointsOf(prefixes)}
	cluster = static
	cluster.Except = exceptOf(prefixes) // people are not shown it: nodes come and go
	if a.kind == config.StrictDNS {
		cluster.Type, cluster.Endpoints = a.kind, endpointsOf(names)
	} else if len(addresses) > 0 {
		cluster.Endpoints = endpointsOf(append(addresses, prefixes...))
	}
	isService := func(b resource.Backend) bool { return b.Kind == string(stunnerv1.KindService) }
	if !slices.ContainsFunc(r.Backends, isService) {
		return cluster, []config.Cluster{static}
	}
	services := config.Cluster{Name: name, Type: config.StrictDNS, Protocol: "UDP", Endpoints: endpointsOf(names)}
	if !slices.ContainsFunc(r.Backends, func(b resource.Backend) bool { return !isService(b) }) {
		return cluster, []config.Cluster{services}
	}
	services.Name += servicesSuffix
	return cluster, []config.Cluster{static, services}
}

// endpointsOf writes down what reaches lead to, in the syntax of config.ParseEndpoint.
func endpointsOf(reaches []reach) []string {
	count := 0
	for _, s := range reaches {
		count += s.count()
	}
	if count == 0 {
		return nil
	}
	endpoints := make([]string, 0, count)
	for _, s := range reaches {
		for address := range s.addresses() {
			endpoints = append(endpoints, address+s.ports)
		}
	}
	if len(endpoints) == 0 {
		return nil
	}
	slices.Sort(endpoints)
	return slices.Compact(endpoints)
}

// exceptOf returns the addresses inside the prefixes of reaches that routes do not reach.
func exceptOf(reaches []reach) (except []string) {
	seen := map[*opening]bool{} // one StaticService may be named with many ports
	for _, s := range reaches {
		if o := s.opening(); len(o.except) > 0 && !seen[o] {
			seen[o] = true
			except = append(except, o.except...)
		}
	}
	slices.Sort(except)
	return slices.Compact(except)
}

func clusterTypeOf(r *resource.Route, opt Options) config.ClusterType {
	if !opt.EndpointDiscovery && len(r.Backends) > 0 && r.Backends[0].Kind == string(stunnerv1.KindService) {
		return config.StrictDNS
	}
	return config.Static
}

// backers judge the backends of routes by the parameters of a Gateway.
type backers struct {
	view   *resource.View
	opt    Options
	grants bool
	denied []denial
	// guarded says that the API servers are none of the backends.
	guarded bool
	shield  *shield
	// refused are the Services that have been held against the denials.
	refused map[types.NamespacedName]bool
}

func newBackers(v *resource.View, p parameters, opt Options, s map[bool]*shield) backers {
	b := backers{
		view: v, opt: opt, grants: p.config != nil && p.config.Spec.RequireReferenceGrants, guarded: p.guarded(), shield: s[p.guarded()],
		refused: map[types.NamespacedName]bool{},
	}
	for _, d := range p.denied() {
		b.denied = append(b.denied, newDenial(d))
	}
	return b
}

// of returns the backends of a route that have endpoints, and what is wrong with the others. It does not ask for the endpoints themselves: the status
// of a route does not depend on them, and need not be made anew whenever a pod comes or goes.
func (j backers) of(r *resource.Route) (backends []backend, found []condition.Finding) {
	for _, b := range r.Backends {
		q := backend{Backend: b, backers: j, route: r, cluster: clusterTypeOf(r, j.opt)}
		if unfit := backendRules.judge(q); !unfit.OK() {
			found = append(found, unfit)
			continue
		}
		backends = append(backends, q)
	}
	return backends, found
}

// unreached says what of the StaticServices among backends is not reached, once for each of them.
func (j backers) unreached(backends []backend) (found []condition.Finding) {
	said := map[types.NamespacedName]bool{}
	for _, b := range backends {
		if key := b.Key(); !b.isService() && !said[key] {
			said[key] = true
			found = append(found, j.shield.opening(j.view.StaticService(key)).found...)
		}
	}
	return found
}

// backend is a backend of a route, on its way into a cluster.
type backend struct {
	resource.Backend
	backers
	route   *resource.Route
	cluster config.ClusterType
}

var backendRules = rules[backend]{
	backend.isKnown,
	backend.hasPortRange,
	backend.isGranted,
	backend.isAllowed,
	backend.exists,
	backend.hasEndpoints,
	backend.fitsCluster,
}

func (b backend) isService() bool { return b.Group == "" && b.Kind == string(stunnerv1.KindService) }

func (b backend) isKnown() condition.Finding {
	static := b.Group == stunnerv1.GroupName && b.Kind == string(stunnerv1.KindStaticService)
	if !b.isService() && !static {
		return condition.BackendKind(b.Key().String(), b.Group, b.Kind)
	}
	return condition.Finding{}
}

// hasPortRange must not take a range that it does not understand for no range, which would open every port.
func (b backend) hasPortRange() condition.Finding {
	none := b.Port == 0 && b.EndPort == 0
	single := b.Port >= 1 && b.Port <= 65535 && b.EndPort == 0
	ranged := b.Port >= 1 && b.Port <= b.EndPort && b.EndPort <= 65535
	if !none && !single && !ranged {
		return condition.BackendPorts(b.Key().String(), b.Port, b.EndPort)
	}
	return condition.Finding{}
}

func (b backend) isGranted() condition.Finding {
	from := resource.Referrer{Group: b.route.Ref.GroupVersion.Group, Kind: string(resource.KindUDPRoute), Namespace: b.route.Ref.Namespace}
	to := resource.Target{Group: b.Group, Kind: b.Kind, NamespacedName: b.Key()}
	if b.grants && !b.view.Granted(from, to) {
		return condition.NotGranted("the route", b.Kind+" "+b.Key().String(), b.Namespace)
	}
	return condition.Finding{}
}

func (b backend) isAllowed() condition.Finding {
	if !b.isService() {
		return condition.Finding{}
	}
	if b.guarded && b.Key() == apiServer {
		return condition.BackendIsAPIServer(b.Key().String())
	}
	refused, known := b.refused[b.Key()]
	if !known {
		refused = slices.ContainsFunc(b.denied, b.meant)
		b.refused[b.Key()] = refused
	}
	if refused {
		return condition.BackendDenied(b.Key().String())
	}
	return condition.Finding{}
}

// denial is a DeniedBackend whose selector has been read.
type denial struct {
	namespace string
	selects   bool
	selector  labels.Selector // nil if it cannot be read
}

func newDenial(d stunnerv1.DeniedBackend) denial {
	n := denial{namespace: d.Namespace, selects: d.Selector != nil}
	if n.selects {
		n.selector = readable(d.Selector)
	}
	return n
}

// meant tells whether a denial is about the backend. One that cannot be read keeps its GatewayConfig from being used.
func (b backend) meant(d denial) bool {
	if d.namespace != "" && d.namespace != b.Namespace {
		return false
	}
	if !d.selects {
		return d.namespace != ""
	}
	svc := b.view.Service(b.Key())
	return svc != nil && d.selector != nil && d.selector.Matches(labels.Set(svc.Labels))
}

// readable returns what a selector selects, nil when it cannot be read.
func readable(s *metav1.LabelSelector) labels.Selector {
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return nil
	}
	return selector
}

func (b backend) exists() condition.Finding {
	if b.isService() && b.view.Service(b.Key()) == nil || !b.isService() && b.view.StaticService(b.Key()) == nil {
		return condition.BackendMissing(b.Kind, b.Key().String())
	}
	return condition.Finding{}
}

func (b backend) hasEndpoints() condition.Finding {
	if b.isService() && b.view.Service(b.Key()).Spec.Type == corev1.ServiceTypeExternalName {
		return condition.BackendExternalName(b.Key().String())
	}
	return condition.Finding{}
}

func (b backend) fitsCluster() condition.Finding {
	resolved := b.isService() && !b.opt.EndpointDiscovery
	if resolved != (b.cluster == config.StrictDNS) {
		return condition.BackendMixed(b.Key().String())
	}
	return condition.Finding{}
}

// prefixesOf says which prefixes of a StaticService are none.
func prefixesOf(s *stunnerv1.StaticService) (found []condition.Finding) {
	for _, p := range s.Spec.Prefixes {
		// Ports belong to the route.
		if _, err := config.ParsePrefix(p); err != nil {
			found = append(found, condition.PrefixInvalid(resource.KeyOf(s).String(), p))
		}
	}
	return found
}
