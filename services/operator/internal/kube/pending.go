package kube

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// ahead is what the API server has been write for and the cache does not show yet: to ask for it again would be a needless write.
type pendingWrites struct {
	mu     sync.Mutex
	writes map[objectID]pendingWrite
}

// pendingWrite is one write: what was write for, as its mark says, and when.
type pendingWrite struct {
	mark string
	at   time.Time
}

// maxCacheLag is how long the cache may take to show a write. What was made and deleted while a watch was away never shows: whoever looks later asks again.
const maxCacheLag = time.Minute

// expect says that an object is about to be written. It comes before the write: the cache may show that before the API server has answered.
func (a *pendingWrites) add(o resource.Object, patch *unstructured.Unstructured) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.writes == nil {
		a.writes = map[objectID]pendingWrite{}
	}
	a.writes[idOf(o)] = pendingWrite{patch.GetAnnotations()[appliedAnnotation], time.Now()}
}

// forget says that an object has not been written, or that the cache shows another state of it than before.
func (a *pendingWrites) remove(o resource.Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.writes, idOf(o))
}

// has tells whether just this has been write for, and will show.
func (a *pendingWrites) contains(o resource.Object, patch *unstructured.Unstructured) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	write, ok := a.writes[idOf(o)]
	return ok && write.mark == patch.GetAnnotations()[appliedAnnotation] && time.Since(write.at) < maxCacheLag
}
