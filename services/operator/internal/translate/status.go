package translate

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// unassigned names the listeners that have another address than the Gateway asks for.
func (d draft) unassigned() []string {
	wished := wishedAddress(d.gateway)
	if wished == "" || d.view.Host() != nil {
		return nil
	}
	return d.names(func(l *listener) bool { return l.served() && l.exposed && !sameAddress(l.address.host, wished) })
}

// status is the whole status of the Gateway.
func (d draft) status(refused condition.Finding) gwapiv1.GatewayStatus {
	return gwapiv1.GatewayStatus{
		Addresses:            d.addresses(refused),
		Conditions:           d.merge(d.before.Conditions, append([]metav1.Condition{d.acceptance(refused), d.programming(refused)}, d.unscaled()...)...),
		Listeners:            d.listenerStatuses(refused),
		AttachedListenerSets: d.before.AttachedListenerSets,
	}
}

func (d draft) merge(have []metav1.Condition, want ...metav1.Condition) []metav1.Condition {
	return condition.Merge(have, d.gateway.Generation, d.opt.Now, want...)
}

// acceptance says whether the Gateway makes sense. An address that cannot be had does not make it senseless.
func (d draft) acceptance(refused condition.Finding) metav1.Condition {
	invalid := d.names(func(l *listener) bool { return !l.served() })
	switch {
	case !refused.OK() && refused.Reason != condition.ReasonAddressNotUsable:
		return condition.False(condition.Accepted, condition.Kept(refused))
	case len(invalid) == len(d.listeners):
		return condition.False(condition.Accepted, condition.NoValidListener())
	case len(invalid) > 0:
		return condition.True(condition.Accepted, condition.Noted(condition.SomeListenersInvalid(invalid), d.notes))
	}
	return condition.True(condition.Accepted, condition.Noted(condition.Finding{Reason: condition.ReasonAccepted}, d.notes))
}

// programming says whether clients can use the Gateway as it is written.
func (d draft) programming(refused condition.Finding) metav1.Condition {
	served := d.names((*listener).served)
	lost := d.names(func(l *listener) bool { return l.served() && !l.address.known() })
	refusal := d.view.Refusal(resource.KeyOf(d.gateway)).Serving
	switch {
	case refused.Reason == condition.ReasonAddressNotUsable:
		return condition.False(condition.Programmed, condition.Kept(refused))
	case !refused.OK():
		return condition.False(condition.Programmed, condition.NotAccepted())
	case len(served) == 0:
		return condition.False(condition.Programmed, condition.NoValidListener().As(condition.ReasonInvalid))
	case refusal.Problem != "": // of a Service that cannot be had there is no address either
		return condition.False(condition.Programmed, condition.ObjectRefused(refusal.Object, refusal.Problem))
	case len(d.unassigned()) > 0:
		return condition.False(condition.Programmed, condition.AddressNotAssigned(wishedAddress(d.gateway), d.unassigned()))
	case len(lost) > 0:
		return condition.False(condition.Programmed, condition.NoAddress(lost))
	}
	return d.running()
}

// unscaled says why nothing scales the pods that were to be scaled. Clients use the Gateway all the same.
func (d draft) unscaled() []metav1.Condition {
	refusal := d.view.Refusal(resource.KeyOf(d.gateway)).Scaling
	if refusal.Problem == "" {
		return nil
	}
	return []metav1.Condition{condition.False(condition.Autoscaled, condition.ScalingRefused(refusal.Object, refusal.Problem))}
}

// running says whether the dataplanes run what is published, as far as they tell.
func (d draft) running() metav1.Condition {
	fleet := d.view.Fleet(resource.KeyOf(d.gateway))
	switch {
	case fleet.Problem != "":
		return condition.False(condition.Programmed, condition.ConfigRefused(fleet.Pod, fleet.Problem))
	case fleet.Behind > 0:
		return condition.False(condition.Programmed, condition.ConfigNotRun(fleet.Behind))
	}
	return condition.True(condition.Programmed, condition.Draining(fleet.Draining))
}

// maxAddresses is how many addresses the status of a Gateway holds (Gateway API, GatewayStatus.addresses).
const maxAddresses = 16

// addresses are those of all listeners, each one once. A refused Gateway is found where it was found before, if it was, and so is a listener
// that waits, as far as nothing else is known of it.
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
		if l.address.known() {
			add(gwapiv1.GatewayStatusAddress{Type: new(l.address.kind()), Value: l.address.host})
		}
	}
	if slices.ContainsFunc(d.listeners, func(l *listener) bool { return l.waits() && !l.address.known() }) {
		for _, before := range d.before.Addresses {
			add(before)
		}
	}
	return addresses
}

// listenerStatuses has one entry for a name: where listeners share one, the entry is the first one's, and says so.
func (d draft) listenerStatuses(refused condition.Finding) []gwapiv1.ListenerStatus {
	var statuses []gwapiv1.ListenerStatus
	for _, l := range d.listeners {
		twin := func(s gwapiv1.ListenerStatus) bool { return s.Name == l.spec.Name }
		if i := slices.IndexFunc(statuses, twin); i >= 0 {
			conflict := condition.True(condition.Conflicted, l.conflict)
			statuses[i].Conditions = d.replace(statuses[i], conflict)
			continue
		}
		statuses = append(statuses, d.listenerStatus(l, refused))
	}
	return statuses
}

func (d draft) replace(s gwapiv1.ListenerStatus, with metav1.Condition) []metav1.Condition {
	want := slices.Clone(s.Conditions)
	for i := range want {
		if want[i].Type == with.Type {
			want[i] = with
		}
	}
	return d.merge(d.published(s.Name), want...)
}

func (d draft) listenerStatus(l *listener, refused condition.Finding) gwapiv1.ListenerStatus {
	conflicted := condition.False(condition.Conflicted, condition.Finding{Reason: condition.ReasonNoConflicts})
	if !l.conflict.OK() {
		conflicted = condition.True(condition.Conflicted, l.conflict)
	}
	return gwapiv1.ListenerStatus{
		Name:           l.spec.Name,
		SupportedKinds: l.kinds,
		AttachedRoutes: int32(len(l.routes)),
		Conditions: d.merge(d.published(l.spec.Name),
			condition.Holds(condition.Accepted, condition.ReasonAccepted, l.keeping(l.accepted)),
			conflicted,
			condition.Holds(condition.ResolvedRefs, condition.ReasonResolved, l.unresolved),
			condition.Holds(condition.Programmed, condition.ReasonProgrammed, unprogrammed(l, refused)),
		),
	}
}

// published are the conditions that a listener has now.
func (d draft) published(name gwapiv1.SectionName) []metav1.Condition {
	for _, s := range d.before.Listeners {
		if s.Name == name {
			return s.Conditions
		}
	}
	return nil
}

// unprogrammed says why clients cannot use a listener.
func unprogrammed(l *listener, refused condition.Finding) condition.Finding {
	switch {
	case !l.served():
		return l.keeping(condition.ListenerInvalid())
	case !refused.OK():
		return condition.ListenerPending()
	case !l.address.known():
		return condition.ListenerNoAddress(l.exposed)
	}
	return condition.Finding{}
}
