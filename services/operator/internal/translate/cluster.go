package translate

import (
	"cmp"
	"fmt"
	"net/netip"
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

// clustersOf returns one cluster for each route that is attached somewhere, and the same clusters with names in the place of the addresses of
// Services; both are sorted by name.
func clustersOf(v *resource.View, listeners []*listener, p parameters, opt Options) (clusters, named []config.Cluster) {
	known := map[types.NamespacedName]bool{} // a Gateway may have thousands
	for _, l := range listeners {
		for _, r := range l.routes {
			if name := r.Ref.NamespacedName; !known[name] {
				known[name] = true
				clusters, named = append(clusters, clusterOf(v, r, p, opt)), append(named, namedClusters(v, r, p, opt)...)
			}
		}
	}
	byName := func(a, b config.Cluster) int { return cmp.Compare(a.Name, b.Name) }
	slices.SortFunc(clusters, byName)
	slices.SortFunc(named, byName)
	return clusters, named
}

// servicesSuffix marks the names among the backends of a route that has prefixes as well: one cluster cannot hold both.
const servicesSuffix = "/services"

// namedClusters is a route as people see it: an endpoint that comes or goes makes no difference there.
func namedClusters(v *resource.View, r *resource.Route, p parameters, opt Options) []config.Cluster {
	opt.EndpointDiscovery = false
	services, others := *r, *r
	services.Backends, others.Backends = nil, nil
	for _, b := range r.Backends {
		if b.Kind == string(stunnerv1.KindService) {
			services.Backends = append(services.Backends, b)
		} else {
			others.Backends = append(others.Backends, b)
		}
	}
	names := clusterOf(v, &services, p, opt)
	if len(others.Backends) == 0 {
		return []config.Cluster{names}
	}
	prefixes := clusterOf(v, &others, p, opt)
	prefixes.Except = nil // nodes come and go
	if len(services.Backends) == 0 {
		return []config.Cluster{prefixes}
	}
	names.Name += servicesSuffix
	return []config.Cluster{prefixes, names}
}

// clusterOf is the union of all backends of a route that are right: one that is wrong takes nothing from the others.
func clusterOf(v *resource.View, r *resource.Route, p parameters, opt Options) config.Cluster {
	c := config.Cluster{Name: r.Ref.NamespacedName.String(), Type: clusterTypeOf(r, opt), Protocol: "UDP"}
	backends, _ := backendsOf(v, r, p, opt)
	for _, b := range backends {
		endpoints, except := b.endpoints()
		c.Endpoints, c.Except = append(c.Endpoints, endpoints...), append(c.Except, except...)
	}
	slices.Sort(c.Endpoints)
	slices.Sort(c.Except)
	c.Endpoints, c.Except = slices.Compact(c.Endpoints), slices.Compact(c.Except)
	return c
}

func clusterTypeOf(r *resource.Route, opt Options) config.ClusterType {
	if !opt.EndpointDiscovery && len(r.Backends) > 0 && r.Backends[0].Kind == string(stunnerv1.KindService) {
		return config.StrictDNS
	}
	return config.Static
}

// backendsOf returns the backends of a route that have endpoints, and what is wrong with the route's backends. It does not ask for the endpoints
// themselves: the status of a route does not depend on them, and need not be made anew whenever a pod comes or goes.
func backendsOf(v *resource.View, r *resource.Route, p parameters, opt Options) (backends []backend, found []condition.Finding) {
	for _, b := range r.Backends {
		q := backend{Backend: b, view: v, route: r, opt: opt, cluster: clusterTypeOf(r, opt), denied: p.denied(), excluded: p.exclusion(v), guarded: p.guarded()}
		q.grants = p.config != nil && p.config.Spec.RequireReferenceGrants
		if unfit := backendRules.judge(q); !unfit.OK() {
			found = append(found, unfit)
			continue
		}
		if !q.isService() {
			_, _, unfit := q.openPrefixes()
			found = append(found, unfit...)
		}
		backends = append(backends, q)
	}
	return backends, found
}

// backend is a backend of a route, on its way into a cluster.
type backend struct {
	resource.Backend
	view    *resource.View
	route   *resource.Route
	opt     Options
	grants  bool
	denied  []stunnerv1.DeniedBackend
	cluster config.ClusterType
	// excluded are the addresses of the cluster itself.
	excluded func() exclusion
	// guarded says that the API servers are none of its backends.
	guarded bool
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
	if b.guarded && b.isService() && b.Key() == apiServer {
		return condition.BackendIsAPIServer(b.Key().String())
	}
	for _, d := range b.denied {
		if b.isService() && b.meant(d) {
			return condition.BackendDenied(b.Key().String())
		}
	}
	return condition.Finding{}
}

// meant tells whether a denial is about the backend. One that cannot be read keeps its GatewayConfig from being used.
func (b backend) meant(d stunnerv1.DeniedBackend) bool {
	if d.Namespace != "" && d.Namespace != b.Namespace {
		return false
	}
	if d.Selector == nil {
		return d.Namespace != ""
	}
	svc, selector := b.view.Service(b.Key()), readable(d.Selector)
	return svc != nil && selector != nil && selector.Matches(labels.Set(svc.Labels))
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

// endpoints are what clients may reach behind the backend, except some addresses.
func (b backend) endpoints() (endpoints, except []string) {
	switch {
	case !b.isService():
		open, except, _ := b.openPrefixes()
		return b.withPorts(open), except
	case b.cluster == config.StrictDNS:
		return []string{b.Name + "." + b.Namespace + ".svc." + b.opt.ClusterDomain}, nil
	}
	return b.withPorts(append(b.podAddresses(), b.clusterAddress()...)), nil
}

// podAddresses are those of all endpoints, ready or not: a media server that is shutting down still has calls. Names are left out,
// because a static cluster has no use for them.
func (b backend) podAddresses() []string {
	var addresses []string
	for _, slice := range b.view.EndpointSlicesOf(b.Key()) {
		for _, endpoint := range slice.Endpoints {
			for _, a := range endpoint.Addresses {
				if ip, err := netip.ParseAddr(a); err == nil && ip.Zone() == "" && !b.forged(ip, endpoint.TargetRef) {
					addresses = append(addresses, ip.Unmap().String())
				}
			}
		}
	}
	return addresses
}

// clusterAddress is the first cluster IP. A headless Service has none, and needs none.
func (b backend) clusterAddress() []string {
	ip, err := netip.ParseAddr(b.view.Service(b.Key()).Spec.ClusterIP)
	if err != nil {
		return nil
	}
	return []string{ip.String()}
}

// withPorts adds the port range, in the syntax of config.ParseEndpoint.
func (b backend) withPorts(endpoints []string) []string {
	if b.Port == 0 {
		return endpoints
	}
	last := cmp.Or(b.EndPort, b.Port)
	for i := range endpoints {
		endpoints[i] += fmt.Sprintf(":<%d-%d>", b.Port, last)
	}
	return endpoints
}

// prefixesOf returns the prefixes of a StaticService as they are written, without those that are none.
func prefixesOf(s *stunnerv1.StaticService) ([]string, []condition.Finding) {
	var prefixes []string
	var found []condition.Finding
	for _, p := range s.Spec.Prefixes {
		// Ports belong to the route.
		if _, err := config.ParsePrefix(p); err != nil {
			found = append(found, condition.PrefixInvalid(resource.KeyOf(s).String(), p))
			continue
		}
		prefixes = append(prefixes, p)
	}
	return prefixes, found
}
