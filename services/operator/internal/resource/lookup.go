package resource

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
)

// Classes returns the names of all GatewayClasses, sorted.
func (v *View) Classes() []string { return v.classes.names() }

// Class returns a GatewayClass, or nil.
func (v *View) Class(name string) *gwapiv1.GatewayClass {
	return find(v, v.classes, aClass, types.NamespacedName{Name: name})
}

// Gateways returns the keys of all Gateways, sorted.
func (v *View) Gateways() []types.NamespacedName { return v.gateways.keys() }

// Gateway returns a Gateway, or nil.
func (v *View) Gateway(key types.NamespacedName) *gwapiv1.Gateway {
	return find(v, v.gateways, aGateway, key)
}

// GatewaysIn returns the keys of the Gateways of a namespace, sorted.
func (v *View) GatewaysIn(namespace string) []types.NamespacedName {
	return list(v, v.gatewaysOfNamespace, allGatewaysOf, types.NamespacedName{Namespace: namespace})
}

// GatewayConfigs returns the keys of all GatewayConfigs, sorted.
func (v *View) GatewayConfigs() []types.NamespacedName { return v.configs.keys() }

// GatewayConfig returns a GatewayConfig, or nil.
func (v *View) GatewayConfig(key types.NamespacedName) *stunnerv1.GatewayConfig {
	return find(v, v.configs, aGatewayConfig, key)
}

// Dataplanes returns the names of all Dataplanes, sorted.
func (v *View) Dataplanes() []string { return v.dataplanes.names() }

// Dataplane returns a Dataplane, or nil.
func (v *View) Dataplane(name string) *stunnerv1.Dataplane {
	return find(v, v.dataplanes, aDataplane, types.NamespacedName{Name: name})
}

// StaticServices returns the keys of all StaticServices, sorted.
func (v *View) StaticServices() []types.NamespacedName { return v.staticServices.keys() }

// StaticService returns a StaticService, or nil.
func (v *View) StaticService(key types.NamespacedName) *stunnerv1.StaticService {
	return find(v, v.staticServices, aStaticService, key)
}

// Routes returns the references of all routes, sorted by namespace, name and precedence.
func (v *View) Routes() []RouteRef {
	return slices.SortedFunc(maps.Keys(v.routes), compareRoutes)
}

// Route returns a route, or nil.
func (v *View) Route(ref RouteRef) *Route {
	if v.recorded != nil {
		v.recorded.addRoute(ref)
	}
	return v.routes[ref]
}

// RoutesOf returns the routes that have a Gateway as parent, in the order of Routes.
func (v *View) RoutesOf(gateway types.NamespacedName) []*Route {
	return list(v, v.routesOfGateway, allRoutesOf, gateway)
}

// Service returns a Service, or nil.
func (v *View) Service(key types.NamespacedName) *corev1.Service {
	return find(v, v.services, aService, key)
}

// SystemServices returns the Services of namespace kube-system, sorted by name.
func (v *View) SystemServices() []*corev1.Service {
	return list(v, v.systemServices, allSystemServices, types.NamespacedName{})
}

// EndpointSlicesOf returns the EndpointSlices of a Service, sorted by name.
func (v *View) EndpointSlicesOf(service types.NamespacedName) []*discoveryv1.EndpointSlice {
	return list(v, v.slicesOfService, allSlicesOf, service)
}

// ServicesOf returns the Services that expose a Gateway, sorted by name.
func (v *View) ServicesOf(gateway types.NamespacedName) []*corev1.Service {
	return list(v, v.servicesOfGateway, allServicesOf, gateway)
}

// Secret returns a Secret, or nil.
func (v *View) Secret(key types.NamespacedName) *corev1.Secret {
	return find(v, v.secrets, aSecret, key)
}

// Namespace returns a Namespace, or nil.
func (v *View) Namespace(name string) *corev1.Namespace {
	return find(v, v.namespaces, aNamespace, types.NamespacedName{Name: name})
}

// NamespaceLabels returns the labels of a namespace. They always include label kubernetes.io/metadata.name: an API
// server sets it, but in a folder of YAML files it may be missing.
func (v *View) NamespaceLabels(name string) map[string]string {
	all := map[string]string{corev1.LabelMetadataName: name}
	if ns := v.Namespace(name); ns != nil {
		maps.Copy(all, ns.Labels)
	}
	return all
}

// NodeAddressesIn returns the sorted IP addresses of nodes in a block as returned by AddressBlock. A translation that
// calls it depends on the nodes in that block only, and not on all nodes as with Nodes.
func (v *View) NodeAddressesIn(block netip.Prefix) []netip.Addr {
	return list(v, v.nodeAddresses, nodeAddressesIn, blockKey(block))
}

