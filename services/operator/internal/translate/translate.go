// Package translate translates Gateway API objects. The translation of a Gateway yields its dataplane config, its
// generated Kubernetes objects and its status. The translation of a UDPRoute, a GatewayClass, a GatewayConfig, a
// Dataplane or a StaticService yields a status.
//
// The package does no I/O and returns no errors: a problem becomes a condition of the object that has it. If a problem
// makes the config of a whole Gateway doubtful, the decision is Held, and the published config and objects stay
// unchanged. gatewayrules.go lists these problems. A problem of a single listener usually affects only that listener;
// held.go describes the exceptions.
//
// # Files
//
//	gateway.go                  a Gateway: the steps in order
//	class.go                    GatewayClass, GatewayConfig, Dataplane, StaticService
//	route.go                    UDPRoute
//	gatewayrules.go             rules of Gateways and their precedence
//	held.go                     listeners that keep their published form
//	listener.go certificate.go  rules of listeners and of their certificates
//	hostports.go                ports of nodes that Gateways in the host network share
//	attach.go                   whether a listener admits a route
//	backend.go                  rules of backends
//	reference.go                references to a GatewayConfig
//	parameters.go policy.go     parameters of a Gateway, merged from two GatewayConfigs
//	annotations.go              annotations of a Gateway
//	exposure.go address.go      Services; public addresses
//	balancer.go                 annotations about load balancers
//	provider.go                 features of Services that the provider's load balancers lack
//	auth.go signing.go          credentials; signing keys that are derived from them
//	budget.go                   which routes exceed the budgets of a Gateway (equal shares: package share)
//	revocation.go               Revocations; those in force at a Gateway
//	endpointset.go              endpoints, counted
//	cluster.go                  clusters of the config
//	memo.go                     clusters that stay as they are while other endpoints change
//	clusteraccess.go            addresses of the Kubernetes cluster itself
//	config.go                   the other parts of the config
//	objects.go                  generated objects, which package manifest builds
//	ignored.go                  input without effect
//	offload.go                  reasons against in-kernel forwarding, and the Pod Security label of a namespace
//	status.go statuses.go       statuses, with their conditions
//	contain.go                  panics of a translation
//	usage.go                    condition InUse
//	installation.go             condition ControllerConflict: which installation manages a GatewayClass
//	former_test.go              the table of notations of the existing system
package translate

import (
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/share"
)

// DefaultControllerName is the controller name of the GatewayClasses that the operator implements.
const DefaultControllerName = "stunner.l7mp.io/gateway-operator"

// Options are the inputs of a translation other than the objects.
type Options struct {
	// ControllerName is the controller name of the GatewayClasses that the operator implements.
	ControllerName string
	// EndpointDiscovery translates a Service to the addresses of its endpoints and its cluster IP. If it is false, a
	// Service is translated to its DNS name.
	EndpointDiscovery bool
	// ClusterDomain is the DNS domain of the cluster.
	ClusterDomain string
	// DiscoveryAddress is the URL at which generated pods reach config discovery. Its host is the DNS name of a
	// Service, because a pod IP would change with every restart of the operator. Each change of the URL changes all pod
	// templates, which restarts all dataplanes.
	DiscoveryAddress string
	// DiscoverySecured makes generated pods authenticate to config discovery with a token, and verify its TLS
	// certificate.
	DiscoverySecured bool
	// ScalerAddress is the address HOST:PORT of the operator's external scaler for KEDA. With DiscoverySecured, KEDA
	// connects to it over TLS.
	ScalerAddress string
	// Image is the dataplane image of a Dataplane without spec.image.
	Image string
	// OwnConfigs selects the fields that the GatewayConfig in spec.infrastructure.parametersRef of a Gateway may set.
	OwnConfigs OwnConfigs
	// TrustClassSecrets lets a GatewayConfig that a GatewayClass refers to read Secrets of other namespaces without a
	// ReferenceGrant.
	TrustClassSecrets bool
	// Partial means that the view contains only some namespaces of the cluster.
	Partial bool
	// Published is the config that is currently served for the Gateway, or nil. After a restart of the operator, it is
	// the config that the process before has stored, see Result.NeedsPublished. Listeners that cannot be served as
	// specified keep their entry in it, see held.go. Routes that exceed a budget keep their endpoints in it, see
	// admission.keepPublished.
	Published *config.Config
	// Previous are the names of the listeners, as in a config, that another process has published. They are needed only
	// while Published is nil, because that config was not stored or cannot be read.
	Previous []string
	// Room is the part of the shared endpoint budgets that other Gateways leave for this Gateway. With the zero value,
	// no other Gateway uses endpoints and the operator's memory sets no limit.
	Room Room
	// Memo keeps the translation for Memo.Translate; nil keeps nothing.
	Memo *Memo
	// Now is the transition time of conditions that change.
	Now metav1.Time
}

