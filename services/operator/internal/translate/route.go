package translate

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// maxParents is how many parents the status of a route holds (Gateway API, RouteStatus.parents).
const maxParents = 32

// Route says what became of a route at each of its parents. What other controllers say of theirs stays as it is, and everything stays where it
// stands: controllers that each put their own word last would write against each other without end.
func Route(v *resource.View, ref resource.RouteRef, opt Options) RouteResult {
	result := RouteResult{Route: ref}
	r := v.Route(ref)
	if r == nil {
		return result
	}
	said := parentStatuses(v, r, opt)
	result.Ours = len(said) > 0
	for _, s := range r.Status {
		if string(s.ControllerName) != opt.ControllerName {
			result.Parents = append(result.Parents, s)
			continue
		}
		result.Ours = true
		if i := slices.IndexFunc(said, func(now gwapiv1.RouteParentStatus) bool { return sameParent(now.ParentRef, s.ParentRef) }); i >= 0 {
			result.Parents = append(result.Parents, said[i])
			said = slices.Delete(said, i, i+1)
		}
	}
	room := max(0, maxParents-len(result.Parents))
	result.Parents = append(result.Parents, said[:min(room, len(said))]...)
	if result.Ours && result.Parents == nil {
		result.Parents = []gwapiv1.RouteParentStatus{} // an API server takes an empty list, and no null
	}
	return result
}

// parentStatuses is what is said of a route at those parents that are ours to speak for.
func parentStatuses(v *resource.View, r *resource.Route, opt Options) (said []gwapiv1.RouteParentStatus) {
	guards := shields(v)
	for _, parent := range parentsOf(r) {
		conditions, ours := parentConditions(v, r, parent, guards, opt)
		if !ours {
			continue
		}
		said = append(said, gwapiv1.RouteParentStatus{
			ParentRef:      parent,
			ControllerName: gwapiv1.GatewayController(opt.ControllerName),
			Conditions:     condition.Merge(publishedParent(r, parent, opt), r.Origin.GetGeneration(), opt.Now, conditions...),
		})
	}
	return said
}

// parentConditions returns the conditions of a route at one parent; false when the parent is not ours to speak for.
func parentConditions(v *resource.View, r *resource.Route, parent gwapiv1.ParentReference, guards map[bool]*shield, opt Options) ([]metav1.Condition, bool) {
	key, ok := r.GatewayOf(parent)
	if !ok {
		return nil, false
	}
	gw := v.Gateway(key)
	class := classOf(v, gw, opt)
	var refused condition.Finding
	var p parameters
	switch {
	case class != nil:
		if refused = newGates(v, gw).refusal(r, parent); refused.OK() {
			held := v.OverBudget(key, r.Ref.NamespacedName)
			refused = condition.Finding{Reason: held.Reason, Message: held.Message}
		}
		p, _ = parametersOf(v, gw, class, opt)
	case gw == nil && r.Ref.GroupVersion == stunnerv1.GroupVersion:
		// Nobody but us speaks for a route of our own kind, so that a misspelt parent would go unnoticed.
		refused = condition.GatewayMissing(key.String())
	default:
		return nil, false
	}
	judge := newBackers(v, p, opt, guards)
	backends, unresolved := judge.of(r)
	unresolved = append(unresolved, judge.unreached(backends)...)
	return []metav1.Condition{
		condition.Holds(condition.Accepted, condition.ReasonAccepted, refused),
		condition.Holds(condition.ResolvedRefs, condition.ReasonResolved, unresolvedBackends(unresolved)),
	}, true
}

// unresolvedBackends makes one finding of all. A broken StaticService has a word of its own on itself; here it is a backend that was not found.
func unresolvedBackends(found []condition.Finding) condition.Finding {
	joined := condition.Join(found)
	if joined.Reason == condition.ReasonInvalidPrefix {
		return joined.As(condition.ReasonBackendNotFound)
	}
	return joined
}

// publishedParent are the conditions that we have given a parent before.
func publishedParent(r *resource.Route, parent gwapiv1.ParentReference, opt Options) []metav1.Condition {
	i := slices.IndexFunc(r.Status, func(s gwapiv1.RouteParentStatus) bool {
		return string(s.ControllerName) == opt.ControllerName && sameParent(s.ParentRef, parent)
	})
	if i < 0 {
		return nil
	}
	return r.Status[i].Conditions
}

func sameParent(a, b gwapiv1.ParentReference) bool { return equality.Semantic.DeepEqual(a, b) }

// parentsOf returns the parent references of a route, each one once.
func parentsOf(r *resource.Route) []gwapiv1.ParentReference {
	var parents []gwapiv1.ParentReference
	for _, p := range r.Parents {
		if !slices.ContainsFunc(parents, func(q gwapiv1.ParentReference) bool { return sameParent(p, q) }) {
			parents = append(parents, p)
		}
	}
	return parents
}
