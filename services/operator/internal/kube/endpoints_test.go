package kube

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/operator/internal/reports"
	"github.com/stunner-gateway/stunner/services/operator/internal/scaler"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

func endpoint(pod string, ready, ends bool) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{
		Addresses: []string{"192.0.2.1"}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: pod},
		Conditions: discoveryv1.EndpointConditions{Ready: new(ready), Terminating: new(ends)},
	}
}

// The load is the sum of the reports of all replicas without draining pods. If the sum may be too low, it is an error.
func TestLoadIsNeverLessThanThereIs(t *testing.T) {
	ready := func(pods ...string) []discoveryv1.Endpoint {
		var all []discoveryv1.Endpoint
		for _, pod := range pods {
			all = append(all, endpoint(pod, true, false))
		}
		return all
	}
	says := func(pod string, n int) discovery.Report { return discovery.Report{Pod: pod, Allocations: n} }
	drains := func(pod string, n int) discovery.Report {
		return discovery.Report{Pod: pod, Allocations: n, Draining: true}
	}
	type pods = []discovery.Report
	for name, c := range map[string]struct {
		one, two pods
		// slices are the endpoints of each EndpointSlice; nil means no EndpointSlice.
		slices  [][]discoveryv1.Endpoint
		want    int
		problem string
	}{
		"both replicas": {
			pods{says("a", 3)}, pods{says("b", 4)}, [][]discoveryv1.Endpoint{ready("a", "b")}, 7, "",
		},
		"two families": {
			pods{says("a", 3)}, pods{says("b", 4)}, [][]discoveryv1.Endpoint{ready("a", "b"), ready("b", "a")}, 7, "",
		},
		"none has reported": {
			nil, nil, [][]discoveryv1.Endpoint{ready("a", "b")}, 0,
			"2 of 2 ready pods have not reported to the operator: a, b",
		},
		"a replica is not there": {
			pods{says("a", 3)}, nil, [][]discoveryv1.Endpoint{ready("a", "b")}, 0,
			"1 of 2 ready pods have not reported to the operator: b",
		},
		"many that say nothing": {
			nil, nil, [][]discoveryv1.Endpoint{ready("a", "b", "c", "d", "e", "f", "g")}, 0,
			": a, b, c, d, e and 2 more",
		},
		"one drains": {
			pods{says("a", 3)}, pods{drains("b", 4)},
			[][]discoveryv1.Endpoint{{endpoint("a", true, false), endpoint("b", false, true)}}, 3, "",
		},
		"one ends, and has not said so": {pods{says("a", 3)}, pods{says("b", 4)},
			[][]discoveryv1.Endpoint{{endpoint("a", true, false), endpoint("b", false, true)}}, 7, ""},
		"one ends and is silent": {
			pods{says("a", 3)}, nil, [][]discoveryv1.Endpoint{{endpoint("a", true, false), endpoint("b", true, true)}},
			3, "",
		},
		"one starts": {
			pods{says("a", 3)}, nil,
			[][]discoveryv1.Endpoint{{endpoint("a", true, false), endpoint("b", false, false)}}, 3, "",
		},
		"all start": {
			nil, nil, [][]discoveryv1.Endpoint{{endpoint("a", false, false), endpoint("b", false, false)}}, 0,
			"none of its pods is ready, and none has reported to the operator: a, b",
		},
		"all are unready, one talks": {
			pods{says("a", 3)}, nil,
			[][]discoveryv1.Endpoint{{endpoint("a", false, false), endpoint("b", false, false)}}, 3, "",
		},
		"ready in one family only": {
			nil, nil, [][]discoveryv1.Endpoint{{endpoint("a", false, false)}, ready("a")}, 0, "1 of 1 ready pods",
		},
		"a pod that no Service knows": {
			pods{says("a", 3)}, pods{says("x", 4)}, [][]discoveryv1.Endpoint{ready("a")}, 7, "",
		},
		"no pod at all":    {nil, nil, [][]discoveryv1.Endpoint{{}}, 0, ""},
		"no EndpointSlice": {pods{says("a", 3)}, nil, nil, 0, "no EndpointSlice says which pods it has"},
		"an endpoint that is no pod": {
			pods{says("a", 3)}, nil, [][]discoveryv1.Endpoint{{{Addresses: []string{"192.0.2.9"}}}}, 0,
			"not reported to the operator: 192.0.2.9",
		},
		"numbers without end": {
			pods{says("a", math.MaxInt)}, pods{says("b", math.MaxInt)}, [][]discoveryv1.Endpoint{ready("a", "b")},
			2 * math.MaxInt32, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				counted := reports.New(slog.New(slog.DiscardHandler))
				f := newRollouts(counted, newInbox())
				f.publish(gatewayKey, "1")
				for i, said := range []pods{c.one, c.two} {
					from := make(reporter)
					go counted.Follow(t.Context(), fmt.Sprint("replica-", i), from)
					for _, r := range said {
						r.ID = gatewayKey.String()
						from <- discovery.ReportChange{Report: &r}
					}
				}
				synctest.Wait()
				var slices []*discoveryv1.EndpointSlice
				for _, e := range c.slices {
					slices = append(slices, &discoveryv1.EndpointSlice{Endpoints: e})
				}
				f.setEndpoints(gatewayKey, endpointsOf(slices))
				got, err := f.load(gatewayKey)
				if got != c.want || (err == nil) != (c.problem == "") || err != nil &&
					!strings.Contains(err.Error(), c.problem) {
					t.Errorf("%d, %v; want %d, %q", got, err, c.want, c.problem)
				}
			})
		})
	}
}

