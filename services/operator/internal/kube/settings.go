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
	// Namespace is the operator's own namespace, which holds the Lease. Identity names this replica in the Lease.
	Namespace, Identity string
	// DiscoveryAddress and HealthAddress are the HOST:PORT of config discovery and of probes and metrics.
	DiscoveryAddress, HealthAddress string
	// ScalerAddress is the HOST:PORT of the KEDA external scaler; "" disables it.
	ScalerAddress string
	// DiscoveryAuth is AuthStrict, AuthPermissive or AuthOff.
	DiscoveryAuth string
	// DiscoveryReaders are the ServiceAccounts, NAMESPACE/NAME, that read the part of all configs that an auth service
	// needs. The suffix WholeConfigs grants whole configs.
	DiscoveryReaders []string
	// Address is the IP address of this replica's pod.
	Address string
	// TokenFile holds the token with which this replica reads the dataplane reports of the others.
	TokenFile string
	// Namespaces are the namespaces to watch; empty means all. Objects of other namespaces are treated as absent.
	Namespaces []string
	// Memory is the memory limit of the process in bytes; 0 means unknown. It bounds the number of endpoints of all
	// Gateways.
	Memory int64
	// Credentials names the Secret that the operator generates if it does not exist; "" generates none.
	Credentials string
	Options     translate.Options
	Log         *slog.Logger
}

// The values of Settings.DiscoveryAuth.
const (
	AuthStrict     = "strict"     // TLS and a token
	AuthPermissive = "permissive" // as strict; without a token, and over plain HTTP, configs without secrets
	AuthOff        = "off"        // plain HTTP without authentication
)

// WholeConfigs is the suffix of an account in Settings.DiscoveryReaders that reads whole configs. No ServiceAccount
// name may contain a colon.
const WholeConfigs = ":whole"

// discoveryService is the Service by which dataplanes reach the replicas, and discoveryPort the name of its port for
// config discovery. The Service has another port for KEDA.
const (
	discoveryService = "stunner-config-discovery"
	discoveryPort    = "cds"
)

// accountPrefix is the prefix of the user name of every ServiceAccount: system:serviceaccount:NAMESPACE:NAME.
const accountPrefix = "system:serviceaccount:"

// watchedNamespaces returns the namespaces to watch in the form of the cache options; nil means all.
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
