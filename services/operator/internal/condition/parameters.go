package condition

import "strings"

// Problems of the GatewayConfig and the Dataplane, and of the references to them.

// NotRead means that the operator has not read the current version of an object, because the objects of its namespace
// use up the namespace's memory.
func NotRead(reason string) Finding {
	return finding(ReasonBudgetExceeded, "the current version was not read: %s; what was read before stays in force", reason).
		advice(roomHint)
}

// ParametersMissing means that the GatewayClass has no parametersRef.
func ParametersMissing(place Place) Finding {
	return finding(ReasonInvalidParameters, "%s is missing", place).aboutPlace(place).
		remedy("name a GatewayConfig")
}

// ParametersKind means that a parametersRef does not name a GatewayConfig.
func ParametersKind(place Place, group, kind string) Finding {
	return finding(ReasonInvalidParameters, "%s names a %s of group %q", place, kind, group).aboutPlace(place).part("kind").
		remedy("name a GatewayConfig of group stunner.l7mp.io")
}

// ParametersIncomplete means that a parametersRef lacks name or namespace.
func ParametersIncomplete(place Place) Finding {
	return finding(ReasonInvalidParameters, "%s needs name and namespace of a GatewayConfig", place).aboutPlace(place)
}

// GatewayConfigMissing means that the GatewayConfig does not exist.
func GatewayConfigMissing(place Place, key string) Finding {
	return finding(ReasonInvalidParameters, "GatewayConfig %s does not exist", key).atPlace(place).part("name").
		dependsOn("GatewayConfig", key).
		hint("create the GatewayConfig, or name another one")
}

// DataplaneMissing means that the Dataplane does not exist.
func DataplaneMissing(config, name string) Finding {
	return finding(ReasonDataplaneNotFound, "Dataplane %q does not exist", name).at("spec.dataplane").in("GatewayConfig", config).
		dependsOn("Dataplane", name).
		hint("create the Dataplane, or name another one")
}

// DataplaneNotAllowed means that spec.allowedNamespaces of the Dataplane does not allow the namespace of the
// GatewayConfig. The message is the same if the Dataplane does not exist, so that it does not reveal this.
func DataplaneNotAllowed(config, name, namespace string) Finding {
	return finding(ReasonInvalidParameters, "Dataplane %q does not admit namespace %s", name, namespace).at("spec.dataplane").in("GatewayConfig", config).
		remedy("leave the field out to have that of the GatewayClass, or have the namespace added to spec.allowedNamespaces of the Dataplane")
}

// OwnConfigDenied means that the operator does not allow spec.infrastructure.parametersRef of Gateways.
func OwnConfigDenied(place Place) Finding {
	return finding(ReasonInvalidParameters, "the operator runs with --own-gateway-configs=deny").atPlace(place).
		remedy("leave the field out to have the GatewayConfig of the GatewayClass")
}

// DeniedBackendInvalid means that the selector of an entry of spec.deniedBackends is invalid. i is the index of the
// entry.
func DeniedBackendInvalid(config string, i int) Finding {
	return finding(ReasonInvalidDenial, "spec.deniedBackends[%d].selector cannot be read", i).about("spec.deniedBackends").in("GatewayConfig", config).
		remedy("use matchLabels, and matchExpressions with In, NotIn, Exists or DoesNotExist")
}

// LoadBalancerAnnotationsInvalid means that spec.loadBalancerServiceAnnotations is invalid.
func LoadBalancerAnnotationsInvalid(config string, err error) Finding {
	return finding(ReasonInvalidAnnotations, "").explain(err).about("spec.loadBalancerServiceAnnotations").in("GatewayConfig", config)
}

// PatchInvalid, on a Dataplane, means that spec.podTemplatePatch is invalid.
func PatchInvalid(err error) Finding {
	return finding(ReasonInvalidPatch, "spec.podTemplatePatch ").explain(err).about("spec.podTemplatePatch")
}

// PodTemplateInvalid means, in the status of a Gateway, that spec.podTemplatePatch of its Dataplane is invalid. The
// message does not quote the patch, because readers of a Gateway may have no right to read Dataplanes.
func PodTemplateInvalid(dataplane string) Finding {
	return finding(ReasonInvalidParameters, "spec.podTemplatePatch cannot be used").about("spec.podTemplatePatch").in("Dataplane", dataplane).
		remedy("see the conditions there")
}

