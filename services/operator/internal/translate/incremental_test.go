package translate_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

func unitsOf(objects []resource.Object) (units []translate.ObjectRef) {
	for _, o := range objects {
		if u, ok := translate.RefOf(o); ok {
			units = append(units, u)
		}
	}
	return units
}

// After any change, repeating the translations that depend on a changed fact gives the results of a translation of
// everything. The objects of all golden cases are added, changed and deleted in all their variants.
func TestIncrementalTranslationEqualsAFullOne(t *testing.T) {
	forms := map[string][]resource.Object{}
	for _, file := range caseFiles(t) {
		for _, o := range load(t, file).objects {
			forms[nameOf(o)] = append(forms[nameOf(o)], o)
		}
	}
	const steps, seed = 80, 7
	random := rand.New(rand.NewPCG(seed, 0))
	made, all, remembered := 0, 0, 0
	forEachCase(t, func(t *testing.T, c *testCase) {
		w := walk{
			t: t, view: c.viewOf(nil), options: c.options, present: map[string]resource.Object{},
			results: map[translate.ObjectRef]any{},
		}
		for _, o := range c.objects {
			w.put(o)
		}
		for _, o := range c.objects {
			w.delete(nameOf(o))
			w.check(nameOf(o)+" goes", c.viewOf)
			w.put(o)
			w.check(nameOf(o)+" comes back", c.viewOf)
		}
		for step := range steps {
			own := c.objects[random.IntN(len(c.objects))]
			name := nameOf(own)
			switch {
			case random.IntN(8) == 0: // the object of the case itself
				for _, o := range c.objects {
					w.put(o)
				}
			case w.present[name] != nil && random.IntN(2) == 0:
				w.delete(name)
			default:
				w.put(forms[name][random.IntN(len(forms[name]))])
			}
			w.check(fmt.Sprintf("step %d of seed %d, %s", step, seed, name), c.viewOf)
		}
		made, all, remembered = made+w.made, all+w.all, remembered+w.remembered
	})
	t.Logf("%d translations in the place of %d, %d of them of endpoints only", made, all, remembered)
	if remembered < 100 {
		t.Errorf("%d translations of endpoints only are too few for this test", remembered)
	}
}

// walk is a changing view with the results of its translations.
type walk struct {
	t       *testing.T
	view    *resource.View
	options translate.Options
	present map[string]resource.Object
	readers resource.Readers[translate.ObjectRef]
	results map[translate.ObjectRef]any
	memo    translate.Memo
	// remembered counts the translations that memo has made.
	remembered int
	// made counts the repeated translations. all counts the translations that would be repeated without facts.
	made, all int
}

func (w *walk) put(o resource.Object) {
	o = o.DeepCopyObject().(resource.Object)
	o.SetResourceVersion(fmt.Sprint(w.made, w.all)) // changes with every write
	w.present[nameOf(o)] = o
	w.update(w.view.Put(o))
}

func (w *walk) delete(name string) {
	gone := w.present[name]
	delete(w.present, name)
	w.update(w.view.Delete(gone))
}

func (w *walk) update(changed resource.Facts) {
	concerned, there := map[translate.ObjectRef]struct{}{}, map[translate.ObjectRef]struct{}{}
	w.readers.Of(changed, concerned)
	w.memo.Observe(changed, concerned)
	for _, u := range unitsOf(objectsOf(w.present)) {
		there[u] = struct{}{}
		if _, known := w.results[u]; !known {
			concerned[u] = struct{}{}
		}
	}
	for u := range concerned {
		if _, exists := there[u]; !exists {
			w.readers.Delete(u)
			delete(w.results, u)
			continue
		}
		w.made++
		told, opt := resource.Facts{}, w.options
		if r, ok := w.memo.Translate(u, w.view.Recording(told), opt); ok {
			w.remembered++
			w.results[u] = r
			w.readers.Extend(u, told)
			continue
		}
		opt.Memo = &w.memo
		w.results[u] = u.Translate(w.view.Recording(told), opt)
		w.readers.Record(u, told)
	}
}

// check compares the results with a translation of everything.
func (w *walk) check(when string, viewOf func([]resource.Object) *resource.View) {
	w.t.Helper()
	objects := objectsOf(w.present)
	fresh, units := viewOf(objects), unitsOf(objects)
	for _, u := range units {
		w.all++
		if want := u.Translate(fresh, w.options); !reflect.DeepEqual(w.results[u], want) {
			w.t.Fatalf("%s: %v is not what a new translation says", when, u)
		}
	}
	if len(w.results) != len(units) {
		w.t.Fatalf("%s: %d results, want %d", when, len(w.results), len(units))
	}
}

// nameOf returns the identity of an object in a view: each API group of a route is an object of its own, the versions
// of a ReferenceGrant are one.
func nameOf(o resource.Object) string {
	if o.GetObjectKind().GroupVersionKind().Kind == string(resource.KindUDPRoute) {
		return fmt.Sprint(o.GetObjectKind().GroupVersionKind(), resource.KeyOf(o))
	}
	return identity(o)
}

func objectsOf(present map[string]resource.Object) (list []resource.Object) {
	for _, o := range present {
		list = append(list, o)
	}
	return list
}
