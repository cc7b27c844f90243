package gateway

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/auth/internal/region"
)

// clusters returns clusters NAME:REGION:WEIGHT, each with the gateways NAME/a and media/b, and the clock of all.
func clusters(specs ...string) (all Clusters, c *clock) {
	c = &clock{now: time.Unix(1_900_000_000, 0)}
	for _, spec := range specs {
		parts := strings.Split(spec, ":")
		one := &Cluster{
			Cluster:   region.Cluster{Name: parts[0], Region: parts[1]},
			Directory: NewDirectory(parts[0], c.time, slog.New(slog.DiscardHandler)),
		}
		if _, err := fmt.Sscan(parts[2], &one.Weight); err != nil {
			panic(err)
		}
		one.Origin.Keep = 3600
		one.Apply(discovery.Event{Connected: true})
		for _, id := range []string{parts[0] + "/a", "media/b"} {
			one.Apply(discovery.Event{ID: id, Config: named(id)})
		}
		all = append(all, one)
	}
	return all, c
}

func everything(in []*Gateway) []*Gateway { return in }

// names returns the gateways as CLUSTER/NAMESPACE/NAME.
func names(all []*Gateway) (out []string) {
	for _, g := range all {
		out = append(out, g.Cluster+"/"+g.ID())
	}
	return out
}

func TestSelectTakesOneClusterOfTheNearestTwoRegions(t *testing.T) {
	all, _ := clusters("fra:europe:1", "iad:america:1", "nrt:asia:1")
	near := Preference{Regions: []string{"america", "asia", "europe"}}
	for name, tt := range map[string]struct {
		filter Filter
		keep   func([]*Gateway) []*Gateway
		want   []string
	}{
		"all":             {Filter{}, everything, []string{"iad/iad/a", "iad/media/b", "nrt/media/b", "nrt/nrt/a"}},
		"a name in all":   {Filter{Namespace: "media", Name: "b"}, everything, []string{"iad/media/b", "nrt/media/b"}},
		"a name in one":   {Filter{Namespace: "fra", Name: "a"}, everything, []string{"fra/fra/a"}},
		"a name in none":  {Filter{Namespace: "fra", Name: "c"}, everything, nil},
		"nothing is kept": {Filter{}, func([]*Gateway) []*Gateway { return nil }, nil},
		"only others are kept": {Filter{}, func(in []*Gateway) []*Gateway {
			return slices.DeleteFunc(slices.Clone(in), func(g *Gateway) bool { return g.Cluster == "iad" || g.Name == "b" })
		}, []string{"nrt/nrt/a", "fra/fra/a"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := names(all.Select(tt.filter, near, tt.keep)); !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

// A cluster whose operator is unreachable is used as long as its configs are kept. Then another cluster is used until
// the operator is reachable again.
func TestUnreachableClusterIsUsedForKeep(t *testing.T) {
	all, c := clusters("fra:europe:1", "iad:america:1")
	first := func() string {
		found := names(all.Select(Filter{Namespace: "media", Name: "b"}, Preference{Regions: []string{"europe", "america"}}, everything))
		return strings.Join(found, " ")
	}
	all[0].Apply(discovery.Event{Err: errors.New("the operator is away")})
	for _, step := range []struct {
		after time.Duration
		want  string
	}{
		{0, "fra/media/b iad/media/b"}, {time.Hour, "fra/media/b iad/media/b"}, {time.Second, "iad/media/b"},
	} {
		c.advance(step.after)
		if got := first(); got != step.want {
			t.Errorf("after %s more: %q, want %q", step.after, got, step.want)
		}
	}
	if err := all.Ready(); err != nil {
		t.Errorf("with a cluster that can be used: %v", err)
	}
	if age := all.Age(); age != time.Hour+time.Second {
		t.Errorf("age %s", age)
	}
	all[1].Apply(discovery.Event{Err: errors.New("this one too")})
	c.advance(2 * time.Hour)
	if err := all.Ready(); err == nil || !strings.Contains(err.Error(), "cluster fra: ") || !strings.Contains(err.Error(), "cluster iad: ") {
		t.Errorf("without such a cluster: %v", err)
	}
	all[0].Apply(discovery.Event{Connected: true})
	if got := first(); got != "fra/media/b" {
		t.Errorf("when it is back: %q", got)
	}
}

// TestUsersAreDividedByWeight: the users of a region are divided over its clusters by weight, and each user gets the
// same cluster again. A cluster without weight is used only instead of the others. If a cluster is removed, only its
// own users change to another cluster.
func TestUsersAreDividedByWeight(t *testing.T) {
	all, c := clusters("a:europe:3", "b:europe:1", "spare:europe:0")
	of := func(user string) string {
		found := all.Select(Filter{Namespace: "media"}, Preference{Regions: []string{"europe"}, User: user}, everything)
		return found[0].Cluster
	}
	const users = 10_000
	count, before := map[string]int{}, make([]string, users)
	for i := range users {
		user := fmt.Sprint("user ", i)
		before[i] = of(user)
		count[before[i]]++
		if again := of(user); again != before[i] {
			t.Fatalf("%s got cluster %s and then %s", user, before[i], again)
		}
	}
	if share := float64(count["a"]) / users; share < 0.73 || share > 0.77 || count["spare"] != 0 {
		t.Errorf("%v, want 3 to 1, and none for the cluster without weight", count)
	}
	all[0].Apply(discovery.Event{Err: errors.New("away")})
	c.advance(2 * time.Hour)
	for i, was := range before {
		if now := of(fmt.Sprint("user ", i)); now != "b" && (was != "b" || now == "a") {
			t.Fatalf("user %d moved from %s to %s", i, was, now)
		}
	}
	all[1].Apply(discovery.Event{Err: errors.New("away")})
	c.advance(2 * time.Hour)
	if got := of("user 1"); got != "spare" {
		t.Errorf("without the others: %s", got)
	}
}

// TestOneClusterAllocatesNothing: with one cluster, Select costs as much as Select of its directory.
func TestOneClusterAllocatesNothing(t *testing.T) {
	all, _ := clusters("only:europe:1")
	if n := testing.AllocsPerRun(100, func() { all.Select(Filter{}, Preference{}, everything) }); n != 0 {
		t.Errorf("%g allocations", n)
	}
}
