package kube

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// ledger shares what Gateways have in common: the endpoints that a namespace may have, the oldest Gateways first, and those that the operator has memory
// for, an equal part for each namespace.
type budgetLedger struct {
	// total is how many endpoints the operator has memory for; 0 means any number.
	total   int
	entries map[types.NamespacedName]*ledgerEntry
}

// entry is a Gateway that has been translated.
type ledgerEntry struct {
	created time.Time
	demand  translate.Demand
	// room is what it was left for its translation.
	room translate.Room
}

func newBudgetLedger(total int) *budgetLedger {
	return &budgetLedger{total: total, entries: map[types.NamespacedName]*ledgerEntry{}}
}

// roomFor returns what other Gateways leave to one of them.
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
		room.Bounded, room.Operator = true, max(0, l.share(wanted, sum)-older)
	}
	return room
}

// maxGatewayDemand is more than one Gateway may have: while there is as much left nobody needs to share.
const maxGatewayDemand = 200_000

// part is how many endpoints a namespace may have that wants any number, beside others that want so many: the others get what they want as far as it is no
// more than that.
func (l *budgetLedger) share(wanted map[string]int, sum int) int {
	var others []int
	for _, w := range wanted {
		others = append(others, w)
	}
	slices.Sort(others)
	left := l.total
	for i, w := range others {
		if equal := left / (len(others) - i + 1); w > equal {
			return equal
		}
		left -= w
	}
	return left
}

// before tells which of two Gateways of a namespace was there first; the name decides where the clock does not.
func isOlder(a types.NamespacedName, made time.Time, b types.NamespacedName, madeB time.Time) bool {
	if !made.Equal(madeB) {
		return made.Before(madeB)
	}
	return a.Name < b.Name
}

// note takes over what a Gateway has, and returns the others that it makes a difference for: they have to give something back, or can have more.
func (l *budgetLedger) record(key types.NamespacedName, now ledgerEntry) (concerned []types.NamespacedName) {
	old := l.entries[key]
	if old != nil && old.demand == now.demand && old.created.Equal(now.created) {
		old.room = now.room
		return nil
	}
	l.entries[key] = &now
	return l.concerned(key)
}

// forget takes a Gateway out that is gone.
func (l *budgetLedger) forget(key types.NamespacedName) (concerned []types.NamespacedName) {
	if l.entries[key] == nil {
		return nil
	}
	delete(l.entries, key)
	return l.concerned(key)
}

func (l *budgetLedger) concerned(by types.NamespacedName) (keys []types.NamespacedName) {
	sum := 0
	for _, e := range l.entries {
		sum += e.demand.Wanted
	}
	scarce := l.total > 0 && sum+maxGatewayDemand > l.total
	for key, e := range l.entries {
		if key == by || !scarce && key.Namespace != by.Namespace && !e.room.Bounded {
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

// most is how many endpoints the Gateway may have with that room.
func (e *ledgerEntry) limit(room translate.Room) int {
	most := max(0, e.demand.PerNamespace-room.Namespace)
	if room.Bounded {
		most = min(most, room.Operator)
	}
	return most
}
