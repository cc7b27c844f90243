package translate_test

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// What the operator writes into a status concerns the object and nobody that refers to it: else the first Gateway of a thousand that share a
// Dataplane would have all of them translated.
func TestAStatusConcernsItsObjectAlone(t *testing.T) {
	forEachCase(t, func(t *testing.T, c *testCase) {
		v, readers := c.viewOf(copies(c.objects)), resource.Readers[translate.Unit]{}
		for _, u := range unitsOf(c.objects) {
			told := resource.Facts{}
			u.Translate(v.Telling(told), c.options)
			readers.Told(u, told)
		}
		c.writeBack(t, translateAll(c.view(), c.options))
		for _, o := range c.objects {
			u, ok := translate.UnitOf(o)
			if !ok {
				continue
			}
			concerned := map[translate.Unit]struct{}{}
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

// Operators that look after different namespaces would not agree on who uses a Dataplane, and write in turns.
func TestWhoSeesAPartLeavesUsersAsTheyAre(t *testing.T) {
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
	other := condition.Usage("Gateway", 3, []string{"a/b", "c/d", "e/f"})
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
