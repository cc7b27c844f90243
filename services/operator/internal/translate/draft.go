package translate

import (
	"slices"

	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// draft collects the intermediate results of the function Gateway.
type draft struct {
	view    *resource.View
	opt     Options
	gateway *gwapiv1.Gateway
	// before is the current status of the Gateway.
	before      gwapiv1.GatewayStatus
	parameters  parameters
	owner       manifest.Owner
	auth        config.Auth
	annotations annotations
	listeners   []*listener
	// unknownPorts means that an older Gateway, whose parameters cannot be resolved, may use the ports of the probes or
	// the metrics, see leaveUnknownPorts.
	unknownPorts bool
	admission    *admission
	clusters     []config.Cluster
	// named is Result.Named.
	named     []config.Cluster
	exposures []manifest.Exposure
	// workload is the Deployment or DaemonSet; nil if the operator does not manage the dataplane.
	workload resource.Object
	// notes is Result.Notes.
	notes []condition.Finding
	// findings are the problems found while the draft is built. gatewayRules determine which of them the status shows.
	findings struct{ parameters, auth, annotations, workload condition.Finding }
}

// listenerName returns the name of a listener in the config.
func (d draft) listenerName(l *listener) string {
	return resource.KeyOf(d.gateway).String() + "/" + l.name()
}

// listenerNames returns the names of the listeners for which match returns true, without duplicates.
func (d draft) listenerNames(match func(*listener) bool) []string {
	var names []string
	for _, l := range d.listeners {
		if match(l) && !slices.Contains(names, l.name()) {
			names = append(names, l.name())
		}
	}
	return names
}
