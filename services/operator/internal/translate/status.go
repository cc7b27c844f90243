package translate

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// status returns the complete status of the Gateway. If the Gateway has a problem (refused), or if the new config would
// lack the listener lost, the published config and objects stay unchanged, and the status says why. The conditions that
// report a problem are returned as problems.
func (d draft) status(refused condition.Finding, lost string) (gwapiv1.GatewayStatus, []condition.Problem) {
	want := slices.Concat([]condition.Condition{d.accepted(refused), d.programmed(refused, lost)}, d.autoscaled(),
		d.offloaded(), d.balancerLimited())
	merged := d.merge(d.before.Conditions, want...)
	listeners, problems := d.listenerStatuses(refused)
	return gwapiv1.GatewayStatus{
		Addresses:            d.addresses(refused),
		Conditions:           merged.Conditions,
		Listeners:            listeners,
		AttachedListenerSets: d.before.AttachedListenerSets,
	}, slices.Concat(merged.Problems, problems)
}

func (d draft) merge(have []metav1.Condition, want ...condition.Condition) condition.Merged {
	return condition.Merge(have, d.gateway.Generation, d.opt.Now, want...)
}

// accepted returns condition Accepted. According to the Gateway API, a requested address that cannot be used affects
// condition Programmed only.
func (d draft) accepted(refused condition.Finding) condition.Condition {
	invalid := d.listenerNames(func(l *listener) bool { return !l.served() })
	switch {
	case !refused.OK() && refused.Reason != condition.ReasonAddressNotUsable:
		return condition.False(condition.Accepted, d.noteUnchanged(refused))
	case len(invalid) == len(d.listeners):
		return condition.False(condition.Accepted, condition.NoValidListener())
	case len(invalid) > 0:
		return condition.True(condition.Accepted, condition.Noted(condition.SomeListenersInvalid(invalid), d.notes))
	}
	accepted := condition.Finding{Reason: condition.ReasonAccepted}
	return condition.True(condition.Accepted, condition.Noted(accepted, d.notes))
}

// noteUnchanged adds to the finding of a held Gateway whether a config of it is published.
func (d draft) noteUnchanged(refused condition.Finding) condition.Finding {
	if d.opt.Published == nil {
		return condition.Unpublished(refused)
	}
	return condition.Kept(refused)
}

// programmed returns condition Programmed: whether clients can use the Gateway as specified.
func (d draft) programmed(refused condition.Finding, lost string) condition.Condition {
	served := d.listenerNames((*listener).served)
	unreachable := d.listenerNames(func(l *listener) bool { return l.served() && !l.announced.known() })
	unwritten := d.view.Rejection(resource.KeyOf(d.gateway))
	switch {
	case refused.Reason == condition.ReasonAddressNotUsable:
		return condition.False(condition.Programmed, d.noteUnchanged(refused))
	case !refused.OK():
		return condition.False(condition.Programmed, d.noteUnchanged(condition.NotAccepted()))
	case lost != "":
		return condition.False(condition.Programmed, condition.ListenerLost(lost))
	case len(served) == 0:
		return condition.False(condition.Programmed, condition.NoValidListener().As(condition.ReasonInvalid))
	// The rejection of a Service is checked before its addresses, because a rejected Service has none.
	case unwritten.Serving.Problem != "":
		refused := condition.ObjectRefused(unwritten.Serving.Object, unwritten.Serving.Problem)
		return condition.False(condition.Programmed, refused)
	case unwritten.FormerWorkload != "":
		return condition.False(condition.Programmed, condition.TakeOverWaits(unwritten.FormerWorkload, annotationTakeOver))
	case len(unreachable) > 0:
		return condition.False(condition.Programmed, condition.NoAddress(unreachable))
	}
	return d.rolledOut()
}

// autoscaled returns condition Autoscaled with status False if the API server rejected the ScaledObject. Otherwise it
// returns no condition.
func (d draft) autoscaled() []condition.Condition {
	rejection := d.view.Rejection(resource.KeyOf(d.gateway)).Scaling
	if rejection.Problem == "" {
		return nil
	}
	refused := condition.ScalingRefused(rejection.Object, rejection.Problem)
	return []condition.Condition{condition.False(condition.Autoscaled, refused)}
}

// offloaded returns condition OffloadUnavailable if a dataplane does not forward media in the kernel as requested, or
// if the API server rejects pods with the capabilities for it. Otherwise it returns no condition.
func (d draft) offloaded() []condition.Condition {
	if rejection := d.view.Rejection(resource.KeyOf(d.gateway)).Offload; rejection.Problem != "" {
		refused := condition.OffloadRefused(rejection.Object, rejection.Problem)
		return []condition.Condition{condition.True(condition.OffloadUnavailable, refused)}
	}
	rollout := d.view.Rollout(resource.KeyOf(d.gateway))
	if rollout.OffloadProblem == "" {
		return nil
	}
	failed := condition.OffloadFailed(rollout.OffloadPod, rollout.OffloadProblem)
	return []condition.Condition{condition.True(condition.OffloadUnavailable, failed)}
}

