package kube

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/scaler"
)

// crew are the pods of a Gateway that take clients, as the endpoints of its Services have it: who ends is not among them.
type gatewayEndpoints struct {
	// known is false where no EndpointSlice says which pods there are.
	known bool
	// ready and starting are names, sorted.
	ready, starting []string
}

// muster notes who the pods of a Gateway are. It is for the loop.
func (l *loop) updateEndpoints(gateway types.NamespacedName) {
	var all []*discoveryv1.EndpointSlice
	for _, service := range l.view.ServicesOf(gateway) {
		all = append(all, l.view.EndpointSlicesOf(resource.KeyOf(service))...)
	}
	l.rollouts.setEndpoints(gateway, endpointsOf(all))
}

// updateEndpointsBehind does so for the Gateway that has the Service of a slice.
func (l *loop) updateEndpointsBehind(s *discoveryv1.EndpointSlice) {
	service := l.view.Service(types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]})
	if service == nil {
		return
	}
	if gateway, ok := resource.GatewayOf(service); ok {
		l.updateEndpoints(gateway)
	}
}

// endpointsOf reads EndpointSlices. A pod that is in several, one for each Service and family, is ready if one of them says so.
func endpointsOf(all []*discoveryv1.EndpointSlice) gatewayEndpoints {
	c, ready := gatewayEndpoints{known: len(all) > 0}, map[string]bool{}
	for _, some := range all {
		for _, e := range some.Endpoints {
			if is := e.Conditions.Terminating; is != nil && *is {
				continue
			}
			name := podOf(e)
			ready[name] = ready[name] || e.Conditions.Ready == nil || *e.Conditions.Ready
		}
	}
	for name, is := range ready {
		if is {
			c.ready = append(c.ready, name)
		} else {
			c.starting = append(c.starting, name)
		}
	}
	slices.Sort(c.ready)
	slices.Sort(c.starting)
	return c
}

// podOf names an endpoint. One that is no pod, which somebody has added, reports nothing under any name, and is missed by its address.
func podOf(e discoveryv1.Endpoint) string {
	if e.TargetRef != nil && e.TargetRef.Kind == "Pod" {
		return e.TargetRef.Name
	}
	return strings.Join(e.Addresses, ",")
}

// setEndpoints notes who the pods of a Gateway are.
func (f *rollouts) setEndpoints(gateway types.NamespacedName, c gatewayEndpoints) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.endpoints[gateway] = c; !c.known {
		delete(f.endpoints, gateway)
	}
}

// load counts the allocations of a Gateway, for an autoscaler: those of all pods but of who is on the way out, which takes no more clients. It is
// what pods have said of themselves, at most as long ago as the census keeps the word of a replica that cannot be reached. An error says
// that it may be less than there are.
func (f *rollouts) load(gateway types.NamespacedName) (allocations int, err error) {
	latest := f.reports.Of(gateway.String())
	f.mu.Lock()
	known, c := f.rollouts[gateway] != nil, f.endpoints[gateway]
	f.mu.Unlock()
	if !known {
		return 0, scaler.ErrUnknown
	}
	if err := c.complete(latest); err != nil {
		return 0, err
	}
	for _, r := range latest {
		if !r.Draining {
			allocations += min(r.Allocations, math.MaxInt32)
		}
	}
	return allocations, nil
}

// complete tells whether everybody has reported who may have allocations. A pod that is not ready is one that starts, as a rule, and is not waited
// for. If nobody has anything to say, though, and none is ready, then more than a start has gone wrong: nodes may be cut off.
func (c gatewayEndpoints) complete(reports []discovery.Report) error {
	missing := func(pods []string) (silent []string) {
		for _, pod := range pods {
			_, heard := slices.BinarySearchFunc(reports, pod, func(r discovery.Report, pod string) int { return cmp.Compare(r.Pod, pod) })
			if !heard {
				silent = append(silent, pod)
			}
		}
		return silent
	}
	if !c.known {
		return errors.New("no EndpointSlice says which pods it has: its Service must be one with endpoints")
	}
	if silent := missing(c.ready); len(silent) > 0 {
		return fmt.Errorf("%d of %d ready pods have not reported to the operator: %s", len(silent), len(c.ready), someOf(silent))
	}
	if silent := missing(c.starting); len(c.ready) == 0 && len(silent) > 0 && len(silent) == len(c.starting) {
		return fmt.Errorf("none of its pods is ready, and none has reported to the operator: %s", someOf(silent))
	}
	return nil
}

// someOf names the first few.
func someOf(names []string) string {
	const few = 5
	text := strings.Join(names[:min(few, len(names))], ", ")
	if more := len(names) - few; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
