package condition

import (
	"fmt"
	"strings"
)

// Problems of a Gateway and its listeners.

// AnnotationInvalid means that a port annotation is invalid.
func AnnotationInvalid(name string, err error) Finding {
	return finding(ReasonPending, "annotation %s: %v", name, err)
}

// NameInvalid means that the name of the Gateway is not a valid Service name.
func NameInvalid(name string) Finding {
	return finding(ReasonPending,
		"metadata.name: %q cannot be the name of a Service: use a DNS label of at most 59 characters that starts with "+
			"a letter", name)
}

// ConfigInvalid means that a dataplane would reject the config.
func ConfigInvalid(err error) Finding {
	return finding(ReasonPending, "the dataplane config would be refused: %v", err)
}

// NoValidListener means that no listener can be served.
func NoValidListener() Finding {
	return finding(ReasonListenersNotValid, "no listener can be served: see the conditions of the listeners")
}

// SomeListenersInvalid means that the named listeners cannot be served as specified.
func SomeListenersInvalid(names []string) Finding {
	return finding(ReasonListenersNotValid, "cannot be served as written: listener %s: see the conditions there",
		strings.Join(names, ", "))
}

// ListenersLost means that listeners that the existing system exposed by a Service cannot be served as specified, and
// that no config of this Gateway was published yet.
func ListenersLost(names []string, service string) Finding {
	return finding(
		ReasonListenersNotValid,
		"listener %s: cannot be served as written, and Service %s of the existing system exposes it: no config is published until it can be served, or is removed",
		strings.Join(names, ", "), service,
	)
}

// WorkloadTaken means that an older Gateway uses the Deployment or DaemonSet with this name. field is spec.workloadName
// of the Dataplane; if it is empty, the name is that of the Gateway.
func WorkloadTaken(dataplane, field, name, other string) Finding {
	if field == "" {
		return finding(ReasonPending,
			"metadata.name: %q is the workload of Gateway %s: use another name, or a Dataplane with another "+
				"spec.workloadName", name, other)
	}
	return finding(ReasonPending,
		"Dataplane %s: spec.workloadName: %q is the workload of Gateway %s: use another Dataplane",
		dataplane, name, other)
}

// AddressKind means that the type of the requested address is not supported.
func AddressKind(field, kind string) Finding {
	return finding(ReasonUnsupportedAddress, "%s: %q is not supported: use IPAddress or Hostname", field, kind)
}

// AddressValue means that the requested address is not an IP address.
func AddressValue(field, value string) Finding {
	return finding(ReasonAddressNotUsable, "%s: %q is no IP address: write one, or set type to Hostname", field, value)
}

// AddressSpecial means that the requested address, for example a loopback address, is not allowed in a Service.
func AddressSpecial(field, value string) Finding {
	return finding(ReasonAddressNotUsable, "%s: %q is an unspecified, loopback, link-local or multicast address, which no Service can have: "+
		"write one that clients reach", field, value)
}

// AddressNotAllowed means that the requested address is not in spec.allowedAddresses.
func AddressNotAllowed(field, value string) Finding {
	return finding(ReasonAddressNotUsable, "%s: %q is outside of spec.allowedAddresses of the GatewayConfig of the GatewayClass: leave it out, or have the range added there",
		field, value)
}

// AddressIsNoHostname means that the Gateway requests an IP address with the type of a host name.
func AddressIsNoHostname(field, value string) Finding {
	return finding(ReasonAddressNotUsable, "%s: %q is an IP address: use type IPAddress, or name a host", field, value)
}

// AddressNotGiven warns that the load balancer of a Service has not got requested IP addresses.
func AddressNotGiven(service string, missing []string) string {
	const format = "spec.addresses: the load balancer of Service %s has not got %s, and clients are told it all the same: " +
		"it must lead there, for example through a NAT; otherwise see the events of the Service"
	return fmt.Sprintf(format, service, strings.Join(missing, ", "))
}

// PortNotBalanced means that a load balancer reports an error for the port of a listener.
func PortNotBalanced(port int32, problem string) Finding {
	return finding(ReasonPending, "the load balancer does not serve port %d: %s", port, problem)
}

