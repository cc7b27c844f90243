package condition

import (
	"fmt"
	"strings"
)

// What may be wrong with a Gateway and its listeners.

// AnnotationInvalid says that an annotation of ours cannot be read.
func AnnotationInvalid(name string, err error) Finding {
	return finding(ReasonPending, "annotation %s: %v", name, err)
}

// NameInvalid says that objects named after the Gateway could not be created.
func NameInvalid(name string) Finding {
	return finding(ReasonPending, "metadata.name: %q cannot be the name of a Service: use a DNS label of at most 59 characters", name)
}

// ConfigInvalid says that the translation made a config that a dataplane would refuse.
func ConfigInvalid(err error) Finding {
	return finding(ReasonPending, "the dataplane config would be refused: %v", err)
}

// NoValidListener says that no listener can be served.
func NoValidListener() Finding {
	return finding(ReasonListenersNotValid, "no listener can be served: see the conditions of the listeners")
}

// SomeListenersInvalid says that some listeners can be served and some cannot.
func SomeListenersInvalid(names []string) Finding {
	return finding(ReasonListenersNotValid, "cannot be served as written: listener %s: see the conditions there", strings.Join(names, ", "))
}

// WorkloadTaken says that two Gateways would have the same workload.
func WorkloadTaken(dataplane, name, other string) Finding {
	return finding(ReasonPending, "Dataplane %s: spec.workloadName: %q is the workload of Gateway %s: use another Dataplane", dataplane, name, other)
}

// AddressKind says that an address has a type that we cannot ask for.
func AddressKind(kind string) Finding {
	return finding(ReasonUnsupportedAddress, "spec.addresses[0].type: %q is not supported: use IPAddress or Hostname", kind)
}

// AddressValue says that an address is none.
func AddressValue(value string) Finding {
	return finding(ReasonAddressNotUsable, "spec.addresses[0].value: %q is no IP address: write one, or set type to Hostname", value)
}

// AddressSpecial says that an address is one that no Service can have.
func AddressSpecial(value string) Finding {
	return finding(ReasonAddressNotUsable, "spec.addresses[0].value: %q is an unspecified, loopback, link-local or multicast address, which no Service can have: "+
		"write one that clients reach", value)
}

// AddressNotAllowed says that Gateways may not ask for an address.
func AddressNotAllowed(field, value string) Finding {
	return finding(ReasonAddressNotUsable, "%s: %q is outside of spec.allowedAddresses of the GatewayConfig of the GatewayClass: leave it out, or have the range added there",
		field, value)
}

// AddressNotAssigned says that a Service has not got the address that its Gateway asks for.
func AddressNotAssigned(value string, listeners []string) Finding {
	return finding(ReasonAddressNotAssigned, "spec.addresses[0].value: the Service has not got %q: listener %s: see the events of the Service, or leave the address out",
		value, strings.Join(listeners, ", "))
}

// AddressesLeftOut warns that a Gateway asks for more than one address.
func AddressesLeftOut(n int) string {
	return fmt.Sprintf("spec.addresses: has %d entries, only the first one is asked for: use a Gateway for each address", n)
}

// AnnotationsTooLarge says that the annotations that are copied onto objects do not fit there.
func AnnotationsTooLarge(size, limit int) Finding {
	return finding(ReasonPending,
		"metadata.annotations, spec.infrastructure.annotations and those of the GatewayConfig have %d bytes together, and are copied to objects that take %d: remove some", size, limit)
}

// Kept says, after what is wrong with a Gateway or a listener, that nothing was changed.
func Kept(f Finding) Finding {
	return finding(f.Reason, "%s; what was published before stays in force", f.Message)
}

// NotAccepted says why a Gateway is not programmed that is not accepted.
func NotAccepted() Finding {
	return finding(ReasonInvalid, "not accepted: what was published before stays in force")
}

// NoAddress says that clients cannot find some listeners.
func NoAddress(listeners []string) Finding {
	return finding(ReasonAddressNotAssigned, "no public address: listener %s", strings.Join(listeners, ", "))
}

// ObjectRefused says that the API server does not take an object, with its words.
func ObjectRefused(object, problem string) Finding {
	return Kept(finding(ReasonInvalid, "the API server refuses %s: %s", object, problem))
}

// ScalingRefused says the same of an object that only scales the pods.
func ScalingRefused(object, problem string) Finding {
	return finding(ReasonInvalid, "the API server refuses %s: %s; the Gateway is served, and scaled as before, if it was", object, problem)
}

// ExternalIPsRefused warns that a Service does without its external addresses.
func ExternalIPsRefused(object, problem string) string {
	return fmt.Sprintf("the API server refuses spec.externalIPs of %s, which does without: %s; annotation stunner.l7mp.io/disable-external-ips asks for none", object, problem)
}

