package translate

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// Two installations of the operator that have the same controller name would write the same objects without end. They
// agree in condition ControllerConflict of the GatewayClass: the oldest installation manages the GatewayClass, and the
// others are paused. Tenants cannot change the status of a GatewayClass, which is cluster-scoped. The order of
// installations is the same for all of them, and a status is only written to the version from which it results. So two
// installations that start at the same time cannot both be the oldest.

// Claims are the installations that condition ControllerConflict of a GatewayClass names.
type Claims struct {
	// Manager manages the GatewayClass. Paused is one of the paused installations. Each is zero if there is no such
	// installation.
	Manager, Paused resource.Installation
}

// ClaimsOf returns the content of condition ControllerConflict.
func ClaimsOf(conditions []metav1.Condition) (c Claims) {
	i := indexOfClaims(conditions)
	if i < 0 {
		return c
	}
	into := []*resource.Installation{&c.Manager, &c.Paused}
	for n, text := range condition.InstallationsIn(conditions[i].Message) {
		*into[n], _ = resource.ParseInstallation(text)
	}
	return c
}

// indexOfClaims returns the index of condition ControllerConflict; -1 if there is none.
func indexOfClaims(conditions []metav1.Condition) int {
	return slices.IndexFunc(conditions, func(c metav1.Condition) bool { return c.Type == condition.ControllerConflict })
}

// Others returns the installations in c whose namespace is not the namespace of own.
func (c Claims) Others(own resource.Installation) (others []resource.Installation) {
	for _, i := range []resource.Installation{c.Manager, c.Paused} {
		if i != (resource.Installation{}) && i.Namespace != own.Namespace {
			others = append(others, i)
		}
	}
	return others
}

// Settle returns the claims to write, according to the claims that are written now. The oldest installation that is not
// gone manages the GatewayClass. If it is not clear whether an installation is gone, it counts as running.
func (c Claims) Settle(known resource.Installations) Claims {
	running := slices.DeleteFunc(c.Others(known.Own), func(i resource.Installation) bool {
		return slices.Contains(known.Gone, i)
	})
	running = append(running, known.Own)
	slices.SortFunc(running, resource.Installation.Compare)
	settled := Claims{Manager: running[0]}
	switch {
	case slices.Contains(running[1:], c.Paused): // all installations keep it, so that they agree
		settled.Paused = c.Paused
	case len(running) > 1:
		settled.Paused = running[1]
	}
	return settled
}

// claimConditions returns condition ControllerConflict of a GatewayClass.
func claimConditions(before []metav1.Condition, known resource.Installations, controller string) []condition.Condition {
	i := indexOfClaims(before)
	switch {
	case known.Own == resource.Installation{} && i < 0:
		return nil
	case known.Own == resource.Installation{}: // this process is not the leader yet
		return []condition.Condition{{Condition: before[i]}}
	}
	c := ClaimsOf(before).Settle(known)
	if c.Paused == (resource.Installation{}) {
		return []condition.Condition{
			condition.False(condition.ControllerConflict, condition.SoleInstallation(c.Manager.String())),
		}
	}
	return []condition.Condition{condition.True(condition.ControllerConflict,
		condition.SecondInstallation(c.Manager.String(), c.Paused.String(), c.Paused.Namespace, controller))}
}

// isPaused reports whether another installation manages a GatewayClass.
func isPaused(before []metav1.Condition, known resource.Installations) bool {
	return known.Own != resource.Installation{} && ClaimsOf(before).Settle(known).Manager != known.Own
}

// pausedConditions returns the conditions of a GatewayClass that another installation manages. Only
// ControllerConflict in claims may differ from the current conditions, and it keeps its place: the order belongs to the
// other installation.
func pausedConditions(
	before []metav1.Condition, generation int64, now metav1.Time, claims []condition.Condition,
) condition.Merged {
	merged := condition.Merge(before, generation, now, claims...)
	conditions := slices.Clone(before)
	conditions[indexOfClaims(before)] = merged.Conditions[0]
	merged.Conditions = conditions
	return merged
}
