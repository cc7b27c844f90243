package kube

import (
	"reflect"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// change is what a watch, or a fetch, has said about an object.
type objectChange struct {
	object  resource.Object
	deleted bool
	// failed says that a fetch has not told anything, and goes on trying.
	failed bool
}

// inbox collects changes until the loop has time for them. Of an object only the newest state is kept: a loop that falls behind costs no more
// memory than there are objects, and catches up by leaving out what is outdated.
type inbox struct {
	wake chan struct{}

	mu      sync.Mutex
	changes map[objectID]objectChange
}

func newInbox() *inbox {
	return &inbox{wake: make(chan struct{}, 1), changes: map[objectID]objectChange{}}
}

// OnAdd is part of cache.ResourceEventHandler, as OnUpdate and OnDelete are.
func (i *inbox) OnAdd(o any, _ bool) { i.watched(o, false) }

// OnUpdate takes the new form of an object.
func (i *inbox) OnUpdate(_, o any) { i.watched(o, false) }

// OnDelete takes the last form of an object.
func (i *inbox) OnDelete(o any) { i.watched(o, true) }

func (i *inbox) watched(o any, gone bool) {
	if last, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = last.Obj
	}
	if object, ok := o.(resource.Object); ok {
		i.put(objectChange{object: object, deleted: gone})
	}
}

func (i *inbox) put(c objectChange) {
	i.mu.Lock()
	i.changes[idOf(c.object)] = c
	i.mu.Unlock()
	notify(i.wake)
}

// drain takes out what has come.
func (i *inbox) drain() []objectChange {
	i.mu.Lock()
	defer i.mu.Unlock()
	all := make([]objectChange, 0, len(i.changes))
	for _, c := range i.changes {
		all = append(all, c)
	}
	clear(i.changes)
	return all
}

// objectID tells the objects of all kinds apart: one namespace may hold objects of several kinds with the same name, UDPRoutes of two API groups among
// them.
type objectID struct {
	goType reflect.Type
	// kind is empty for objects whose Go type says what they are: those that come from a watch carry no kind.
	kind schema.GroupKind
	name types.NamespacedName
}

func idOf(o resource.Object) objectID {
	id := objectID{goType: reflect.TypeOf(o), name: resource.KeyOf(o)}
	switch o.(type) {
	case runtime.Unstructured, *metav1.PartialObjectMetadata:
		id.kind = o.GetObjectKind().GroupVersionKind().GroupKind()
	}
	return id
}

// describe names an object for people.
func describe(o resource.Object) string {
	kind := o.GetObjectKind().GroupVersionKind().Kind
	if kind == "" {
		kind = reflect.TypeOf(o).Elem().Name()
	}
	return kind + " " + resource.KeyOf(o).String()
}

// notify wakes somebody up who may be awake.
func notify(door chan struct{}) {
	select {
	case door <- struct{}{}:
	default:
	}
}
