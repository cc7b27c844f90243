package translate_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// neighbourhood has Gateways in several namespaces, and a class with a budget. Each Gateway admits routes from all of
// the namespaces.
type neighbourhood struct {
	budget   stunnerv1.Budget
	gateways []types.NamespacedName // the oldest first
	routes   []resource.Object
}

// add adds a route with its own StaticService.
func (n *neighbourhood) add(random *rand.Rand, namespace string, gateway types.NamespacedName, endpoints int) {
	name := fmt.Sprintf("r%d", len(n.routes))
	meta := metav1.ObjectMeta{Namespace: namespace, Name: name,
		CreationTimestamp: metav1.Unix(1_000+random.Int64N(50), 0)}
	s := &stunnerv1.StaticService{ObjectMeta: meta}
	for i := range endpoints {
		s.Spec.Prefixes = append(s.Spec.Prefixes, fmt.Sprintf("203.0.%d.%d", len(n.routes)%256, i))
	}
	r := &stunnerv1.UDPRoute{ObjectMeta: meta}
	parent := gwapiv1.Namespace(gateway.Namespace)
	r.Spec.ParentRefs = []gwapiv1.ParentReference{{Name: gwapiv1.ObjectName(gateway.Name), Namespace: &parent}}
	r.Spec.Rules = []stunnerv1.UDPRouteRule{{BackendRefs: []stunnerv1.BackendRef{{
		Group: new(gwapiv1.Group(stunnerv1.GroupName)), Kind: new(gwapiv1.Kind("StaticService")), Name: gwapiv1.ObjectName(name),
	}}}}
	n.routes = append(n.routes, s, r)
}

// served returns the accepted routes of a namespace, as GATEWAY: ROUTE, and the messages of the others. Gateways are
// translated in their order, with the state after the last translations of the operator.
func (n *neighbourhood) served(t *testing.T, namespace string) (accepted []string, refused map[string]string) {
	t.Helper()
	w := newLiveView(0)
	w.allow(n.budget)
	for _, o := range n.routes {
		w.view.Put(o)
	}
	for i, key := range n.gateways {
		gw := liveGateway(i, 0).(*gwapiv1.Gateway)
		gw.Namespace, gw.Name, gw.CreationTimestamp = key.Namespace, key.Name, metav1.Unix(int64(100+i), 0)
		gw.Spec.Listeners[0].AllowedRoutes = &gwapiv1.AllowedRoutes{
			Namespaces: &gwapiv1.RouteNamespaces{From: new(gwapiv1.NamespacesFromAll)}}
		w.view.Put(gw)
	}
	options := translate.DefaultOptions()
	elsewhere := map[string]int{}
	options.Room.Elsewhere = func(namespace string) int { return elsewhere[namespace] }
	refused = map[string]string{}
	for _, key := range n.gateways {
		r := translate.Gateway(w.view, key, options)
		if r.Config == nil {
			t.Fatalf("Gateway %s is not served: %+v", key, r.Status.Conditions)
		}
		for of, d := range r.Demand.Endpoints {
			elsewhere[of] += d.Given
		}
		for _, c := range r.Config.Clusters {
			if strings.HasPrefix(c.Name, namespace+"/") && len(c.Endpoints) > 0 {
				accepted = append(accepted, key.String()+": "+c.Name)
			}
		}
		for route, refusal := range r.OverBudget.Routes {
			if strings.HasPrefix(route, namespace+"/") {
				refused[route] = refusal.Message
			}
		}
	}
	slices.Sort(accepted)
	return accepted, refused
}

// The budget of a namespace is charged only for its own routes: if another namespace adds any routes to any Gateways,
// the accepted routes of the namespace stay the same. The routes of the other namespace are refused with a message that
// names it.
func TestRoutesAreChargedToTheirNamespace(t *testing.T) {
	waiting := 0
	for seed := range uint64(60) {
		random := rand.New(rand.NewPCG(seed, 0))
		n := &neighbourhood{budget: stunnerv1.Budget{EndpointsPerNamespace: int32(20 + random.IntN(60))}}
		for i := range 2 + random.IntN(4) {
			n.gateways = append(n.gateways, types.NamespacedName{
				Namespace: []string{"owner", "stranger", "third"}[random.IntN(3)], Name: fmt.Sprint("gw", i)})
		}
		for range 2 + random.IntN(8) {
			n.add(random, "owner", n.gateways[random.IntN(len(n.gateways))], 1+random.IntN(20))
		}
		before, refusedBefore := n.served(t, "owner")
		for range 1 + random.IntN(12) {
			n.add(random, "stranger", n.gateways[random.IntN(len(n.gateways))], 1+random.IntN(20))
		}
		after, refusedAfter := n.served(t, "owner")
		if !slices.Equal(before, after) || !maps.Equal(refusedBefore, refusedAfter) {
			t.Fatalf("seed %d: routes of a stranger change the accepted routes of the owner from %v to %v, and the refused ones from %v to %v",
				seed, before, after, refusedBefore, refusedAfter)
		}
		_, refused := n.served(t, "stranger")
		for route, message := range refused {
			waiting++
			limit := fmt.Sprintf("allows %d for all routes of namespace stranger", n.budget.EndpointsPerNamespace)
			if !strings.Contains(message, limit) {
				t.Errorf("seed %d: %s: %s", seed, route, message)
			}
		}
	}
	if waiting == 0 {
		t.Error("no route exceeds a budget: the test shows nothing")
	}
}

// At a Gateway that is full, half of each limit is for the routes of its own namespace, however many namespaces have
// routes there and however old these are.
func TestHalfOfAGatewayIsForItsNamespace(t *testing.T) {
	for seed := range uint64(60) {
		random := rand.New(rand.NewPCG(seed, 1))
		gateway := types.NamespacedName{Namespace: "owner", Name: "gw"}
		n := &neighbourhood{budget: stunnerv1.Budget{Endpoints: 40, Routes: 20}, gateways: []types.NamespacedName{gateway}}
		for left := 20; left > 0; {
			endpoints := 1 + random.IntN(min(left, 6))
			if left -= endpoints; len(n.routes)/2 == 10 {
				break
			}
			n.add(random, "owner", gateway, endpoints)
		}
		before, _ := n.served(t, "owner")
		for i := range 30 {
			n.add(random, fmt.Sprint("stranger-", i%(1+random.IntN(8))), gateway, 1+random.IntN(20))
		}
		if after, refused := n.served(t, "owner"); !slices.Equal(before, after) || len(refused) > 0 || len(before) == 0 {
			t.Fatalf("seed %d: accepted %v, then %v, refused %v", seed, before, after, refused)
		}
	}
}
