package kube

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// objectChange is the new state of an object, from a watch, from a fetch, or from another part of the operator.
type objectChange struct {
	object  resource.Object
	deleted bool
	// reread means that the object was read by a separate request. The watch may have delivered a newer version since.
	reread bool
	// certificate is the parsed certificate of a fetched Secret.
	certificate *resource.Certificate
	// failed means that fetching a Secret failed and will be retried. The state of the Secret is unknown.
	failed bool
}

// inbox collects changes of objects until the translation loop processes them. It is the event handler of the watched
// kinds. It keeps only the newest state of each object, so its size is limited by the number of objects, and a loop
// that falls behind does not process outdated states.
type inbox struct {
	wake chan struct{}

	mu      sync.Mutex
	changes map[objectID]objectChange
}

func newInbox() *inbox {
	return &inbox{wake: make(chan struct{}, 1), changes: map[objectID]objectChange{}}
}

// OnAdd implements cache.ResourceEventHandler.
func (i *inbox) OnAdd(o any, _ bool) { i.putEvent(o, false) }

// OnUpdate implements cache.ResourceEventHandler.
func (i *inbox) OnUpdate(_, o any) { i.putEvent(o, false) }

// OnDelete implements cache.ResourceEventHandler.
func (i *inbox) OnDelete(o any) { i.putEvent(o, true) }

func (i *inbox) putEvent(o any, deleted bool) {
	if object, ok := objectOf(o); ok {
		i.put(objectChange{object: object, deleted: deleted})
	}
}

func (i *inbox) put(c objectChange) {
	i.mu.Lock()
	i.changes[idOf(c.object)] = c
	i.mu.Unlock()
	notify(i.wake)
}

// putNewer adds an object that was read outside its watch, unless the watch has delivered the object since.
func (i *inbox) putNewer(o resource.Object) {
	i.mu.Lock()
	if _, delivered := i.changes[idOf(o)]; !delivered {
		i.changes[idOf(o)] = objectChange{object: o, reread: true}
	}
	i.mu.Unlock()
	notify(i.wake)
}

// drain removes and returns all changes.
func (i *inbox) drain() []objectChange {
	i.mu.Lock()
	defer i.mu.Unlock()
	all := slices.Collect(maps.Values(i.changes))
	clear(i.changes)
	return all
}

// objectOf returns the object that an event handler received. If the watch missed a deletion, the informer passes the
// last known object in a wrapper, and objectOf returns the object inside.
func objectOf(payload any) (resource.Object, bool) {
	if last, ok := payload.(cache.DeletedFinalStateUnknown); ok {
		payload = last.Obj
	}
	o, ok := payload.(resource.Object)
	return o, ok
}

// objectID identifies an object by kind and name. The Go type is needed because objects of several kinds may have the
// same name, for example UDPRoutes of two API groups.
type objectID struct {
	goType reflect.Type
	// kind is set for unstructured objects and for metadata-only objects, because their Go type does not imply the
	// kind. For other objects it is empty, because typed objects from a watch have no kind set.
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

// describe returns "KIND NAMESPACE/NAME" for logs and errors.
func describe(o resource.Object) string {
	kind := cmp.Or(o.GetObjectKind().GroupVersionKind().Kind, reflect.TypeOf(o).Elem().Name())
	return kind + " " + resource.KeyOf(o).String()
}

// notify wakes the goroutine that receives from a channel with a buffer of one. It does not block: if the buffer is
// full, the receiver will wake up anyway.
func notify(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}
