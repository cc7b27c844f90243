package condition

import (
	"strings"
)

// Warnings about input that has no effect, in condition InputIgnored or in the notes of a Gateway.

// LogLevelIgnored means that parts of the log level have no effect.
func LogLevelIgnored(parts []string) Finding {
	return finding(ReasonWarning, "spec.logLevel has no effect in the parts %q", parts).about("spec.logLevel").
		remedy("write SCOPE:LEVEL, such as all:DEBUG; the levels are TRACE, DEBUG, INFO, WARN, ERROR and DISABLE")
}

// HostNamesIgnored warns that EndpointSlices of backends contain host names, which are not resolved.
func HostNamesIgnored() Finding {
	return finding(ReasonWarning, "EndpointSlices with addressType FQDN are left out, because their host names are not resolved").
		remedy("use EndpointSlices with addresses, or run the operator with --endpoint-discovery=false")
}

// TrafficPolicyIgnored warns that the value of an annotation is not a traffic policy.
func TrafficPolicyIgnored(annotation, value string) Finding {
	return finding(ReasonWarning, "%.40q is neither Local nor Cluster, and has no effect", value).at("annotation " + annotation).
		remedy("use one of them")
}

// PortsIgnored warns that a port annotation names listeners that the Gateway does not have.
func PortsIgnored(annotation string, names []string) Finding {
	return finding(ReasonWarning, "%.100q: no listener has this name, so that its port has no effect", strings.Join(names, ", ")).
		at("annotation " + annotation).
		remedy("use the name of a listener")
}

// TLSAtBalancerIgnored warns that the annotation about TLS termination at a load balancer contains names that are not
// names of TURN-TCP listeners.
func TLSAtBalancerIgnored(annotation string, names []string) Finding {
	return finding(ReasonWarning, "%.100q: no TURN-TCP listener has this name, so that it has no effect", strings.Join(names, ", ")).
		at("annotation " + annotation).
		remedy("use names of TURN-TCP listeners, separated by commas, or leave it out")
}

// ChainIncomplete warns that a certificate can be used, but that clients may reject it.
func ChainIncomplete(listener, field, secret, problem string) Finding {
	return finding(ReasonWarning, "Secret %s: %s", secret, problem).at(field).ofListener(listener).
		hint("put the certificate of the server first in tls.crt, and those of its issuers behind it")
}
