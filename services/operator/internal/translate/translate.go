// Package translate computes what Gateway API objects mean. The translation of a Gateway yields its dataplane config,
// its Kubernetes objects and its status; the translation of a UDPRoute, a GatewayClass, a GatewayConfig, a Dataplane or
// a StaticService yields a status.
//
// The package is pure and returns no errors: a problem becomes a condition on the object that has it. While a problem
// makes the config of a Gateway doubtful, Result.Hold is true and everything that was published stays.
//
// A problem of a single listener holds that listener only, see held.go. gatewayrules.go lists the problems that hold
// the whole Gateway.
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

// DefaultControllerName is the controller name of the GatewayClasses that the operator implements.
const DefaultControllerName = "stunner.l7mp.io/gateway-operator"

// Options are the inputs of a translation that are not objects.
type Options struct {
	// ControllerName is the controller name of the GatewayClasses that the operator implements.
	ControllerName string
	// EndpointDiscovery translates a Service to its endpoints and its cluster IP. If it is false, a Service becomes its
	// DNS name.
	EndpointDiscovery bool
	// ClusterDomain is the DNS domain of the cluster.
	ClusterDomain string
	// DiscoveryAddress is the URL of config discovery in generated pods. Its host is the DNS name of a Service: a pod
	// IP would change with every restart of the operator, and with it every pod template.
	DiscoveryAddress string
	// DiscoverySecured makes generated pods authenticate to config discovery with a token, and verify its certificate.
	DiscoverySecured bool
	// ScalerAddress is the address HOST:PORT of the operator's external scaler for KEDA. DiscoverySecured applies to it
	// as well.
	ScalerAddress string
	// Image is the dataplane image of a Dataplane without spec.image.
	Image string
	// OwnConfigs limits the GatewayConfigs that Gateways refer to themselves.
	OwnConfigs OwnConfigs
	// TrustClassSecrets lets a GatewayConfig that a GatewayClass refers to read Secrets of other namespaces without a
	// ReferenceGrant.
	TrustClassSecrets bool
	// Partial means that the view holds some namespaces only.
	Partial bool
	// Published is the config that is served for the Gateway now, nil if there is none. Held listeners keep the form
	// that they have in it, and routes over budget keep those of its endpoints that they still lead to.
	Published *config.Config
	// Room is the part of the shared budgets that is left for this Gateway. The zero value leaves all of its own
	// budget.
	Room Room
	// Now is the transition time of conditions that change.
	Now metav1.Time
}

// Room is the number of endpoints that a Gateway may have beside other Gateways.
type Room struct {
	// Namespace is the number of endpoints of the older Gateways in the namespace.
	Namespace int
	// Operator is the number of endpoints that the operator's memory allows for this Gateway. It counts only if Bounded
	// is true.
	Operator int
	Bounded  bool
}

// OwnConfigs limits the GatewayConfigs that Gateways refer to themselves, in spec.infrastructure.parametersRef. The
// zero value means OwnConfigsRestricted.
type OwnConfigs string

// The values of OwnConfigs.
const (
	// OwnConfigsDeny refuses Gateways that refer to a GatewayConfig.
	OwnConfigsDeny OwnConfigs = "deny"
	// OwnConfigsRestricted lets such a GatewayConfig narrow that of the GatewayClass, and never widen it.
	OwnConfigsRestricted OwnConfigs = "restricted"
	// OwnConfigsAllow lets such a GatewayConfig replace that of the GatewayClass, except for the fields that are
	// reserved to the class.
	OwnConfigsAllow OwnConfigs = "allow"
)

// DefaultOptions returns the options of an operator without flags.
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
	// Ours is false if the Gateway does not exist or if its class belongs to another controller. All other fields are
	// then zero.
	Ours bool
	// Hold means that the published config and objects must stay as they are. Config and Objects are then nil.
	Hold bool
	// Config is the dataplane config to publish. It contains a held listener in the form that was published before, if
	// there is one.
	Config *config.Config
	// Named are the clusters of Config with the DNS names of Services in place of their addresses, for the ConfigMap.
	Named []config.Cluster
	// HeldListeners are the names, as in a config, of the listeners that cannot be served as they are written.
	HeldListeners []string
	// Objects are all objects that the Gateway needs, sorted by kind and name. An object of the Gateway that is not
	// listed is obsolete.
	Objects []resource.Object
	// Skeleton are the objects that do not depend on the config: Services, and the Deployment or DaemonSet. If Hold is
	// true, those of them that do not exist may be created, and those that exist must not be changed.
	Skeleton []resource.Object
	// RelayPorts is the port range of relays; zero if the operator does not manage the dataplane.
	RelayPorts config.PortRange
	// KeepReplicas means that the Deployment must keep its number of replicas when the operator stops setting it.
	KeepReplicas bool
	// Status is the whole status of the Gateway.
	Status gwapiv1.GatewayStatus
	// OverBudget lists the routes that are not served because they exceed a budget. The provider puts it into the view,
	// where the translation of the routes reads it.
	OverBudget *resource.OverBudget
	// Demand is the Gateway's part of the budgets that it shares with other Gateways.
	Demand Demand
	// Notes are warnings for logs and events that are not conditions.
	Notes []string
}

// Managed reports whether the operator manages the dataplane pods of the Gateway.
func (r Result) Managed() bool {
	return slices.ContainsFunc(r.Objects, func(o resource.Object) bool {
		switch o.(type) {
		case *appsv1.Deployment, *appsv1.DaemonSet:
			return true
		}
		return false
	})
}

// Demand is the number of endpoints of a Gateway, counted as in a budget.
type Demand struct {
	// Wanted is the number of endpoints that fit the Gateway's own budget, Given the number that it has.
	Wanted, Given int
	// PerNamespace is the limit for all Gateways of the namespace.
	PerNamespace int
}
