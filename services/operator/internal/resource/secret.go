package resource

// Annotations of authentication Secrets.
const (
	// GeneratedSecret is an annotation with the value "true" on a Secret whose content the operator generated at
	// random.
	GeneratedSecret = "stunner.l7mp.io/generated"
	// SharedUntil is an annotation of an authentication Secret with a time in RFC 3339 format. Until this time,
	// Gateways with derived signing keys also accept credentials that were signed with the shared secret.
	SharedUntil = "stunner.l7mp.io/shared-until"
)
