package translate_test

import (
	"path/filepath"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// A status write does not repeat the translations of objects that refer to the written object. Otherwise the first of a
// thousand Gateways with one Dataplane would cause a translation of all of them.
func TestAStatusWriteTranslatesNoOtherObject(t *testing.T) {
	forEachCase(t, func(t *testing.T, c *testCase) {
		v, readers := c.viewOf(copies(c.objects)), resource.Readers[translate.ObjectRef]{}
		for _, u := range unitsOf(c.objects) {
			told := resource.Facts{}
			u.Translate(v.Recording(told), c.options)
			readers.Record(u, told)
		}
		c.writeBack(t, translateAll(c.view(), c.options))
		for _, o := range c.objects {
			u, ok := translate.RefOf(o)
			if !ok {
				continue
			}
			concerned := map[translate.ObjectRef]struct{}{}
			readers.Of(v.Put(o), concerned)
			delete(concerned, u)
			if len(concerned) > 0 {
				t.Errorf("the status of %v concerns %v", u, concerned)
			}
		}
	})
}

func copies(objects []resource.Object) (list []resource.Object) {
	for _, o := range objects {
		list = append(list, o.DeepCopyObject().(resource.Object))
	}
	return list
}

// Operators with different namespaces would not agree on the users of a Dataplane and would overwrite each other.
func TestOperatorOfSomeNamespacesWritesNoUsers(t *testing.T) {
	c := load(t, filepath.Join("testdata", "a_parameter_says_who_uses_it.txtar"))
	c.options.Partial = true
	said := func() *metav1.Condition {
		for _, r := range translate.Dataplane(c.view(), "default", c.options).Conditions {
			if r.Type == condition.InUse {
				return &r
			}
		}
		return nil
	}
	if got := said(); got != nil {
		t.Errorf("says %q", got.Message)
	}
	other := condition.Usage("Gateway", 3, []string{"a/b", "c/d", "e/f"}).Condition
	other.LastTransitionTime = now
	c.view().Dataplane("default").Status = stunnerv1.Status{Conditions: []metav1.Condition{other}}
	got := said()
	if got == nil {
		t.Fatal("what another operator says is gone")
	}
	other.ObservedGeneration = got.ObservedGeneration
	if diff := cmp.Diff(other, *got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A new Gateway affects the objects that it refers to, and not their other users. It rarely changes the message of
// InUse.
func TestANewGatewayAffectsFewObjects(t *testing.T) {
	const there, come = 1_000, 200
	w := newLiveView(there)
	dataplane := translate.ObjectRef{
		Kind: translate.KindDataplane, NamespacedName: types.NamespacedName{Name: stunnerv1.DefaultDataplane},
	}
	said, changes := w.translate(dataplane).Status, 0
	for i := range come {
		if units := w.change(liveGateway(there+i, 0)); units > 2 {
			t.Fatalf(
				"%d units were translated because of a Gateway that came, want its GatewayConfig and its Dataplane",
				units,
			)
		}
		if now := w.translate(dataplane).Status; !reflect.DeepEqual(said, now) {
			said, changes = now, changes+1
		}
	}
	if changes != 1 { // from "more than 500" to "more than 1000"
		t.Errorf("the Dataplane says something else %d times, want once", changes)
	}
}
