package condition

import (
	"errors"
	"slices"
	"strings"

	api "github.com/stunner-gateway/stunner/services/api/finding"
)

// Problems of a Gateway and its listeners.

// AnnotationInvalid means that an annotation about ports or about a load balancer is invalid.
func AnnotationInvalid(name string, err error) Finding {
	return finding(ReasonPending, "").hint("correct the annotation").explain(err).at("annotation " + name)
}

// NameInvalid means that the name of the Gateway is not a valid Service name.
func NameInvalid(name string) Finding {
	return finding(ReasonPending, "%q cannot be the name of a Service", name).at("metadata.name").
		remedy("use a DNS label of at most 59 characters that starts with a letter")
}

// ConfigInvalid means that a dataplane would reject the config.
func ConfigInvalid(err error) Finding {
	return finding(ReasonPending, "the dataplane config would be refused: ").explain(err)
}

// NoValidListener means that no listener can be served.
func NoValidListener() Finding {
	return finding(ReasonListenersNotValid, "no listener can be served").
		remedy("see the conditions of the listeners")
}

// SomeListenersInvalid means that the named listeners cannot be served as specified.
func SomeListenersInvalid(names []string) Finding {
	return finding(ReasonListenersNotValid, "cannot be served as written: listener %s", strings.Join(names, ", ")).
		remedy("see the conditions there")
}

// ListenersLost means that listeners that the existing system exposed by a Service cannot be served as specified, and
// that no config of this Gateway was published yet.
func ListenersLost(names []string, service string) Finding {
	return finding(ReasonListenersNotValid, "listener %s: cannot be served as written, and Service %s of the existing system exposes it: no config is published until it can be served, or is removed", strings.Join(names, ", "), service)
}

// WorkloadTaken means that an older Gateway uses the Deployment or DaemonSet with this name. field is spec.workloadName
// of the Dataplane; if it is empty, the name is that of the Gateway.
func WorkloadTaken(dataplane, field, name, other string) Finding {
	if field == "" {
		return finding(ReasonPending, "%q is the workload of Gateway %s", name, other).at("metadata.name").
			remedy("use another name, or a Dataplane with another spec.workloadName")
	}
	return finding(ReasonPending, "%q is the workload of Gateway %s", name, other).at("spec.workloadName").in("Dataplane", dataplane).
		remedy("use another Dataplane")
}

// AddressKind means that the type of the requested address is not supported.
func AddressKind(field, kind string) Finding {
	return finding(ReasonUnsupportedAddress, "%q is not supported", kind).at(field).
		remedy("use IPAddress or Hostname")
}

// AddressValue means that the requested address is not an IP address.
func AddressValue(field, value string) Finding {
	return finding(ReasonAddressNotUsable, "%q is no IP address", value).at(field).
		remedy("write one, or set type to Hostname")
}

// AddressSpecial means that the requested address, for example a loopback address, is not allowed in a Service.
func AddressSpecial(field, value string) Finding {
	return finding(ReasonAddressNotUsable, "%q is an unspecified, loopback, link-local or multicast address, which no Service can have", value).at(field).
		remedy("write one that clients reach")
}

// AddressNotAllowed means that the requested address is not in spec.allowedAddresses.
func AddressNotAllowed(field, value, config string) Finding {
	return finding(ReasonAddressNotUsable, "%q is outside of spec.allowedAddresses of the GatewayConfig of the GatewayClass", value).at(field).
		dependsOn("GatewayConfig", config).
		remedy("leave it out, or have the range added there")
}

// AddressIsNoHostname means that the Gateway requests an IP address with the type of a host name.
func AddressIsNoHostname(field, value string) Finding {
	return finding(ReasonAddressNotUsable, "%q is an IP address", value).at(field).
		remedy("use type IPAddress, or name a host")
}

// AddressNotGiven warns that the load balancer of a Service has not got requested IP addresses.
func AddressNotGiven(service string, missing []string) Finding {
	return finding(ReasonWarning,
		"the load balancer of Service %s has not got %s, and clients are told it all the same", service, strings.Join(missing, ", "),
	).at("spec.addresses").
		remedy("it must lead there, for example through a NAT; otherwise see the events of the Service")
}