// ListenerNoAddress says that clients cannot find one listener.
func ListenerNoAddress(exposed bool) Finding {
	if !exposed {
		return finding(ReasonPending, "not exposed: annotation stunner.l7mp.io/enable-mixed-protocol-lb is false and the first listener uses another transport")
	}
	return finding(ReasonPending, "no public address yet: the Service has neither a load balancer address nor a node port on a node with an external address")
}

// ListenerPending says that the listener is fine and its Gateway is not.
func ListenerPending() Finding {
	return finding(ReasonPending, "the Gateway is not programmed: see its conditions")
}

// ListenerInvalid says that the listener cannot be served because of one of its other conditions.
func ListenerInvalid() Finding {
	return finding(ReasonInvalid, "cannot be served as written: see the other conditions")
}

// ProtocolUnknown says that a protocol is none of TURN.
func ProtocolUnknown(protocol, known string) Finding {
	return finding(ReasonUnsupportedProtocol, "protocol %q is not supported: use %s", protocol, known)
}

// PortInvalid says that a number is no port.
func PortInvalid(port int32) Finding {
	return finding(ReasonPortUnavailable, "port %d is out of range: use 1 to 65535", port)
}

// PortConflict says that another listener has the port.
func PortConflict(network string, port int32, other string) Finding {
	return finding(ReasonProtocolConflict, "%s port %d is taken by listener %q: TURN-UDP and TURN-DTLS share the UDP ports, TURN-TCP and TURN-TLS the TCP ports", network, port, other)
}

// PortHeld says that a listener has the port that cannot be served as it is written, and that stays as it was published.
func PortHeld(network string, port int32, other string) Finding {
	return finding(ReasonProtocolConflict, "%s port %d is that of listener %q, which is served as it was published before: mend or remove that listener, or use another port", network, port, other)
}

// PortOfProcess says that the process in the pod has the port for something else.
func PortOfProcess(port int32, use string) Finding {
	return finding(ReasonPortUnavailable, "tcp port %d of the pod is that of its %s: use another port, or another one in the pod with annotation stunner.l7mp.io/targetport", port, use)
}

// NameConflict says that another listener has the name.
func NameConflict(name string) Finding {
	return finding(ReasonProtocolConflict, "another listener is called %q as well: only the first one is served; rename the other", name)
}

// PassthroughUnsupported says that TLS is to be passed through.
func PassthroughUnsupported(mode string) Finding {
	return finding(ReasonUnsupportedValue, "tls.mode %q is not supported: a TURN server terminates TLS itself; use Terminate", mode)
}

// RouteKinds says that allowedRoutes.kinds names what cannot be attached.
func RouteKinds(kinds []string) Finding {
	return finding(ReasonInvalidRouteKinds, "allowedRoutes.kinds: %s cannot be attached to a TURN listener: use UDPRoute", strings.Join(kinds, ", "))
}

// CertificateMissing says that a TLS listener has no certificate.
func CertificateMissing() Finding {
	return finding(ReasonInvalidCertificateRef, "tls.certificateRefs is empty: name a Secret with tls.crt and tls.key")
}

// CertificateKind says that a certificate reference names something that is no Secret.
func CertificateKind(field, group, kind string) Finding {
	return finding(ReasonInvalidCertificateRef, "%s names a %s of group %q: name a Secret", field, kind, group)
}

// CertificateSecret says that the Secret of a certificate is missing or lacks a key.
func CertificateSecret(field, secret, problem string) Finding {
	return finding(ReasonInvalidCertificateRef, "%s: Secret %s %s", field, secret, problem)
}

// CertificateBroken says what keeps certificate and key from being used. It repeats nothing of the Secret.
func CertificateBroken(field, secret, problem string) Finding {
	return finding(ReasonInvalidCertificateRef, "%s: Secret %s holds no usable certificate: %s", field, secret, problem)
}

// AnnotationBoolean warns of an annotation that is neither true nor false.
func AnnotationBoolean(name, value string) string {
	return fmt.Sprintf("annotation %s: %.40q is neither true nor false: took it for absent", name, value)
}

// Noted says, of what is as it should be, what people might not expect.
func Noted(f Finding, notes []string) Finding {
	if f.Message != "" {
		notes = append([]string{f.Message}, notes...)
	}
	return Finding{Reason: f.Reason, Message: strings.Join(notes, "; ")}
}

// ServiceType warns that the wanted type of Service was not taken.
func ServiceType(value, taken string) string {
	return fmt.Sprintf("annotation stunner.l7mp.io/service-type: %q is not possible: took %s", value, taken)
}
