package kube

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

func unitIn(kind, namespace string, n int) translate.ObjectRef {
	return translate.ObjectRef{
		Kind: kind, NamespacedName: types.NamespacedName{Namespace: namespace, Name: fmt.Sprint("n", n)},
	}
}

// A thousand changes in one namespace delay a change in another by at most one translation of each kind.
func TestNamespacesTakeTurns(t *testing.T) {
	a := newWorkQueue()
	flood := map[translate.ObjectRef]struct{}{}
	for i := range 1000 {
		flood[unitIn(translate.KindGateway, "flood", i)] = struct{}{}
		flood[unitIn(translate.KindRoute, "flood", i)] = struct{}{}
	}
	a.add(flood)
	a.next(false)
	good := unitIn(translate.KindGateway, "good", 0)
	a.add(map[translate.ObjectRef]struct{}{good: {}})
	a.add(map[translate.ObjectRef]struct{}{good: {}}) // adding a queued object has no effect
	seen := 0
	for i := 0; ; i++ {
		u, ok := a.next(false)
		if !ok {
			break
		}
		if u == good {
			if seen++; i > 3 {
				t.Errorf("%d translations came before that of the other namespace", i)
			}
		}
	}
	if seen != 1 {
		t.Errorf("the change of the other namespace is translated %d times", seen)
	}
}

// During the start all Gateways are translated first: calls depend on them, and they decide which routes are over
// budget.
func TestGatewaysAreTranslatedFirstAtTheStart(t *testing.T) {
	a := newWorkQueue()
	all := map[translate.ObjectRef]struct{}{}
	for i := range 10 {
		all[unitIn(translate.KindRoute, fmt.Sprint("ns", i), i)] = struct{}{}
		all[unitIn(translate.KindGateway, fmt.Sprint("ns", i), i)] = struct{}{}
	}
	a.add(all)
	for i := range 20 {
		if u, _ := a.next(true); (u.Kind == translate.KindGateway) != (i < 10) {
			t.Fatalf("%s is number %d", u, i)
		}
	}
	if u, ok := a.next(true); ok {
		t.Errorf("%s is left", u)
	}
}