// PortNotBalanced means that a load balancer reports an error for the port of a listener.
func PortNotBalanced(port int32, problem string) Finding {
	return finding(ReasonPending, "the load balancer does not serve port %d: %s", port, problem)
}

// AnnotationsTooLarge means that the annotations that are copied to generated objects exceed the limit of Kubernetes.
func AnnotationsTooLarge(size, limit int) Finding {
	return finding(ReasonPending, "metadata.annotations, spec.infrastructure.annotations and those of the GatewayConfig have %d bytes together, and are copied to objects that take %d", size, limit).
		remedy("remove some")
}

// MetadataTooLong means that the labels and annotations to copy to generated objects exceed the limit of the operator.
func MetadataTooLong(number, limit int) Finding {
	return finding(ReasonPending, "metadata, spec.infrastructure and the GatewayConfig have %d labels and annotations together, and at most %d are copied to objects", number, limit).
		remedy("remove some")
}

// Kept adds to the finding of a Gateway or a listener that the published config stays in use.
func Kept(f Finding) Finding {
	return f.noted("what was published before stays in force")
}

// Unpublished adds to the finding of a Gateway that the operator publishes no config for it: it was never served, or
// the config from before a restart of the operator cannot be read.
func Unpublished(f Finding) Finding {
	return f.noted("no config is published")
}

// NotAccepted means that condition Accepted is False, so that condition Programmed is False too.
func NotAccepted() Finding {
	return finding(ReasonInvalid, "not accepted").hint("see condition Accepted")
}

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
	return finding(ReasonPending, "config is not published: listener %s was served before the operator started and cannot be now", listener).
		advice("correct it or remove it")
}

// TakeOverWaits means that the pods of a Gateway were created by the operator of the existing STUNner, and may not be
// replaced before an annotation permits it.
func TakeOverWaits(workload, annotation string) Finding {
	return finding(ReasonPending, "%s was created by another operator, so its pods continue to run the config from there", workload).
		remedy("set annotation %s to true to replace them; their calls drain", annotation)
}

// ScalingRefused means that the API server rejects a generated object that is needed only to scale the pods.
func ScalingRefused(object, problem string) Finding {
	return finding(ReasonInvalid, "the API server refuses %s: %s; the Gateway is served, and scaled as before, if it was", object, problem)
}

// ExternalIPsRefused warns that the API server rejects spec.externalIPs of a Service.
func ExternalIPsRefused(object, problem string) Finding {
	return finding(ReasonWarning,
		"the API server refuses spec.externalIPs of %s, which does without: %s", object, problem,
	).advice("annotation stunner.l7mp.io/disable-external-ips asks for none")
}

// ListenerNoAddress means that the listener has no public address. cause is one of the errors below.
func ListenerNoAddress(exposed bool, cause error) Finding {
	if !exposed {
		return finding(ReasonPending, "not exposed: annotation stunner.l7mp.io/enable-mixed-protocol-lb is false and the first listener uses another transport").
			hint("remove the annotation, or use a Gateway for each transport")
	}
	return finding(ReasonPending, "no public address yet: ").explain(cause)
}

// The causes why an exposed listener has no public address.
var (
	ErrNoServiceAddress = errors.New(
		"the Service has neither a load balancer address nor a node port on a node with an external address",
	)
	ErrNoOuterAddress = api.Errorf("set spec.addresses to the address that leads to it",
		"clients outside of the cluster do not reach a Service of type ClusterIP")
	ErrNoExternalNode = api.Errorf("if clients reach those, set nodeAddresses to ExternalOrInternal in the GatewayConfig of "+
		"the GatewayClass, or else set spec.addresses to the address that leads to the node port",
		"the nodes have internal addresses only")
	ErrNoSingleNode = api.Errorf("set spec.addresses to the addresses of those with pods",
		"the pods run in the network of the nodes, and the cluster has several")
)

