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

// The API server refuses a status with more than 32 parents as a whole. Others' entries are not ours to drop, so ours give way.
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

// Two controllers that both speak for a route come to rest: what one has written is nothing new to the other.
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
