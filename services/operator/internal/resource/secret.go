package resource

// Annotations of authentication Secrets.
const (
	// GeneratedSecret is "true" on a Secret that the operator generated at random.
	GeneratedSecret = "stunner.l7mp.io/generated"
	// SharedUntil is a time in RFC 3339 format. Until then, Gateways with derived signing keys also accept credentials
	// that were signed with the shared secret.
	SharedUntil = "stunner.l7mp.io/shared-until"
)
