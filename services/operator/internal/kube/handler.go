package kube

import toolscache "k8s.io/client-go/tools/cache"

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

// OnUpdate implements toolscache.ResourceEventHandler.
func (h ownedHandler) OnUpdate(_, o any) { h.enqueueOwner(o) }

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