// ListenerPending means that the listener is valid, but a problem of its Gateway prevents serving it.
func ListenerPending() Finding {
	return finding(ReasonPending, "the Gateway is not programmed").
		remedy("see its conditions")
}

// ListenerInvalid means that the listener cannot be served, for the reason in its other conditions.
func ListenerInvalid() Finding {
	return finding(ReasonInvalid, "cannot be served as written").
		remedy("see the other conditions")
}

// ProtocolUnknown means that the protocol is not supported.
func ProtocolUnknown(protocol, known string) Finding {
	return finding(ReasonUnsupportedProtocol, "protocol %q is not supported", protocol).about("protocol").
		remedy("use %s", known)
}

// PortInvalid means that the port is out of range.
func PortInvalid(port int32) Finding {
	return finding(ReasonPortUnavailable, "port %d is out of range", port).about("port").
		remedy("use 1 to 65535")
}

// PortConflict means that an earlier listener uses the port.
func PortConflict(network string, port int32, other string) Finding {
	return finding(ReasonProtocolConflict, "%s port %d is taken by listener %q: TURN-UDP and TURN-DTLS share the UDP ports, TURN-TCP and TURN-TLS the TCP ports", network, port, other).about("port")
}

// PortHeld means that two listeners of the spec have the same port, which the published config gives to the other
// listener.
func PortHeld(network string, port int32, other string) Finding {
	return finding(ReasonProtocolConflict, "%s port %d is that of listener %q, which is served as it was published before", network, port, other).about("port").
		remedy("correct or remove that listener, or use another port")
}

// PortOfProcess means that the health or metrics endpoint of the dataplane uses the port of the listener in the pod.
func PortOfProcess(port int32, use string) Finding {
	return finding(ReasonPortUnavailable, "tcp port %d of the pod is that of its %s", port, use).about("port").
		remedy("use another port, or another one in the pod with annotation stunner.l7mp.io/targetport")
}

// HostPortTaken means that another Gateway uses the port of the listener on the nodes. user is the listener or endpoint
// of that Gateway that has the port.
func HostPortTaken(network string, port int32, user string) Finding {
	return finding(ReasonPortUnavailable, "%s port %d of the nodes is that of %s, whose pods are in the host network too", network, port, user).about("port").
		remedy("use another port, or keep the pods on different nodes with spec.affinity of two Dataplanes")
}

// HostPortLeft warns that the pods serve no probes or metrics, because another Gateway uses the port on the nodes. use
// is the purpose of the port.
func HostPortLeft(use string, port int32, user, annotation string) Finding {
	return finding(ReasonWarning,
		"the pods have no %s: tcp port %d of the nodes is that of %s, whose pods are in the host network too", use, port, user,
	).remedy("set annotation %s to another port, or keep the pods on different nodes with spec.affinity of two Dataplanes", annotation)
}

// UnknownPortLeft warns that the pods serve no probes or metrics, because another Gateway, whose parameters are not
// known, may use their port. use is the purpose of the port, user the other Gateway with its use.
func UnknownPortLeft(use string, port int32, user, annotation string) Finding {
	return finding(ReasonWarning,
		"the pods have no %s: tcp port %d of the nodes may be that of %s, whose GatewayConfig or Dataplane cannot be used", use, port, user,
	).remedy("set annotation %s to another port, or correct that Gateway", annotation)
}

// HeldPortLeft warns that the pods serve no probes or metrics, because a listener whose published config stays in use
// has their port in the pod. use is the purpose of the port, user the listener.
func HeldPortLeft(use string, port int32, user, annotation string) Finding {
	return finding(ReasonWarning,
		"the pods have no %s: tcp port %d of the pod is that of %s, which stays as it was published", use, port, user,
	).remedy("set annotation %s to another port", annotation)
}

// NameConflict means that an earlier listener has the same name.
func NameConflict(name string) Finding {
	return finding(ReasonProtocolConflict, "another listener is called %q as well: only the first one is served", name).about("name").
		advice("rename the other")
}

// PassthroughUnsupported means that tls.mode is not Terminate.
func PassthroughUnsupported(mode string) Finding {
	return finding(ReasonUnsupportedValue, "tls.mode %q is not supported: a TURN server terminates TLS itself", mode).about("tls.mode").
		advice("use Terminate")
}

