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

// rollouts determines from the reports of dataplanes whether they run the published configs, and sends changed results
// to the translation loop. While a config is being rolled out, the previous result stays valid until dataplanes have
// reported on the new config or rolloutTimeout has passed.
type rollouts struct {
	reports *reports.Store
	inbox   *inbox
	// server tells the auth service which Gateways have no dataplane that could take a session; nil in tests.
	server *discovery.Server
	// forwarding is called for each change of the reports; nil if no keys are published.
	forwarding *forwarding

	mu       sync.Mutex
	rollouts map[types.NamespacedName]*rollout
	// endpoints are the pods of each Gateway that should report.
	endpoints map[types.NamespacedName]gatewayEndpoints
}

// rollout is the rollout of a Gateway's config to its dataplanes.
type rollout struct {
	// revision is the revision of the published config. A dataplane that received the config with the address of its
	// node runs another revision; in its report, config discovery replaces that revision by this one.
	revision string
	// behindSince is the time since which no dataplane runs the published config although some have accepted a config;
	// zero if a dataplane runs the published config, if all reject their config, or if none has reported.
	behindSince time.Time
	// refusedPod is a pod that config discovery has refused, and refusedAt when it last did; see refusedDataplanes.
	refusedPod string
	refusedAt  time.Time
	// state is the state that was last sent to the loop.
	state resource.RolloutState
	// sent is the time when state was sent.
	sent time.Time
	// pending means that the rollout state has changed, but must not be sent to the translation loop before
	// minReportInterval has passed.
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
	// minReportInterval is the minimum interval at which the rollout state of a Gateway is sent to the translation
	// loop, because each state causes a status write. A change that is reverted within the interval is not sent.
	minReportInterval = 10 * time.Second
	// rolloutTick is the interval of checks whether rolloutTimeout or minReportInterval has passed.
	rolloutTick = time.Second
	// maxProblemLength limits the error message of a dataplane in a status, in bytes.
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
	if old := f.rollouts[gateway]; old != nil && old.state != (resource.RolloutState{}) {
		f.inbox.put(objectChange{object: rolloutObject(gateway, resource.RolloutState{}), deleted: true})
	}
	delete(f.rollouts, gateway)
	f.setIdle(gateway, false)
}

func (f *rollouts) setIdle(gateway types.NamespacedName, idle bool) {
	if f.server != nil {
		f.server.SetIdle(gateway.String(), idle)
	}
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
				gateway := types.NamespacedName{Namespace: namespace, Name: name}
				f.update(gateway, time.Now())
				f.forwarding.reported(gateway, time.Now())
			}
		case <-ticker.C:
			t.begin()
			for _, gateway := range f.unsettled() {
				f.update(gateway, time.Now())
			}
			f.forwarding.tick(time.Now())
		}
		t.end()
	}
}

// unsettled returns the Gateways whose rollout state may change after some time without a new report.
func (f *rollouts) unsettled() (gateways []types.NamespacedName) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for gateway, r := range f.rollouts {
		if !r.behindSince.IsZero() || r.pending || r.refusedPod != "" {
			gateways = append(gateways, gateway)
		}
	}
	return gateways
}

// update evaluates the reports of a Gateway's dataplanes, and sends the rollout state to the translation loop if it has
// changed.
func (f *rollouts) update(gateway types.NamespacedName, now time.Time) {
	latest := f.reports.Of(gateway.String())
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.rollouts[gateway]
	if r == nil {
		return
	}
	// A dataplane that rejects a config keeps its last config, and accepts sessions.
	f.setIdle(gateway, !slices.ContainsFunc(latest, func(report discovery.Report) bool { return !report.Draining }))
	state := r.evaluate(latest, now)
	if r.pending = state != r.state; !r.pending || now.Sub(r.sent) < minReportInterval {
		return
	}
	r.state, r.sent, r.pending = state, now, false
	f.inbox.put(objectChange{object: rolloutObject(gateway, state)})
}

// evaluate returns the state of a rollout. There is no problem if at least one dataplane runs the published config, or
// if no dataplane has reported. If all dataplanes reject their config, the state contains the error of one of them.
func (r *rollout) evaluate(latest []discovery.Report, now time.Time) resource.RolloutState {
	var rejecting []discovery.Report
	state, current := resource.RolloutState{}, len(latest) == 0
	for _, report := range latest {
		if !report.Accepted {
			rejecting = append(rejecting, report)
		}
		if report.Draining {
			state.Draining++
		}
		if report.Offload != "" && (state.OffloadPod == "" || report.Pod == r.state.OffloadPod) {
			state.OffloadPod = printable(report.Pod, maxProblemLength)
			state.OffloadProblem = printable(report.Offload, maxProblemLength)
		}
		current = current || report.Accepted && report.Revision == r.revision
	}
	isRefused := func(report discovery.Report) bool { return report.Pod == r.refusedPod }
	if now.Sub(r.refusedAt) >= refusedPeriod || slices.ContainsFunc(latest, isRefused) {
		r.refusedPod = ""
	}
	state.RefusedPod, state.AllRefused = r.refusedPod, r.refusedPod != "" && len(latest) == 0
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

// firstProblem returns one of the errors that dataplanes report, with the pod that reports it. It prefers the pod in
// the previous state, so that the status does not alternate between pods.
func (r *rollout) firstProblem(rejecting []discovery.Report) (pod, problem string) {
	i := max(0, slices.IndexFunc(rejecting, func(report discovery.Report) bool { return report.Pod == r.state.Pod }))
	return printable(rejecting[i].Pod, maxProblemLength), printable(rejecting[i].Error, maxProblemLength)
}

func rolloutObject(gateway types.NamespacedName, s resource.RolloutState) *resource.Rollout {
	return &resource.Rollout{
		ObjectMeta: metav1.ObjectMeta{Namespace: gateway.Namespace, Name: gateway.Name}, RolloutState: s,
	}
}

// setEndpoints replaces the list of dataplane pods from which reports are expected for a Gateway.
func (f *rollouts) setEndpoints(gateway types.NamespacedName, g gatewayEndpoints) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.endpoints[gateway] = g; !g.known {
		delete(f.endpoints, gateway)
	}
}

// load returns the number of allocations of a Gateway on all pods that are not draining, from their latest reports.
// Reports that an unreachable replica forwarded are used for up to 30 s. It returns an error if the sum may be too low.
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