// OffloadUnknown means that this release does not support the requested offload engine.
func OffloadUnknown(engine string) Finding {
	return finding(ReasonWarning, "%s is not available in this release, media is forwarded without it", engine).at("spec.offloadEngine").
		remedy("use None")
}

// OffloadImpossible means that the pods of a Dataplane cannot use the requested offload engine.
func OffloadImpossible(engine string, err error) Finding {
	return finding(ReasonWarning, "%s cannot be used, media is forwarded in user space: ", engine).hint(offloadHint).explain(err).at("spec.offloadEngine")
}

// OffloadDenied warns in the status of a Gateway that its pods forward media in user space because the Pod Security
// Standard of their namespace forbids the capabilities of in-kernel forwarding.
func OffloadDenied(dataplane, namespace, label, standard string) Finding {
	return finding(ReasonWarning, "spec.offloadEngine needs the capabilities BPF and NET_ADMIN, which label %s=%s of "+
		"namespace %s forbids, so the pods forward media in user space", label, standard, namespace,
	).about("spec.offloadEngine").in("Dataplane", dataplane).remedy("set the label to privileged")
}

// ScalingInvalid, on a Dataplane, means that spec.autoscaling is invalid.
func ScalingInvalid(err error) Finding {
	return finding(ReasonInvalidAutoscaling, "spec.autoscaling.").explain(err).about("spec.autoscaling")
}

// GatewayScalingInvalid means, in the status of a Gateway, that spec.autoscaling of its Dataplane is invalid.
func GatewayScalingInvalid(dataplane string) Finding {
	return finding(ReasonInvalidParameters, "spec.autoscaling cannot be used").about("spec.autoscaling").in("Dataplane", dataplane).
		remedy("see the conditions there")
}

// KEDAMissing, on a Dataplane, means that KEDA is not installed.
func KEDAMissing() Finding {
	return finding(ReasonKEDAMissing, "the cluster does not know ScaledObjects of keda.sh").
		remedy("install KEDA with helm install keda kedacore/keda --namespace keda --create-namespace; until it is there the number of pods stays as it is")
}

// ScalingUnavailable warns in the status of a Gateway that autoscaling has no effect because KEDA is not installed.
func ScalingUnavailable(dataplane string) Finding {
	return finding(ReasonWarning, "spec.autoscaling waits for KEDA").about("spec.autoscaling").in("Dataplane", dataplane).
		remedy("see the conditions there")
}

// ReplicasNotInForce warns in the status of a Gateway that a field manager has scaled the Deployment.
func ReplicasNotInForce(dataplane, manager string) Finding {
	return finding(ReasonWarning, "spec.replicas is not in force, because field manager %q has scaled the Deployment", manager).
		about("spec.replicas").in("Dataplane", dataplane).
		remedy("remove spec.replicas if an autoscaler sets the number of pods; a changed spec.replicas replaces the number")
}

// MetricsOff, on a Dataplane, means that autoscaling uses Prometheus but the metrics endpoint is disabled.
func MetricsOff() Finding {
	return finding(ReasonMetricsOff, "spec.autoscaling.trigger prometheus scales by what the pods export, and spec.enableMetricsEndpoint is false").about("spec.enableMetricsEndpoint").
		remedy("set it to true, or use trigger external; until then the number of pods stays as it is")
}

// ScalingOnHost means that spec.autoscaling has no effect with the file provider, which runs one process for each
// Gateway.
func ScalingOnHost() Finding {
	return finding(ReasonOneHost, "on one host each Gateway has one dataplane, whatever spec.autoscaling says")
}

// ServiceFixed warns that a field of an existing Service differs from the Dataplane and cannot be changed.
func ServiceFixed(dataplane, field, service string) Finding {
	return finding(ReasonWarning, "spec.service.%s is not what Service %s was made with, and cannot be changed", field, service).
		about("spec.service."+field).in("Dataplane", dataplane).
		remedy("delete the Service to have it made anew")
}

// Problems of authentication.

// RealmInvalid means that the realm is not a valid value of the STUN attribute REALM (RFC 8489 §14.9).
func RealmInvalid(config string) Finding {
	return finding(ReasonInvalidRealm, "spec.realm must have 1 to 127 characters and no quote, backslash or control character").about("spec.realm").in("GatewayConfig", config).
		hint("set spec.realm to a DNS name")
}

