package condition

import "fmt"

// Problems of the GatewayConfig and the Dataplane, and of the references to them.

// NotRead means that the operator has not read the current version of an object, because its namespace has no room.
func NotRead(reason string) Finding {
	return finding(ReasonBudgetExceeded, "the current version was not read: %s; what was read before stays in force", reason)
}

// ParametersMissing means that the GatewayClass has no parametersRef.
func ParametersMissing(field string) Finding {
	return finding(ReasonInvalidParameters, "%s is missing: name a GatewayConfig", field)
}

// ParametersKind means that a parametersRef does not name a GatewayConfig.
func ParametersKind(field, group, kind string) Finding {
	return finding(ReasonInvalidParameters, "%s names a %s of group %q: name a GatewayConfig of group stunner.l7mp.io",
		field, kind, group)
}

// ParametersIncomplete means that a parametersRef lacks name or namespace.
func ParametersIncomplete(field string) Finding {
	return finding(ReasonInvalidParameters, "%s needs name and namespace of a GatewayConfig", field)
}

// GatewayConfigMissing means that the GatewayConfig does not exist.
func GatewayConfigMissing(field, key string) Finding {
	return finding(ReasonInvalidParameters, "%s: GatewayConfig %s does not exist", field, key)
}

// DataplaneMissing means that the Dataplane does not exist.
func DataplaneMissing(config, name string) Finding {
	return finding(ReasonDataplaneNotFound, "GatewayConfig %s: spec.dataplane: Dataplane %q does not exist",
		config, name)
}

// DataplaneNotAllowed means that spec.allowedNamespaces of the Dataplane does not allow the namespace of the
// GatewayConfig. The message is the same if the Dataplane does not exist, so that it does not reveal this.
func DataplaneNotAllowed(config, name, namespace string) Finding {
	return finding(ReasonInvalidParameters, "GatewayConfig %s: spec.dataplane: Dataplane %q does not admit namespace %s: leave the field out to have that of the GatewayClass, "+
		"or have the namespace added to spec.allowedNamespaces of the Dataplane", config, name, namespace)
}

// OwnConfigDenied means that the operator does not allow spec.infrastructure.parametersRef of Gateways.
func OwnConfigDenied(field string) Finding {
	return finding(ReasonInvalidParameters, "%s: the operator runs with --own-gateway-configs=deny: leave the field out to have the GatewayConfig of the GatewayClass",
		field)
}

// DeniedBackendInvalid means that the selector of an entry of spec.deniedBackends is invalid. i is the index of the
// entry.
func DeniedBackendInvalid(config string, i int) Finding {
	return finding(ReasonInvalidDenial, "GatewayConfig %s: spec.deniedBackends[%d].selector cannot be read: use matchLabels, and matchExpressions with In, NotIn, Exists or DoesNotExist",
		config, i)
}

// LoadBalancerAnnotationsInvalid means that spec.loadBalancerServiceAnnotations is invalid.
func LoadBalancerAnnotationsInvalid(config string, err error) Finding {
	return finding(ReasonInvalidAnnotations, "GatewayConfig %s: %v", config, err)
}

// PatchInvalid, on a Dataplane, means that spec.podTemplatePatch is invalid.
func PatchInvalid(err error) Finding {
	return finding(ReasonInvalidPatch, "spec.podTemplatePatch %v", err)
}

// PodTemplateInvalid means, in the status of a Gateway, that spec.podTemplatePatch of its Dataplane is invalid. The
// message does not quote the patch, because readers of a Gateway may have no right to read Dataplanes.
func PodTemplateInvalid(dataplane string) Finding {
	return finding(ReasonInvalidParameters,
		"Dataplane %s: spec.podTemplatePatch cannot be used: see the conditions there", dataplane)
}

// OffloadUnknown means that this release does not know the requested offload engine.
func OffloadUnknown(engine string) Finding {
	return finding(ReasonWarning,
		"spec.offloadEngine: %s is not available in this release, media is forwarded without it: use None", engine)
}

// OffloadImpossible means that the pods of a Dataplane cannot use the requested offload engine.
func OffloadImpossible(engine string, err error) Finding {
	return finding(ReasonWarning, "spec.offloadEngine: %s cannot be used, media is forwarded in user space: %v", engine, err)
}

// OffloadDenied warns in the status of a Gateway that its pods forward media in user space because the Pod Security
// Standard of their namespace forbids the capabilities of in-kernel forwarding.
func OffloadDenied(dataplane, namespace, label, standard string) string {
	return fmt.Sprintf("Dataplane %s: spec.offloadEngine needs the capabilities BPF and NET_ADMIN, which label %s=%s of "+
		"namespace %s forbids, so the pods forward media in user space: set the label to privileged",
		dataplane, label, standard, namespace)
}

// ScalingInvalid, on a Dataplane, means that spec.autoscaling is invalid.
func ScalingInvalid(err error) Finding {
	return finding(ReasonInvalidAutoscaling, "spec.autoscaling.%v", err)
}

// GatewayScalingInvalid means, in the status of a Gateway, that spec.autoscaling of its Dataplane is invalid.
func GatewayScalingInvalid(dataplane string) Finding {
	return finding(ReasonInvalidParameters, "Dataplane %s: spec.autoscaling cannot be used: see the conditions there",
		dataplane)
}

