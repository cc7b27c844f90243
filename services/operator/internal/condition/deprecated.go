package condition

// Warnings of condition DeprecatedInput: notations that are accepted only for migration from the existing system.

// ProtocolWarning means that the protocol of a listener is a short name. read is the protocol that is served.
func ProtocolWarning(protocol, read string) Finding {
	return finding(ReasonWarning, "protocol %q is read as %s", protocol, read).about("protocol").
		remedy("write protocol: %s", read)
}

// GrantWarning means that a listener uses a Secret of another namespace without a ReferenceGrant.
func GrantWarning(field, from, namespace, secret string) Finding {
	return finding(ReasonWarning, "Secret %s/%s is used without a ReferenceGrant because of spec.legacyGrants of the GatewayConfig", namespace, secret).at(field).part("name").
		remedy("create in namespace %s a ReferenceGrant with from: {group: gateway.networking.k8s.io, kind: Gateway, namespace: %s} and to: {group: \"\", kind: Secret, name: %s}", namespace, from, secret)
}

// LegacyGrantsWarning means that spec.legacyGrants of a GatewayConfig is set. ofClass says that a GatewayClass refers
// to the GatewayConfig.
func LegacyGrantsWarning(ofClass bool) Finding {
	if !ofClass {
		return finding(ReasonWarning, "spec.legacyGrants has no effect: it counts only in the GatewayConfig that a GatewayClass names").about("spec.legacyGrants").
			remedy("remove it")
	}
	return finding(ReasonWarning, "spec.legacyGrants lets every Gateway of the class use every TLS Secret of the cluster").about("spec.legacyGrants").
		remedy("create the ReferenceGrants that the listeners ask for, then remove it")
}

// ReplicasWarning means that a Dataplane sets the number of replicas of a DaemonSet.
func ReplicasWarning() Finding {
	return finding(ReasonWarning, "spec.replicas is ignored: a DaemonSet has one pod per node").about("spec.replicas").
		remedy("remove it, or use dataplaneResource Deployment")
}
