package translate

import (
	"cmp"
	"slices"
	"strings"

	"github.com/stunner-gateway/stunner/services/api/config"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// ask is a route that names a Gateway.
type ask struct {
	route *resource.Route
	// listeners are the indexes of those that take it, and reaches what it leads to: nothing until it has been measured.
	listeners []int
	reaches   []reach
	kind      config.ClusterType
	// tooWide says that it leads to more than one route may.
	tooWide int
}

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

// shown is a config with its clusters under the names that people know.
func shown(c config.Config, named []config.Cluster) config.Config {
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
