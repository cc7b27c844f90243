package kube

import (
	"fmt"
	"sync"

	"k8s.io/client-go/tools/cache"

	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// change is what a watch, or a fetch, has said about an object.
type change struct {
	object resource.Object
	gone   bool
	// failed says that a fetch has not told anything, and goes on trying.
	failed bool
}

// inbox collects changes until the loop has time for them. Of an object only the newest state is kept: a loop that falls behind costs no more
// memory than there are objects, and catches up by leaving out what is outdated.
type inbox struct {
	wake chan struct{}

	mu      sync.Mutex
	changes map[string]change
}

func newInbox() *inbox { return &inbox{wake: make(chan struct{}, 1), changes: map[string]change{}} }

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
		i.put(change{object: object, gone: gone})
	}
}

func (i *inbox) put(c change) {
	i.mu.Lock()
	i.changes[nameOf(c.object)] = c
	i.mu.Unlock()
	knock(i.wake)
}

// drain takes out what has come.
func (i *inbox) drain() []change {
	i.mu.Lock()
	defer i.mu.Unlock()
	all := make([]change, 0, len(i.changes))
	for _, c := range i.changes {
		all = append(all, c)
	}
	clear(i.changes)
	return all
}

// nameOf tells objects of all kinds apart. What comes from a watch has no type information of its own; its Go type stands for it.
func nameOf(o resource.Object) string {
	if isScaling(o) { // what has no type has a kind
		return fmt.Sprintf("%s %s", o.GetObjectKind().GroupVersionKind().Kind, resource.KeyOf(o))
	}
	return fmt.Sprintf("%T %s", o, resource.KeyOf(o))
}

// knock wakes somebody up who may be awake.
func knock(door chan struct{}) {
	select {
	case door <- struct{}{}:
	default:
	}
}
