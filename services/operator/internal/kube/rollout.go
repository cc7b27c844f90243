package kube

import (
	"context"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/operator/internal/reports"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/scaler"
)

// rollouts compare the reports of dataplanes with the published configs, and send changed results to the loop. While a
// config is being rolled out the previous result stands, until dataplanes have reported on the new config or
// rolloutTimeout has passed.
type rollouts struct {
	reports *reports.Store
	inbox   *inbox

	mu       sync.Mutex
	rollouts map[types.NamespacedName]*rollout
	// endpoints are the pods that should report.
	endpoints map[types.NamespacedName]gatewayEndpoints
}

// rollout is the rollout of a Gateway's config to its dataplanes.
type rollout struct {
	// revision is that of the published config. Config discovery maps the revision that a dataplane reports to it.
	revision string
	// behindSince is since when dataplanes have accepted configs, but none the published one; zero if one has.
	behindSince time.Time
	// state was sent to the loop at the time sent.
	state resource.FleetState
	sent  time.Time
	// pending means that another state is to be sent after minReportInterval.
	pending bool
}

func newRollouts(r *reports.Store, in *inbox) *rollouts {
	return &rollouts{
		reports: r, inbox: in, rollouts: map[types.NamespacedName]*rollout{},
		endpoints: map[types.NamespacedName]gatewayEndpoints{},
	}
}

const (
	// rolloutTimeout is how long dataplanes may take to accept a published config.
	rolloutTimeout = 10 * time.Second
	// minReportInterval bounds how often a state is sent to the loop. Each one writes the status of the Gateway, so
	// reports that flip back within the interval have no effect.
	minReportInterval = 10 * time.Second
	// rolloutTick is how often outdated and pending rollouts are checked.
	rolloutTick = time.Second
	// maxProblemLength bounds the error of a dataplane in a status, in bytes.
	maxProblemLength = 256
)

// publish sets the revision that the dataplanes of a Gateway should run.
func (f *rollouts) publish(gateway types.NamespacedName, revision string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.rollouts[gateway] == nil {
		f.rollouts[gateway] = &rollout{}
	}
	f.rollouts[gateway].revision = revision
}

// withdraw ends the rollout of a Gateway.
func (f *rollouts) withdraw(gateway types.NamespacedName) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if old := f.rollouts[gateway]; old != nil && old.state != (resource.FleetState{}) {
		f.inbox.put(objectChange{object: fleetOf(gateway, resource.FleetState{}), deleted: true})
	}
	delete(f.rollouts, gateway)
}

// run processes changed reports until ctx ends.
func (f *rollouts) run(ctx context.Context, t *task) {
	ticker := time.NewTicker(rolloutTick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.reports.Changed:
			t.begin()
			for _, id := range f.reports.Changes() {
				namespace, name, _ := strings.Cut(id, "/")
				f.update(types.NamespacedName{Namespace: namespace, Name: name}, time.Now())
			}
		case <-ticker.C:
			t.begin()
			for _, gateway := range f.unsettled() {
				f.update(gateway, time.Now())
			}
		}
		t.end()
	}
}

// unsettled returns the Gateways whose state may change without a report.
func (f *rollouts) unsettled() (gateways []types.NamespacedName) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for gateway, r := range f.rollouts {
		if !r.behindSince.IsZero() || r.pending {
			gateways = append(gateways, gateway)
		}
	}
	return gateways
}

// update evaluates the reports of a Gateway's dataplanes, and sends the state to the loop if it changed.
func (f *rollouts) update(gateway types.NamespacedName, now time.Time) {
	latest := f.reports.Of(gateway.String())
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.rollouts[gateway]
	if r == nil {
		return
	}
	state := r.evaluate(latest, now)
	if r.pending = state != r.state; !r.pending || now.Sub(r.sent) < minReportInterval {
		return
	}
	r.state, r.sent, r.pending = state, now, false
	f.inbox.put(objectChange{object: fleetOf(gateway, state)})
}

// evaluate returns the state of a rollout. If one dataplane runs the published config, or none is connected, there is
// no problem. If all reject their config, the state has the error of one of them.
func (r *rollout) evaluate(latest []discovery.Report, now time.Time) resource.FleetState {
	var rejecting []discovery.Report
	state, current := resource.FleetState{}, len(latest) == 0
	for _, report := range latest {
		if !report.Accepted {
			rejecting = append(rejecting, report)
		}
		if report.Draining {
			state.Draining++
		}
		current = current || report.Accepted && report.Revision == r.revision
	}
	rejected := len(rejecting) == len(latest)
	switch {
	case current || rejected:
		r.behindSince = time.Time{}
	case r.behindSince.IsZero():
		r.behindSince = now
	}
	switch {
	case current:
	case rejected:
		state.Pod, state.Problem = r.firstProblem(rejecting)
	case now.Sub(r.behindSince) >= rolloutTimeout:
		state.Behind = len(latest)
	default:
		state.Pod, state.Problem, state.Behind = r.state.Pod, r.state.Problem, r.state.Behind
	}
	return state
}

// firstProblem returns the error of the pod in the previous state if it still rejects its config, else of the first
// pod, so that the status does not alternate between pods.
func (r *rollout) firstProblem(rejecting []discovery.Report) (pod, problem string) {
	i := max(0, slices.IndexFunc(rejecting, func(report discovery.Report) bool { return report.Pod == r.state.Pod }))
	return printable(rejecting[i].Pod, maxProblemLength), printable(rejecting[i].Error, maxProblemLength)
}

func fleetOf(gateway types.NamespacedName, s resource.FleetState) *resource.Fleet {
	return &resource.Fleet{
		ObjectMeta: metav1.ObjectMeta{Namespace: gateway.Namespace, Name: gateway.Name}, FleetState: s,
	}
}

// setEndpoints replaces the pods of a Gateway.
func (f *rollouts) setEndpoints(gateway types.NamespacedName, g gatewayEndpoints) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.endpoints[gateway] = g; !g.known {
		delete(f.endpoints, gateway)
	}
}

// load sums the allocations over the non-draining pods of a Gateway from their latest reports. The reports of an
// unreachable replica are at most 30 s old. An error means that the sum may be too low.
func (f *rollouts) load(gateway types.NamespacedName) (allocations int, err error) {
	latest := f.reports.Of(gateway.String())
	f.mu.Lock()
	known, g := f.rollouts[gateway] != nil, f.endpoints[gateway]
	f.mu.Unlock()
	if !known {
		return 0, scaler.ErrUnknown
	}
	if err := g.checkReported(latest); err != nil {
		return 0, err
	}
	for _, r := range latest {
		if !r.Draining {
			allocations += min(r.Allocations, math.MaxInt32)
		}
	}
	return allocations, nil
}
