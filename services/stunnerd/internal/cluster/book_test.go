package cluster

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
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
// same routes share it.
func TestABookMakesAgainWhatHasChanged(t *testing.T) {
	clusters, routes := numbered(100, 10)
	b := Book{}
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

// A book that has taken several configs allows the same peers as a book that has taken only the last one.
func TestABookForgetsNothingAndKeepsNothing(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	old := Book{}
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

// BenchmarkView measures the view of a wide config after a change of one cluster.
func BenchmarkView(b *testing.B) {
	for _, size := range []struct{ clusters, endpoints int }{{1, 10_000}, {1_000, 10}, {5_000, 1}} {
		b.Run(fmt.Sprintf("clusters=%d/endpoints=%d", size.clusters, size.endpoints), func(b *testing.B) {
			clusters, routes := numbered(size.clusters, size.endpoints)
			book := Book{}
			b.ReportAllocs()
			for turn := 0; b.Loop(); turn++ {
				clusters[0].Endpoints = append([]string{fmt.Sprint("192.0.2.", turn%250)}, clusters[0].Endpoints[1:]...)
				book.Take(clusters)
				book.View(routes)
			}
		})
	}
}
