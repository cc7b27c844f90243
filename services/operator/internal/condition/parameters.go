package condition

import "fmt"

// What may be wrong on the way from a GatewayClass to its GatewayConfig and Dataplane.

// ParametersMissing says that the class has no parametersRef.
func ParametersMissing(field string) Finding {
	return finding(ReasonInvalidParameters, "%s is missing: name a GatewayConfig", field)
}

// ParametersKind says that a parametersRef names something that is no GatewayConfig.
func ParametersKind(field, group, kind string) Finding {
	return finding(ReasonInvalidParameters, "%s names a %s of group %q: name a GatewayConfig of group stunner.l7mp.io", field, kind, group)
}

// ParametersIncomplete says that the parametersRef of a class lacks name or namespace.
func ParametersIncomplete(field string) Finding {
	return finding(ReasonInvalidParameters, "%s needs name and namespace of a GatewayConfig", field)
}

// GatewayConfigMissing says that there is no such GatewayConfig.
func GatewayConfigMissing(field, key string) Finding {
	return finding(ReasonInvalidParameters, "%s: GatewayConfig %s does not exist", field, key)
}

// DataplaneMissing says that there is no such Dataplane.
func DataplaneMissing(config, name string) Finding {
	return finding(ReasonDataplaneNotFound, "GatewayConfig %s: spec.dataplane: Dataplane %q does not exist", config, name)
}

// DataplaneNotAllowed says that a GatewayConfig of a namespace may not name a Dataplane. It does not say whether there is one.
func DataplaneNotAllowed(config, name, namespace string) Finding {
	return finding(ReasonInvalidParameters, "GatewayConfig %s: spec.dataplane: Dataplane %q does not admit namespace %s: leave the field out to have that of the GatewayClass, "+
		"or have the namespace added to spec.allowedNamespaces of the Dataplane", config, name, namespace)
}

// OwnConfigDenied says that Gateways may not name a GatewayConfig.
func OwnConfigDenied(field string) Finding {
	return finding(ReasonInvalidParameters, "%s: the operator runs with --own-gateway-configs=deny: leave the field out to have the GatewayConfig of the GatewayClass", field)
}

// DenialUnreadable says that a selector of denied backends is none.
func DenialUnreadable(config string, i int) Finding {
	return finding(ReasonInvalidDenial,
		"GatewayConfig %s: spec.deniedBackends[%d].selector cannot be read: use matchLabels, and matchExpressions with In, NotIn, Exists or DoesNotExist", config, i)
}

// AnnotationsUnusable says that annotations could not stand on a Service.
func AnnotationsUnusable(config string, err error) Finding {
	return finding(ReasonInvalidAnnotations, "GatewayConfig %s: %v", config, err)
}

// PatchInvalid says on a Dataplane that its patch cannot be used.
func PatchInvalid(err error) Finding {
	return finding(ReasonInvalidPatch, "spec.podTemplatePatch %v", err)
}

// PodsUnmakeable says the same on a Gateway, without repeating what the patch says: not everybody who reads Gateways may read Dataplanes.
func PodsUnmakeable(dataplane string) Finding {
	return finding(ReasonInvalidParameters, "Dataplane %s: spec.podTemplatePatch cannot be used: see the conditions there", dataplane)
}

// OffloadWarning says that the offload engine that a Dataplane asks for is not there.
func OffloadWarning(engine string) Finding {
	return finding(ReasonWarning, "spec.offloadEngine: %s is not available in this release, media is forwarded without it: use None", engine)
}

// ScalingInvalid says on a Dataplane that its autoscaling cannot be used.
func ScalingInvalid(err error) Finding {
	return finding(ReasonInvalidAutoscaling, "spec.autoscaling.%v", err)
}

// ScalingUnusable says the same on a Gateway.
func ScalingUnusable(dataplane string) Finding {
	return finding(ReasonInvalidParameters, "Dataplane %s: spec.autoscaling cannot be used: see the conditions there", dataplane)
}

// KEDAMissing says on a Dataplane that nobody scales, and what to install.
func KEDAMissing() Finding {
	return finding(ReasonKEDAMissing, "the cluster does not know ScaledObjects of keda.sh: install KEDA with helm install keda kedacore/keda --namespace keda --create-namespace; "+
		"until it is there the number of pods stays as it is")
}

