package region

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"

	"github.com/stunner-gateway/stunner/services/auth/internal/yamlfile"
)

// Version is the version of the file that this package reads.
const Version = "v1"

// Bounds of the file.
const (
	maxFile     = 1 << 20 // bytes
	maxClusters = 64
	maxRegions  = 32
	maxNetworks = 1_000
	maxCodes    = 300 // ISO 3166-1 has about 250
	maxWeight   = 1_000
	maxKeep     = 366 * 24 * 60 * 60
)

// File is the file of clusters and regions.
type File struct {
	// GeoIP is a file in MaxMind's format; empty if there is none.
	GeoIP    string
	Regions  []Region
	Clusters []Cluster
}

// The document of the file; docs/operate/regions.md describes it.
type (
	document struct {
		Version  string            `json:"version"`
		GeoIP    string            `json:"geoIP"`
		Regions  []regionDocument  `json:"regions"`
		Clusters []clusterDocument `json:"clusters"`
	}
	regionDocument struct {
		Name       string         `json:"name"`
		Networks   []string       `json:"networks"`
		Countries  []string       `json:"countries"`
		Continents []string       `json:"continents"`
		Location   *placeDocument `json:"location"`
	}
	placeDocument struct {
		Latitude  float64 `json:"latitude"`
		Longitude float64 `json:"longitude"`
	}
	clusterDocument struct {
		Name       string `json:"name"`
		Region     string `json:"region"`
		Weight     *int64 `json:"weight"`
		Config     string `json:"config"`
		TokenFile  string `json:"tokenFile"`
		CAFile     string `json:"caFile"`
		ServerName string `json:"serverName"`
		Keep       int64  `json:"keep"`
	}
)

var (
	name       = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	country    = regexp.MustCompile(`^[A-Z]{2}$`)
	continents = []string{"AF", "AN", "AS", "EU", "NA", "OC", "SA"}
)

// ValidName reports whether a text can be the name of a region or of a cluster.
func ValidName(text string) bool { return name.MatchString(text) }

// Read reads a file, which Parse parses.
func Read(path string) ([]byte, error) { return yamlfile.ReadFile(path, maxFile) }

// Parse parses a file. Its errors name file, line and field.
func Parse(file string, raw []byte) (File, error) {
	var in document
	d := decoder{yamlfile.Decode(file, raw, maxFile, &in)}
	var out File
	if d.OK() {
		out = d.file(in)
	}
	if !d.OK() {
		return File{}, d.Err()
	}
	return out, nil
}

// decoder converts the document to a File.
type decoder struct{ *yamlfile.File }

func (d decoder) file(in document) File {
	if in.Version != Version {
		d.Wrong("version", "must be %s", Version)
	}
	for field, n := range map[string][2]int{
		"regions": {len(in.Regions), maxRegions}, "clusters": {len(in.Clusters), maxClusters},
	} {
		if n[0] < 1 || n[0] > n[1] {
			d.Wrong(field, "has %d entries: write 1 to %d", n[0], n[1])
		}
	}
	if !d.OK() {
		return File{}
	}
	out := File{GeoIP: in.GeoIP}
	empty, names := map[string]string{}, map[string]bool{}
	for i, each := range in.Regions {
		at := fmt.Sprintf("regions[%d]", i)
		if _, double := empty[each.Name]; double {
			d.Wrong(at+".name", "is there more than once")
		}
		empty[each.Name] = at
		out.Regions = append(out.Regions, d.region(at, each, in.GeoIP != ""))
	}
	known := make([]string, 0, len(out.Regions))
	for _, r := range out.Regions {
		known = append(known, r.Name)
	}
	for i, each := range in.Clusters {
		at := fmt.Sprintf("clusters[%d]", i)
		if names[each.Name] {
			d.Wrong(at+".name", "is there more than once")
		}
		names[each.Name] = true
		if !slices.Contains(known, each.Region) {
			d.Wrong(at+".region", "%q is not in regions: use one of %v", each.Region, known)
		}
		delete(empty, each.Region)
		out.Clusters = append(out.Clusters, d.cluster(at, each))
	}
	for _, r := range out.Regions {
		if at, ok := empty[r.Name]; ok {
			d.Wrong(at+".name", "no cluster is in region %q: add one, or remove the region", r.Name)
		}
	}
	return out
}

func (d decoder) region(at string, in regionDocument, geo bool) Region {
	out := Region{Name: in.Name, Countries: in.Countries, Continents: in.Continents}
	d.name(at+".name", in.Name)
	for _, list := range []struct {
		field   string
		n, most int
	}{
		{"networks", len(in.Networks), maxNetworks}, {"countries", len(in.Countries), maxCodes},
		{"continents", len(in.Continents), maxCodes},
	} {
		if list.n > list.most {
			d.Wrong(at+"."+list.field, "has %d entries: at most %d are allowed", list.n, list.most)
		}
	}
	for i, text := range in.Networks {
		p, err := netip.ParsePrefix(text)
		if addr, single := netip.ParseAddr(text); single == nil {
			p, err = addr.Prefix(addr.BitLen())
		}
		if err != nil {
			d.Wrong(fmt.Sprintf("%s.networks[%d]", at, i), "%q is no address or prefix", text)
		}
		out.Networks = append(out.Networks, p.Masked())
	}
	for i, code := range in.Countries {
		if !country.MatchString(code) {
			d.Wrong(fmt.Sprintf("%s.countries[%d]", at, i), "%q is no code of ISO 3166-1, such as DE", code)
		}
	}
	for i, code := range in.Continents {
		if !slices.Contains(continents, code) {
			d.Wrong(fmt.Sprintf("%s.continents[%d]", at, i), "%q is unknown: use one of %v", code, continents)
		}
	}
	if p := in.Location; p != nil {
		if !(p.Latitude >= -90 && p.Latitude <= 90) {
			d.Wrong(at+".location.latitude", "%g is out of range: use -90 to 90", p.Latitude)
		}
		if !(p.Longitude >= -180 && p.Longitude <= 180) {
			d.Wrong(at+".location.longitude", "%g is out of range: use -180 to 180", p.Longitude)
		}
		out.Place = &Place{p.Latitude, p.Longitude}
	}
	for field, has := range map[string]bool{"countries": in.Countries != nil, "continents": in.Continents != nil} {
		if has && !geo {
			d.Wrong(at+"."+field, "has no effect without geoIP: name a file in MaxMind's format there")
		}
	}
	return out
}

func (d decoder) cluster(at string, in clusterDocument) Cluster {
	d.name(at+".name", in.Name)
	if in.Config == "" {
		d.Wrong(at+".config", "is missing: name a discovery server or a config file")
	}
	out := Cluster{
		Name: in.Name, Region: in.Region, Weight: 1,
		Origin: Origin{
			Config: in.Config, TokenFile: in.TokenFile, CAFile: in.CAFile, ServerName: in.ServerName, Keep: in.Keep,
		},
	}
	if in.Weight != nil {
		if out.Weight = *in.Weight; out.Weight < 0 || out.Weight > maxWeight {
			d.Wrong(at+".weight", "%d is out of range: use 0 to %d", out.Weight, maxWeight)
		}
	}
	if in.Keep < 0 || in.Keep > maxKeep {
		d.Wrong(at+".keep", "%d is out of range: use 0 to %d seconds", in.Keep, maxKeep)
	}
	return out
}

func (d decoder) name(at, text string) {
	if !ValidName(text) {
		d.Wrong(at, "%q must be a DNS label: 1 to 63 of the characters a-z, 0-9 and hyphen", text)
	}
}
