package cluster

import (
	"net/netip"
	"slices"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// Book builds the views of listeners from the clusters of a config. It does not parse the endpoints of an unchanged
// cluster again, and returns the views of the previous config if no cluster has changed.
type Book struct {
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
	name      string
	written   []string
	endpoints []config.Endpoint
	// excepted is the field Except of the cluster in the config.
	excepted []string
	// except contains the addresses that the prefixes in endpoints do not include: the parsed form of excepted.
	except map[netip.Addr]struct{}
	// lastBuild is the value of Book.builds at the last build that has added this cluster to a view. So one build
	// adds a cluster only once.
	lastBuild uint64
}

type routed struct {
	routes []string
	view   *View
}

// Take replaces the clusters of the Book. They must be validated: Take ignores endpoints that do not parse, and
// clusters that are not static. Function Resolve makes clusters of host names static.
func (b *Book) Take(clusters []config.Cluster) {
	before, beforeByName := b.clusters, b.byName
	b.clusters, b.byName = make([]*parsed, 0, len(clusters)), make(map[string]*parsed, len(clusters))
	for _, c := range clusters {
		if c.Type != config.Static {
			continue
		}
		p := beforeByName[c.Name]
		if p == nil || !slices.Equal(p.written, c.Endpoints) || !slices.Equal(p.excepted, c.Except) {
			p = parse(c)
		}
		b.clusters, b.byName[c.Name] = append(b.clusters, p), p
	}
	b.previous, b.views = b.views, nil
	if !slices.Equal(b.clusters, before) {
		b.previous = nil
	}
}

func parse(c config.Cluster) *parsed {
	p := &parsed{
		name: c.Name, written: c.Endpoints, endpoints: make([]config.Endpoint, 0, len(c.Endpoints)),
		excepted: c.Except, except: addressesOf(c.Except),
	}
	for _, s := range c.Endpoints {
		if e, err := config.ParseEndpoint(s); err == nil {
			p.endpoints = append(p.endpoints, e)
		}
	}
	return p
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

// View returns a view of the clusters to which the given routes refer. Listeners with the same routes share a view.
func (b *Book) View(routes []string) *View {
	same := func(r routed) bool { return slices.Equal(r.routes, routes) }
	if i := slices.IndexFunc(b.views, same); i >= 0 {
		return b.views[i].view
	}
	next := routed{routes: slices.Clone(routes)}
	if i := slices.IndexFunc(b.previous, same); i >= 0 {
		next.view = b.previous[i].view
	} else {
		next.view = b.build(routes)
	}
	b.views = append(b.views, next)
	return next.view
}

func (b *Book) build(routes []string) *View {
	b.builds++
	hosts, nets := 0, 0
	for _, route := range routes {
		p := b.byName[route]
		if p == nil || p.lastBuild == b.builds {
			continue
		}
		p.lastBuild = b.builds
		for _, e := range p.endpoints {
			if e.Prefix.IsSingleIP() {
				hosts++
			} else {
				nets++
			}
		}
	}
	v := &View{
		hosts: make(map[netip.Addr]int32, hosts), nets: make(map[netip.Prefix]int32, nets),
		grants: make([]grant, 1, 1+hosts+nets),
	}
	for _, p := range slices.Backward(b.clusters) { // add prepends to the lists of grants
		if p.lastBuild == b.builds {
			v.add(p)
		}
	}
	v.measure()
	return v
}

func (v *View) add(p *parsed) {
	for _, e := range slices.Backward(p.endpoints) {
		place := int32(len(v.grants))
		next := grant{cluster: p, ports: e.Ports}
		if addr := e.Prefix.Addr(); e.Prefix.IsSingleIP() {
			next.next, v.hosts[addr] = v.hosts[addr], place
		} else {
			next.next, v.nets[e.Prefix] = v.nets[e.Prefix], place
		}
		v.grants = append(v.grants, next)
	}
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