// ScalingWaits warns on a Gateway of the same.
func ScalingWaits(dataplane string) string {
	return fmt.Sprintf("Dataplane %s: spec.autoscaling waits for KEDA: see the conditions there", dataplane)
}

// MetricsOff says on a Dataplane that there is nothing for a Prometheus to scrape, and so no number to scale by.
func MetricsOff() Finding {
	return finding(ReasonMetricsOff, "spec.autoscaling.trigger prometheus scales by what the pods export, and spec.enableMetricsEndpoint is false: "+
		"set it to true, or use trigger external; until then the number of pods stays as it is")
}

// ScalingOnHost says that there is nothing to scale.
func ScalingOnHost() Finding {
	return finding(ReasonOneHost, "on one host each Gateway has one dataplane, whatever spec.autoscaling says")
}

// ServiceFixed warns that a Service that exists cannot become what a Dataplane asks for.
func ServiceFixed(dataplane, field, service string) string {
	return fmt.Sprintf("Dataplane %s: spec.service.%s is not what Service %s was made with, and cannot be changed: delete the Service to have it made anew",
		dataplane, field, service)
}

// Authentication.

// RealmInvalid says that the realm does not fit into a STUN attribute.
func RealmInvalid(config string) Finding {
	return finding(ReasonInvalidRealm, "GatewayConfig %s: spec.realm must have 1 to 127 characters and no quote, backslash or control character", config)
}

// RealmWarning says that the realm is legal but unusual.
func RealmWarning(realm string) Finding {
	return finding(ReasonWarning, "spec.realm %q is no DNS name: TURN works with it, other tools may not", realm)
}

// InlineWarning says that secrets stand in the object itself.
func InlineWarning(fields string) Finding {
	return finding(ReasonWarning, "%s can be read by everyone who can read this object: keep it in a Secret and name that in authRef", fields)
}

// GuessableWarning says that secrets are too short to withstand guessing. It tells neither their length nor anything else of them.
func GuessableWarning(secrets string, least int) Finding {
	return finding(ReasonWarning, "%s shorter than %d bytes: somebody may find it by trying; make a new one with openssl rand -hex %d", secrets, least, least)
}

// AuthTypeUnknown says that there is no such authentication type. It does not say which: the value may come from a Secret.
func AuthTypeUnknown(where string) Finding {
	return finding(ReasonInvalidCredentials, "%s has an unknown value: use static, ephemeral or none", where)
}

// CredentialMissing says that a value that the authentication type needs is absent.
func CredentialMissing(where, authType string) Finding {
	return finding(ReasonInvalidCredentials, "%s is missing: %s authentication needs it", where, authType)
}

// CredentialEmpty says that a value that must be secret is empty, which would let everyone in.
func CredentialEmpty(where string) Finding {
	return finding(ReasonInvalidCredentials, "%s is empty: set a value", where)
}

// CredentialUnreadable says that a value is neither a string nor a reference.
func CredentialUnreadable(where string, err error) Finding {
	return finding(ReasonInvalidCredentials, "%s: %v", where, err)
}

// SecretMissing says that there is no such Secret.
func SecretMissing(where, key string) Finding {
	return finding(ReasonSecretNotFound, "%s: Secret %s does not exist", where, key)
}

// SecretKeyMissing says that the Secret is there, its key is not.
func SecretKeyMissing(where, secret, key string) Finding {
	return finding(ReasonSecretKeyNotFound, "%s: Secret %s has no key %q: add it", where, secret, key)
}

// SecretKind says that a reference names something that is no Secret.
func SecretKind(where, group, kind string) Finding {
	return finding(ReasonInvalidCredentials, "%s names a %s of group %q: name a Secret", where, kind, group)
}

// NotGranted says that a reference crosses namespaces without leave.
func NotGranted(from, to, namespace string) Finding {
	return finding(ReasonRefNotPermitted, "%s refers to %s in another namespace: create a ReferenceGrant in namespace %s, or move it", from, to, namespace)
}

// InlineField names a field of a GatewayConfig for a message.
func InlineField(config, field string) string {
	return fmt.Sprintf("GatewayConfig %s: spec.%s", config, field)
}

// SecretField names a key of a Secret for a message.
func SecretField(secret, key string) string { return fmt.Sprintf("Secret %s key %q", secret, key) }
