package cluster

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/config"
)

func numbered(clusters, endpoints int) (all []config.Cluster, routes []string) {
	for c := range clusters {
		next := config.Cluster{Name: fmt.Sprintf("media/%d", c), Type: config.Static}
		for e := range endpoints {
			n := c*endpoints + e
			next.Endpoints = append(
				next.Endpoints, fmt.Sprintf("10.%d.%d.%d:<%d-%d>", n>>16, n>>8&255, n&255, 1000+c%7, 2000),
			)
		}
		all, routes = append(all, next), append(routes, next.Name)
	}
	return all, routes
}

// An unchanged cluster is not parsed again, and a view of unchanged clusters is not built again. Listeners with the
// same routes share a view.
func TestOnlyChangedViewsAreBuiltAgain(t *testing.T) {
	clusters, routes := numbered(100, 10)
	b := ViewBuilder{}
	b.Take(clusters)
	first, parsed := b.View(routes), b.byName["media/7"]
	if b.View(append([]string{}, routes...)) != first || b.View(routes[:1]) == first {
		t.Error("equal routes do not share a view, or others do")
	}
	same, _ := numbered(100, 10)
	b.Take(same)
	if b.View(routes) != first {
		t.Error("the same clusters have another view")
	}
	same[8].Endpoints = append(same[8].Endpoints[:0:0], "192.0.2.1")
	b.Take(same)
	if b.View(routes) == first || b.byName["media/7"] != parsed {
		t.Error("one changed cluster has the same view, or others parsed again")
	}
	if name, verdict := b.View(routes).Match(netip.MustParseAddrPort("192.0.2.1:5")); verdict != Allowed ||
		name != "media/8" {
		t.Errorf("%s: %v", name, verdict)
	}
	wide := []config.Cluster{{Name: "media/wide", Type: config.Static, Endpoints: []string{"192.0.2.0/24"}}}
	b.Take(wide)
	b.View([]string{"media/wide"})
	excepting := []config.Cluster{wide[0]}
	excepting[0].Except = []string{"192.0.2.1"}
	b.Take(excepting)
	if _, verdict := b.View([]string{"media/wide"}).Match(netip.MustParseAddrPort("192.0.2.1:5")); verdict != Denied {
		t.Errorf("an address that is excepted later: %v", verdict)
	}
	b.Take(nil)
	if _, verdict := b.View(routes).Match(netip.MustParseAddrPort("10.0.0.70:1001")); verdict != Denied ||
		len(b.byName) != 0 {
		t.Errorf("clusters that are gone are kept: %v", verdict)
	}
}

// After several configs, a ViewBuilder allows the same peers as a new ViewBuilder with the last config only.
func TestViewsDependOnlyOnTheLastConfig(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	old := ViewBuilder{}
	for turn := range 500 {
		var clusters []config.Cluster
		var routes []string
		for c := range random.IntN(6) {
			next := config.Cluster{Name: fmt.Sprint("media/", c), Type: config.Static}
			for range random.IntN(5) {
				next.Endpoints = append(next.Endpoints, fmt.Sprintf(
					"10.0.0.%d/%d:<%d-%d>", random.IntN(4), 29+random.IntN(4), 1+random.IntN(2), 3+random.IntN(2),
				))
			}
			if clusters = append(clusters, next); random.IntN(3) > 0 {
				routes = append(routes, next.Name)
			}
		}
		old.Take(clusters)
		got, want := old.View(routes), NewView(clusters, routes)
		for addr := range 8 {
			for port := range 6 {
				peer := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(addr)}), uint16(port))
				name, verdict := got.Match(peer)
				if wantName, wantVerdict := want.Match(peer); name != wantName || verdict != wantVerdict {
					t.Fatalf(
						"turn %d, %v: %s %v, want %s %v of %+v", turn, peer, name, verdict, wantName, wantVerdict,
						clusters,
					)
				}
			}
		}
	}
}

