package resource

import (
	"cmp"
	"encoding/json"

	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/credential"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
)

// Bounds of the Revocations of a namespace: the number, and the bytes that they take in the config of a Gateway. Every
// Gateway of the namespace has them in its config, so a namespace with many Gateways and Revocations takes their
// product from the memory of the operator.
const (
	MaxRevocations     = 1_000
	MaxRevocationBytes = 96 << 10
)

// overheadOfRevocation is the size of a revocation in a config without the user.
const overheadOfRevocation = len(`{"credential":,"issued_before":253402300799,"until":253402300799},`)

// byAge orders Revocations: the oldest first.
func byAge(a, b *stunnerv1.Revocation) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), byKey(a, b))
}

// setRevocation replaces a Revocation, and applies the budget of its namespace again. Facts change only for the
// Revocations that begin or cease to fit into the budget, so that many Revocations beyond the budget cost little.
func (v *View) setRevocation(key types.NamespacedName, o *stunnerv1.Revocation, del bool, changed Facts) {
	old := v.revocations[key]
	if !replace(v.revocations, aRevocation, key, o, del, changed) {
		return
	}
	namespace := types.NamespacedName{Namespace: key.Namespace}
	if old != nil {
		v.revocationsOfNamespace.remove(old, namespace)
	}
	if !del {
		v.revocationsOfNamespace.insert(o, namespace)
	}
	before, now := v.roomyRevocations[key.Namespace], withRoom(v.revocationsOfNamespace.of[namespace])
	if v.roomyRevocations[key.Namespace] = now; len(now) == 0 {
		delete(v.roomyRevocations, key.Namespace)
	}
	differ := len(before) != len(now)
	for name, r := range now {
		if before[name] == nil {
			changed.add(roomOfRevocation, KeyOf(r))
		}
		differ = differ || before[name] != r
	}
	for name, r := range before {
		if now[name] == nil {
			changed.add(roomOfRevocation, KeyOf(r))
		}
	}
	if differ {
		changed.add(allRevocationsOf, namespace)
	}
}

// withRoom returns the Revocations of a namespace that fit into its budget: the oldest ones, up to the first that does
// not fit. A newer one is left out even if it would fit, so that the result does not depend on sizes.
func withRoom(oldestFirst []*stunnerv1.Revocation) map[string]*stunnerv1.Revocation {
	fit, bytes := map[string]*stunnerv1.Revocation{}, 0
	for _, r := range oldestFirst {
		if bytes += sizeOfRevocation(r.Spec.User + r.Spec.Credential); len(fit) == MaxRevocations || bytes > MaxRevocationBytes {
			break
		}
		fit[r.Name] = r
	}
	return fit
}

func sizeOfRevocation(subject string) int {
	text, _ := json.Marshal(subject) // a string always encodes
	return len(text) + overheadOfRevocation
}

// SizeOf returns the bytes that revocations take in a config.
func SizeOf(revocations []credential.Revocation) (bytes int) {
	for _, r := range revocations {
		bytes += sizeOfRevocation(r.User + r.Credential)
	}
	return bytes
}

// Revocation returns a Revocation, or nil.
func (v *View) Revocation(key types.NamespacedName) *stunnerv1.Revocation {
	return find(v, v.revocations, aRevocation, key)
}

// Revocations returns the keys of all Revocations, sorted.
func (v *View) Revocations() []types.NamespacedName { return v.revocations.keys() }

// RevocationHasRoom reports whether a Revocation fits into the bounds of its namespace.
func (v *View) RevocationHasRoom(key types.NamespacedName) bool {
	v.record(roomOfRevocation, key)
	return v.roomyRevocations[key.Namespace][key.Name] != nil
}

// IgnoresRevocations reports whether a Gateway has no time-limited credentials.
func (v *View) IgnoresRevocations(gateway types.NamespacedName) bool {
	v.record(revocationsAt, gateway)
	return cmp.Or(v.overBudget[gateway], &OverBudget{}).IgnoresRevocations
}

// RevocationsIn returns the Revocations of a namespace that fit into its budget, in no particular order.
func (v *View) RevocationsIn(namespace string) map[string]*stunnerv1.Revocation {
	v.record(allRevocationsOf, types.NamespacedName{Namespace: namespace})
	return v.roomyRevocations[namespace]
}
