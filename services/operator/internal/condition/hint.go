package condition

// offloadHint is the remedy for media that is not forwarded in the kernel.
const offloadHint = "see forwarding in the kernel in docs/operate/kernel.md for the reason"

// roomHint is the remedy for an object that the operator has not read, because the objects of its namespace use up the
// namespace's memory.
const roomHint = "make it smaller, delete others of the namespace, or give the operator more memory"

// Remedy returns the remedy of causes that have none of their own, by the reason of the condition.
func Remedy(reason string) string { return hints[reason] }

// hints are the remedies of causes that have none of their own, by the reason of the condition.
var hints = map[string]string{
	ReasonAddressNotAssigned:    "see the events of the Service, or set spec.addresses of the Gateway",
	ReasonBackendNotFound:       "create the backend, or correct backendRefs of the route",
	ReasonBudgetExceeded:        "name fewer backends or ports, or raise spec.budget of the GatewayConfig",
	ReasonDataplaneNotFound:     "create the Dataplane, or name another one in spec.dataplane of the GatewayConfig",
	ReasonInvalid:               "correct the field that the message names; the operator retries",
	ReasonInvalidAnnotations:    "correct spec.loadBalancerServiceAnnotations of the GatewayConfig",
	ReasonInvalidAutoscaling:    "correct spec.autoscaling of the Dataplane",
	ReasonInvalidCertificateRef: "create the Secret with tls.crt and tls.key, or correct tls.certificateRefs",
	ReasonInvalidCredentials:    "correct the credentials of the GatewayConfig or its Secret",
	ReasonInvalidParameters:     "create the GatewayConfig, or correct parametersRef",
	ReasonInvalidPatch:          "correct spec.podTemplatePatch of the Dataplane",
	ReasonInvalidPrefix:         "write an IP address or a CIDR prefix in spec.prefixes",
	ReasonInvalidRealm:          "set spec.realm of the GatewayConfig to a DNS name",
	ReasonInvalidRevocation:     "correct the field of the Revocation that the message names",
	ReasonListenersNotValid:     "see the conditions of the listeners",
	ReasonNoMatchingParent:      "correct parentRefs of the route: name, namespace, sectionName and port",
	ReasonNotAllowed:            "set allowedRoutes.namespaces of the listener to All or to a Selector of the namespace of the route",
	ReasonPending:               "see the other conditions of the Gateway and the log of the operator",
	ReasonPortUnavailable:       "use another port for the listener",
	ReasonProtocolConflict:      "use another port for one of the two listeners",
	ReasonRefNotPermitted:       "create a ReferenceGrant in the namespace of the backend or Secret",
	ReasonSecretKeyNotFound:     "add the key to the Secret",
	ReasonSecretNotFound:        "create the Secret, or name another one in the GatewayConfig",
	ReasonUnsupportedValue:      "use a supported value",
	ReasonAddressNotUsable:      "use an address in spec.allowedAddresses of the GatewayConfig of the class, or leave it out",
	ReasonInvalidDenial:         "correct spec.deniedBackends of the GatewayConfig",
	ReasonInvalidKind:           "name a Service or a StaticService",
	ReasonInvalidRouteKinds:     "name UDPRoute in allowedRoutes.kinds, or leave the field out",
	ReasonKEDAMissing:           "install KEDA, or remove spec.autoscaling from the Dataplane",
	ReasonMetricsOff:            "set spec.enableMetricsEndpoint of the Dataplane to true",
	ReasonOneHost:               "remove spec.autoscaling from the Dataplane",
	ReasonUnsupportedAddress:    "use type IPAddress or Hostname",
	ReasonUnsupportedProtocol:   "use TURN-UDP, TURN-TCP, TURN-TLS or TURN-DTLS",
}
