package kube

import (
	"cmp"
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// budgetLedger divides the endpoint budgets that several Gateways share among the namespaces of routes. The budget of a
// namespace is given to its routes at the oldest Gateways first. The endpoints that the operator's memory allows are
// divided equally between namespaces. The endpoints of a route count for the namespace of the route, and not for the
// namespace of the Gateway. So no tenant can use up the budget of another namespace by attaching routes to its
// Gateways.
type budgetLedger struct {
	// total is the number of endpoints for which the operator has memory; 0 means unlimited.
	total   int
	entries map[types.NamespacedName]*ledgerEntry
	// at are the entries of Gateways with routes of a namespace, by this namespace.
	at map[string]map[types.NamespacedName]*ledgerEntry
	// wanted are the numbers of endpoints that the routes of each namespace need at all Gateways, and sum their sum.
	wanted map[string]int
	sum    int
}

// ledgerEntry records the endpoints of a Gateway at its last translation.
type ledgerEntry struct {
	created time.Time
	demand  translate.Demand
	// scarce means that memory was scarce at the last translation.
	scarce bool
}

func newBudgetLedger(total int) *budgetLedger {
	return &budgetLedger{
		total: total, entries: map[types.NamespacedName]*ledgerEntry{},
		at: map[string]map[types.NamespacedName]*ledgerEntry{}, wanted: map[string]int{},
	}
}

// maxGatewayDemand is the maximum number of endpoints of one Gateway. As long as the operator has memory for this
// number of further endpoints, the memory does not need to be divided.
const maxGatewayDemand = 200_000

// roomFor returns the endpoints that other Gateways leave for a Gateway, as Options.Room of its translation.
func (l *budgetLedger) roomFor(key types.NamespacedName, created time.Time) translate.Room {
	room := translate.Room{Elsewhere: func(namespace string) int { return l.older(key, created, namespace) }}
	if l.scarce() {
		room.Total, room.Wanted = l.total, maps.Clone(l.wanted)
		if own := l.entries[key]; own != nil {
			for namespace, e := range own.demand.Endpoints {
				room.Wanted[namespace] -= e.Wanted
			}
		}
	}
	return room
}

// scarce reports whether the memory may not suffice for one more Gateway.
func (l *budgetLedger) scarce() bool { return l.total > 0 && l.sum+maxGatewayDemand > l.total }

// older returns the number of endpoints that the routes of a namespace have at older Gateways than the given one.
func (l *budgetLedger) older(key types.NamespacedName, created time.Time, namespace string) (endpoints int) {
	for other, e := range l.at[namespace] {
		if other != key && isOlder(other, e.created, key, created) {
			endpoints += e.demand.Endpoints[namespace].Given
		}
	}
	return endpoints
}

// isOlder reports whether Gateway a was created before Gateway b. If the creation times are equal, the first one by
// namespace and name counts as older.
func isOlder(a types.NamespacedName, createdA time.Time, b types.NamespacedName, createdB time.Time) bool {
	return cmp.Or(createdA.Compare(createdB), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name)) < 0
}

// record stores the number of endpoints of a Gateway. It returns the other Gateways that must be translated again:
// those that now exceed a budget, and those that need more endpoints and may now have them.
func (l *budgetLedger) record(key types.NamespacedName, now ledgerEntry) (affected []types.NamespacedName) {
	old := l.entries[key]
	now.scarce = l.scarce()
	if old != nil && maps.Equal(old.demand.Endpoints, now.demand.Endpoints) && old.created.Equal(now.created) {
		old.scarce = now.scarce
		return nil
	}
	namespaces := l.remove(key)
	l.entries[key] = &now
	for namespace, e := range now.demand.Endpoints {
		namespaces[namespace] = true
		if l.at[namespace] == nil {
			l.at[namespace] = map[types.NamespacedName]*ledgerEntry{}
		}
		l.at[namespace][key] = &now
		l.wanted[namespace] += e.Wanted
		l.sum += e.Wanted
	}
	return l.affected(key, namespaces)
}

// forget removes the entry of a Gateway that was deleted or belongs to another controller. It returns the other
// Gateways that must be translated again, because they may now have more endpoints.
func (l *budgetLedger) forget(key types.NamespacedName) (affected []types.NamespacedName) {
	if l.entries[key] == nil {
		return nil
	}
	return l.affected(key, l.remove(key))
}

// remove removes the entry of a Gateway. It returns the namespaces of its routes.
func (l *budgetLedger) remove(key types.NamespacedName) (namespaces map[string]bool) {
	namespaces = map[string]bool{}
	old := l.entries[key]
	if old == nil {
		return namespaces
	}
	delete(l.entries, key)
	for namespace, e := range old.demand.Endpoints {
		namespaces[namespace] = true
		l.sum -= e.Wanted
		if l.wanted[namespace] -= e.Wanted; l.wanted[namespace] == 0 {
			delete(l.wanted, namespace)
		}
		if delete(l.at[namespace], key); len(l.at[namespace]) == 0 {
			delete(l.at, namespace)
		}
	}
	return namespaces
}

// affected returns the Gateways that must be translated again because the entry of another Gateway, cause, with routes
// of some namespaces has changed.
func (l *budgetLedger) affected(cause types.NamespacedName, namespaces map[string]bool) (keys []types.NamespacedName) {
	candidates := l.entries
	if !l.scarce() {
		candidates = map[types.NamespacedName]*ledgerEntry{}
		for namespace := range namespaces {
			maps.Copy(candidates, l.at[namespace])
		}
		for key, e := range l.entries {
			if e.scarce {
				candidates[key] = e
			}
		}
	}
	for key, e := range candidates {
		if key != cause && l.changed(key, e) {
			keys = append(keys, key)
		}
	}
	return keys
}

// changed reports whether the routes of a namespace have too many endpoints at a Gateway, or may have more of the
// endpoints that were denied before.
func (l *budgetLedger) changed(key types.NamespacedName, e *ledgerEntry) bool {
	limits := e.demand.Limits(l.roomFor(key, e.created))
	for namespace, d := range e.demand.Endpoints {
		if has := limits[namespace]; d.Given > has || (d.Waiting || d.Given < d.Wanted) && has > d.Limit {
			return true
		}
	}
	return false
}
