package resource

import (
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
	anOverBudget
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