// rolledOut returns condition Programmed as it results from the reports of the dataplanes: whether they run the
// published config.
func (d draft) rolledOut() condition.Condition {
	rollout := d.view.Rollout(resource.KeyOf(d.gateway))
	switch {
	case rollout.AllRefused && d.parameters.dataplane != nil:
		return condition.False(condition.Programmed, condition.PodRefused(d.parameters.dataplane.Name, rollout.RefusedPod))
	case rollout.Problem != "":
		return condition.False(condition.Programmed, condition.ConfigRefused(rollout.Pod, rollout.Problem))
	case rollout.Behind > 0:
		return condition.False(condition.Programmed, condition.ConfigNotRun(rollout.Behind))
	}
	return condition.True(condition.Programmed, condition.Draining(rollout.Draining))
}

// maxAddresses is the maximum length of status.addresses in the Gateway API.
const maxAddresses = 16

// addresses returns the addresses of all listeners without duplicates. If the Gateway has a problem (refused), or if
// the address of a held listener is unknown, the current addresses of the status are kept, because the published
// listeners are still reachable there.
func (d draft) addresses(refused condition.Finding) []gwapiv1.GatewayStatusAddress {
	if !refused.OK() {
		return d.before.Addresses
	}
	var addresses []gwapiv1.GatewayStatusAddress
	add := func(a gwapiv1.GatewayStatusAddress) {
		known := func(b gwapiv1.GatewayStatusAddress) bool { return a.Value == b.Value }
		if len(addresses) < maxAddresses && !slices.ContainsFunc(addresses, known) {
			addresses = append(addresses, a)
		}
	}
	for _, l := range d.listeners {
		for _, host := range l.announced.hosts {
			kind := gwapiv1.IPAddressType
			if familyOf(host) == 0 {
				kind = gwapiv1.HostnameAddressType
			}
			add(gwapiv1.GatewayStatusAddress{Type: &kind, Value: host})
		}
	}
	if slices.ContainsFunc(d.listeners, func(l *listener) bool { return l.held() && !l.announced.known() }) {
		for _, before := range d.before.Addresses {
			add(before)
		}
	}
	return addresses
}

// listenerStatuses returns one entry for each listener name. If several listeners have the same name, the entry
// describes the first one, and its condition Conflicted is True.
func (d draft) listenerStatuses(refused condition.Finding) (all []gwapiv1.ListenerStatus, problems []condition.Problem) {
	conflicts := map[gwapiv1.SectionName]condition.Finding{}
	for _, l := range d.listeners {
		if !l.conflict.OK() {
			conflicts[l.spec.Name] = l.conflict
		}
	}
	seen := map[gwapiv1.SectionName]bool{}
	for _, l := range d.listeners {
		if seen[l.spec.Name] {
			continue
		}
		seen[l.spec.Name] = true
		merged := d.merge(d.conditionsOf(l.spec.Name), listenerConditions(l, conflicts[l.spec.Name], refused)...)
		all = append(all, gwapiv1.ListenerStatus{
			Name:           l.spec.Name,
			SupportedKinds: l.kinds,
			AttachedRoutes: int32(len(l.routes)),
			Conditions:     merged.Conditions,
		})
		problems = append(problems, merged.ProblemsOf(fmt.Sprintf("spec.listeners[%s]", l.spec.Name))...)
	}
	return all, problems
}

func listenerConditions(l *listener, conflict, refused condition.Finding) []condition.Condition {
	conflicted := condition.False(condition.Conflicted, condition.Finding{Reason: condition.ReasonNoConflicts})
	if !conflict.OK() {
		conflicted = condition.True(condition.Conflicted, conflict)
	}
	conditions := []condition.Condition{
		condition.Holds(condition.Accepted, condition.ReasonAccepted, l.noteHeld(l.accepted)),
		conflicted,
		condition.Holds(condition.ResolvedRefs, condition.ReasonResolved, l.unresolved),
		condition.Holds(condition.Programmed, condition.ReasonProgrammed, unprogrammed(l, refused)),
	}
	if old := condition.Join(l.deprecated); !old.OK() {
		conditions = append(conditions, condition.True(condition.DeprecatedInput, old))
	}
	return conditions
}

// conditionsOf returns the conditions that the status currently has for a listener.
func (d draft) conditionsOf(name gwapiv1.SectionName) []metav1.Condition {
	for _, s := range d.before.Listeners {
		if s.Name == name {
			return s.Conditions
		}
	}
	return nil
}

// unprogrammed returns the reason why clients cannot use a listener as specified; zero if they can use it.
func unprogrammed(l *listener, refused condition.Finding) condition.Finding {
	switch {
	case !l.served():
		return l.noteHeld(condition.ListenerInvalid())
	case !refused.OK():
		return condition.ListenerPending()
	case l.announced.problem != "":
		return condition.PortNotBalanced(int32(l.spec.Port), l.announced.problem)
	case !l.announced.known():
		return condition.ListenerNoAddress(l.exposed, l.announced.cause)
	}
	return condition.Finding{}
}
