package resource

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Fact identifies something that a translation can look up in a View: an object by kind and name, or a list. A lookup
// that finds nothing also depends on the Fact. Apart from the options of the translation, its result depends only on
// the facts that it looked up, so it must be repeated when one of them changes.
type Fact struct {
	subject subject
	types.NamespacedName
	// groupVersion is the API group and version of a route; zero for other subjects.
	groupVersion schema.GroupVersion
}

// subject is the kind of thing that a Fact identifies. A constant "a..." stands for a single object, whose name is in
// the Fact. "all..." stands for a list: all objects of a kind, or those that belong to the object or namespace whose
// name is in the Fact. "the..." stands for an object that exists once, without a name. nodeAddressesIn stands for the
// node addresses in the block whose text is the name in the Fact. anOverBudget stands for the refusals of the route in
// the Fact by all Gateways. roomOfRevocation stands for the fact that the Revocation fits into the budget of its
// namespace or not. revocationsAt stands for the fact that the Gateway ignores Revocations or not. allRevocationsOf
// stands for the Revocations of a namespace that fit into its budget.
type subject uint8

const (
	aClass subject = iota
	aGateway
	aGatewayConfig
	aDataplane
	aStaticService
	aRevocation
	roomOfRevocation
	revocationsAt
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
	allRevocationsOf
	theTrust
	theScaling
	theInstallations
	aRollout
	aRejection
	theNodePorts
	anOverBudget
	allGatewaysOfClass
	allGatewaysOfConfig
	allClassesOfConfig
	allConfigsOfDataplane
	allRoutesOfStaticService
	allDataplanesOfWorkload
	allSystemServices
	nodeAddressesIn
	theNetworks
	theNodeProviders

	// itsStatus is a flag that is added to a subject. The Fact then identifies only the status of the object.
	itsStatus subject = 1 << 7
)

// Facts is a set of facts.
type Facts map[Fact]struct{}

func (f Facts) add(s subject, key types.NamespacedName) {
	f[Fact{subject: s, NamespacedName: key}] = struct{}{}
}

func (f Facts) addRoute(r RouteRef) {
	f[Fact{subject: aRoute, NamespacedName: r.NamespacedName, groupVersion: r.GroupVersion}] = struct{}{}
}

// SecretFacts returns the facts that change when a Secret appears. A provider calls it when it observes that a Secret
// exists, before it fetches the content of the Secret.
func SecretFacts(key types.NamespacedName) Facts {
	f := Facts{}
	f.add(aSecret, key)
	return f
}

// EndpointSlices returns the Services whose EndpointSlices are among the facts. only is false if there are other facts.
func (f Facts) EndpointSlices() (services []types.NamespacedName, only bool) {
	for fact := range f {
		if fact.subject != allSlicesOf {
			return nil, false
		}
		services = append(services, fact.NamespacedName)
	}
	return services, true
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