// AddressBlock returns the block of addresses that contains an address, as argument of NodeAddressesIn: /24 for IPv4,
// /64 for IPv6. Pods of one node usually share a block, which contains no node addresses, so that few translations
// depend on the addresses of nodes.
func AddressBlock(a netip.Addr) netip.Prefix {
	bits := 64
	if a = a.Unmap(); a.Is4() {
		bits = 24
	}
	block, _ := a.Prefix(bits) // both lengths are valid
	return block
}

func blockKey(block netip.Prefix) types.NamespacedName {
	return types.NamespacedName{Name: block.String()}
}

// Nodes returns all Nodes, sorted by name.
func (v *View) Nodes() []*corev1.Node { return list(v, v.allNodes, allNodes, types.NamespacedName{}) }

// GatewaysOfClass returns the Gateways whose parameters come from a GatewayClass. Gateways with
// spec.infrastructure.parametersRef are not included.
func (v *View) GatewaysOfClass(name string) Set {
	return usersOf(v, v.users.gatewaysOfClass, allGatewaysOfClass, types.NamespacedName{Name: name})
}

// GatewaysOfConfig returns the Gateways with a GatewayConfig in spec.infrastructure.parametersRef.
func (v *View) GatewaysOfConfig(key types.NamespacedName) Set {
	return usersOf(v, v.users.gatewaysOfConfig, allGatewaysOfConfig, key)
}

// ClassesOfConfig returns the GatewayClasses that refer to a GatewayConfig.
func (v *View) ClassesOfConfig(key types.NamespacedName) Set {
	return usersOf(v, v.users.classesOfConfig, allClassesOfConfig, key)
}

// ConfigsOfDataplane returns the GatewayConfigs that refer to a Dataplane.
func (v *View) ConfigsOfDataplane(name string) Set {
	return usersOf(v, v.users.configsOfDataplane, allConfigsOfDataplane, types.NamespacedName{Name: name})
}

// DataplanesOfWorkload returns the Dataplanes with a name in spec.workloadName.
func (v *View) DataplanesOfWorkload(name string) Set {
	return usersOf(v, v.users.dataplanesOfWorkload, allDataplanesOfWorkload, types.NamespacedName{Name: name})
}

// RoutesOfStaticService returns the routes that refer to a StaticService. Routes that another route masks are not
// included.
func (v *View) RoutesOfStaticService(key types.NamespacedName) Set {
	return usersOf(v, v.users.routesOfStaticService, allRoutesOfStaticService, key)
}

func usersOf(v *View, index map[types.NamespacedName]Set, s subject, key types.NamespacedName) Set {
	v.record(s, key)
	return index[key]
}

// TrustBundle returns the CA certificates of config discovery in PEM; "" if it does not use TLS.
func (v *View) TrustBundle() string {
	return cmp.Or(find(v, v.trust, theTrust, types.NamespacedName{}), &Trust{}).Bundle
}

// ScalingMissing reports whether the provider has detected that KEDA is not installed.
func (v *View) ScalingMissing() bool {
	return cmp.Or(find(v, v.scaling, theScaling, types.NamespacedName{}), &Scaling{}).Missing
}

// Installations returns the Installations in the view, or the zero value if there are none.
func (v *View) Installations() Installations {
	return *cmp.Or(find(v, v.installations, theInstallations, types.NamespacedName{}), &Installations{})
}

// Rollout returns the state of the dataplanes of a Gateway.
func (v *View) Rollout(gateway types.NamespacedName) RolloutState {
	return cmp.Or(find(v, v.rollouts, aRollout, gateway), &Rollout{}).RolloutState
}

// Rejection returns the rejected objects of a Gateway.
func (v *View) Rejection(gateway types.NamespacedName) RejectionState {
	return cmp.Or(find(v, v.rejections, aRejection, gateway), &Rejection{}).RejectionState
}

// NodePorts returns the ports of nodes that Gateways bind, sorted by Gateway.
func (v *View) NodePorts() (all []*NodePorts) {
	v.record(theNodePorts, types.NamespacedName{})
	for _, key := range v.nodePorts.keys() {
		all = append(all, v.nodePorts[key])
	}
	return all
}

// OverBudget returns the reason why a route exceeds a budget of a Gateway; the zero value if it does not.
func (v *View) OverBudget(gateway, route types.NamespacedName) BudgetRefusal {
	v.record(anOverBudget, route)
	return cmp.Or(v.overBudget[gateway], &OverBudget{}).Routes[route.String()]
}

// WithHost returns a view of the same objects for dataplanes that run on a host. The host must not be changed
// afterwards.
func (v *View) WithHost(h Host) *View {
	w := *v
	w.host = &h
	return &w
}

// Host returns the host on which dataplanes run, or nil when they run in a cluster.
func (v *View) Host() *Host { return v.host }
