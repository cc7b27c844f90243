package translate

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// maxParents is the maximum length of status.parents in the Gateway API.
const maxParents = 32

// Route computes the status of a route. It does not change entries of other controllers, nor the order of the
// entries: if controllers moved their entries to the end, they would overwrite each other endlessly.
func Route(v *resource.View, ref resource.RouteRef, opt Options) RouteResult {
	result := RouteResult{Route: ref}
	r := v.Route(ref)
	if r == nil {
		return result
	}
	entries, problems := parentStatuses(v, r, opt)
	result.Problems = problems
	result.Ours = len(entries) > 0
	for _, s := range r.Status {
		if string(s.ControllerName) != opt.ControllerName {
			result.Parents = append(result.Parents, s)
			continue
		}
		result.Ours = true
		same := func(e gwapiv1.RouteParentStatus) bool { return sameParent(e.ParentRef, s.ParentRef) }
		if i := slices.IndexFunc(entries, same); i >= 0 {
			result.Parents = append(result.Parents, entries[i])
			entries = slices.Delete(entries, i, i+1)
		}
	}
	room := max(0, maxParents-len(result.Parents))
	result.Parents = append(result.Parents, entries[:min(room, len(entries))]...)
	if result.Ours && result.Parents == nil {
		result.Parents = []gwapiv1.RouteParentStatus{} // the API server rejects null
	}
	return result
}

// parentStatuses returns the status entries of this controller, and the conditions in them that report a problem.
func parentStatuses(v *resource.View, r *resource.Route, opt Options) (entries []gwapiv1.RouteParentStatus, problems []condition.Problem) {
	guards := newClusterGuards(v)
	for _, parent := range parentsOf(r) {
		conditions, ours := parentConditions(v, r, parent, guards, opt)
		if !ours {
			continue
		}
		before := currentConditions(r, parent, opt)
		merged := condition.Merge(before, r.Origin.GetGeneration(), opt.Now, conditions...)
		entries = append(entries, gwapiv1.RouteParentStatus{
			ParentRef:      parent,
			ControllerName: gwapiv1.GatewayController(opt.ControllerName),
			Conditions:     merged.Conditions,
		})
		problems = append(problems, merged.ProblemsOf(fmt.Sprintf("spec.parentRefs[%s]", ParentName(parent)))...)
	}
	return entries, problems
}

// parentConditions returns the conditions of a route for one parent. The result is false if the operator writes no
// status entry for the parent, for example because another controller is responsible for it.
func parentConditions(
	v *resource.View, r *resource.Route, parent gwapiv1.ParentReference, guards clusterGuards, opt Options,
) ([]condition.Condition, bool) {
	key, ok := r.GatewayOf(parent)
	if !ok {
		return nil, false
	}
	gw := v.Gateway(key)
	class, _ := classOf(v, gw, opt)
	var refused condition.Finding
	var p parameters
	switch {
	case class != nil:
		if refused = newRouteMatcher(v, gw).refusal(r, parent); refused.OK() {
			over := v.OverBudget(key, r.Ref.NamespacedName)
			refused = condition.Restore(over.Reason, over.Message, over.Remedy)
		}
		p, _ = parametersOf(v, gw, class, opt)
	case gw == nil && r.Ref.GroupVersion == stunnerv1.GroupVersion:
		// No other controller writes the status of a route of group stunner.l7mp.io. Without an entry in the status, a
		// misspelt Gateway name in a parent reference would therefore go unnoticed.
		refused = condition.GatewayMissing(key.String())
	default:
		return nil, false
	}
	policy := newBackendPolicy(v, p, opt, guards)
	backends, unresolved := policy.backendsOf(r)
	unresolved = append(unresolved, policy.deniedPrefixes(backends)...)
	refused = first(unreadFinding(r.Origin), refused)
	return []condition.Condition{
		condition.Holds(condition.Accepted, condition.ReasonAccepted, refused),
		condition.Holds(condition.ResolvedRefs, condition.ReasonResolved, unresolvedBackends(unresolved)),
	}, true
}

// unresolvedBackends joins the findings about backends. The reason InvalidPrefix exists only in the status of a
// StaticService. On a route it becomes BackendNotFound, which the Gateway API defines.
func unresolvedBackends(found []condition.Finding) condition.Finding {
	joined := condition.Join(found)
	if joined.Reason == condition.ReasonInvalidPrefix {
		return joined.As(condition.ReasonBackendNotFound)
	}
	return joined
}

// currentConditions returns the conditions in the status entry that this controller currently has for a parent.
func currentConditions(r *resource.Route, parent gwapiv1.ParentReference, opt Options) []metav1.Condition {
	i := slices.IndexFunc(r.Status, func(s gwapiv1.RouteParentStatus) bool {
		return string(s.ControllerName) == opt.ControllerName && sameParent(s.ParentRef, parent)
	})
	if i < 0 {
		return nil
	}
	return r.Status[i].Conditions
}

func sameParent(a, b gwapiv1.ParentReference) bool { return equality.Semantic.DeepEqual(a, b) }

// parentsOf returns the parent references of a route without duplicates.
func parentsOf(r *resource.Route) []gwapiv1.ParentReference {
	var parents []gwapiv1.ParentReference
	for _, p := range r.Parents {
		if !slices.ContainsFunc(parents, func(q gwapiv1.ParentReference) bool { return sameParent(p, q) }) {
			parents = append(parents, p)
		}
	}
	return parents
}

// RouteResult is the translation of a UDPRoute.
type RouteResult struct {
	Route resource.RouteRef
	// Ours is false if the status of the route must not be written, because it needs no entry of this operator and has
	// none.
	Ours bool
	// Parents is the complete status.parents, including the entries of other controllers.
	Parents []gwapiv1.RouteParentStatus
	// Problems are those conditions of this operator in Parents that report a problem.
	Problems []condition.Problem
}

// ParentName formats a parent reference of a route. It omits the kind Gateway.
func ParentName(ref gwapiv1.ParentReference) string {
	name := string(ref.Name)
	if ref.Namespace != nil {
		name = string(*ref.Namespace) + "/" + name
	}
	if ref.Kind != nil && *ref.Kind != KindGateway {
		name = string(*ref.Kind) + " " + name
	}
	if ref.SectionName != nil {
		name += "/" + string(*ref.SectionName)
	}
	if ref.Port != nil {
		name += fmt.Sprintf(":%d", *ref.Port)
	}
	return name
}