// Room is the state of the endpoint budgets that a Gateway shares with other Gateways. Endpoints are charged to the
// namespace of their route, not to the namespace of the Gateway.
type Room struct {
	// Elsewhere returns the number of endpoints that the routes of a namespace have at older Gateways. nil means 0.
	Elsewhere func(namespace string) int
	// Total is the number of endpoints of all Gateways for which the operator has memory; 0 means that it sets no
	// limit.
	Total int
	// Wanted are the endpoints that routes want at other Gateways, by namespace of the routes. It is used with Total
	// only.
	Wanted map[string]int
	// Certificates is the maximum size of the Gateway's certificates in bytes; 0 means that the operator's memory sets
	// no limit.
	Certificates int
}

func (r Room) elsewhere(namespace string) int {
	if r.Elsewhere == nil {
		return 0
	}
	return r.Elsewhere(namespace)
}

// levels returns the number of endpoints for which the operator has memory, for each namespace with routes at a
// Gateway. wanted are the endpoints of this Gateway. It returns nil if the memory suffices for all.
func (r Room) levels(wanted map[string]int) map[string]int {
	if r.Total == 0 {
		return nil
	}
	all, sum := map[string]int{}, 0
	for _, part := range []map[string]int{r.Wanted, wanted} {
		for namespace, n := range part {
			all[namespace] += n
			sum += n
		}
	}
	if sum <= r.Total {
		return nil
	}
	levels := map[string]int{}
	for namespace := range wanted {
		others := make([]int, 0, len(all))
		for other, n := range all {
			if other != namespace {
				others = append(others, n)
			}
		}
		levels[namespace] = share.Level(r.Total, others)
	}
	return levels
}

// OwnConfigs selects the fields that the GatewayConfig in spec.infrastructure.parametersRef of a Gateway may set. The
// zero value means OwnConfigsRestricted.
type OwnConfigs string

// The values of OwnConfigs.
const (
	// OwnConfigsDeny rejects a Gateway with spec.infrastructure.parametersRef, unless it refers to the GatewayConfig of
	// the class.
	OwnConfigsDeny OwnConfigs = "deny"
	// OwnConfigsRestricted allows a GatewayConfig that restricts the GatewayConfig of the class further. It cannot lift
	// a restriction.
	OwnConfigsRestricted OwnConfigs = "restricted"
	// OwnConfigsAllow lets the GatewayConfig replace the GatewayConfig of the class, except for the fields that only
	// the class may set.
	OwnConfigsAllow OwnConfigs = "allow"
)

// DefaultOptions returns the options of an operator that runs without flags.
func DefaultOptions() Options {
	return Options{
		ControllerName:    DefaultControllerName,
		EndpointDiscovery: true,
		OwnConfigs:        OwnConfigsRestricted,
		ClusterDomain:     "cluster.local",
		DiscoveryAddress:  "http://stunner-config-discovery.stunner-system.svc.cluster.local:13478",
		ScalerAddress:     "stunner-config-discovery.stunner-system.svc.cluster.local:13480",
		Image:             "ghcr.io/stunner-gateway/stunnerd:latest",
	}
}

