package share

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
)

// A namespace that needs at most an equal share gets all that it needs, independent of the claims of others. An owner
// that needs at most half of the limit also gets all that it needs. No limit is exceeded, and equal claims of a
// namespace are admitted in their order.
func TestDivide(t *testing.T) {
	for seed := range uint64(2000) {
		random := rand.New(rand.NewPCG(seed, 0))
		limit := Load{random.IntN(50) + 5, random.IntN(500) + 50, random.IntN(5000) + 500, 1000}
		claims, asked := map[string][]Claim[string]{}, map[string]Load{}
		namespaces := random.IntN(6) + 1
		for n := range namespaces {
			namespace := fmt.Sprint("ns-", n)
			greed := random.IntN(100) + 1
			for c := range random.IntN(30) {
				minCost := Load{Routes: 1, Endpoints: 1}
				full := Load{Routes: 1, Endpoints: 1 + random.IntN(greed), Bytes: random.IntN(10 * greed)}
				asked[namespace] = asked[namespace].Plus(full)
				claims[namespace] = append(claims[namespace], Claim[string]{
					Of: fmt.Sprint(namespace, "/", c), MinCost: minCost, Measure: func() Load { return full },
				})
			}
		}
		terms := Terms{Limit: limit, Own: map[string]Load{}, Owner: fmt.Sprint("ns-", random.IntN(7))}
		if random.IntN(2) == 0 {
			own := limit
			own[Endpoints] = random.IntN(limit[Endpoints])
			terms.Own["ns-0"] = own
		}
		admitted, denied, loads := Divide(terms, claims)
		again, deniedAgain, _ := Divide(terms, claims)
		if !reflect.DeepEqual(admitted, again) || !sameDenied(denied, deniedAgain) {
			t.Fatalf("seed %d: two divisions of the same differ", seed)
		}
		var used Load
		for namespace, load := range loads {
			used = used.Plus(load)
			if own, bounded := terms.Own[namespace]; bounded && load[Endpoints] > own[Endpoints] {
				t.Fatalf("seed %d: %s has %v, more than its own limit %v", seed, namespace, load, own)
			}
		}
		if kind, over := used.Over(limit); over {
			t.Fatalf("seed %d: %v is over the limit %v in %d", seed, used, limit, kind)
		}
		has := map[string]bool{}
		for _, name := range admitted {
			has[name] = true
		}
		for namespace, all := range claims {
			// The owner has half of the limit, and the others have equal parts of the rest.
			modest, part := true, 2*max(1, len(claims)-1)
			if _, owns := claims[terms.Owner]; !owns {
				part = len(claims)
			} else if namespace == terms.Owner {
				part = 2
			}
			own, bounded := terms.Own[namespace]
			for i, n := range asked[namespace] {
				modest = modest && n*part <= limit[i] && (!bounded || n <= own[i])
			}
			for _, c := range all {
				if modest && !has[c.Of] {
					t.Fatalf(
						"seed %d: %s asks for %v, less than a part of %d of %v, and %s is turned down", seed, namespace,
						asked[namespace], part, limit, c.Of,
					)
				}
			}
		}
	}
}

func sameDenied(a, b []Denied[string]) bool {
	set := map[Denied[string]]bool{}
	for _, d := range a {
		set[d] = true
	}
	for _, d := range b {
		if !set[d] {
			return false
		}
	}
	return len(a) == len(b)
}

// Of claims of equal size, the oldest are admitted.
func TestOldestFirst(t *testing.T) {
	var all []Claim[int]
	for i := range 10 {
		all = append(
			all,
			Claim[int]{Of: i, MinCost: Load{Routes: 1}, Measure: func() Load { return Load{Routes: 1, Endpoints: 10} }},
		)
	}
	admitted, denied, _ := Divide(Terms{Limit: Load{100, 35, 0, 0}}, map[string][]Claim[int]{"a": all})
	if !reflect.DeepEqual(admitted, []int{0, 1, 2}) || len(denied) != 7 ||
		denied[0] != (Denied[int]{Of: 3, Kind: Endpoints, Needed: 10}) {
		t.Errorf("admitted %v, denied %v", admitted, denied)
	}
}

// Claims that cannot fit are not measured, because measuring takes time.
func TestClaimsThatCannotFitAreNotMeasured(t *testing.T) {
	measured := 0
	var all []Claim[int]
	for i := range 10_000 {
		measure := func() Load { measured++; return Load{Routes: 1} }
		all = append(all, Claim[int]{Of: i, MinCost: Load{Routes: 1}, Measure: measure})
	}
	_, denied, _ := Divide(Terms{Limit: Load{Routes: 100}}, map[string][]Claim[int]{"a": all})
	if measured != 100 || len(denied) != 9_900 {
		t.Errorf("%d measured, %d denied", measured, len(denied))
	}
}
