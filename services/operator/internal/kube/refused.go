package kube

import (
	"context"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// refusedPeriod is how long the status of a Gateway shows that config discovery has refused one of its pods. Dataplanes
// of the existing system try again every few seconds.
const refusedPeriod = 5 * time.Minute

// refusedDataplanes finds dataplane pods that connect to config discovery without TLS or without a token, which
// AuthStrict refuses. The dataplane of this project always uses both. The dataplane of the existing system uses
// neither.
type refusedDataplanes struct {
	pods *podIndex
	// refused is called with the Gateway and the name of such a pod.
	refused func(gateway types.NamespacedName, pod string, now time.Time)
}

// connected handles a refused connection from an address. Pods with host network are not found, because all processes
// of their node have the same address.
func (d *refusedDataplanes) connected(source netip.Addr) {
	if d == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), authorizeTimeout)
	defer cancel()
	pod, err := d.pods.atAddress(ctx, source)
	if err != nil {
		return // a user, or a pod of another kind
	}
	if id, ok := configOf(pod); ok {
		namespace, name, _ := strings.Cut(id, "/")
		d.refused(types.NamespacedName{Namespace: namespace, Name: name}, pod.Name, time.Now())
	}
}

// watch returns a handler that also handles the requests without a token.
func (d *refusedDataplanes) watch(h http.Handler) http.Handler {
	if d == nil {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "" {
			d.connected(sourceOf(r))
		}
		h.ServeHTTP(w, r)
	})
}

// refused records that config discovery has refused a pod of a Gateway. The name of the pod stays while it is refused,
// so that the status does not alternate between pods.
func (f *rollouts) refused(gateway types.NamespacedName, pod string, now time.Time) {
	f.mu.Lock()
	r := f.rollouts[gateway]
	if r != nil {
		if r.refusedPod == "" {
			r.refusedPod = pod
		}
		r.refusedAt = now
	}
	f.mu.Unlock()
	f.update(gateway, now)
}