// AnnotationsTooLarge means that the annotations that are copied to generated objects exceed the limit of Kubernetes.
func AnnotationsTooLarge(size, limit int) Finding {
	return finding(ReasonPending, "metadata.annotations, spec.infrastructure.annotations and those of the GatewayConfig have %d bytes together, and are copied to objects that take %d: remove some",
		size, limit)
}

// Kept adds to the finding of a Gateway or a listener that what is published stays in use.
func Kept(f Finding) Finding {
	return finding(f.Reason, "%s; what was published before stays in force", f.Message)
}

// Unpublished adds to the finding of a Gateway that the operator publishes no config for it: it was never served, or
// the config from before a restart of the operator cannot be read.
func Unpublished(f Finding) Finding {
	return finding(f.Reason, "%s; no config is published", f.Message)
}

// NotAccepted is the finding of condition Programmed if condition Accepted is False.
func NotAccepted() Finding { return Finding{Reason: ReasonInvalid, Message: "not accepted"} }

// NoAddress means that listeners have no public address.
func NoAddress(listeners []string) Finding {
	return finding(ReasonAddressNotAssigned, "no public address: listener %s", strings.Join(listeners, ", "))
}

// ObjectRefused means that the API server rejects a generated object. problem is its error.
func ObjectRefused(object, problem string) Finding {
	return Kept(finding(ReasonInvalid, "the API server refuses %s: %s", object, problem))
}

// ListenerLost means that the new config is not published, because it would lack a listener that dataplanes may
// currently serve.
func ListenerLost(listener string) Finding {
	return finding(
		ReasonPending, "config is not published: listener %s was served before the operator started and cannot be now; "+
			"correct it or remove it", listener,
	)
}

// TakeOverWaits means that the pods of a Gateway were created by the operator of the existing STUNner, and may not be
// replaced before an annotation permits it.
func TakeOverWaits(workload, annotation string) Finding {
	return finding(
		ReasonPending, "%s was created by another operator, so its pods continue to run the config from there: set "+
			"annotation %s to true to replace them; their calls drain", workload, annotation,
	)
}

// ScalingRefused means that the API server rejects a generated object that is needed only to scale the pods.
func ScalingRefused(object, problem string) Finding {
	return finding(ReasonInvalid,
		"the API server refuses %s: %s; the Gateway is served, and scaled as before, if it was", object, problem)
}

// ExternalIPsRefused warns that the API server rejects spec.externalIPs of a Service.
func ExternalIPsRefused(object, problem string) string {
	return fmt.Sprintf("the API server refuses spec.externalIPs of %s, which does without: %s; annotation stunner.l7mp.io/disable-external-ips asks for none",
		object, problem)
}

// ListenerNoAddress means that the listener has no public address.
func ListenerNoAddress(exposed bool) Finding {
	if !exposed {
		return finding(ReasonPending,
			"not exposed: annotation stunner.l7mp.io/enable-mixed-protocol-lb is false and the first listener uses another transport")
	}
	return finding(ReasonPending,
		"no public address yet: the Service has neither a load balancer address nor a node port on a node with an external address")
}

// ListenerPending means that the listener is valid, but a problem of its Gateway prevents serving it.
func ListenerPending() Finding {
	return finding(ReasonPending, "the Gateway is not programmed: see its conditions")
}

// ListenerInvalid means that the listener cannot be served, for the reason in its other conditions.
func ListenerInvalid() Finding {
	return finding(ReasonInvalid, "cannot be served as written: see the other conditions")
}

// ProtocolUnknown means that the protocol is not supported.
func ProtocolUnknown(protocol, known string) Finding {
	return finding(ReasonUnsupportedProtocol, "protocol %q is not supported: use %s", protocol, known)
}

// PortInvalid means that the port is out of range.
func PortInvalid(port int32) Finding {
	return finding(ReasonPortUnavailable, "port %d is out of range: use 1 to 65535", port)
}

// PortConflict means that an earlier listener uses the port.
func PortConflict(network string, port int32, other string) Finding {
	return finding(ReasonProtocolConflict, "%s port %d is taken by listener %q: TURN-UDP and TURN-DTLS share the UDP ports, TURN-TCP and TURN-TLS the TCP ports",
		network, port, other)
}

// PortHeld means that another listener, which cannot be served as specified, keeps the port because its published
// config stays in use.
func PortHeld(network string, port int32, other string) Finding {
	return finding(
		ReasonProtocolConflict, "%s port %d is that of listener %q, which is served as it was published before: "+
			"correct or remove that listener, or use another port", network, port, other,
	)
}

