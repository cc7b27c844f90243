package translate

import (
	"slices"

	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

func (d draft) listenerName(l *listener) string {
	return resource.KeyOf(d.gateway).String() + "/" + l.name()
}

// draft is what the steps of a translation have found out about a Gateway.
type draft struct {
	view    *resource.View
	opt     Options
	gateway *gwapiv1.Gateway
	// before is the status that the Gateway has.
	before     gwapiv1.GatewayStatus
	parameters parameters
	// owner is who all objects belong to.
	owner     manifest.Owner
	auth      config.Auth
	wishes    wishes
	listeners []*listener
	budget    stunnerv1.Budget
	admission *admission
	clusters  []config.Cluster
	named     []config.Cluster
	exposures []manifest.Exposure
	workload  resource.Object
	// notes are what people might not expect.
	notes []string
}

// names returns the names of the listeners that match, each one once.
func (d draft) names(match func(*listener) bool) []string {
	var names []string
	for _, l := range d.listeners {
		if match(l) && !slices.Contains(names, l.name()) {
			names = append(names, l.name())
		}
	}
	return names
}
