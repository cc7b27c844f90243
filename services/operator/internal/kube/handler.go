package kube

import (
	"reflect"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
)

// ownedHandler is the event handler of generated kinds. When a generated object changes, it queues the Gateway that
// owns the object, so that the writer reverts changes made by other clients.
type ownedHandler struct{ *writer }

var _ toolscache.ResourceEventHandler = ownedHandler{}

// OnAdd implements toolscache.ResourceEventHandler.
func (h ownedHandler) OnAdd(o any, initial bool) {
	if !initial {
		h.enqueueOwner(o)
	}
}

// OnUpdate implements toolscache.ResourceEventHandler. A workload whose status has changed is not compared again: its
// controller updates the status several times for each new pod.
func (h ownedHandler) OnUpdate(before, o any) {
	if was, is := workloadMeta(before), workloadMeta(o); is != nil && reflect.DeepEqual(was, is) {
		return
	}
	h.enqueueOwner(o)
}

// workloadMeta returns the metadata of a workload without its resource version, and nil for other objects. Its
// generation changes with the spec.
func workloadMeta(o any) *metav1.ObjectMeta {
	var meta metav1.ObjectMeta
	switch o := o.(type) {
	case *appsv1.Deployment:
		meta = o.ObjectMeta
	case *appsv1.DaemonSet:
		meta = o.ObjectMeta
	default:
		return nil
	}
	meta.ResourceVersion = ""
	return &meta
}

// OnDelete implements toolscache.ResourceEventHandler.
func (h ownedHandler) OnDelete(o any) { h.enqueueOwner(o) }

func (h ownedHandler) enqueueOwner(payload any) {
	o, ok := objectOf(payload)
	if !ok {
		return
	}
	h.objects.pending.remove(o)
	if ref, ok := ownerOf(o); ok {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.queue.enqueue(ref, h.desired[ref])
	}
}
