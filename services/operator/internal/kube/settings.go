package kube

import (
	"log/slog"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// Settings configure an operator in a cluster.
type Settings struct {
	// Config is the connection to the API server.
	Config *rest.Config
	// Namespace is the operator's own namespace, which contains the Lease. Identity is the name of this replica in the
	// Lease.
	Namespace, Identity string
	// DiscoveryAddress is the listen address HOST:PORT of config discovery. HealthAddress is the listen address of
	// probes and metrics.
	DiscoveryAddress, HealthAddress string
	// ScalerAddress is the listen address HOST:PORT of the KEDA external scaler; "" disables it.
	ScalerAddress string
	// DiscoveryAuth is AuthStrict, AuthPodAddress, AuthPermissive or AuthOff.
	DiscoveryAuth string
	// DiscoveryReaders are the ServiceAccounts, as NAMESPACE/NAME, that may read from all configs the part that an auth
	// service needs. With the suffix WholeConfigs, a ServiceAccount may read whole configs.
	DiscoveryReaders []string
	// Address is the IP address of this replica's pod.
	Address string
	// TokenFile is a file with the token that this replica uses to read the dataplane reports of other replicas.
	TokenFile string
	// Namespaces are the namespaces to watch; empty means all. Objects of other namespaces are treated as absent.
	Namespaces []string
	// Memory is the memory limit of the process in bytes; 0 means unknown. It determines how many endpoints all
	// Gateways together may have.
	Memory int64
	// Credentials is the name of the Secret with TURN credentials that the operator generates if it does not exist;
	// with "", no Secret is generated.
	Credentials string
	Options     translate.Options
	Log         *slog.Logger
}

// The values of Settings.DiscoveryAuth.
const (
	AuthStrict     = "strict"      // TLS and a token
	AuthPodAddress = "pod-address" // like AuthStrict, but dataplane pods need no token and no TLS, only their address
	AuthPermissive = "permissive"  // like AuthStrict, but clients without a token or TLS get configs without secrets
	AuthOff        = "off"         // plain HTTP without authentication
)

// WholeConfigs is the suffix of a ServiceAccount in Settings.DiscoveryReaders that may read whole configs. It is
// unambiguous, because the name of a ServiceAccount cannot contain a colon.
const WholeConfigs = ":whole"

const (
	// discoveryService is the Service through which dataplanes and KEDA reach the replicas.
	discoveryService = "stunner-config-discovery"
	// discoveryPort is the name of the port for config discovery in the Service discoveryService, which has another
	// port for KEDA.
	discoveryPort = "cds"
)

// accountPrefix is the prefix of the user name of every ServiceAccount: system:serviceaccount:NAMESPACE:NAME.
const accountPrefix = "system:serviceaccount:"

// watchedNamespaces returns the namespaces to watch, in the format of cache.Options; nil means all.
func (s Settings) watchedNamespaces() map[string]cache.Config {
	if len(s.Namespaces) == 0 {
		return nil
	}
	namespaces := map[string]cache.Config{}
	for _, namespace := range s.Namespaces {
		namespaces[namespace] = cache.Config{}
	}
	return namespaces
}
