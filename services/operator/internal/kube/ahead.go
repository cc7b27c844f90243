package kube

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// ahead is what the API server has been asked for and the cache does not show yet: to ask for it again would be a needless write.
type ahead struct {
	mu    sync.Mutex
	asked map[objectID]asking
}

// asking is one write: what was asked for, as its mark says, and when.
type asking struct {
	mark string
	at   time.Time
}

// maxBehind is how long the cache may take to show a write. What was made and deleted while a watch was away never shows: whoever looks later asks again.
const maxBehind = time.Minute

// expect says that an object is about to be written. It comes before the write: the cache may show that before the API server has answered.
func (a *ahead) expect(o resource.Object, form *unstructured.Unstructured) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.asked == nil {
		a.asked = map[objectID]asking{}
	}
	a.asked[idOf(o)] = asking{form.GetAnnotations()[appliedAnnotation], time.Now()}
}

// forget says that an object has not been written, or that the cache shows another state of it than before.
func (a *ahead) forget(o resource.Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.asked, idOf(o))
}

// has tells whether just this has been asked for, and will show.
func (a *ahead) has(o resource.Object, form *unstructured.Unstructured) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	asked, ok := a.asked[idOf(o)]
	return ok && asked.mark == form.GetAnnotations()[appliedAnnotation] && time.Since(asked.at) < maxBehind
}
