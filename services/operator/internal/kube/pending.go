package kube

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// pendingWrites are the writes of objects that the cache does not show yet. They prevent the same write from being made
// twice.
type pendingWrites struct {
	mu     sync.Mutex
	writes map[objectID]pendingWrite
}

// pendingWrite is a write that the cache does not show yet.
type pendingWrite struct {
	// hash is the value of appliedAnnotation of the written object.
	hash string
	at   time.Time
}

// maxCacheLag is how long a write counts as pending. The period is limited, because the cache never shows an object
// that was created and deleted while the watch was interrupted. After this time, such an object is written again.
const maxCacheLag = time.Minute

// add records a write. It must be called before the request, because the cache may show the object before the response
// arrives.
func (p *pendingWrites) add(o resource.Object, patch *unstructured.Unstructured) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.writes == nil {
		p.writes = map[objectID]pendingWrite{}
	}
	p.writes[idOf(o)] = pendingWrite{patch.GetAnnotations()[appliedAnnotation], time.Now()}
}

// remove removes a write that has failed or that the cache shows.
func (p *pendingWrites) remove(o resource.Object) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.writes, idOf(o))
}

// contains reports whether a write with the same content is pending.
func (p *pendingWrites) contains(o resource.Object, patch *unstructured.Unstructured) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	write, ok := p.writes[idOf(o)]
	return ok && write.hash == patch.GetAnnotations()[appliedAnnotation] && time.Since(write.at) < maxCacheLag
}
