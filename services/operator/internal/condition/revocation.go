package condition

import "strings"

// Problems of Revocations, and warnings about them.

// RevocationUndated means that a Revocation of a user in a folder has no spec.issuedBefore.
func RevocationUndated() Finding {
	return finding(ReasonInvalidRevocation, "spec.issuedBefore is missing, and a file has no creation time").about("spec.issuedBefore").
		remedy("set it to the time of the revocation, such as 2026-01-31T12:00:00Z")
}

// RevocationIssuedBefore means that a Revocation of a single credential has spec.issuedBefore.
func RevocationIssuedBefore() Finding {
	return finding(ReasonInvalidRevocation, "spec.issuedBefore is for spec.user: a single credential is refused whenever it was issued").
		about("spec.issuedBefore").
		remedy("leave it out")
}

// RevocationStatic means that spec.credential is no user name of a time-limited credential.
func RevocationStatic() Finding {
	return finding(ReasonInvalidRevocation, "spec.credential contains no expiry, so it is no user name of a time-limited credential").
		about("spec.credential").
		remedy("write the whole user name, such as 1893456000:alice; to end a static credential, change its password")
}

// RevocationEnds means that spec.until is not later than spec.issuedBefore.
func RevocationEnds() Finding {
	return finding(ReasonInvalidRevocation, "spec.until is not later than spec.issuedBefore").about("spec.until").
		remedy("set it to the expiry of the last credential that is refused")
}

// RevocationInvalid means that a dataplane would not accept a revocation.
func RevocationInvalid(err error) Finding {
	return finding(ReasonInvalidRevocation, "%v", err).about("spec")
}

// RevocationsOverBudget means that older Revocations use up the Revocation budget of the namespace.
func RevocationsOverBudget(namespace string, most, bytes int) Finding {
	return finding(ReasonBudgetExceeded, "namespace %s has room for %d Revocations with %d bytes, and older ones take it: this one has no effect",
		namespace, most, bytes).
		remedy("delete Revocations that have expired or are no longer needed")
}

// RevocationGateways warns that spec.gateways names Gateways that do not exist.
func RevocationGateways(names []string) Finding {
	return finding(ReasonWarning, "spec.gateways: no Gateway of the namespace is named %.200s", strings.Join(names, ", ")).
		about("spec.gateways").
		remedy("correct the name, or leave the field out to mean all Gateways of the namespace")
}

// RevocationIgnored warns that Gateways have no time-limited credentials.
func RevocationIgnored(names []string) Finding {
	return finding(ReasonWarning, "Gateways without time-limited credentials ignore the Revocation: %.200s", strings.Join(names, ", ")).
		remedy("to end a static credential, change its password; to revoke users, use authType ephemeral")
}
