package kube

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// pendingWrites are the writes that the cache does not show yet. They prevent a second write of the same object.
type pendingWrites struct {
	mu     sync.Mutex
	writes map[objectID]pendingWrite
}

// pendingWrite is the hash of the applied object and the time of the write.
type pendingWrite struct {
	hash string
	at   time.Time
}

// maxCacheLag is how long a write may be missing in the cache. The cache never shows an object that was created and
// deleted while a watch was interrupted, so after this time it is written again.
const maxCacheLag = time.Minute

// add records a write. It is called before the request, because the cache may show the object before the response
// arrives.
func (p *pendingWrites) add(o resource.Object, patch *unstructured.Unstructured) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.writes == nil {
		p.writes = map[objectID]pendingWrite{}
	}
	p.writes[idOf(o)] = pendingWrite{patch.GetAnnotations()[appliedAnnotation], time.Now()}
}

// remove removes a write that failed, or that the cache shows.
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