// RealmWarning means that the realm is valid but not a DNS name.
func RealmWarning(realm string) Finding {
	return finding(ReasonWarning, "spec.realm %q is no DNS name: TURN works with it, other tools may not", realm).about("spec.realm").
		hint("set spec.realm to a DNS name, unless a tool needs this realm")
}

// InlineWarning means that the GatewayConfig itself contains secrets.
func InlineWarning(fields []string) Finding {
	return finding(ReasonWarning, "%s can be read by everyone who can read this object", strings.Join(fields, " and ")).about(fields[0]).
		remedy("keep it in a Secret and name that in authRef")
}

// GuessableWarning means that secrets are so short that an attacker can guess them. The message must not reveal
// anything about the secrets, not even their length.
func GuessableWarning(field, secrets string, least int) Finding {
	return finding(ReasonWarning, "%s shorter than %d bytes: somebody may find it by trying", secrets, least).about(field).
		advice("make a new one with openssl rand -hex %d", least)
}

// AuthTypeUnknown means that the authentication type is unknown. The message does not quote the authentication type,
// because its value may come from a Secret.
func AuthTypeUnknown(where Place) Finding {
	return finding(ReasonInvalidCredentials, "%s has an unknown value", where).aboutPlace(where).
		remedy("use static, ephemeral or none")
}

// CredentialMissing means that a credential is not set although the authentication type needs it.
func CredentialMissing(where Place, authType string) Finding {
	return finding(ReasonInvalidCredentials, "%s is missing: %s authentication needs it", where, authType).aboutPlace(where)
}

// CredentialEmpty means that a credential is empty, which would let every client in.
func CredentialEmpty(where Place) Finding {
	return finding(ReasonInvalidCredentials, "%s is empty", where).aboutPlace(where).
		remedy("set a value")
}

// CredentialTooLong means that a user name, password or shared secret has more than limit bytes.
func CredentialTooLong(where Place, limit int) Finding {
	return finding(ReasonInvalidCredentials, "%s has more than %d bytes", where, limit).aboutPlace(where).
		remedy("set a shorter value")
}

// CredentialNotText means that a user name, password or shared secret is not UTF-8. A config cannot contain it, and
// clients and auth services could not use it.
func CredentialNotText(where Place) Finding {
	return finding(ReasonInvalidCredentials, "%s is not UTF-8", where).aboutPlace(where).
		remedy("write text, for example random bytes in Base64")
}

// CredentialUnreadable means that the field of a credential is neither a string nor a reference to a key of a Secret,
// or that no signing key can be derived.
func CredentialUnreadable(where Place, err error) Finding {
	return finding(ReasonInvalidCredentials, "").explain(err).atPlace(where)
}

// SecretMissing means that the Secret does not exist.
func SecretMissing(where Place, key string) Finding {
	return finding(ReasonSecretNotFound, "Secret %s does not exist", key).atPlace(where).part("name").
		dependsOn("Secret", key).
		hint("create the Secret, or name another one")
}

// SecretUnread means that the operator has not read the Secret, because the objects of its namespace use up the
// namespace's memory.
func SecretUnread(where Place, key, reason string) Finding {
	return finding(ReasonBudgetExceeded, "Secret %s was not read: %s", key, reason).atPlace(where).part("name").
		advice(roomHint)
}

// SecretKeyMissing means that the Secret lacks a key.
func SecretKeyMissing(where Place, secret, key string) Finding {
	return finding(ReasonSecretKeyNotFound, "Secret %s has no key %q", secret, key).atPlace(where).part("name").
		remedy("add it")
}

// SecretKind means that a reference does not name a Secret.
func SecretKind(where Place, group, kind string) Finding {
	return finding(ReasonInvalidCredentials, "%s names a %s of group %q", where, kind, group).aboutPlace(where).part("kind").
		remedy("name a Secret")
}

// NotGranted means that a reference to another namespace has no ReferenceGrant.
func NotGranted(from Place, to, namespace string) Finding {
	return finding(ReasonRefNotPermitted, "%s refers to %s in another namespace", from, to).aboutPlace(from).part("name").
		remedy("create a ReferenceGrant in namespace %s, or move it", namespace)
}
