package resource

// Annotations of Secrets that have a meaning for a Gateway.
const (
	// GeneratedSecret is "true" on a Secret that the operator has drawn by lot.
	GeneratedSecret = "stunner.l7mp.io/generated"
	// SharedUntil is a time, as RFC 3339 writes it. Until then dataplanes accept credentials that were signed with the shared secret of the Secret,
	// although Gateways sign with keys of their own.
	SharedUntil = "stunner.l7mp.io/shared-until"
)
