package region

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/maxmind/mmdbwriter"
	"github.com/maxmind/mmdbwriter/mmdbtype"
)

const example = `version: v1
geoIP: cities.mmdb
regions:
- name: europe
  countries: [DE, FR]
  continents: [EU, AF]
  location: {latitude: 50.1, longitude: 8.7}
- name: america
  continents: [NA, SA]
  location: {latitude: 39, longitude: -77.5}
- name: office
  networks: [10.0.0.0/8, "2001:db8::/32", 192.0.2.7]
clusters:
- {name: fra-1, region: europe, weight: 3, config: "https://fra-1.example.org:13478", tokenFile: token, caFile: ca.crt, serverName: fra, keep: 3600}
- {name: fra-2, region: europe, config: fra-2.yaml}
- {name: iad-1, region: america, weight: 0, config: iad-1.yaml}
- {name: here, region: office, config: here.yaml}
`

func TestParse(t *testing.T) {
	file, err := Parse("clusters.yaml", []byte(example))
	if err != nil {
		t.Fatal(err)
	}
	first := Cluster{
		Name: "fra-1", Region: "europe", Weight: 3,
		Origin: Origin{Config: "https://fra-1.example.org:13478", TokenFile: "token", CAFile: "ca.crt", ServerName: "fra", Keep: 3600},
	}
	if file.Clusters[0] != first || file.Clusters[1].Weight != 1 || file.Clusters[2].Weight != 0 {
		t.Errorf("clusters %+v", file.Clusters)
	}
	if got := file.Regions[2].Networks[2]; got != netip.MustParsePrefix("192.0.2.7/32") || file.GeoIP != "cities.mmdb" {
		t.Errorf("a single address became %s, geoIP %q", got, file.GeoIP)
	}
}

