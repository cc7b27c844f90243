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

// classOf returns the GatewayClass of a Gateway and the decision Served. If one of the two does not exist, or if the
// class belongs to another controller, it returns nil and the decision for this case.
func classOf(v *resource.View, gw *gwapiv1.Gateway, opt Options) (*gwapiv1.GatewayClass, Decision) {
	if gw == nil {
		return nil, Gone
	}
	switch class := v.Class(string(gw.Spec.GatewayClassName)); {
	case class == nil:
		return nil, Classless
	case string(class.Spec.ControllerName) != opt.ControllerName:
		return nil, Foreign
	default:
		return class, Served
	}
}

// parameters are the GatewayConfig and the Dataplane that apply to a Gateway. Both are nil if they cannot be resolved.
type parameters struct {
	config    *stunnerv1.GatewayConfig
	dataplane *stunnerv1.Dataplane
	// classAnnotations is spec.loadBalancerServiceAnnotations of the class's GatewayConfig.
	classAnnotations map[string]string
}

// defaultAnnotations returns the annotations that all generated objects get. Annotations of the Gateway override them.
func (p parameters) defaultAnnotations() map[string]string {
	if p.config == nil {
		return nil
	}
	return p.config.Spec.LoadBalancerServiceAnnotations
}

// budget returns the limits for the routes of the Gateway, with defaults.
func (p parameters) budget() stunnerv1.Budget {
	if p.config == nil {
		return (*stunnerv1.Budget)(nil).WithDefaults()
	}
	return p.config.Spec.Budget.WithDefaults()
}

// legacyGrants reports whether listeners may use TLS Secrets of other namespaces without a ReferenceGrant.
func (p parameters) legacyGrants() bool { return p.config != nil && p.config.Spec.LegacyGrants }

// guardsCluster reports whether routes must not reach the addresses of the cluster itself, see clusteraccess.go.
func (p parameters) guardsCluster() bool {
	return p.config == nil || p.config.Spec.ClusterAccess != stunnerv1.ClusterAccessAllow
}

// tellsInternalNodes reports whether internal addresses of nodes may be announced to clients.
func (p parameters) tellsInternalNodes() bool {
	return p.config != nil && p.config.Spec.NodeAddresses == stunnerv1.NodeAddressesExternalOrInternal
}

// deniedBackends returns the Services that no route may reach.
func (p parameters) deniedBackends() []stunnerv1.DeniedBackend {
	if p.config == nil {
		return stunnerv1.DefaultDeniedBackends()
	}
	return deniedBackends(&p.config.Spec)
}

// prefixRules returns the rules on prefixes of StaticServices.
func (p parameters) prefixRules() prefixRules {
	if p.config == nil {
		return prefixRules{}
	}
	s := p.config.Spec
	return prefixRules{allowed: prefixesOf(s.AllowedPrefixes), denied: prefixesOf(s.DeniedPrefixes), networks: s.RequireReferenceGrants}
}

// allowsAddress reports whether a Gateway may request an address. A text that is not an IP address, such as the name of
// an address pool, is not allowed.
func (p parameters) allowsAddress(text string) bool {
	a, err := netip.ParseAddr(text)
	return err == nil && slices.ContainsFunc(p.config.Spec.AllowedAddresses, func(c stunnerv1.CIDR) bool {
		prefix, ok := parsePrefix(string(c))
		return ok && prefix.Contains(a.Unmap())
	})
}

// parametersOf returns the parameters of a Gateway, from spec.infrastructure.parametersRef, or else from
// spec.parametersRef of its class.
func parametersOf(
	v *resource.View, gw *gwapiv1.Gateway, class *gwapiv1.GatewayClass, opt Options,
) (parameters, condition.Finding) {
	if gw.Spec.Infrastructure != nil && gw.Spec.Infrastructure.ParametersRef != nil {
		return ownParameters(v, gw, class, opt)
	}
	p, finding := classReference(v, class).resolve()
	return p, finding.As(condition.ReasonPending)
}

// resolve returns the GatewayConfig of a reference and the Dataplane of that GatewayConfig.
func (r reference) resolve() (parameters, condition.Finding) {
	if finding := referenceRules.firstFinding(r); !finding.OK() {
		return parameters{}, finding
	}
	gc := r.config()
	return parameters{gc, r.dataplane(), gc.Spec.LoadBalancerServiceAnnotations}, condition.Finding{}
}

// ownParameters resolves spec.infrastructure.parametersRef of a Gateway. The GatewayConfig of the class limits the
// fields of the GatewayConfig that the Gateway refers to, see fieldMerges.
func ownParameters(
	v *resource.View, gw *gwapiv1.Gateway, class *gwapiv1.GatewayClass, opt Options,
) (parameters, condition.Finding) {
	own, common := ownReference(v, gw), classReference(v, class)
	if own.key == common.key {
		p, finding := own.resolve()
		return p, finding.As(condition.ReasonInvalidParameters)
	}
	if opt.OwnConfigs == OwnConfigsDeny {
		return parameters{}, condition.OwnConfigDenied(own.place)
	}
	if finding := configRules.firstFinding(own); !finding.OK() {
		return parameters{}, finding.As(condition.ReasonInvalidParameters)
	}
	// A class without parametersRef sets no limits. Only deniedBackends, clusterAccess and allowedAddresses have their
	// defaults.
	policy := &stunnerv1.GatewayConfig{}
	if common.present {
		if finding := configRules.firstFinding(common); !finding.OK() {
			return parameters{}, finding.As(condition.ReasonPending)
		}
		policy = common.config()
	}
	effective := mergeGatewayConfigs(own.config(), policy, opt.OwnConfigs)
	name, finding := dataplaneFor(v, gw, effective, policy, opt.OwnConfigs)
	if !finding.OK() {
		return parameters{}, finding
	}
	effective.Spec.Dataplane = name
	dataplane := v.Dataplane(name)
	if dataplane == nil {
		return parameters{}, condition.DataplaneMissing(own.key.String(), name).As(condition.ReasonInvalidParameters)
	}
	if finding := emptyFinding(dataplane); !finding.OK() {
		return parameters{}, finding.As(condition.ReasonInvalidParameters)
	}
	return parameters{effective, dataplane, policy.Spec.LoadBalancerServiceAnnotations}, condition.Finding{}
}

// dataplaneFor returns the name of the Dataplane for a Gateway with spec.infrastructure.parametersRef. own is the
// GatewayConfig that parametersRef names, and class is the GatewayConfig of the GatewayClass. The API server sets
// spec.dataplane of own to the default name if it is unset. Therefore the default name counts as unset if that
// Dataplane does not allow the namespace of the Gateway, and the Dataplane of class is used instead. The finding must
// not reveal whether a Dataplane exists that does not allow the namespace.
func dataplaneFor(
	v *resource.View, gw *gwapiv1.Gateway, own, class *stunnerv1.GatewayConfig, how OwnConfigs,
) (string, condition.Finding) {
	name, ofClass := dataplaneName(own), dataplaneName(class)
	switch {
	case how == OwnConfigsAllow, name == ofClass, admits(v, v.Dataplane(name), gw.Namespace):
		return name, condition.Finding{}
	case name == stunnerv1.DefaultDataplane:
		return ofClass, condition.Finding{}
	}
	return "", condition.DataplaneNotAllowed(resource.KeyOf(own).String(), name, gw.Namespace)
}

// admits reports whether spec.allowedNamespaces of a Dataplane allows GatewayConfigs of a namespace to refer to it. An
// unknown value or an invalid selector allows no namespace.
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