// BenchmarkView measures the new view of a large config after a change of one cluster.
func BenchmarkView(b *testing.B) {
	for _, size := range []struct{ clusters, endpoints int }{{1, 10_000}, {1_000, 10}, {5_000, 1}} {
		b.Run(fmt.Sprintf("clusters=%d/endpoints=%d", size.clusters, size.endpoints), func(b *testing.B) {
			clusters, routes := numbered(size.clusters, size.endpoints)
			builder := ViewBuilder{}
			b.ReportAllocs()
			for turn := 0; b.Loop(); turn++ {
				clusters[0].Endpoints = append([]string{fmt.Sprint("192.0.2.", turn%250)}, clusters[0].Endpoints[1:]...)
				builder.Take(clusters)
				builder.View(routes)
			}
		})
	}
}

// After a patch, a ViewBuilder has the same verdicts and explanations as a new ViewBuilder with the changed clusters.
// Views from before the patch do not change.
func TestAPatchGivesTheSameViewsAsANewConfig(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	address := func() string {
		return fmt.Sprintf("10.0.%d.%d:<%d-%d>", random.IntN(2), random.IntN(64), 1+random.IntN(2), 3+random.IntN(2))
	}
	clusters, routes := numbered(5, 10)
	for c := range clusters {
		clusters[c].Endpoints = nil
	}
	clusters[0].Endpoints, clusters[0].Except = []string{"10.0.0.0/26"}, []string{"10.0.0.7"}
	old := ViewBuilder{}
	old.Take(clusters)
	old.View(routes)
	patched, refused := 0, 0
	for turn := range 2_000 {
		i := random.IntN(len(clusters))
		was := clusters[i].Endpoints
		next := append([]string{address(), address()}, was...)
		for len(next) > 12 || len(next) > 0 && random.IntN(3) > 0 {
			at := random.IntN(len(next))
			next = append(next[:at:at], next[at+1:]...)
		}
		slices.Sort(next)
		before, after := config.Config{Clusters: slices.Clone(clusters)}, config.Config{Clusters: clusters}
		clusters[i].Endpoints = slices.Compact(next)
		changes, ok := config.EndpointChanges(before, after)
		if !ok {
			t.Fatal("the changes are not those of endpoints")
		}
		former, formerWas := old.View(routes), NewView(before.Clusters, routes)
		if old.Patch(changes) {
			patched++
		} else {
			refused++
			old.Take(clusters)
		}
		same := func(when string, got, want *View) {
			for n := range 2 * 64 {
				for port := range 5 {
					peer := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(n >> 6), byte(n & 63)}), uint16(port))
					name, at, verdict := got.Explain(peer)
					wantName, wantAt, wantVerdict := want.Explain(peer)
					if name != wantName || at != wantAt || verdict != wantVerdict {
						t.Fatalf("turn %d, %s, %v: %s %v %v, want %s %v %v", turn, when, peer, name, at, verdict,
							wantName, wantAt, wantVerdict)
					}
				}
			}
		}
		if turn%8 == 0 {
			same("after the change", old.View(routes), NewView(clusters, routes))
			same("before the change", former, formerWas)
		}
	}
	if patched < 1_000 || refused < 10 {
		t.Errorf("%d patches, %d refused: too few for this test", patched, refused)
	}
}

// The cost of a patch depends on the number of changes: with 50,000 endpoints it allocates at most the memory of the
// index of the buckets.
func TestThePatchCostDependsOnTheChange(t *testing.T) {
	cost := func(endpoints int) float64 {
		clusters, routes := numbered(1, endpoints)
		b := ViewBuilder{}
		b.Take(clusters)
		b.View(routes)
		return testing.AllocsPerRun(20, func() {
			for _, c := range []config.EndpointChange{
				{Cluster: routes[0], Added: []string{"192.0.2.1"}}, {Cluster: routes[0], Removed: []string{"192.0.2.1"}},
			} {
				if !b.Patch([]config.EndpointChange{c}) {
					t.Fatal("not patched")
				}
			}
		})
	}
	if few, many := cost(100), cost(50_000); many > 1.5*few {
		t.Errorf("%.0f allocations among 50,000 endpoints, %.0f among 100", many, few)
	}
}
