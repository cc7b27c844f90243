package condition

import (
	"fmt"
	"strings"
)

// BalancerLimit warns that the load balancer of Services lacks a feature that the Gateway needs. The message is the
// sentence "BALANCER PROBLEM", followed by the remedy, which starts with a verb.
func BalancerLimit(services []string, balancer, problem, remedy string) Finding {
	return finding(ReasonWarning, "Service %s: %s %s", strings.Join(services, " and Service "), balancer, problem).
		remedy("%s", remedy)
}

// BalancerOf adds the page about the provider to the last remedy of condition LoadBalancerLimited. scheme is the
// beginning of spec.providerID if the provider was detected by the nodes, because their provider may differ from that
// of the load balancers. Otherwise scheme is empty.
func BalancerOf(f Finding, provider, scheme string) Finding {
	note := fmt.Sprintf("provider %s is described in docs/providers.md#%s", provider, provider)
	if scheme != "" {
		note += fmt.Sprintf(", and is that of the nodes (spec.providerID %s): set spec.loadBalancerProvider of the "+
			"GatewayConfig of the class if the load balancer is another one", scheme)
	}
	last := &f.Causes[len(f.Causes)-1]
	last.Remedy += "; " + note
	last.message += "; " + note
	return f
}