// Result is the translation of a Gateway.
type Result struct {
	// Key is the namespace and name of the Gateway.
	Key types.NamespacedName
	// Decision determines which of the other fields take effect. If it is neither Served nor Held, all other fields
	// except Key and NeedsPublished are zero.
	Decision Decision
	// NeedsPublished means that Options.Published is nil, and that another process may have published a config that
	// changes the result or that stays in force: the decision is Held or Classless, or a listener or a route keeps its
	// published form. A provider that has stored that config then translates again with it.
	NeedsPublished bool
	// Config is the dataplane config to publish; nil unless the decision is Served. A listener that cannot be served as
	// specified keeps its entry of the published config.
	Config *config.Config
	// Revoked is the published config with the revocations that are in force now. If the parameters can be used, it lacks
	// the certificates whose references are not permitted any more. It is nil if the published config is already so, or if
	// the decision is neither Held nor Classless. The provider publishes it, because revocations and removed grants must
	// not wait for the correction of the Gateway.
	Revoked *config.Config
	// Named are the clusters of Config as the ConfigMap shows them: with the DNS names of Services instead of their
	// addresses.
	Named []config.Cluster
	// Objects are all generated objects that the Gateway needs, sorted by kind and name; nil unless the decision is
	// Served. Any other generated object of the Gateway is obsolete, except its standby Secret.
	Objects []resource.Object
	// Skeleton are the objects that do not depend on the config: Services, and the Deployment or DaemonSet. If the
	// decision is Held, missing objects of Skeleton may be created, but existing ones must not be changed.
	Skeleton []resource.Object
	// NodePorts are the ports of nodes that the pods bind with Config; nil unless the decision is Served and the pods are
	// in the host network. The provider keeps the last NodePorts of the Gateway in the view until the Gateway ends.
	NodePorts *resource.NodePorts
	// RelayPorts is the port range of relay sockets according to the Dataplane; zero unless the decision is Served.
	RelayPorts config.PortRange
	// KeepReplicas means that the number of replicas of the Deployment must not change when the operator stops setting
	// spec.replicas.
	KeepReplicas bool
	// TakeOver means that the operator may replace the pods of a workload that the operator of the existing STUNner
	// created.
	TakeOver bool
	// Status is the whole status of the Gateway.
	Status gwapiv1.GatewayStatus
	// Problems are those conditions in Status that report a problem.
	Problems []condition.Problem
	// OverBudget lists the routes that are not served because they exceed a budget. The provider adds it to the view,
	// from which the translation of routes reads it.
	OverBudget *resource.OverBudget
	// Demand is the demand of the Gateway on the budgets that it shares with other Gateways.
	Demand Demand
	// Notes are warnings for the user that have no condition of their own.
	Notes []condition.Finding
}

// Managed reports whether Objects contains a Deployment or DaemonSet, that is, whether the operator manages the
// dataplane pods of the Gateway. It is false unless the decision is Served, because Objects is then nil.
func (r Result) Managed() bool {
	return slices.ContainsFunc(r.Objects, func(o resource.Object) bool {
		switch o.(type) {
		case *appsv1.Deployment, *appsv1.DaemonSet:
			return true
		}
		return false
	})
}

// Demand is the demand of a Gateway on the budgets that it shares with other Gateways.
type Demand struct {
	// Endpoints are the endpoints by namespace of their routes.
	Endpoints map[string]EndpointDemand
	// Certificates is the size in bytes of the certificates of listeners that are served as specified, and of
	// revocations. MoreCertificates means that certificates of other listeners did not fit.
	Certificates     int
	MoreCertificates bool
}

// EndpointDemand is the number of endpoints that the routes of a namespace have at a Gateway, counted in the same way
// as for a budget.
type EndpointDemand struct {
	// Wanted is the number that the budgets of the Gateway and of the namespace allow. Given is the number that remains
	// when the memory of the operator is shared.
	Wanted, Given int
	// Limit is the number that the shared budgets allow. Waiting means that routes exceed it.
	Limit   int
	Waiting bool
	// PerNamespace is the number that the budget of the namespace allows at all Gateways together.
	PerNamespace int
}

// Limits returns what EndpointDemand.Limit of each namespace would be with another state of the shared budgets.
func (d Demand) Limits(r Room) map[string]int {
	limits, wanted := map[string]int{}, map[string]int{}
	for namespace, e := range d.Endpoints {
		limits[namespace], wanted[namespace] = max(0, e.PerNamespace-r.elsewhere(namespace)), e.Wanted
	}
	for namespace, level := range r.levels(wanted) {
		limits[namespace] = min(limits[namespace], max(0, level-r.elsewhere(namespace)))
	}
	return limits
}
