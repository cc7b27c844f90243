// Package translate says what a set of Gateway API objects means: for one Gateway the dataplane config, the Kubernetes objects and the
// status, for one route and one GatewayClass the status.
//
// The package is pure. It returns no errors: what is wrong is a condition on the object that is wrong. And it fails static: while
// something is wrong that makes the config of a Gateway doubtful, the result says Hold, and everything that was published stays.
package translate

import (
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// DefaultControllerName is the controller name of the GatewayClasses that are ours.
const DefaultControllerName = "stunner.l7mp.io/gateway-operator"

// Options are what the translation knows from the operator rather than from objects.
type Options struct {
	// ControllerName is the controller name of our GatewayClasses.
	ControllerName string
	// EndpointDiscovery makes a Service stand for its endpoints and its cluster IP. Without it a Service stands for its DNS name.
	EndpointDiscovery bool
	// ClusterDomain is the DNS domain of the cluster.
	ClusterDomain string
	// DiscoveryAddress is where generated pods find config discovery: a URL with the DNS name of a Service. An address of a pod would
	// change with every restart of the operator, and restart every dataplane with it.
	DiscoveryAddress string
	// DiscoverySecured says that generated pods show config discovery a token, and know it by its certificate.
	DiscoverySecured bool
	// ScalerAddress is where KEDA asks the operator for the allocations of a Gateway, HOST:PORT. It is as secured as config discovery.
	ScalerAddress string
	// Image is the dataplane image of a Dataplane that names none.
	Image string
	// OwnConfigs says what GatewayConfigs may do that Gateways name themselves.
	OwnConfigs OwnConfigs
	// TrustClassSecrets lets a GatewayConfig that a GatewayClass names read Secrets of other namespaces without a ReferenceGrant.
	TrustClassSecrets bool
	// Partial says that the view holds some namespaces only.
	Partial bool
	// Published is the config that the Gateway is served with now; nil for none. Listeners that wait stay as they are there, and a route that there is no
	// room for any more keeps what it had there.
	Published *config.Config
	// Room is what other Gateways leave to this one. The zero value leaves it all that its own budget allows.
	Room Room
	// Now is the time that new condition transitions get.
	Now metav1.Time
}

// Room is what the other Gateways leave to one of them.
type Room struct {
	// Namespace is how many endpoints the older Gateways of the namespace have.
	Namespace int
	// Operator is how many endpoints the operator has room for in this Gateway. Bounded is false where it has room for any number.
	Operator int
	Bounded  bool
}

// OwnConfigs says what the GatewayConfig that a Gateway names itself may do. The zero value is OwnConfigsRestricted.
type OwnConfigs string

// The values of OwnConfigs.
const (
	// OwnConfigsDeny refuses Gateways that name a GatewayConfig.
	OwnConfigsDeny OwnConfigs = "deny"
	// OwnConfigsRestricted lets it narrow what the GatewayConfig of the class says, and never widen it.
	OwnConfigsRestricted OwnConfigs = "restricted"
	// OwnConfigsAllow lets it take the place of the GatewayConfig of the class, but for the fields that only that of the class has.
	OwnConfigsAllow OwnConfigs = "allow"
)

// DefaultOptions returns what an operator uses that was told nothing.
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

// Result is what one Gateway means.
type Result struct {
	Gateway types.NamespacedName
	// Ours is false for a Gateway of somebody else's class: it must not be touched. Everything else is then empty.
	Ours bool
	// Hold means that the published config and objects must stay as they are. Config and Objects are then nil.
	Hold bool
	// Config is the dataplane config to publish. Listeners that wait are in it as they were published before, if they were.
	Config *config.Config
	// Named are the clusters of Config with Services under their DNS names: what people are shown.
	Named []config.Cluster
	// HeldListeners are the listeners that cannot be served as they are written, by their names in a config.
	HeldListeners []string
	// Objects are all objects that the Gateway needs, sorted by kind and name. One that is not here and that belongs to the Gateway
	// is no longer wanted.
	Objects []resource.Object
	// Skeleton are those of the objects that can be made without a config, Services and what runs pods. Of a Gateway that is kept, one of them
	// that is gone may be made again: it needs nothing of what is missing.
	Skeleton []resource.Object
	// RelayPorts are the ports that relays may have; the zero range where nobody makes dataplanes here.
	RelayPorts config.PortRange
	// KeepReplicas means that the number of pods stays as it is when the Deployment says none any more.
	KeepReplicas bool
	// Status is the whole status of the Gateway.
	Status gwapiv1.GatewayStatus
	// OverBudget lists the routes that are not served because they exceed a budget. The provider puts it into the view for the translation of the routes.
	OverBudget *resource.OverBudget
	// Demand is what the Gateway takes of what it shares with other Gateways.
	Demand Demand
	// Notes are remarks for the log and for events that fit no condition.
	Notes []string
}

// Managed tells whether the dataplanes of the Gateway are made here, and not by somebody else.
func (r Result) Managed() bool {
	return slices.ContainsFunc(r.Objects, func(o resource.Object) bool {
		switch o.(type) {
		case *appsv1.Deployment, *appsv1.DaemonSet:
			return true
		}
		return false
	})
}

// Demand is how many endpoints a Gateway has, as they are counted for a budget.
type Demand struct {
	// Wanted is what its routes ask for within its own budget, Given what it has.
	Wanted, Given int
	// PerNamespace is how many all Gateways of its namespace may have.
	PerNamespace int
}

// RouteResult is what becomes of one route.
type RouteResult struct {
	Route resource.RouteRef
	// Ours is false for a route that has no parent of ours, now or before: its status must not be touched.
	Ours bool
	// Parents is the whole list, other controllers' entries included.
	Parents []gwapiv1.RouteParentStatus
}

// ClassResult is what becomes of one GatewayClass.
type ClassResult struct {
	Class string
	// Ours is false for a class of another controller: it must not be touched.
	Ours   bool
	Status gwapiv1.GatewayClassStatus
}

// ConditionsResult is what becomes of an object whose status is a list of conditions: a GatewayConfig, a Dataplane, a StaticService.
type ConditionsResult struct {
	// Ours is false for an object that does not exist.
	Ours       bool
	Conditions []metav1.Condition
}
