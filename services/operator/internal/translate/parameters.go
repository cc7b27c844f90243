package translate

import (
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// classOf returns the class of a Gateway if both exist and the class is ours, else nil.
func classOf(v *resource.View, gw *gwapiv1.Gateway, opt Options) *gwapiv1.GatewayClass {
	if gw == nil {
		return nil
	}
	class := v.Class(string(gw.Spec.GatewayClassName))
	if class == nil || string(class.Spec.ControllerName) != opt.ControllerName {
		return nil
	}
	return class
}

// parameters are what the Gateways of a class share. Both are nil until everything on the way to them is right.
type parameters struct {
	config    *stunnerv1.GatewayConfig
	dataplane *stunnerv1.Dataplane
	// common are the annotations that the GatewayConfig of the class has for Services.
	common map[string]string
}

// annotations go onto all objects, unless the Gateway says something else.
func (p parameters) annotations() map[string]string {
	if p.config == nil {
		return nil
	}
	return p.config.Spec.LoadBalancerServiceAnnotations
}

// budget is how much the routes may ask for.
func (p parameters) budget() stunnerv1.Budget {
	if p.config == nil {
		return (*stunnerv1.Budget)(nil).WithDefaults()
	}
	return p.config.Spec.Budget.WithDefaults()
}

// guarded tells whether routes do not reach the API servers.
func (p parameters) guarded() bool {
	return p.config == nil || p.config.Spec.ClusterAccess != stunnerv1.ClusterAccessAllow
}

// denied are the Services that no route reaches.
func (p parameters) denied() []stunnerv1.DeniedBackend {
	if p.config == nil {
		return stunnerv1.DefaultDeniedBackends()
	}
	return deniedBackends(&p.config.Spec)
}

// allows tells whether Gateways may ask for an address. What is none, such as the name of a pool, is not allowed.
func (p parameters) allows(text string) bool {
	a, err := netip.ParseAddr(text)
	return err == nil && slices.ContainsFunc(p.config.Spec.AllowedAddresses, func(c stunnerv1.CIDR) bool {
		prefix, ok := prefixOf(string(c))
		return ok && prefix.Contains(a.Unmap())
	})
}

// parametersOf follows a Gateway's own reference to a GatewayConfig, or else that of its class.
func parametersOf(v *resource.View, gw *gwapiv1.Gateway, class *gwapiv1.GatewayClass, opt Options) (parameters, condition.Finding) {
	if gw.Spec.Infrastructure != nil && gw.Spec.Infrastructure.ParametersRef != nil {
		return ownParameters(v, gw, class, opt)
	}
	p, unfit := classReference(v, class).resolve()
	return p, unfit.As(condition.ReasonPending)
}

// resolve returns the objects that a reference leads to.
func (r reference) resolve() (parameters, condition.Finding) {
	if unfit := referenceRules.judge(r); !unfit.OK() {
		return parameters{}, unfit
	}
	return parametersFrom(r.config(), r.dataplane(), r.config()), condition.Finding{}
}

// parametersFrom puts together what a Gateway has of a GatewayConfig and of that of its class.
func parametersFrom(gc *stunnerv1.GatewayConfig, d *stunnerv1.Dataplane, class *stunnerv1.GatewayConfig) parameters {
	return parameters{config: gc, dataplane: d, common: class.Spec.LoadBalancerServiceAnnotations}
}

// ownParameters follows the reference of a Gateway to a GatewayConfig of its own. That of its class is the policy.
func ownParameters(v *resource.View, gw *gwapiv1.Gateway, class *gwapiv1.GatewayClass, opt Options) (parameters, condition.Finding) {
	own, general := ownReference(v, gw), classReference(v, class)
	if own.key == general.key {
		p, unfit := own.resolve()
		return p, unfit.As(condition.ReasonInvalidParameters)
	}
	if opt.OwnConfigs == OwnConfigsDeny {
		return parameters{}, condition.OwnConfigDenied(own.field)
	}
	if unfit := configRules.judge(own); !unfit.OK() {
		return parameters{}, unfit.As(condition.ReasonInvalidParameters)
	}
	policy := &stunnerv1.GatewayConfig{} // of a class without one: the defaults
	if general.present {
		if unfit := configRules.judge(general); !unfit.OK() {
			return parameters{}, unfit.As(condition.ReasonPending)
		}
		policy = general.config()
	}
	effective := narrowed(own.config(), policy, opt.OwnConfigs)
	name, unfit := dataplaneFor(v, gw, effective, policy, opt.OwnConfigs)
	if !unfit.OK() {
		return parameters{}, unfit
	}
	effective.Spec.Dataplane = name
	dataplane := v.Dataplane(name)
	if dataplane == nil {
		return parameters{}, condition.DataplaneMissing(own.key.String(), name).As(condition.ReasonInvalidParameters)
	}
	return parametersFrom(effective, dataplane, policy), condition.Finding{}
}

// dataplaneFor returns the name of the Dataplane of a Gateway with a GatewayConfig of its own. The API server writes the default name into one that
// names none: where that Dataplane does not admit the namespace, the class's is meant. A Dataplane that does not exist is refused in the same words as one
// that does not admit the namespace.
func dataplaneFor(v *resource.View, gw *gwapiv1.Gateway, own, class *stunnerv1.GatewayConfig, how OwnConfigs) (string, condition.Finding) {
	name, common := dataplaneName(own), dataplaneName(class)
	switch {
	case how == OwnConfigsAllow, name == common, admits(v, v.Dataplane(name), gw.Namespace):
		return name, condition.Finding{}
	case name == stunnerv1.DefaultDataplane:
		return common, condition.Finding{}
	}
	return "", condition.DataplaneNotAllowed(resource.KeyOf(own).String(), name, gw.Namespace)
}

// admits tells whether GatewayConfigs of a namespace may name a Dataplane. A word or a selector that cannot be read admits nobody.
func admits(v *resource.View, d *stunnerv1.Dataplane, namespace string) bool {
	if d == nil || d.Spec.AllowedNamespaces == nil {
		return false
	}
	switch allowed := d.Spec.AllowedNamespaces; allowed.From {
	case stunnerv1.NamespacesFromAll:
		return true
	case stunnerv1.NamespacesFromSelector:
		s, err := metav1.LabelSelectorAsSelector(allowed.Selector)
		return err == nil && s.Matches(labels.Set(v.NamespaceLabels(namespace)))
	}
	return false
}
