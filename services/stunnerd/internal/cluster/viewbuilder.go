package cluster

import (
	"net/netip"
	"slices"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// ViewBuilder builds the views of listeners from the clusters of a config. It does not parse the endpoints of an
// unchanged cluster again, and returns the views of the previous config if no cluster has changed.
type ViewBuilder struct {
	clusters []*parsed // in the order of the config
	byName   map[string]*parsed
	// views are the views that were returned since the last Take.
	views []routed
	// previous are the views that were built for the previous config. It is nil if a cluster has changed since.
	previous []routed
	// builds counts the calls of build.
	builds uint64
}

// parsed is a cluster with parsed endpoints.
type parsed struct {
	owner
	// written are the endpoints as the config spells them. excepted is the field Except.
	written, excepted []string
	// endpoints is nil after Patch, until a view is built from it.
	endpoints []config.Endpoint
	// lastBuild is the value of ViewBuilder.builds when this cluster was last added to a view. A build uses it to add
	// each cluster only once.
	lastBuild uint64
}

type routed struct {
	routes []string
	view   *View
}

// Take replaces the clusters of the ViewBuilder. They must be validated: Take ignores endpoints that do not parse, and
// clusters that are not static. Function Resolve makes clusters of host names static.
func (b *ViewBuilder) Take(clusters []config.Cluster) {
	before, beforeByName := b.clusters, b.byName
	b.clusters, b.byName = make([]*parsed, 0, len(clusters)), make(map[string]*parsed, len(clusters))
	for _, c := range clusters {
		if c.Type != config.Static {
			continue
		}
		p := beforeByName[c.Name]
		switch {
		case p == nil || !slices.Equal(p.written, c.Endpoints) || !slices.Equal(p.excepted, c.Except):
			p = &parsed{
				owner: owner{name: c.Name, except: addressesOf(c.Except), order: len(b.clusters)}, written: c.Endpoints,
				excepted: c.Except, endpoints: parse(c.Endpoints),
			}
		case p.order != len(b.clusters): // views of the previous config contain the old order
			moved := *p
			moved.order = len(b.clusters)
			p = &moved
		}
		b.clusters, b.byName[c.Name] = append(b.clusters, p), p
	}
	b.previous, b.views = b.views, nil
	if !slices.Equal(b.clusters, before) {
		b.previous = nil
	}
}

func parse(written []string) []config.Endpoint {
	endpoints := make([]config.Endpoint, 0, len(written))
	for _, s := range written {
		if e, err := config.ParseEndpoint(s); err == nil {
			endpoints = append(endpoints, e)
		}
	}
	return endpoints
}

// maxPatch is the maximum number of clusters that Patch changes. For more clusters, Take is cheaper.
const maxPatch = 16

// Patch changes endpoints of the clusters of the last Take, and the views that were returned since then. Its cost
// depends only on the number of changes. If it returns false, it has changed nothing, and the caller must call Take
// instead.
func (b *ViewBuilder) Patch(changes []config.EndpointChange) bool {
	if len(changes) > maxPatch {
		return false
	}
	if slices.ContainsFunc(changes, func(c config.EndpointChange) bool { return b.byName[c.Cluster] == nil }) {
		return false
	}
	views := slices.Clone(b.views)
	for i, r := range views {
		var removed, added []hostGrant
		for _, c := range changes {
			p := b.byName[c.Cluster]
			if !slices.Contains(r.routes, c.Cluster) {
				continue
			}
			var ok, hosts bool
			if removed, ok = p.appendHosts(removed, c.Removed); ok {
				added, hosts = p.appendHosts(added, c.Added)
			}
			if !hosts {
				return false
			}
		}
		next := *r.view
		var ok bool
		if next.hosts, ok = next.hosts.with(removed, added); !ok {
			return false
		}
		if len(removed)+len(added) > 0 {
			views[i].view = &next
		}
	}
	for _, c := range changes {
		p := b.byName[c.Cluster]
		p.written, p.endpoints = c.New, nil
	}
	b.views, b.previous = views, nil
	return true
}

// appendHosts appends the grants of endpoints. It returns false if an endpoint is a prefix of several addresses.
func (p *parsed) appendHosts(grants []hostGrant, written []string) ([]hostGrant, bool) {
	for _, e := range parse(written) {
		if !e.Prefix.IsSingleIP() {
			return nil, false
		}
		grants = append(grants, p.host(e))
	}
	return grants, true
}

func (p *parsed) host(e config.Endpoint) hostGrant { return hostGrant{e.Prefix.Addr(), p.grant(e)} }

func (p *parsed) grant(e config.Endpoint) grant {
	return grant{cluster: &p.owner, ports: e.Ports, bits: uint8(e.Prefix.Bits())}
}

func addressesOf(texts []string) map[netip.Addr]struct{} {
	if len(texts) == 0 {
		return nil
	}
	addrs := make(map[netip.Addr]struct{}, len(texts))
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil {
			addrs[a.Unmap()] = struct{}{}
		}
	}
	return addrs
}

// View returns a view of the clusters to which the given routes refer. Listeners with the same routes share a view. The
// caller must not modify routes afterwards.
func (b *ViewBuilder) View(routes []string) *View {
	same := func(r routed) bool { return slices.Equal(r.routes, routes) }
	if i := slices.IndexFunc(b.views, same); i >= 0 {
		return b.views[i].view
	}
	next := routed{routes: routes}
	if i := slices.IndexFunc(b.previous, same); i >= 0 {
		next.view = b.previous[i].view
	} else {
		next.view = b.build(routes)
	}
	b.views = append(b.views, next)
	return next.view
}

func (b *ViewBuilder) build(routes []string) *View {
	b.builds++
	size := 0
	for _, route := range routes {
		p := b.byName[route]
		if p == nil || p.lastBuild == b.builds {
			continue
		}
		if p.endpoints == nil {
			p.endpoints = parse(p.written)
		}
		p.lastBuild = b.builds
		size += len(p.endpoints)
	}
	v := &View{nets: map[netip.Prefix][]grant{}}
	hosts := make([]hostGrant, 0, size)
	for _, p := range b.clusters {
		if p.lastBuild != b.builds {
			continue
		}
		for _, e := range p.endpoints {
			if e.Prefix.IsSingleIP() {
				hosts = append(hosts, p.host(e))
			} else {
				v.nets[e.Prefix] = append(v.nets[e.Prefix], p.grant(e))
			}
		}
	}
	v.hosts = newHostTable(hosts)
	v.measure()
	return v
}

// measure sets lengths4 and lengths6.
func (v *View) measure() {
	for p := range v.nets {
		lengths := &v.lengths6
		if p.Addr().Is4() {
			lengths = &v.lengths4
		}
		if !slices.Contains(*lengths, p.Bits()) {
			*lengths = append(*lengths, p.Bits())
		}
	}
	slices.Sort(v.lengths4)
	slices.Sort(v.lengths6)
}
