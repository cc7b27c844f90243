package translate

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/config"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// clusterTypeOf returns the type of the cluster of a route. Without endpoint discovery, a Service becomes its DNS name,
// and the type is StrictDNS. A cluster cannot contain both addresses and names, so the first backend determines the
// type, and backends that do not fit are rejected.
func clusterTypeOf(r *resource.Route, opt Options) config.ClusterType {
	if !opt.EndpointDiscovery && len(r.Backends) > 0 && r.Backends[0].Kind == string(stunnerv1.KindService) {
		return config.StrictDNS
	}
	return config.Static
}

// backendPolicy checks the backends of routes against the parameters of a Gateway.
type backendPolicy struct {
	view          *resource.View
	opt           Options
	requireGrants bool
	denials       []denial
	// guardsCluster means that the Kubernetes API server must not be a backend, see clusteraccess.go.
	guardsCluster bool
	guard         *clusterGuard
	// denied caches for each Service whether an entry of spec.deniedBackends matches it.
	denied map[types.NamespacedName]bool
}

func newBackendPolicy(v *resource.View, p parameters, opt Options, guards clusterGuards) backendPolicy {
	b := backendPolicy{
		view: v, opt: opt, requireGrants: p.config != nil && p.config.Spec.RequireReferenceGrants,
		guardsCluster: p.guardsCluster(), guard: guards.guard(p), denied: map[types.NamespacedName]bool{},
	}
	for _, d := range p.deniedBackends() {
		b.denials = append(b.denials, newDenial(d))
	}
	return b
}

// backendsOf returns the valid backends of a route, and the findings about the invalid backends. It does not read
// EndpointSlices: the status of the route would then depend on them, and each change of a pod would cause a new
// translation of the route.
func (p backendPolicy) backendsOf(r *resource.Route) (backends []backend, found []condition.Finding) {
	for i, ref := range r.Backends {
		b := backend{Backend: ref, index: i, backendPolicy: p, route: r, clusterType: clusterTypeOf(r, p.opt)}
		if finding := backendRules.firstFinding(b); !finding.OK() {
			found = append(found, finding)
			continue
		}
		backends = append(backends, b)
	}
	return backends, found
}

// deniedPrefixes returns the findings about prefixes of StaticServices that are invalid or that routes must not reach.
// A StaticService that several backends refer to is checked once.
func (p backendPolicy) deniedPrefixes(backends []backend) (found []condition.Finding) {
	seen := map[types.NamespacedName]bool{}
	for _, b := range backends {
		if key := b.Key(); !b.isService() && !seen[key] {
			seen[key] = true
			found = append(found, p.guard.guardStatic(p.view.StaticService(key)).found...)
		}
	}
	return found
}

// backend is a backend of a route, with all inputs of backendRules.
type backend struct {
	resource.Backend
	backendPolicy
	route       *resource.Route
	index       int // index in route.Backends
	clusterType config.ClusterType
}

var backendRules = rules[backend]{
	backend.kindKnown,
	backend.portRangeValid,
	backend.isGranted,
	backend.isAllowed,
	backend.exists,
	backend.hasEndpoints,
	backend.fitsCluster,
}

func (b backend) field() string { return b.route.BackendField(b.index) }

// place returns a field of the backendRef.
func (b backend) place(part string) condition.Place {
	return condition.Place{Field: b.field() + "." + part, Text: b.Key().String()}
}

func (b backend) isService() bool { return b.Group == "" && b.Kind == string(stunnerv1.KindService) }

func (b backend) kindKnown() condition.Finding {
	static := b.Group == stunnerv1.GroupName && b.Kind == string(stunnerv1.KindStaticService)
	if !b.isService() && !static {
		return condition.BackendKind(b.place("kind"), b.Group, b.Kind)
	}
	return condition.Finding{}
}

// portRangeValid rejects an invalid port range. If it were ignored, the route would reach all ports of the backend.
func (b backend) portRangeValid() condition.Finding {
	none := b.Port == 0 && b.EndPort == 0
	single := b.Port >= 1 && b.Port <= 65535 && b.EndPort == 0
	ranged := b.Port >= 1 && b.Port <= b.EndPort && b.EndPort <= 65535
	if !none && !single && !ranged {
		return condition.BackendPorts(b.place("port"), b.Port, b.EndPort)
	}
	return condition.Finding{}
}

func (b backend) isGranted() condition.Finding {
	ref := b.route.Ref
	from := resource.Referrer{
		Group: ref.GroupVersion.Group, Kind: string(resource.KindUDPRoute), Namespace: ref.Namespace,
	}
	to := resource.Target{Group: b.Group, Kind: b.Kind, NamespacedName: b.Key()}
	if b.requireGrants && !b.view.Granted(from, to) {
		return condition.NotGranted(condition.Place{Field: b.field(), Text: "the route"}, b.Kind+" "+b.Key().String(), b.Namespace)
	}
	return condition.Finding{}
}

func (b backend) isAllowed() condition.Finding {
	if !b.isService() {
		return condition.Finding{}
	}
	if b.guardsCluster && b.Key() == apiServer {
		return condition.BackendIsAPIServer(b.place("name"))
	}
	denied, known := b.denied[b.Key()]
	if !known {
		denied = slices.ContainsFunc(b.denials, b.matches)
		b.denied[b.Key()] = denied
	}
	if denied {
		return condition.BackendDenied(b.place("name"))
	}
	return condition.Finding{}
}

// denial is an entry of spec.deniedBackends with its parsed selector.
type denial struct {
	namespace   string
	hasSelector bool
	selector    labels.Selector // nil if it is invalid
}

func newDenial(d stunnerv1.DeniedBackend) denial {
	n := denial{namespace: d.Namespace, hasSelector: d.Selector != nil}
	if n.hasSelector {
		n.selector = parseSelector(d.Selector)
	}
	return n
}

// matches reports whether an entry of spec.deniedBackends applies to the backend. An entry with an invalid selector
// never occurs here, because deniedBackendsParse rejects the whole GatewayConfig.
func (b backend) matches(d denial) bool {
	if d.namespace != "" && d.namespace != b.Namespace {
		return false
	}
	if !d.hasSelector {
		return d.namespace != ""
	}
	svc := b.service()
	return svc != nil && d.selector != nil && d.selector.Matches(labels.Set(svc.Labels))
}

func (b backend) exists() condition.Finding {
	if b.isService() && b.service() == nil || !b.isService() && b.view.StaticService(b.Key()) == nil {
		return condition.BackendMissing(b.place("name"), b.Kind)
	}
	return condition.Finding{}
}

func (b backend) hasEndpoints() condition.Finding {
	if b.isService() && b.service().Spec.Type == corev1.ServiceTypeExternalName {
		return condition.BackendExternalName(b.place("name"))
	}
	return condition.Finding{}
}

func (b backend) fitsCluster() condition.Finding {
	isName := b.isService() && !b.opt.EndpointDiscovery
	if isName != (b.clusterType == config.StrictDNS) {
		return condition.BackendMixed(b.place("name"))
	}
	return condition.Finding{}
}