// PortOfProcess means that the health check or metrics endpoint of the dataplane already uses the listener's port in
// the pod.
func PortOfProcess(port int32, use string) Finding {
	return finding(ReasonPortUnavailable, "tcp port %d of the pod is that of its %s: use another port, or another one in the pod with annotation stunner.l7mp.io/targetport",
		port, use)
}

// HostPortTaken means that another Gateway uses the port of the listener on the nodes. user is the part of that Gateway
// that uses it.
func HostPortTaken(network string, port int32, user string) Finding {
	return finding(ReasonPortUnavailable, "%s port %d of the nodes is that of %s, whose pods are in the host network too: "+
		"use another port, or keep the pods on different nodes with spec.affinity of two Dataplanes", network, port, user)
}

// HostPortLeft warns that the pods serve no probes or metrics, because another Gateway uses the port on the nodes. use is
// what the port is for.
func HostPortLeft(use string, port int32, user, annotation string) string {
	return fmt.Sprintf("the pods have no %s: tcp port %d of the nodes is that of %s, whose pods are in the host network "+
		"too: set annotation %s to another port, or keep the pods on different nodes with spec.affinity of two Dataplanes",
		use, port, user, annotation)
}

// NameConflict means that an earlier listener has the same name.
func NameConflict(name string) Finding {
	return finding(ReasonProtocolConflict,
		"another listener is called %q as well: only the first one is served; rename the other", name)
}

// PassthroughUnsupported means that tls.mode is not Terminate.
func PassthroughUnsupported(mode string) Finding {
	return finding(ReasonUnsupportedValue,
		"tls.mode %q is not supported: a TURN server terminates TLS itself; use Terminate", mode)
}

// RouteKinds means that allowedRoutes.kinds contains kinds other than UDPRoute.
func RouteKinds(kinds []string) Finding {
	return finding(ReasonInvalidRouteKinds,
		"allowedRoutes.kinds: %s cannot be attached to a TURN listener: use UDPRoute", strings.Join(kinds, ", "))
}

// CertificateMissing means that a TLS listener has no certificateRefs.
func CertificateMissing() Finding {
	return finding(ReasonInvalidCertificateRef, "tls.certificateRefs is empty: name a Secret with tls.crt and tls.key")
}

// CertificatesOverBudget means that the certificates of a listener do not fit into the config of its Gateway, or into
// the memory that the operator has for the namespace. needed is the size in bytes of the certificates up to this
// listener, limit is the maximum.
func CertificatesOverBudget(needed, limit int) Finding {
	return finding(ReasonInvalidCertificateRef, "tls.certificateRefs: the certificates of the Gateway take %d bytes up to this listener, and there is room for %d: name fewer Secrets, or give the operator more memory",
		needed, limit)
}

// CertificateKind means that a certificate reference does not name a Secret.
func CertificateKind(field, group, kind string) Finding {
	return finding(ReasonInvalidCertificateRef, "%s names a %s of group %q: name a Secret", field, kind, group)
}

// CertificateSecret means that the Secret of a certificate is missing or lacks a key.
func CertificateSecret(field, secret, problem string) Finding {
	return finding(ReasonInvalidCertificateRef, "%s: Secret %s %s", field, secret, problem)
}

// CertificateBroken means that certificate and key cannot be used. problem must not quote the content of the Secret.
func CertificateBroken(field, secret, problem string) Finding {
	return finding(ReasonInvalidCertificateRef, "%s: Secret %s holds no usable certificate: %s", field, secret, problem)
}

// AnnotationBoolean warns that the value of an annotation is neither true nor false.
func AnnotationBoolean(name, value string) string {
	return fmt.Sprintf("annotation %s: %.40q is neither true nor false: took it for absent", name, value)
}

// Noted adds warnings to the message of a finding.
func Noted(f Finding, notes []string) Finding {
	if f.Message != "" {
		notes = append([]string{f.Message}, notes...)
	}
	return Finding{Reason: f.Reason, Message: strings.Join(notes, "; ")}
}

// ServiceType warns that the requested Service type is not possible. taken is the type that is used instead.
func ServiceType(value, taken string) string {
	return fmt.Sprintf("annotation stunner.l7mp.io/service-type: %q is not possible: took %s", value, taken)
}
