package translate

import (
	"cmp"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// parseSelector returns the selector, or nil if it is invalid.
func parseSelector(s *metav1.LabelSelector) labels.Selector {
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return nil
	}
	return selector
}

// reference is a reference to a GatewayConfig.
type reference struct {
	view *resource.View
	// field names the referring field in messages.
	place condition.Place
	// present means that the referring field is set.
	present     bool
	group, kind string
	key         types.NamespacedName
}

func classReference(v *resource.View, class *gwapiv1.GatewayClass) reference {
	r := reference{view: v, place: condition.InSpec(resource.KindGatewayClass, class.Name, "parametersRef")}
	if p := class.Spec.ParametersRef; p != nil {
		r.present = true
		r.group, r.kind = string(p.Group), string(p.Kind)
		r.key = types.NamespacedName{Name: p.Name}
		if p.Namespace != nil {
			r.key.Namespace = string(*p.Namespace)
		}
	}
	return r
}

func ownReference(v *resource.View, gw *gwapiv1.Gateway) reference {
	p := gw.Spec.Infrastructure.ParametersRef
	return reference{
		view: v, place: condition.Field("spec.infrastructure.parametersRef"), present: true,
		group: string(p.Group), kind: string(p.Kind),
		key: types.NamespacedName{Namespace: gw.Namespace, Name: p.Name},
	}
}

var referenceRules = rules[reference]{
	reference.isPresent,
	reference.isGatewayConfig,
	reference.isComplete,
	reference.configExists,
	reference.dataplaneExists,
	reference.deniedBackendsParse,
	reference.annotationsValid,
}

// configRules are referenceRules without dataplaneExists, because ownParameters chooses the Dataplane differently.
var configRules = rules[reference]{
	reference.isPresent,
	reference.isGatewayConfig,
	reference.isComplete,
	reference.configExists,
	reference.deniedBackendsParse,
	reference.annotationsValid,
}

func (r reference) isPresent() condition.Finding {
	if !r.present {
		return condition.ParametersMissing(r.place)
	}
	return condition.Finding{}
}

// isGatewayConfig checks that a reference names a GatewayConfig. An empty group means stunner.l7mp.io, and an empty
// kind means GatewayConfig.
func (r reference) isGatewayConfig() condition.Finding {
	group, kind := cmp.Or(r.group, stunnerv1.GroupName), cmp.Or(r.kind, resource.KindGatewayConfig)
	if group != stunnerv1.GroupName || kind != resource.KindGatewayConfig {
		return condition.ParametersKind(r.place, r.group, r.kind)
	}
	return condition.Finding{}
}

func (r reference) isComplete() condition.Finding {
	if r.key.Namespace == "" || r.key.Name == "" {
		return condition.ParametersIncomplete(r.place)
	}
	return condition.Finding{}
}

func (r reference) configExists() condition.Finding {
	gc := r.config()
	if gc == nil {
		return condition.GatewayConfigMissing(r.place, r.key.String())
	}
	return emptyFinding(gc)
}

func (r reference) dataplaneExists() condition.Finding {
	d := r.dataplane()
	if d == nil {
		return condition.DataplaneMissing(r.key.String(), dataplaneName(r.config()))
	}
	return emptyFinding(d)
}

// deniedBackendsParse rejects a GatewayConfig with an invalid selector in spec.deniedBackends, because it would be
// unknown which Services are denied.
func (r reference) deniedBackendsParse() condition.Finding {
	for i, d := range r.config().Spec.DeniedBackends {
		if d.Selector != nil && parseSelector(d.Selector) == nil {
			return condition.DeniedBackendInvalid(r.key.String(), i)
		}
	}
	return condition.Finding{}
}

// annotationsValid checks spec.loadBalancerServiceAnnotations: the API server would reject Services with an invalid
// annotation name.
func (r reference) annotationsValid() condition.Finding {
	path := field.NewPath("spec", "loadBalancerServiceAnnotations")
	if errs := apivalidation.ValidateAnnotations(r.config().Spec.LoadBalancerServiceAnnotations, path); len(errs) > 0 {
		return condition.LoadBalancerAnnotationsInvalid(r.key.String(), errs.ToAggregate())
	}
	return condition.Finding{}
}

// emptyFinding returns a finding if the operator has read no version of an object. Its parameters are then unknown. If
// the operator has read an earlier version, the parameters of that version are used.
func emptyFinding(o resource.Object) condition.Finding {
	if resource.Empty(o) == "" {
		return condition.Finding{}
	}
	return unreadFinding(o)
}

func (r reference) config() *stunnerv1.GatewayConfig { return r.view.GatewayConfig(r.key) }

func (r reference) dataplane() *stunnerv1.Dataplane {
	return r.view.Dataplane(dataplaneName(r.config()))
}

func dataplaneName(gc *stunnerv1.GatewayConfig) string {
	return cmp.Or(gc.Spec.Dataplane, stunnerv1.DefaultDataplane)
}
