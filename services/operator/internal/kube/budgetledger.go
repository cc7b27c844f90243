package kube

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// budgetLedger divides the endpoint budgets that several Gateways share. The budget of a namespace is given to its
// oldest Gateways first. The endpoints that the operator's memory allows are divided equally between namespaces.
type budgetLedger struct {
	// total is the number of endpoints for which the operator has memory; 0 means unlimited.
	total   int
	entries map[types.NamespacedName]*ledgerEntry
}

// ledgerEntry records the endpoints of a Gateway at its last translation.
type ledgerEntry struct {
	created time.Time
	demand  translate.Demand
	// room is the Options.Room of that translation.
	room translate.Room
}

func newBudgetLedger(total int) *budgetLedger {
	return &budgetLedger{total: total, entries: map[types.NamespacedName]*ledgerEntry{}}
}

// roomFor returns the Options.Room for translating a Gateway.
func (l *budgetLedger) roomFor(key types.NamespacedName, created time.Time) (room translate.Room) {
	older := 0
	wanted := map[string]int{}
	sum := 0
	for other, e := range l.entries {
		if other == key {
			continue
		}
		if other.Namespace == key.Namespace {
			if isOlder(other, e.created, key, created) {
				older += e.demand.Given
			}
			continue
		}
		wanted[other.Namespace] += e.demand.Wanted
		sum += e.demand.Wanted
	}
	room.Namespace = older
	if l.total > 0 && sum+older+maxGatewayDemand > l.total {
		room.Bounded, room.Operator = true, max(0, l.share(wanted)-older)
	}
	return room
}

// maxGatewayDemand is the maximum number of endpoints of one Gateway. As long as the operator has memory for this
// number of further endpoints, the memory does not need to be divided.
const maxGatewayDemand = 200_000

// share returns the number of endpoints that one namespace may have. wanted are the numbers of endpoints that the other
// namespaces want. A namespace that wants less than an equal share gets all that it wants, and the rest is divided
// equally.
func (l *budgetLedger) share(wanted map[string]int) int {
	others := slices.Sorted(maps.Values(wanted))
	left := l.total
	for i, w := range others {
		if equal := left / (len(others) - i + 1); w > equal {
			return equal
		}
		left -= w
	}
	return left
}

// isOlder reports whether Gateway a was created before Gateway b of the same namespace. If the creation times are
// equal, the first one by name counts as older.
func isOlder(a types.NamespacedName, createdA time.Time, b types.NamespacedName, createdB time.Time) bool {
	return cmp.Or(createdA.Compare(createdB), cmp.Compare(a.Name, b.Name)) < 0
}

// record stores the number of endpoints of a Gateway. It returns the other Gateways that must be translated again:
// those that now have too many endpoints, and those that want more endpoints and may now have them.
func (l *budgetLedger) record(key types.NamespacedName, now ledgerEntry) (affected []types.NamespacedName) {
	old := l.entries[key]
	if old != nil && old.demand == now.demand && old.created.Equal(now.created) {
		old.room = now.room
		return nil
	}
	l.entries[key] = &now
	return l.affected(key)
}

// forget removes the entry of a Gateway that was deleted or belongs to another controller. It returns the other
// Gateways that must be translated again, because they may now have more endpoints.
func (l *budgetLedger) forget(key types.NamespacedName) (affected []types.NamespacedName) {
	if l.entries[key] == nil {
		return nil
	}
	delete(l.entries, key)
	return l.affected(key)
}

// affected returns the Gateways that must be translated again because the entry of another Gateway, cause, has changed.
func (l *budgetLedger) affected(cause types.NamespacedName) (keys []types.NamespacedName) {
	sum := 0
	for _, e := range l.entries {
		sum += e.demand.Wanted
	}
	scarce := l.total > 0 && sum+maxGatewayDemand > l.total
	for key, e := range l.entries {
		if key == cause || !scarce && key.Namespace != cause.Namespace && !e.room.Bounded {
			continue
		}
		room := l.roomFor(key, e.created)
		has, had := e.limit(room), e.limit(e.room)
		if e.demand.Given > has || e.demand.Given < e.demand.Wanted && has > had {
			keys = append(keys, key)
		}
	}
	return keys
}

// limit returns the maximum number of endpoints of a Gateway for a state of the budgets that it shares with other
// Gateways.
func (e *ledgerEntry) limit(room translate.Room) int {
	most := max(0, e.demand.PerNamespace-room.Namespace)
	if room.Bounded {
		most = min(most, room.Operator)
	}
	return most
}