// KEDAMissing, on a Dataplane, means that KEDA is not installed.
func KEDAMissing() Finding {
	return finding(ReasonKEDAMissing, "the cluster does not know ScaledObjects of keda.sh: install KEDA with helm install keda kedacore/keda --namespace keda --create-namespace; "+
		"until it is there the number of pods stays as it is")
}

// ScalingUnavailable warns in the status of a Gateway that autoscaling has no effect because KEDA is not installed.
func ScalingUnavailable(dataplane string) string {
	return fmt.Sprintf("Dataplane %s: spec.autoscaling waits for KEDA: see the conditions there", dataplane)
}

// MetricsOff, on a Dataplane, means that autoscaling uses Prometheus but the metrics endpoint is disabled.
func MetricsOff() Finding {
	return finding(ReasonMetricsOff, "spec.autoscaling.trigger prometheus scales by what the pods export, and spec.enableMetricsEndpoint is false: "+
		"set it to true, or use trigger external; until then the number of pods stays as it is")
}

// ScalingOnHost means that spec.autoscaling has no effect with the file provider, which runs one process for each
// Gateway.
func ScalingOnHost() Finding {
	return finding(ReasonOneHost, "on one host each Gateway has one dataplane, whatever spec.autoscaling says")
}

// ServiceFixed warns that a field of an existing Service differs from the Dataplane and cannot be changed.
func ServiceFixed(dataplane, field, service string) string {
	return fmt.Sprintf("Dataplane %s: spec.service.%s is not what Service %s was made with, and cannot be changed: delete the Service to have it made anew",
		dataplane, field, service)
}

// Problems of authentication.

// RealmInvalid means that the realm is not a valid value of the STUN attribute REALM (RFC 8489 §14.9).
func RealmInvalid(config string) Finding {
	return finding(ReasonInvalidRealm,
		"GatewayConfig %s: spec.realm must have 1 to 127 characters and no quote, backslash or control character",
		config)
}

// RealmWarning means that the realm is valid but not a DNS name.
func RealmWarning(realm string) Finding {
	return finding(ReasonWarning, "spec.realm %q is no DNS name: TURN works with it, other tools may not", realm)
}

// InlineWarning means that the GatewayConfig itself contains secrets.
func InlineWarning(fields string) Finding {
	return finding(ReasonWarning,
		"%s can be read by everyone who can read this object: keep it in a Secret and name that in authRef", fields)
}

// GuessableWarning means that secrets are so short that an attacker can guess them. The message must not reveal
// anything about the secrets, not even their length.
func GuessableWarning(secrets string, least int) Finding {
	return finding(ReasonWarning,
		"%s shorter than %d bytes: somebody may find it by trying; make a new one with openssl rand -hex %d",
		secrets, least, least)
}

// AuthTypeUnknown means that the authentication type is unknown. The message does not quote the authentication type,
// because its value may come from a Secret.
func AuthTypeUnknown(where string) Finding {
	return finding(ReasonInvalidCredentials, "%s has an unknown value: use static, ephemeral or none", where)
}

// CredentialMissing means that a credential is not set although the authentication type needs it.
func CredentialMissing(where, authType string) Finding {
	return finding(ReasonInvalidCredentials, "%s is missing: %s authentication needs it", where, authType)
}

// CredentialEmpty means that a credential is empty, which would let every client in.
func CredentialEmpty(where string) Finding {
	return finding(ReasonInvalidCredentials, "%s is empty: set a value", where)
}

// CredentialTooLong means that a user name, password or shared secret has more than limit bytes.
func CredentialTooLong(where string, limit int) Finding {
	return finding(ReasonInvalidCredentials, "%s has more than %d bytes: set a shorter value", where, limit)
}

// CredentialUnreadable means that the field of a credential is neither a string nor a reference to a key of a Secret,
// or that no signing key can be derived.
func CredentialUnreadable(where string, err error) Finding {
	return finding(ReasonInvalidCredentials, "%s: %v", where, err)
}

// SecretMissing means that the Secret does not exist.
func SecretMissing(where, key string) Finding {
	return finding(ReasonSecretNotFound, "%s: Secret %s does not exist", where, key)
}

// SecretUnread means that the operator has not read the Secret, because its namespace has no room.
func SecretUnread(where, key, reason string) Finding {
	return finding(ReasonBudgetExceeded, "%s: Secret %s was not read: %s", where, key, reason)
}

// SecretKeyMissing means that the Secret lacks a key.
func SecretKeyMissing(where, secret, key string) Finding {
	return finding(ReasonSecretKeyNotFound, "%s: Secret %s has no key %q: add it", where, secret, key)
}

// SecretKind means that a reference does not name a Secret.
func SecretKind(where, group, kind string) Finding {
	return finding(ReasonInvalidCredentials, "%s names a %s of group %q: name a Secret", where, kind, group)
}

// NotGranted means that a reference to another namespace has no ReferenceGrant.
func NotGranted(from, to, namespace string) Finding {
	return finding(ReasonRefNotPermitted,
		"%s refers to %s in another namespace: create a ReferenceGrant in namespace %s, or move it",
		from, to, namespace)
}

// InlineField returns the text by which messages refer to a field of a GatewayConfig.
func InlineField(config, field string) string {
	return fmt.Sprintf("GatewayConfig %s: spec.%s", config, field)
}

// SecretField returns how messages refer to a key of a Secret.
func SecretField(secret, key string) string { return fmt.Sprintf("Secret %s key %q", secret, key) }