// An error names file, line and field.
func TestParseErrors(t *testing.T) {
	for name, tt := range map[string]struct{ old, new, want string }{
		"version":            {"version: v1", "version: v2", "c.yaml:1: version: must be v1"},
		"unknown field":      {"weight: 3", "wait: 3", "clusters[0].wait: is unknown: use caFile, config"},
		"no clusters":        {example[strings.Index(example, "clusters:"):], "clusters: []", "clusters: has 0 entries"},
		"a region twice":     {"name: america", "name: europe", "regions[1].name: is there more than once"},
		"a cluster twice":    {"name: fra-2", "name: fra-1", "c.yaml:15: clusters[1].name: is there more than once"},
		"an unknown region":  {"region: office", "region: asia", `clusters[3].region: "asia" is not in regions`},
		"an empty region":    {"region: office", "region: europe", `regions[2].name: no cluster is in region "office"`},
		"a weight too large": {"weight: 3", "weight: 1001", "clusters[0].weight: 1001 is out of range"},
		"a negative keep":    {"keep: 3600", "keep: -1", "clusters[0].keep: -1 is out of range"},
		"no config":          {", config: here.yaml", "", "clusters[3].config: is missing"},
		"a name in capitals": {"name: here", "name: Here", `clusters[3].name: "Here" must be a DNS label`},
		"a country's name":   {"DE, FR", "DE, France", `regions[0].countries[1]: "France" is no code`},
		"a continent":        {"EU, AF", "EU, XX", `regions[0].continents[1]: "XX" is unknown`},
		"a latitude":         {"50.1", "95", "regions[0].location.latitude: 95 is out of range"},
		"a latitude of NaN":  {"50.1", ".nan", "regions[0].location.latitude: NaN is out of range"},
		"a network":          {"10.0.0.0/8", "10.0.0.0/33", "regions[2].networks[0]"},
		"countries, no file": {"geoIP: cities.mmdb\n", "", "regions[0].countries: has no effect without geoIP"},
	} {
		t.Run(name, func(t *testing.T) {
			raw := strings.Replace(example, tt.old, tt.new, 1)
			if raw == example {
				t.Fatal("the example has no such text")
			}
			if _, err := Parse("c.yaml", []byte(raw)); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}

// FuzzParse: no file makes the service panic.
func FuzzParse(f *testing.F) {
	f.Add([]byte(example))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if file, err := Parse("c.yaml", raw); err == nil && len(file.Clusters) == 0 {
			t.Error("a file without clusters is accepted")
		}
	})
}

// database writes a GeoIP file with these places, by network.
func database(t *testing.T, path string, places map[string]mmdbtype.Map) {
	t.Helper()
	tree, err := mmdbwriter.New(mmdbwriter.Options{DatabaseType: "Test-City", RecordSize: 24, IncludeReservedNetworks: true})
	if err != nil {
		t.Fatal(err)
	}
	for network, place := range places {
		_, prefix, err := net.ParseCIDR(network)
		if err == nil {
			err = tree.Insert(prefix, place)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	if _, err := tree.WriteTo(&out); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
}

func place(continent, country string, latitude, longitude float64) mmdbtype.Map {
	return mmdbtype.Map{
		"continent": mmdbtype.Map{"code": mmdbtype.String(continent)},
		"country":   mmdbtype.Map{"iso_code": mmdbtype.String(country)},
		"location": mmdbtype.Map{
			"latitude": mmdbtype.Float64(latitude), "longitude": mmdbtype.Float64(longitude),
		},
	}
}

func TestOrder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cities.mmdb")
	database(t, path, map[string]mmdbtype.Map{
		"198.51.100.0/25": place("EU", "DE", 52, 13), "198.51.100.128/25": place("SA", "BR", -23, -46),
		"203.0.113.0/25": place("AS", "JP", 35, 139), "203.0.113.128/25": place("AS", "IL", 32, 35),
		"2001:db8:1::/48": {"country": mmdbtype.Map{"iso_code": mmdbtype.Uint32(7)}},
	})
	geo, err := OpenGeo(t.Context(), path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	file, err := Parse("c.yaml", []byte(example))
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct{ asked, client, want string }{
		"its country":                     {"", "198.51.100.1", "europe america office"},
		"its continent":                   {"", "198.51.100.200", "america europe office"},
		"its network":                     {"", "10.1.2.3", "office europe america"},
		"a wish comes first":              {"america", "198.51.100.1", "america europe office"},
		"a wish, and its network":         {"america", "10.1.2.3", "america office europe"},
		"a wish that is unknown":          {"asia", "198.51.100.200", "america europe office"},
		"the shortest way":                {"", "203.0.113.200", "europe america office"},
		"the shortest way from Japan":     {"", "203.0.113.1", "europe america office"}, // over the pole
		"an address that is nowhere":      {"", "192.0.2.9", "europe america office"},
		"a record of another form":        {"", "2001:db8:1::1", "office europe america"}, // in the networks of office
		"no address":                      {"", "", "europe america office"},
		"an IPv4 address in its networks": {"", "192.0.2.7", "office europe america"},
	} {
		t.Run(name, func(t *testing.T) {
			var client netip.Addr
			if tt.client != "" {
				client = netip.MustParseAddr(tt.client)
			}
			if got := strings.Join(NewMap(file.Regions, geo).Order(tt.asked, client), " "); got != tt.want {
				t.Errorf("order %q, want %q", got, tt.want)
			}
		})
	}
	without := NewMap(file.Regions, nil).Order("", netip.MustParseAddr("198.51.100.200"))
	if want := []string{"europe", "america", "office"}; !slices.Equal(without, want) {
		t.Errorf("without a GeoIP file: %v, want the order of the file, %v", without, want)
	}
}

// logged is a log. take returns its lines and empties it.
type logged struct {
	mu sync.Mutex
	bytes.Buffer
}

func (l *logged) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.Write(line)
}

func (l *logged) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.Reset()
	return l.String()
}

// TestGeoIPFileIsReadAgain: a new version of the file is used after a minute. An invalid or missing file changes
// nothing, and is logged once.
func TestGeoIPFileIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "cities.mmdb")
		database(t, path, map[string]mmdbtype.Map{"198.51.100.0/24": place("EU", "DE", 52, 13)})
		var log logged
		ctx, cancel := context.WithCancel(t.Context())
		geo, err := OpenGeo(ctx, path, slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		at := netip.MustParseAddr("198.51.100.1")
		for i, step := range []struct {
			change        func()
			country, want string
		}{
			{func() {}, "DE", ""},
			{func() {
				database(t, path, map[string]mmdbtype.Map{"198.51.100.0/23": place("SA", "BR", -23, -46)})
				if err := os.Chtimes(path, time.Time{}, time.Now().Add(time.Hour)); err != nil {
					t.Fatal(err)
				}
			}, "BR", "GeoIP file has changed"},
			{func() {
				if err := os.WriteFile(path, []byte("no database"), 0o600); err != nil {
					t.Fatal(err)
				}
			}, "BR", "keep last valid GeoIP file"},
			{func() {
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			}, "BR", "no such file"},
			{func() { database(t, path, map[string]mmdbtype.Map{"198.51.100.0/24": place("EU", "DE", 52, 13)}) }, "DE", "has changed"},
		} {
			step.change()
			time.Sleep(3*geoInterval + time.Second)
			synctest.Wait()
			if got := geo.locate(at).country; got != step.country {
				t.Errorf("step %d: country %q, want %q", i, got, step.country)
			}
			text := log.take()
			if lines := strings.Count(text, "\n"); !strings.Contains(text, step.want) ||
				step.want != "" && lines != 1 || step.want == "" && lines != 0 {
				t.Errorf("step %d: log %q, want one line with %q", i, text, step.want)
			}
		}
		cancel()
		synctest.Wait()
	})
}

func BenchmarkOrder(b *testing.B) {
	file, err := Parse("c.yaml", []byte(example))
	if err != nil {
		b.Fatal(err)
	}
	m, client := NewMap(file.Regions, nil), netip.MustParseAddr("198.51.100.1")
	b.ReportAllocs()
	for b.Loop() {
		m.Order("", client)
	}
}
