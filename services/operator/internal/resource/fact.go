package resource

import (
	"maps"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Fact is one thing that a View can be asked. The result of a translation depends on the facts that it was told, on those too whose answer
// was that there is nothing, and on no others: it needs to be done again when one of them has changed.
type Fact struct {
	subject subject
	types.NamespacedName
	// spelling belongs to the name of a route.
	spelling schema.GroupVersion
}

// subject is what a Fact is about: the object of that kind and name, or the list of those that belong to the name.
type subject uint8

const (
	aClass subject = iota
	aGateway
	aGatewayConfig
	aDataplane
	aStaticService
	aRoute
	aService
	aSecret
	aNamespace
	allNodes
	allGatewaysOf
	allRoutesOf
	allServicesOf
	allSlicesOf
	allGrantsOf
	theTrust
	theScaling
	aFleet
	aRefusal
	allGatewaysOfClass
	allGatewaysOfConfig
	allClassesOfConfig
	allConfigsOfDataplane
	allRoutesOfStaticService
	allSystemServices

	// itsStatus is added to an object whose status is meant.
	itsStatus subject = 1 << 7
)

// Facts are a set of facts.
type Facts map[Fact]struct{}

func (f Facts) add(s subject, key types.NamespacedName) {
	f[Fact{subject: s, NamespacedName: key}] = struct{}{}
}

func (f Facts) addRoute(r RouteRef) {
	f[Fact{subject: aRoute, NamespacedName: r.NamespacedName, spelling: r.GroupVersion}] = struct{}{}
}

// Readers knows who was told which facts, to find out whom a change concerns. U names a unit of work. The zero Readers is ready to use.
type Readers[U comparable] struct {
	told map[U]Facts
	of   map[Fact]map[U]struct{}
}

// Told notes the facts that a unit was told, in the place of those that it was told before.
func (r *Readers[U]) Told(u U, facts Facts) {
	r.Forget(u)
	if r.told == nil {
		r.told, r.of = map[U]Facts{}, map[Fact]map[U]struct{}{}
	}
	r.told[u] = facts
	for f := range facts {
		if r.of[f] == nil {
			r.of[f] = map[U]struct{}{}
		}
		r.of[f][u] = struct{}{}
	}
}

// Knows tells whether a unit has been told anything.
func (r *Readers[U]) Knows(u U) bool { return r.told[u] != nil }

// Forget notes that there is no such unit any more.
func (r *Readers[U]) Forget(u U) {
	for f := range r.told[u] {
		delete(r.of[f], u)
		if len(r.of[f]) == 0 {
			delete(r.of, f)
		}
	}
	delete(r.told, u)
}

// Of adds to a set of units all that were told one of the facts.
func (r *Readers[U]) Of(facts Facts, units map[U]struct{}) {
	for f := range facts {
		maps.Copy(units, r.of[f])
	}
}

// SecretFacts are the facts that depend on whether a Secret exists, for a provider that learns of that before it has the Secret.
func SecretFacts(key types.NamespacedName) Facts {
	f := Facts{}
	f.add(aSecret, key)
	return f
}

// Secrets returns the Secrets that the facts are about.
func (f Facts) Secrets() (keys []types.NamespacedName) {
	for fact := range f {
		if fact.subject == aSecret {
			keys = append(keys, fact.NamespacedName)
		}
	}
	return keys
}