// The load of a Gateway is known from publishing its config until withdrawing it.
func TestLoadOfAGatewayThatIsNotServed(t *testing.T) {
	f := newRollouts(reports.New(slog.New(slog.DiscardHandler)), newInbox())
	f.setEndpoints(gatewayKey, gatewayEndpoints{known: true})
	if n, err := f.load(gatewayKey); !errors.Is(err, scaler.ErrUnknown) {
		t.Errorf("not published: %d, %v", n, err)
	}
	f.publish(gatewayKey, "1")
	if n, err := f.load(gatewayKey); n != 0 || err != nil {
		t.Errorf("published: %d, %v", n, err)
	}
	f.withdraw(gatewayKey)
	if n, err := f.load(gatewayKey); !errors.Is(err, scaler.ErrUnknown) {
		t.Errorf("withdrawn: %d, %v", n, err)
	}
}

// Services and EndpointSlices arrive in any order, change and are deleted. A Service of another owner is ignored.
func TestTheLoopFindsThePodsOfAGateway(t *testing.T) {
	m := newMeters()
	l := newLoop(
		translate.DefaultOptions(), discovery.NewServer(discovery.ServerOptions{}), m, &tasks{},
		slog.New(slog.DiscardHandler),
	)
	service := func(name, owner string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{
			Namespace: "media", Name: name,
			Annotations: map[string]string{"stunner.l7mp.io/related-gateway-name": "media/edge"},
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "gateway.networking.k8s.io/v1", Kind: owner, Name: "edge"},
			},
		}}
	}
	slice := func(service string, pods ...string) *discoveryv1.EndpointSlice {
		s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
			Namespace: "media", Name: service, Labels: map[string]string{discoveryv1.LabelServiceName: service},
		}}
		for _, pod := range pods {
			s.Endpoints = append(s.Endpoints, endpoint(pod, true, false))
		}
		return s
	}
	for _, step := range []struct {
		name string
		objectChange
		want string
	}{
		{"a slice without a Service", objectChange{object: slice("edge", "a")}, ""},
		{"the Service of another", objectChange{object: service("edge", "Service")}, ""},
		{"the Service of the Gateway", objectChange{object: service("edge", "Gateway")}, "a"},
		{"one more pod", objectChange{object: slice("edge", "a", "b")}, "a b"},
		{"a second Service", objectChange{object: service("edge-tcp", "Gateway")}, "a b"},
		{"with a pod that the first does not have", objectChange{object: slice("edge-tcp", "b", "c")}, "a b c"},
		{"without it", objectChange{object: slice("edge-tcp"), deleted: true}, "a b"},
		{"without the first Service", objectChange{object: service("edge", "Gateway"), deleted: true}, ""},
	} {
		l.observe(step.objectChange, map[translate.ObjectRef]struct{}{})
		if got := strings.Join(
			l.rollouts.endpoints[types.NamespacedName{Namespace: "media", Name: "edge"}].ready, " ",
		); got != step.want {
			t.Errorf("%s: %q, want %q", step.name, got, step.want)
		}
	}
	if len(l.rollouts.endpoints) != 0 {
		t.Errorf("left behind: %v", l.rollouts.endpoints)
	}
}

// BenchmarkLoad measures the load query among a thousand Gateways with three pods each.
func BenchmarkLoad(b *testing.B) {
	counted := reports.New(slog.New(slog.DiscardHandler))
	f := newRollouts(counted, newInbox())
	from := make(reporter)
	go counted.Follow(b.Context(), "this", from)
	var gateways []types.NamespacedName
	for i := range 1_000 {
		gateway, c := types.NamespacedName{
			Namespace: "media", Name: fmt.Sprint("edge-", i),
		}, gatewayEndpoints{known: true}
		for _, pod := range []string{"a", "b", "c"} {
			c.ready = append(c.ready, pod)
			from <- discovery.ReportChange{Report: &discovery.Report{ID: gateway.String(), Pod: pod, Allocations: 40}}
		}
		f.publish(gateway, "1")
		f.setEndpoints(gateway, c)
		gateways = append(gateways, gateway)
	}
	from <- discovery.ReportChange{} // returns when all previous reports are stored
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if n, err := f.load(gateways[i%len(gateways)]); n != 120 || err != nil {
			b.Fatal(n, err)
		}
	}
}
