package kube

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// For random Gateways that are created, changed and deleted: after all affected Gateways are translated no namespace
// exceeds its budget and the sum does not exceed the total, this takes a bounded number of translations, and a
// namespace that wants at most an equal share gets it.
func TestLedger(t *testing.T) {
	const perNamespace, total = 5_000, maxGatewayDemand + 20_000
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 0))
		l := newBudgetLedger(total)
		wants := map[types.NamespacedName]int{}
		made := func(key types.NamespacedName) time.Time { return time.Unix(int64(len(key.Name)), 0) }
		translations := 0
		var queue []types.NamespacedName
		settle := func() {
			for rounds := 0; len(queue) > 0; rounds++ {
				key := queue[0]
				queue = queue[1:]
				if rounds > 5_000 {
					t.Fatalf("seed %d: the translations do not end", seed)
				}
				translations++
				if _, there := wants[key]; !there {
					queue = append(queue, l.forget(key)...)
					continue
				}
				room := l.roomFor(key, made(key))
				now := ledgerEntry{
					created: made(key), room: room,
					demand: translate.Demand{Wanted: wants[key], PerNamespace: perNamespace * 20},
				}
				now.demand.Given = min(wants[key], now.limit(room))
				queue = append(queue, l.record(key, now)...)
			}
		}
		for range 60 {
			key := types.NamespacedName{
				Namespace: fmt.Sprint("ns", random.IntN(5)), Name: fmt.Sprint("gw", random.IntN(12)),
			}
			if wants[key] = random.IntN(30_000); random.IntN(4) == 0 {
				delete(wants, key)
			}
			queue = append(queue, key)
			settle()
		}
		given, wanted := map[string]int{}, map[string]int{}
		sum := 0
		for key, e := range l.entries {
			given[key.Namespace] += e.demand.Given
			wanted[key.Namespace] += e.demand.Wanted
			sum += e.demand.Given
		}
		if sum > total {
			t.Fatalf("seed %d: %d endpoints of %d", seed, sum, total)
		}
		for namespace, w := range wanted {
			if given[namespace] > perNamespace*20 {
				t.Fatalf("seed %d: %s has %d", seed, namespace, given[namespace])
			}
			if w <= total/len(wanted) && w <= perNamespace*20 && given[namespace] < w {
				t.Fatalf(
					"seed %d: %s asks for %d, less than a part of %d among %d, and has %d", seed, namespace, w, total,
					len(wanted), given[namespace],
				)
			}
		}
	}
}

// While memory is not scarce a change affects no other Gateway.
func TestLedgerConcernsNobodyWhereThereIsEnough(t *testing.T) {
	l := newBudgetLedger(10_000_000)
	for i := range 1000 {
		key := types.NamespacedName{Namespace: fmt.Sprint("ns", i%20), Name: fmt.Sprint("gw", i)}
		now := ledgerEntry{
			demand: translate.Demand{Wanted: 100, Given: 100, PerNamespace: 131_072}, room: l.roomFor(key, time.Time{}),
		}
		if others := l.record(key, now); len(others) > 0 {
			t.Fatalf("Gateway %d concerns %v", i, others)
		}
	}
}
