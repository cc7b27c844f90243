package kube

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// ledgerFixture has Gateways whose routes of some namespaces want endpoints, and a ledger. It records the Gateways in
// the ledger as the translation does.
type ledgerFixture struct {
	*testing.T
	ledger       *budgetLedger
	perNamespace int
	// wants are the numbers of endpoints by namespace of the routes.
	wants map[types.NamespacedName]map[string]int
	queue []types.NamespacedName
}

// settle translates all affected Gateways.
func (w *ledgerFixture) settle() {
	w.Helper()
	for rounds := 0; len(w.queue) > 0; rounds++ {
		key := w.queue[0]
		w.queue = w.queue[1:]
		if rounds > 5_000 {
			w.Fatal("the translations do not end")
		}
		wanted, there := w.wants[key]
		if !there {
			w.queue = append(w.queue, w.ledger.forget(key)...)
			continue
		}
		created := time.Unix(int64(len(key.Name)), 0)
		demand := translate.Demand{Endpoints: map[string]translate.EndpointDemand{}}
		for namespace := range wanted {
			demand.Endpoints[namespace] = translate.EndpointDemand{PerNamespace: w.perNamespace}
		}
		room := w.ledger.roomFor(key, created)
		for namespace, limit := range demand.Limits(translate.Room{Elsewhere: room.Elsewhere}) {
			demand.Endpoints[namespace] = translate.EndpointDemand{
				Wanted: min(wanted[namespace], limit), Waiting: wanted[namespace] > limit, PerNamespace: w.perNamespace,
			}
		}
		for namespace, limit := range demand.Limits(room) {
			e := demand.Endpoints[namespace]
			e.Limit, e.Given = limit, min(e.Wanted, limit)
			demand.Endpoints[namespace] = e
		}
		w.queue = append(w.queue, w.ledger.record(key, ledgerEntry{created: created, demand: demand})...)
	}
}

// given returns the endpoints of the routes of a namespace by Gateway.
func (w *ledgerFixture) given(namespace string) map[types.NamespacedName]int {
	given := map[types.NamespacedName]int{}
	for key, e := range w.ledger.entries {
		if n := e.demand.Endpoints[namespace].Given; n > 0 {
			given[key] = n
		}
	}
	return given
}

// change gives a random Gateway random routes of namespaces, or deletes it.
func (w *ledgerFixture) change(random *rand.Rand, most int, namespaces ...string) {
	key := types.NamespacedName{Namespace: fmt.Sprint("ns", random.IntN(5)), Name: fmt.Sprint("gw", random.IntN(12))}
	if w.wants[key] == nil {
		w.wants[key] = map[string]int{}
	}
	for _, namespace := range namespaces {
		if w.wants[key][namespace] = random.IntN(most); random.IntN(3) == 0 {
			delete(w.wants[key], namespace)
		}
	}
	w.queue = append(w.queue, key)
	w.settle()
}

// For random Gateways that are created, changed and deleted, with routes of random namespaces: when all affected
// Gateways are translated, no namespace exceeds its budget, and the sum does not exceed the total. This takes a bounded
// number of translations. A namespace that wants at most an equal share gets it. A namespace whose budget is not used
// up has no route that waits for it.
func TestLedger(t *testing.T) {
	const perNamespace, total = 100_000, maxGatewayDemand + 20_000
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 0))
		w := &ledgerFixture{T: t, ledger: newBudgetLedger(total), perNamespace: perNamespace,
			wants: map[types.NamespacedName]map[string]int{}}
		for range 60 {
			w.change(random, 30_000, fmt.Sprint("ns", random.IntN(5)), fmt.Sprint("ns", random.IntN(5)))
			if random.IntN(4) == 0 {
				for key := range w.wants {
					delete(w.wants, key)
					w.queue = append(w.queue, key)
					break
				}
				w.settle()
			}
		}
		wanted, given, sum := map[string]int{}, map[string]int{}, 0
		for key, of := range w.wants {
			for namespace, n := range of {
				wanted[namespace] += n
				given[namespace] += w.ledger.entries[key].demand.Endpoints[namespace].Given
				sum += w.ledger.entries[key].demand.Endpoints[namespace].Given
			}
		}
		if sum > total {
			t.Fatalf("seed %d: %d endpoints of %d", seed, sum, total)
		}
		for namespace, n := range wanted {
			if given[namespace] > perNamespace {
				t.Fatalf("seed %d: %s has %d", seed, namespace, given[namespace])
			}
			if n <= total/len(wanted) && n <= perNamespace && given[namespace] < n {
				t.Fatalf("seed %d: %s asks for %d, less than a part of %d among %d, and has %d",
					seed, namespace, n, total, len(wanted), given[namespace])
			}
		}
		if w.ledger.sum+maxGatewayDemand <= total { // memory suffices
			for namespace, n := range wanted {
				if given[namespace] != min(n, perNamespace) {
					t.Fatalf("seed %d: %s asks for %d of %d, and has %d", seed, namespace, n, perNamespace, given[namespace])
				}
			}
		}
	}
}

// While memory suffices, routes of one namespace do not affect another namespace, for any number of endpoints and any
// Gateways to which they attach.
func TestLedgerChargesTheNamespaceOfTheRoute(t *testing.T) {
	for seed := range uint64(100) {
		random := rand.New(rand.NewPCG(seed, 1))
		w := &ledgerFixture{T: t, ledger: newBudgetLedger(100_000_000), perNamespace: 50_000,
			wants: map[types.NamespacedName]map[string]int{}}
		for range 20 {
			w.change(random, 30_000, "owner")
		}
		before := w.given("owner")
		for range 20 {
			w.change(random, 200_000, "stranger")
			if after := w.given("owner"); !maps.Equal(before, after) {
				t.Fatalf("seed %d: routes of another namespace change those of the owner from %v to %v", seed, before, after)
			}
		}
	}
}

// While memory is not scarce, a change affects only Gateways with routes of the same namespaces.
func TestLedgerAffectsNoGatewayWhileMemoryIsPlentiful(t *testing.T) {
	l := newBudgetLedger(10_000_000)
	for i := range 1000 {
		key := types.NamespacedName{Namespace: fmt.Sprint("ns", i%20), Name: fmt.Sprint("gw", i)}
		now := ledgerEntry{demand: translate.Demand{Endpoints: map[string]translate.EndpointDemand{
			fmt.Sprint("ns", i%20): {Wanted: 100, Given: 100, PerNamespace: 131_072, Limit: 131_072},
		}}}
		if others := l.record(key, now); len(others) > 0 {
			t.Fatalf("Gateway %d concerns %v", i, others)
		}
	}
}
