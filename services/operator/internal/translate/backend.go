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

func clusterTypeOf(r *resource.Route, opt Options) config.ClusterType {
	if !opt.EndpointDiscovery && len(r.Backends) > 0 && r.Backends[0].Kind == string(stunnerv1.KindService) {
		return config.StrictDNS
	}
	return config.Static
}

// backers judge the backends of routes by the parameters of a Gateway.
type backers struct {
	view   *resource.View
	opt    Options
	grants bool
	denied []denial
	// guarded says that the API servers are none of the backends.
	guarded bool
	shield  *shield
	// refused are the Services that have been held against the denials.
	refused map[types.NamespacedName]bool
}

func newBackers(v *resource.View, p parameters, opt Options, s map[bool]*shield) backers {
	b := backers{
		view: v, opt: opt, grants: p.config != nil && p.config.Spec.RequireReferenceGrants, guarded: p.guarded(), shield: s[p.guarded()],
		refused: map[types.NamespacedName]bool{},
	}
	for _, d := range p.denied() {
		b.denied = append(b.denied, newDenial(d))
	}
	return b
}

// of returns the backends of a route that have endpoints, and what is wrong with the others. It does not ask for the endpoints themselves: the status
// of a route does not depend on them, and need not be made anew whenever a pod comes or goes.
func (j backers) of(r *resource.Route) (backends []backend, found []condition.Finding) {
	for _, b := range r.Backends {
		q := backend{Backend: b, backers: j, route: r, cluster: clusterTypeOf(r, j.opt)}
		if unfit := backendRules.judge(q); !unfit.OK() {
			found = append(found, unfit)
			continue
		}
		backends = append(backends, q)
	}
	return backends, found
}

// unreached says what of the StaticServices among backends is not reached, once for each of them.
func (j backers) unreached(backends []backend) (found []condition.Finding) {
	said := map[types.NamespacedName]bool{}
	for _, b := range backends {
		if key := b.Key(); !b.isService() && !said[key] {
			said[key] = true
			found = append(found, j.shield.opening(j.view.StaticService(key)).found...)
		}
	}
	return found
}

// backend is a backend of a route, on its way into a cluster.
type backend struct {
	resource.Backend
	backers
	route   *resource.Route
	cluster config.ClusterType
}

var backendRules = rules[backend]{
	backend.isKnown,
	backend.hasPortRange,
	backend.isGranted,
	backend.isAllowed,
	backend.exists,
	backend.hasEndpoints,
	backend.fitsCluster,
}

func (b backend) isService() bool { return b.Group == "" && b.Kind == string(stunnerv1.KindService) }

func (b backend) isKnown() condition.Finding {
	static := b.Group == stunnerv1.GroupName && b.Kind == string(stunnerv1.KindStaticService)
	if !b.isService() && !static {
		return condition.BackendKind(b.Key().String(), b.Group, b.Kind)
	}
	return condition.Finding{}
}

// hasPortRange must not take a range that it does not understand for no range, which would open every port.
func (b backend) hasPortRange() condition.Finding {
	none := b.Port == 0 && b.EndPort == 0
	single := b.Port >= 1 && b.Port <= 65535 && b.EndPort == 0
	ranged := b.Port >= 1 && b.Port <= b.EndPort && b.EndPort <= 65535
	if !none && !single && !ranged {
		return condition.BackendPorts(b.Key().String(), b.Port, b.EndPort)
	}
	return condition.Finding{}
}

func (b backend) isGranted() condition.Finding {
	from := resource.Referrer{Group: b.route.Ref.GroupVersion.Group, Kind: string(resource.KindUDPRoute), Namespace: b.route.Ref.Namespace}
	to := resource.Target{Group: b.Group, Kind: b.Kind, NamespacedName: b.Key()}
	if b.grants && !b.view.Granted(from, to) {
		return condition.NotGranted("the route", b.Kind+" "+b.Key().String(), b.Namespace)
	}
	return condition.Finding{}
}

func (b backend) isAllowed() condition.Finding {
	if !b.isService() {
		return condition.Finding{}
	}
	if b.guarded && b.Key() == apiServer {
		return condition.BackendIsAPIServer(b.Key().String())
	}
	refused, known := b.refused[b.Key()]
	if !known {
		refused = slices.ContainsFunc(b.denied, b.meant)
		b.refused[b.Key()] = refused
	}
	if refused {
		return condition.BackendDenied(b.Key().String())
	}
	return condition.Finding{}
}

// denial is a DeniedBackend whose selector has been read.
type denial struct {
	namespace string
	selects   bool
	selector  labels.Selector // nil if it cannot be read
}

func newDenial(d stunnerv1.DeniedBackend) denial {
	n := denial{namespace: d.Namespace, selects: d.Selector != nil}
	if n.selects {
		n.selector = readable(d.Selector)
	}
	return n
}

// meant tells whether a denial is about the backend. One that cannot be read keeps its GatewayConfig from being used.
func (b backend) meant(d denial) bool {
	if d.namespace != "" && d.namespace != b.Namespace {
		return false
	}
	if !d.selects {
		return d.namespace != ""
	}
	svc := b.view.Service(b.Key())
	return svc != nil && d.selector != nil && d.selector.Matches(labels.Set(svc.Labels))
}

func (b backend) exists() condition.Finding {
	if b.isService() && b.view.Service(b.Key()) == nil || !b.isService() && b.view.StaticService(b.Key()) == nil {
		return condition.BackendMissing(b.Kind, b.Key().String())
	}
	return condition.Finding{}
}

func (b backend) hasEndpoints() condition.Finding {
	if b.isService() && b.view.Service(b.Key()).Spec.Type == corev1.ServiceTypeExternalName {
		return condition.BackendExternalName(b.Key().String())
	}
	return condition.Finding{}
}

func (b backend) fitsCluster() condition.Finding {
	resolved := b.isService() && !b.opt.EndpointDiscovery
	if resolved != (b.cluster == config.StrictDNS) {
		return condition.BackendMixed(b.Key().String())
	}
	return condition.Finding{}
}
