package kube

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/operator/internal/reports"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// fleets hold what dataplanes report against what is published, and tell the loop when that comes to something else than before. A config that
// is on its way comes to nothing: what was last said stands, until dataplanes have said something of the new one, or have had time to.
type rollouts struct {
	reports *reports.Store
	inbox   *inbox

	mu       sync.Mutex
	rollouts map[types.NamespacedName]*rollout
	// endpoints are the pods that should report.
	endpoints map[types.NamespacedName]gatewayEndpoints
}

// fleet are the dataplanes of a Gateway.
type rollout struct {
	// wanted is the revision that is published. Config discovery knows the form of it that a dataplane has.
	wanted string
	// behind is since when some accept a config, and none the one that is published.
	behind time.Time
	// state is what the loop has been told, and told when.
	state resource.FleetState
	told  time.Time
	// held tells that something else is to be told, and that it is too soon.
	held bool
}

func newRollouts(c *reports.Store, in *inbox) *rollouts {
	return &rollouts{reports: c, inbox: in, rollouts: map[types.NamespacedName]*rollout{}, endpoints: map[types.NamespacedName]gatewayEndpoints{}}
}

// Times of the judgement.
const (
	// rolloutTimeout is how long a config may take to run.
	rolloutTimeout = 10 * time.Second
	// minReportInterval is how often the loop is told of other reports than before, at most: each time the status of the Gateway is written. What pods say and take
	// back meanwhile is not told.
	minReportInterval = 10 * time.Second
	// rolloutTick is how often those are looked at that are behind, or held.
	rolloutTick = time.Second
)

// maxProblemLength is how much of what a dataplane says stands in a status.
const maxProblemLength = 256

// published notes what the dataplanes of a Gateway should run.
func (f *rollouts) published(gateway types.NamespacedName, revision string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.rollouts[gateway] == nil {
		f.rollouts[gateway] = &rollout{}
	}
	f.rollouts[gateway].wanted = revision
}

// withdrawn notes that there is nothing to run any more.
func (f *rollouts) withdrawn(gateway types.NamespacedName) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if old := f.rollouts[gateway]; old != nil && old.state != (resource.FleetState{}) {
		f.inbox.put(objectChange{object: fleetOf(gateway, resource.FleetState{}), deleted: true})
	}
	delete(f.rollouts, gateway)
}

// run follows reports until ctx ends.
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
				f.look(types.NamespacedName{Namespace: namespace, Name: name}, time.Now())
			}
		case <-ticker.C:
			t.begin()
			for _, gateway := range f.late() {
				f.look(gateway, time.Now())
			}
		}
		t.end()
	}
}

// late are those that are behind, and those of which the loop is to be told something.
func (f *rollouts) late() (gateways []types.NamespacedName) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for gateway, rollout := range f.rollouts {
		if !rollout.behind.IsZero() || rollout.held {
			gateways = append(gateways, gateway)
		}
	}
	return gateways
}

// look judges what the dataplanes of a Gateway say.
func (f *rollouts) look(gateway types.NamespacedName, now time.Time) {
	reports := f.reports.Of(gateway.String())
	f.mu.Lock()
	defer f.mu.Unlock()
	rollout := f.rollouts[gateway]
	if rollout == nil {
		return
	}
	state := rollout.judge(reports, now)
	if rollout.held = state != rollout.state; !rollout.held || now.Sub(rollout.told) < minReportInterval {
		return
	}
	rollout.state, rollout.told, rollout.held = state, now, false
	f.inbox.put(objectChange{object: fleetOf(gateway, state)})
}

// judge says what reports come to.
func (f *rollout) judge(reports []discovery.Report, now time.Time) resource.FleetState {
	var refusing []discovery.Report
	state, current := resource.FleetState{}, len(reports) == 0
	for _, r := range reports {
		if !r.Accepted {
			refusing = append(refusing, r)
		}
		if r.Draining {
			state.Draining++
		}
		current = current || r.Accepted && r.Revision == f.wanted
	}
	refused := len(refusing) == len(reports)
	switch {
	case current || refused:
		f.behind = time.Time{}
	case f.behind.IsZero():
		f.behind = now
	}
	switch {
	case current:
	case refused:
		state.Pod, state.Problem = f.voice(refusing)
	case now.Sub(f.behind) >= rolloutTimeout:
		state.Behind = len(reports)
	default:
		state.Pod, state.Problem, state.Behind = f.state.Pod, f.state.Problem, f.state.Behind
	}
	return state
}

// voice is the one that speaks for all: the one that has spoken before, if it says the same, so that a status is written no oftener than it must.
func (f *rollout) voice(refusing []discovery.Report) (pod, problem string) {
	i := max(0, slices.IndexFunc(refusing, func(r discovery.Report) bool { return r.Pod == f.state.Pod }))
	return printable(refusing[i].Pod, maxProblemLength), printable(refusing[i].Error, maxProblemLength)
}

// printable is what can be shown of what others say: a line of bounded length. It is never empty.
func printable(said string, limit int) string {
	said = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(said, " "))
	if len(said) > limit {
		said = strings.ToValidUTF8(said[:limit], "")
	}
	if strings.TrimSpace(said) == "" {
		return "(nothing)"
	}
	return said
}

func fleetOf(gateway types.NamespacedName, s resource.FleetState) *resource.Fleet {
	return &resource.Fleet{ObjectMeta: metav1.ObjectMeta{Namespace: gateway.Namespace, Name: gateway.Name}, FleetState: s}
}
