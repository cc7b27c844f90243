package resource

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Fact is the key of one lookup in a View: an object by kind and name, or a list. The result of a translation depends
// on the facts that it looked up, including absent objects, and on nothing else. It must be repeated when one of them
// changes.
type Fact struct {
	subject subject
	types.NamespacedName
	// spelling is the API group and version of a route; zero for other subjects.
	spelling schema.GroupVersion
}

// subject is the kind of a Fact. A subject named "a..." is a single object. A subject named "all..." is a list: of all
// objects, or of those that belong to the object or namespace with the name of the Fact.
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
	nodeAddressesIn

	// itsStatus is a flag: the Fact is the status of the object.
	itsStatus subject = 1 << 7
)

// Facts is a set of facts.
type Facts map[Fact]struct{}

func (f Facts) add(s subject, key types.NamespacedName) {
	f[Fact{subject: s, NamespacedName: key}] = struct{}{}
}

func (f Facts) addRoute(r RouteRef) {
	f[Fact{subject: aRoute, NamespacedName: r.NamespacedName, spelling: r.GroupVersion}] = struct{}{}
}

// SecretFacts returns the facts that depend on a Secret, for a provider that observes its existence before it fetches
// the content.
func SecretFacts(key types.NamespacedName) Facts {
	f := Facts{}
	f.add(aSecret, key)
	return f
}

// Secrets returns the Secrets among the facts, in no particular order.
func (f Facts) Secrets() (keys []types.NamespacedName) {
	for fact := range f {
		if fact.subject == aSecret {
			keys = append(keys, fact.NamespacedName)
		}
	}
	return keys
}