// RouteSelectorInvalid means that allowedRoutes.namespaces.selector cannot be read, so that the operator cannot
// determine which routes the listener allows.
func RouteSelectorInvalid(err error) Finding {
	return finding(ReasonUnsupportedValue, "allowedRoutes.namespaces.selector is invalid: %v", err).about("allowedRoutes.namespaces.selector").
		remedy("correct the selector")
}

// RouteKinds means that allowedRoutes.kinds contains kinds other than UDPRoute.
func RouteKinds(kinds []string) Finding {
	return finding(ReasonInvalidRouteKinds, "%s cannot be attached to a TURN listener", strings.Join(kinds, ", ")).at("allowedRoutes.kinds").
		remedy("use UDPRoute")
}

// CertificateMissing means that a TLS listener has no certificateRefs.
func CertificateMissing() Finding {
	return finding(ReasonInvalidCertificateRef, "tls.certificateRefs is empty").about("tls.certificateRefs").
		remedy("name a Secret with tls.crt and tls.key")
}

// CertificatesOverBudget means that the certificates of a listener do not fit into the config of its Gateway, or into
// the memory that the operator has for the namespace. needed is the size in bytes of the certificates up to this
// listener, limit is the maximum.
func CertificatesOverBudget(needed, limit int) Finding {
	return finding(ReasonInvalidCertificateRef, "the certificates of the Gateway take %d bytes up to this listener, and there is room for %d", needed, limit).at("tls.certificateRefs").
		remedy("name fewer Secrets, or give the operator more memory")
}

// CertificateKind means that a certificate reference does not name a Secret.
func CertificateKind(field, group, kind string) Finding {
	return finding(ReasonInvalidCertificateRef, "%s names a %s of group %q", field, kind, group).about(field + ".kind").
		remedy("name a Secret")
}

// CertificateSecret means that the Secret of a certificate lacks a key.
func CertificateSecret(field, secret, problem string) Finding {
	return finding(ReasonInvalidCertificateRef, "Secret %s %s", secret, problem).at(field).part("name")
}

// CertificateSecretUnread means that the operator has not read the Secret of a certificate, because the objects of its
// namespace use up the namespace's memory.
func CertificateSecretUnread(field, secret, reason string) Finding {
	return finding(ReasonInvalidCertificateRef, "Secret %s was not read: %s", secret, reason).at(field).part("name").
		advice(roomHint)
}

// CertificateSecretMissing means that the Secret of a certificate does not exist.
func CertificateSecretMissing(field, secret string) Finding {
	return CertificateSecret(field, secret, "does not exist").dependsOn("Secret", secret)
}

// CertificateBroken means that certificate and key cannot be used. problem must not quote the content of the Secret.
func CertificateBroken(field, secret, problem string) Finding {
	return finding(ReasonInvalidCertificateRef, "Secret %s holds no usable certificate: %s", secret, problem).at(field).part("name")
}

// AnnotationBoolean warns that the value of an annotation is neither true nor false.
func AnnotationBoolean(name, value string) Finding {
	return finding(ReasonWarning, "%.40q is neither true nor false: took it for absent", value).at("annotation " + name).
		hint("write true or false")
}

// Noted adds texts to the message of a finding that are not a part of its problem.
func Noted(f Finding, notes []Finding) Finding { return f.noted(Messages(notes)...) }

// Messages returns the messages of findings.
func Messages(all []Finding) (texts []string) {
	for _, f := range all {
		texts = append(texts, f.Message())
	}
	return texts
}

func (f Finding) noted(texts ...string) Finding {
	f.notes = slices.Concat(f.notes, texts)
	return f
}

// ServiceType warns that the requested Service type is not possible. The Service has the type taken instead.
func ServiceType(value, taken string) Finding {
	return finding(ReasonWarning, "%q is not possible: took %s", value, taken).at("annotation stunner.l7mp.io/service-type").
		hint("write LoadBalancer, NodePort or ClusterIP")
}
