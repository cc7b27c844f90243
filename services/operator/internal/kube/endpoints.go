package kube

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/stunner-gateway/stunner/services/api/discovery"
)

// gatewayEndpoints are the dataplane pods of a Gateway, except terminating pods, according to the EndpointSlices of its
// Services.
type gatewayEndpoints struct {
	// known is false if the Services have no EndpointSlice.
	known bool
	// ready are the sorted names of the pods that are ready, starting those of the pods that are not ready.
	ready, starting []string
}

// endpointsOf reads the dataplane pods of a Gateway from its EndpointSlices. A pod may be in several slices, one for
// each Service and address family. It counts as ready if it is ready in one of them.
func endpointsOf(all []*discoveryv1.EndpointSlice) gatewayEndpoints {
	g, ready := gatewayEndpoints{known: len(all) > 0}, map[string]bool{}
	for _, s := range all {
		for _, e := range s.Endpoints {
			if is := e.Conditions.Terminating; is != nil && *is {
				continue
			}
			name := podOf(e)
			ready[name] = ready[name] || e.Conditions.Ready == nil || *e.Conditions.Ready
		}
	}
	for name, is := range ready {
		if is {
			g.ready = append(g.ready, name)
		} else {
			g.starting = append(g.starting, name)
		}
	}
	slices.Sort(g.ready)
	slices.Sort(g.starting)
	return g
}

// podOf returns the pod name of an endpoint. For an endpoint whose targetRef is not a pod, it returns the IP addresses.
// No report has such a name, so checkReported treats the endpoint as a pod that has not reported.
func podOf(e discoveryv1.Endpoint) string {
	if e.TargetRef != nil && e.TargetRef.Kind == "Pod" {
		return e.TargetRef.Name
	}
	return strings.Join(e.Addresses, ",")
}

// checkReported returns an error if a pod that may have allocations has not sent a report, or if the pods are unknown.
// reported are the received reports, sorted by pod. Every ready pod must have reported. A pod that is not ready may be
// missing, because it is usually starting. However, if no pod is ready and none has reported, nodes may be unreachable,
// which is an error as well.
func (g gatewayEndpoints) checkReported(reported []discovery.Report) error {
	missing := func(pods []string) []string {
		return slices.DeleteFunc(slices.Clone(pods), func(pod string) bool {
			_, found := slices.BinarySearchFunc(reported, pod,
				func(r discovery.Report, pod string) int { return cmp.Compare(r.Pod, pod) })
			return found
		})
	}
	if !g.known {
		return errors.New("no EndpointSlice says which pods it has: its Service must be one with endpoints")
	}
	if silent := missing(g.ready); len(silent) > 0 {
		return fmt.Errorf("%d of %d ready pods have not reported to the operator: %s", len(silent), len(g.ready),
			firstOf(silent))
	}
	if silent := missing(g.starting); len(g.ready) == 0 && len(silent) > 0 && len(silent) == len(g.starting) {
		return fmt.Errorf("none of its pods is ready, and none has reported to the operator: %s", firstOf(silent))
	}
	return nil
}

// firstOf formats the first five names and the number of the remaining names.
func firstOf(names []string) string {
	const most = 5
	text := strings.Join(names[:min(most, len(names))], ", ")
	if more := len(names) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
