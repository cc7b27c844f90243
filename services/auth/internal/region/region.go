// Package region has the clusters for whose gateways the service gives credentials, the regions in which they are, and
// the order of the regions for a client.
//
// # Files
//
//	region.go  the order of regions for a client
//	file.go    the file of clusters and regions
//	geo.go     the location of an address, by a file in MaxMind's format
package region

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
)

// Cluster is a cluster with an operator, which publishes the configs of its gateways.
type Cluster struct {
	// Name is unique.
	Name   string
	Region string
	// Weight is the share of the users that get gateways of this cluster first, among the clusters of its region. With
	// 0, the cluster is used only while no other cluster of its region can be used.
	Weight int64
	Origin Origin
}

// Origin is the source of the configs of a cluster: a discovery server or a file, as in the flag --config.
type Origin struct {
	Config string
	// TokenFile has the bearer token, and CAFile the CA certificates of a discovery server.
	TokenFile, CAFile string
	// ServerName is the name that the certificate of the server must have; empty means the host of Config.
	ServerName string
	// Keep is the number of seconds for which the last configs are used while the origin is unreachable; 0 means no
	// limit.
	Keep int64
}

// Region is a set of clusters that are near the same clients.
type Region struct {
	// Name is unique.
	Name string
	// Networks are addresses of clients in the region. They take precedence over the GeoIP file.
	Networks []netip.Prefix
	// Countries are codes of ISO 3166-1, such as DE. Continents are AF, AN, AS, EU, NA, OC and SA.
	Countries, Continents []string
	// Place is the location of the clusters; nil if the file does not contain it.
	Place *Place
}

// Place is a point on the earth, in degrees.
type Place struct{ Latitude, Longitude float64 }

func (p Place) valid() bool { return math.Abs(p.Latitude) <= 90 && math.Abs(p.Longitude) <= 180 }

// Map orders regions by their distance to a client.
type Map struct {
	regions []Region
	geo     *Geo // nil without a GeoIP file
}

// NewMap returns a Map. If geo is nil, it uses only the networks of regions.
func NewMap(regions []Region, geo *Geo) *Map { return &Map{regions, geo} }

// Names returns the names of the regions in the order of the file.
func (m *Map) Names() (names []string) {
	for _, r := range m.regions {
		names = append(names, r.Name)
	}
	return names
}

// Order returns the names of all regions, the nearest first. The first region is the requested one. The regions whose
// networks contain the address of the client follow, then the regions with its country, then the regions with its
// continent. Equal regions are sorted by distance, and then as in the file. asked is empty or unknown if the caller has
// not requested a region.
func (m *Map) Order(asked string, client netip.Addr) []string {
	if len(m.regions) < 2 {
		return m.Names()
	}
	at := m.geo.locate(client)
	from := at.place
	for _, r := range m.regions {
		if r.Name == asked && r.Place != nil {
			from = r.Place
		}
	}
	type ranked struct {
		name     string
		rank     int
		distance float64
	}
	order := make([]ranked, len(m.regions))
	for i, r := range m.regions {
		order[i] = ranked{r.Name, r.rank(asked, client, at), distance(from, r.Place)}
	}
	slices.SortStableFunc(order, func(a, b ranked) int {
		return cmp.Or(a.rank-b.rank, cmp.Compare(a.distance, b.distance))
	})
	names := make([]string, len(order))
	for i, r := range order {
		names[i] = r.name
	}
	return names
}

// rank returns how near the region is: a smaller number is nearer.
func (r Region) rank(asked string, client netip.Addr, at location) int {
	switch {
	case r.Name == asked:
		return 0
	case slices.ContainsFunc(r.Networks, func(p netip.Prefix) bool { return p.Contains(client) }):
		return 1
	case slices.Contains(r.Countries, at.country):
		return 2
	case slices.Contains(r.Continents, at.continent):
		return 3
	}
	return 4
}

// distance returns the angle between two places in radians, which increases with their distance. It is infinite if one
// of them is unknown.
func distance(a, b *Place) float64 {
	if a == nil || b == nil {
		return math.Inf(1)
	}
	const degree = math.Pi / 180
	sine := func(x float64) float64 { s := math.Sin(x * degree / 2); return s * s }
	h := sine(a.Latitude-b.Latitude) +
		math.Cos(a.Latitude*degree)*math.Cos(b.Latitude*degree)*sine(a.Longitude-b.Longitude)
	return 2 * math.Asin(math.Sqrt(min(h, 1)))
}
