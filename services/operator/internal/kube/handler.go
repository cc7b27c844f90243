package kube

import toolscache "k8s.io/client-go/tools/cache"

// ownedHandler enqueues the owner of a generated object when the object changes, so that changes by others are
// reverted.
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
