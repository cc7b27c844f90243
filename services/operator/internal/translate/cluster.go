package translate

import (
	"cmp"
	"slices"
	"strings"

	"github.com/stunner-gateway/stunner/services/api/config"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/share"
)

// attachedRoute is a route that refers to the Gateway. admission.measure sets the fields other than route.
type attachedRoute struct {
	route *resource.Route
	// listeners are the indexes of the listeners to which the route attaches.
	listeners []int
	// sets are the endpoint sets of the valid backends.
	sets        []endpointSet
	clusterType config.ClusterType
	// tooManyEndpoints is the number of endpoints of the route if it exceeds the limit of a single route, otherwise 0.
	tooManyEndpoints int
	// floor is the minimum load of the route, and load is its load.
	floor, load share.Load
	// contributed is the number of endpoints of the cluster before duplicates are removed.
	contributed int
}

// clustersOf returns one cluster for each served route, together with the kept clusters of routes over budget, see
// admission.keepPublished. named are the clusters for display to users: served routes have the DNS names of Services
// instead of addresses, and kept clusters are unchanged. Both lists are sorted by name.
func clustersOf(served []attachedRoute, kept []config.Cluster) (clusters, named []config.Cluster) {
	for i := range served {
		cluster, names := served[i].clusters()
		clusters, named = append(clusters, cluster), append(named, names...)
	}
	clusters, named = append(clusters, kept...), append(named, kept...)
	byName := func(a, b config.Cluster) int { return cmp.Compare(a.Name, b.Name) }
	slices.SortFunc(clusters, byName)
	slices.SortFunc(named, byName)
	return clusters, named
}

// servicesSuffix is appended to the cluster name of a route with both StaticServices and Services, when the config is
// displayed: the DNS names of Services are then shown in a cluster of their own, because prefixes and DNS names cannot
// be in one cluster.
const servicesSuffix = "/services"

// clusters returns the cluster of a route with the endpoints of all its valid backends, and named, the clusters that
// are displayed to users. The named clusters contain the DNS names of Services, so that they do not change with the
// endpoints of Services or with the nodes.
func (r *attachedRoute) clusters() (cluster config.Cluster, named []config.Cluster) {
	name := r.route.Ref.NamespacedName.String()
	var prefixes, addresses, names []endpointSet
	for _, s := range r.sets {
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
	cluster.Except = exceptOf(prefixes)
	if r.clusterType == config.StrictDNS {
		cluster.Type, cluster.Endpoints = r.clusterType, endpointsOf(names)
	} else if len(addresses) > 0 {
		cluster.Endpoints, r.contributed = contributionsOf(append(addresses, prefixes...))
	}
	isService := func(b resource.Backend) bool { return b.Kind == string(stunnerv1.KindService) }
	if !slices.ContainsFunc(r.route.Backends, isService) {
		return cluster, []config.Cluster{static}
	}
	services := config.Cluster{Name: name, Type: config.StrictDNS, Protocol: "UDP", Endpoints: endpointsOf(names)}
	if !slices.ContainsFunc(r.route.Backends, func(b resource.Backend) bool { return !isService(b) }) {
		return cluster, []config.Cluster{services}
	}
	services.Name += servicesSuffix
	return cluster, []config.Cluster{static, services}
}

// withServiceNames returns a copy of a config for display, whose clusters are replaced by the named clusters. A route
// with a second cluster, see servicesSuffix, has this cluster in its listeners as well.
func withServiceNames(c config.Config, named []config.Cluster) config.Config {
	c = c.Clone()
	c.Clusters = named
	for _, cluster := range named {
		route, split := strings.CutSuffix(cluster.Name, servicesSuffix)
		for i := range c.Listeners {
			if l := &c.Listeners[i]; split && slices.Contains(l.Routes, route) {
				l.Routes = append(l.Routes, cluster.Name)
			}
		}
	}
	return c
}
