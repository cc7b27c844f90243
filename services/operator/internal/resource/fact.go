package resource

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Fact identifies something that a translation can look up in a View: an object by kind and name, or a list. A lookup
// that finds nothing also counts. The result of a translation depends only on the facts that it looked up, so it must
// be repeated when one of them changes.
type Fact struct {
	subject subject
	types.NamespacedName
	// spelling is the API group and version of a route; zero for other subjects.
	spelling schema.GroupVersion
}

// subject says what a Fact is about. The name of a subject "a..." stands for a single object, which the Fact names.
// "all..." stands for a list: all objects of a kind, or those that belong to the object or namespace that the Fact
// names. "the..." stands for an object that exists once, without a name.
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

	// itsStatus is a flag that is added to a subject: the Fact is then about the status of the object only.
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

// SecretFacts returns the facts that change when a Secret appears. A provider needs it if it observes that a Secret
// exists before it fetches the content.
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
