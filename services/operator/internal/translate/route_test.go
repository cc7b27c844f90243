package translate_test

import (
	"fmt"
	"reflect"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// The API server rejects a status with more than 32 parents. Entries of other controllers must stay, so entries of this
// one are dropped.
func TestAStatusHasAtMost32Parents(t *testing.T) {
	route := &stunnerv1.UDPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "quay", Name: "ferry"}}
	for i := range 20 {
		name := gwapiv1.ObjectName(fmt.Sprintf("gate-%d", i))
		route.Spec.ParentRefs = append(route.Spec.ParentRefs, gwapiv1.ParentReference{Name: name})
		route.Status.Parents = append(route.Status.Parents, gwapiv1.RouteParentStatus{
			ParentRef: gwapiv1.ParentReference{Name: name}, ControllerName: "proxy.example.org/controller",
		})
	}
	v := resource.NewView([]resource.Object{route})
	opt := translate.DefaultOptions()
	opt.Now = now
	r := translate.Route(v, v.Routes()[0], opt)
	theirs := 0
	for _, p := range r.Parents {
		if p.ControllerName == "proxy.example.org/controller" {
			theirs++
		}
	}
	if len(r.Parents) != 32 || theirs != 20 {
		t.Errorf("%d parents, %d of them of the other controller; want 32 and 20", len(r.Parents), theirs)
	}
}

// Two controllers with entries in the status of one route reach a fixed point.
func TestControllersDoNotWriteAgainstEachOther(t *testing.T) {
	route := &stunnerv1.UDPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "quay", Name: "ferry"}}
	route.Spec.ParentRefs = []gwapiv1.ParentReference{{Name: "gone"}, {Name: "gone-too"}}
	said := func(controller string) []gwapiv1.RouteParentStatus {
		v := resource.NewView([]resource.Object{route})
		opt := translate.DefaultOptions()
		opt.ControllerName, opt.Now = controller, now
		return translate.Route(v, v.Routes()[0], opt).Parents
	}
	for _, controller := range []string{"one.example.org/controller", "other.example.org/controller"} {
		route.Status.Parents = said(controller)
	}
	if len(route.Status.Parents) != 4 {
		t.Fatalf("parents %+v", route.Status.Parents)
	}
	for _, controller := range []string{"one.example.org/controller", "other.example.org/controller"} {
		if again := said(controller); !reflect.DeepEqual(again, route.Status.Parents) {
			t.Errorf("%s says\n%+v\nof\n%+v", controller, again, route.Status.Parents)
		}
	}
}

// A tenant that attaches routes to a Gateway must not overload the operator: twice as many routes cost twice as much.
func TestManyRoutesOfOneGatewayCostNoMoreThanTheirNumber(t *testing.T) {
	cost := func(routes int) float64 {
		gw := &gwapiv1.Gateway{
			ObjectMeta: metav1.ObjectMeta{Namespace: "turn", Name: "lobby"},
			Spec:       gwapiv1.GatewaySpec{GatewayClassName: "edge"},
		}
		for i := range 4 {
			name := gwapiv1.SectionName(fmt.Sprint("udp-", i))
			gw.Spec.Listeners = append(
				gw.Spec.Listeners,
				gwapiv1.Listener{Name: name, Port: gwapiv1.PortNumber(3478 + i), Protocol: "TURN-UDP"},
			)
		}
		v := resource.NewView(append(base(t), gw))
		rooms := gwapiv1.Namespace("rooms")
		for i := range routes {
			r := &stunnerv1.UDPRoute{ObjectMeta: metav1.ObjectMeta{
				Namespace: "turn", Name: fmt.Sprint("to-the-media-servers-of-customer-number-", i),
			}}
			r.Spec.ParentRefs = []gwapiv1.ParentReference{{Name: "lobby"}}
			r.Spec.Rules = []stunnerv1.UDPRouteRule{
				{BackendRefs: []stunnerv1.BackendRef{{Name: "sfu", Namespace: &rooms}}},
			}
			v.Put(r)
		}
		return testing.AllocsPerRun(1, func() {
			if r := translate.Gateway(
				v, resource.KeyOf(gw), translate.DefaultOptions(),
			); len(r.Config.Clusters) != routes {
				t.Fatalf("%d clusters of %d routes", len(r.Config.Clusters), routes)
			}
		})
	}
	if few, many := cost(400), cost(1600); many > 6*few {
		t.Errorf("400 routes cost %.0f allocations, 1600 cost %.0f", few, many)
	}
}
