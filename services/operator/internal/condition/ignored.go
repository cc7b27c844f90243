package condition

import (
	"fmt"
	"strings"
)

// Warnings about input without effect: of condition InputIgnored, and the notes of a Gateway.

// LogLevelIgnored means that parts of the log level have no effect.
func LogLevelIgnored(parts []string) Finding {
	remedy := "write SCOPE:LEVEL, such as all:DEBUG; the levels are TRACE, DEBUG, INFO, WARN, ERROR and DISABLE"
	return finding(ReasonWarning, "spec.logLevel has no effect in the parts %q: %s", parts, remedy)
}

// HostNamesIgnored warns that EndpointSlices of backends contain host names, which are not resolved.
const HostNamesIgnored = "EndpointSlices with addressType FQDN are left out, because their host names are not resolved: " +
	"use EndpointSlices with addresses, or run the operator with --endpoint-discovery=false"

// TrafficPolicyIgnored warns that the value of an annotation is no traffic policy.
func TrafficPolicyIgnored(annotation, value string) string {
	return fmt.Sprintf("annotation %s: %.40q is neither Local nor Cluster, and has no effect: use one of them", annotation, value)
}

// PortsIgnored warns that a port annotation names listeners that the Gateway does not have.
func PortsIgnored(annotation string, names []string) string {
	return fmt.Sprintf("annotation %s: %.100q: no listener has this name, so that its port has no effect: use the name of a listener",
		annotation, strings.Join(names, ", "))
}

// ChainIncomplete warns that a certificate can be used, but that clients may reject it.
func ChainIncomplete(listener, field, secret, problem string) string {
	return fmt.Sprintf("listener %s: %s: Secret %s: %s", listener, field, secret, problem)
}
