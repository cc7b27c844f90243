// Package shapes tests behaviours of the product in each of its shapes. A behaviour is a function of an environment
// that holds in any shape. env.Values defines the shapes.
//
//	behaviours.go  the table of behaviours
//	calls.go       behaviours of calls and peers
//	control.go     behaviours of statuses, stunnerctl, the auth service and metrics
//	identity.go    behaviours of caveats, revocations, usage and quotas
//	faults.go      behaviours during changes, crashes and floods
//	survival.go    behaviours of calls whose pod is draining or lost
//	failing.go     cells that fail, and why
//	shapes_test.go runs the cells and prints the matrix
//
// A cell is a behaviour in a shape. A failing cell is a row of failing.go: the test fails when another cell fails, and
// when a cell of a row passes. So no new failing cell can be overlooked.
package shapes

import (
	"context"

	"github.com/stunner-gateway/stunner/e2e/internal/env"
)

// Behaviour is a promise of the product for each shape.
type Behaviour struct {
	// Name is a sentence without spaces.
	Name string
	// Promise is the statement of the documentation that the behaviour tests.
	Promise string
	// In reports whether the behaviour concerns a shape; nil means every shape.
	In func(env.Shape) bool
	// Holds returns nil, or an error if the behaviour does not hold. It restores the environment.
	Holds func(context.Context, *env.Env) error
	// Last means that after a failure the environment cannot be used for other behaviours.
	Last bool
}

// Starts and SurvivesEvent are the names of the first two cells of a shape: the product starts, and calls continue
// during the event. The other behaviours follow in the order of the table, after the event.
const (
	Starts        = "Starts"
	SurvivesEvent = "CallsSurviveTheEvent"
)

// Behaviours are the behaviours in the order in which they are tested.
var Behaviours = []Behaviour{
	{
		Name: Starts, Promise: "A Gateway that is applied is served: its dataplanes become ready.",
		Holds: func(ctx context.Context, e *env.Env) error { return e.Start(ctx) }, Last: true,
	},
	{
		Name: SurvivesEvent, Promise: "A call does not end because something was reconfigured, restarted, scaled or missing.",
		Holds: callsSurviveEvent,
	},
	{
		Name: "DoctorFindsNothing", Promise: "stunnerctl doctor has no finding for a healthy installation.",
		In: offloadAsAskedFor, Holds: doctorFindsNothing,
	},
	{
		Name: "WhyFindsNothing", Promise: "stunnerctl why has no finding for a healthy Gateway.",
		In: offloadAsAskedFor, Holds: whyFindsNothing,
	},
	{
		Name: "AFaultIsNamed", Promise: "stunnerctl why names a fault with its object and a remedy, and nothing after its end.",
		In: offloadAsAskedFor, Holds: aFaultIsNamed,
	},
	{
		Name: "CallsReachTheirPeers", Promise: "Clients reach the peers of a listener's routes, at each address and over each transport.",
		Holds: callsReachTheirPeers,
	},
	{
		Name: "BothRelayFamiliesWork", Promise: "A client of a dual-stack Gateway gets a relay of the family that it asks for.",
		In: shapeIs(env.DualStack), Holds: bothRelayFamiliesWork,
	},
	{
		Name: "PeersWithoutRouteAreRefused", Promise: "Clients reach the backends of the routes of a listener, and nothing else.",
		Holds: peersWithoutRouteAreRefused,
	},
	{
		Name: "WrongCredentialsAreRefused", Promise: "A request with a wrong password gets error 401.",
		Holds: wrongCredentialsAreRefused,
	},
	{
		Name: "ToldAddressesAreReachable", Promise: "The auth service tells clients an address of each listener and family at which they can call.",
		Holds: toldAddressesAreReachable,
	},
	{
		Name: "StatusIsTrue", Promise: "The conditions of a healthy Gateway are True, and its addresses are those of clients.",
		Holds: statusIsTrue,
	},
	{
		Name: "MediaPathIsInForce", Promise: "With an offload engine, the kernel forwards the media of established channels.",
		In: func(s env.Shape) bool { return s[env.MediaPath] != env.UserSpace }, Holds: mediaPathIsInForce,
	},
	{
		Name: "SessionsAreListed", Promise: "stunnerctl sessions lists the sessions of all pods of a Gateway.",
		Holds: sessionsAreListed,
	},
	{
		Name: "KickEndsASession", Promise: "stunnerctl kick ends the sessions of a user, in whatever pod, and no other.",
		// With static credentials all clients are one user.
		In: func(s env.Shape) bool { return s[env.Credentials] != env.Static }, Holds: kickEndsASession,
	},
	{
		Name: "MetricsAddUp", Promise: "The allocations that the pods of a Gateway report are those of its clients.",
		Holds: metricsAddUp,
	},
	{
		Name: "ACaveatOnlyNarrows", Promise: "A credential that names a route reaches the peers of this route only, at its Gateway.",
		In: withCaveats, Holds: aCaveatOnlyNarrows,
	},
	{
		Name: "ACaveatOfBytesEndsCalls", Promise: "A call ends when the bytes of its credential are used up.",
		In: withCaveats, Holds: aCaveatOfBytesEndsCalls,
	},
	{
		Name: "ACaveatCountsOverPods", Promise: "A caveat limits the allocations of a user in all pods of a Gateway, and of no other user.",
		In: withCaveats, Holds: aCaveatCountsOverPods,
	},
	{
		Name: "AQuotaCountsOverPods", Promise: "userQuota limits the allocations of a user in all pods of a Gateway, and of no other user.",
		Holds: aQuotaCountsOverPods,
	},
	{
		Name:    "RevocationEndsItsUserOnly",
		Promise: "A revocation ends the calls of its user in two seconds, and refuses what was issued before until it is lifted.",
		In:      withCaveats, Holds: revocationEndsItsUserOnly,
	},
	{
		Name: "UsageAddsUp", Promise: "The usage that the auth service tells is what clients have sent and received, through all pods.",
		Holds: usageAddsUp,
	},
	{
		Name: "IcetestPasses", Promise: "stunnerctl icetest passes for each listener of a healthy Gateway, and says what it has left out.",
		Holds: icetestPasses,
	},
	{
		Name: "TurncatCarriesData", Promise: "stunnerctl turncat carries the data of a local client through each listener.",
		Holds: turncatCarriesData,
	},
	{
		Name: "NestedAllocationsAreRefused", Promise: "No client reaches the ports of a gateway's own listeners through it.",
		In: shapeIs(env.Headless), Holds: nestedAllocationsAreRefused,
	},
	{
		Name: "ClientsCallEachOther", Promise: "Two clients of a Gateway exchange media through their relays, when a route names its own Service.",
		In: shapeIs(env.Headless), Holds: clientsCallEachOther,
	},
	{
		Name: "SharedAddressServesEachClient", Promise: "Clients behind one public address are served: none is refused for the calls of another.",
		In: shapeIs(env.SharedAddress), Holds: sharedAddressServesEachClient,
	},
	{
		Name: "NoisyClientDisturbsNobody", Promise: "A client that floods a listener takes nothing from the calls of others.",
		Holds: noisyClientDisturbsNobody,
	},
	{
		Name: "RouteChangesUnderCalls", Promise: "A change of a route opens and closes peers, and disturbs no call to another peer.",
		Holds: under((*env.Env).ChangeRoutes),
	},
	{
		Name: "CertificateChangesUnderCalls", Promise: "A new certificate is served to new connections; established ones continue.",
		In: shapeIs(env.AllProtocols), Holds: under((*env.Env).RenewCertificates),
	},
	{
		Name: "SecretRotationUnderCalls", Promise: "After a rotation of the credentials established calls continue, and new ones use the new credentials.",
		Holds: under((*env.Env).Rotate),
	},
	{
		Name: "CallsSurviveACrash", Promise: "UDP calls continue after the process of a dataplane has crashed.",
		Holds: callsSurviveACrash,
	},
	{
		Name: "ACrashWidensNothing", Promise: "A restored session keeps the limits of its credential, and can be revoked.",
		In: withCaveats, Holds: aCrashWidensNothing,
	},
	{
		Name: "MovedClientsContinue", Promise: "A UDP call continues when a load balancer sends its client to another pod.",
		In: severalPodsSeeClients, Holds: movedClientsContinue,
	},
	{
		Name: "DrainedPodPassesItsCallsOn",
		Promise: "A pod that gets SIGTERM moves its UDP calls to the other pods, keeps those that cannot move, and ends after the " +
			"last one.",
		In: severalPodsOfTheirOwn, Holds: drainedPodPassesItsCallsOn,
	},
	{
		Name: "CallsOutliveALostPod", Promise: "When a pod is lost, other pods continue its UDP calls after about two seconds.",
		In: severalPodsSeeClients, Holds: callsOutliveALostPod,
	},
	{
		Name: "VanishedClientsHurtNobody", Promise: "Forwarded calls lose nothing when other forwarded clients vanish.",
		In: severalPodsSeeClients, Holds: vanishedClientsHurtNobody,
	},
	{
		Name: "VanishedPodsHurtNobody", Promise: "Calls of living pods lose nothing when other pods vanish.",
		In: severalPodsSeeClients, Holds: vanishedPodsHurtNobody,
	},
	{
		Name: "DrainKeepsCalls", Promise: "A pod that is deleted keeps its calls and accepts no new ones; those go to other pods.",
		In: severalPodsOfTheirOwn, Holds: under(drain),
	},
	{
		Name: "ADrainWidensNothing", Promise: "A session of a pod that drains keeps the limits of its credential, and can be revoked.",
		In: func(s env.Shape) bool { return withCaveats(s) && severalPodsOfTheirOwn(s) }, Holds: aDrainWidensNothing,
	},
	{
		Name: "RestartAfterAMistakeKeepsServing", Promise: "An error removes nothing: what was published before stays in force, also when operator and auth service restart.",
		Holds: restartAfterAMistakeKeepsServing,
	},
	{
		Name: "UpdateAdmitsNewCalls", Promise: "During and after an update of the dataplanes new calls are accepted, and those before it continue.",
		Holds: updateAdmitsNewCalls, Last: true,
	},
	{
		Name: "RemovalLeavesNothing", Promise: "When a Gateway is deleted, its pods, Services and configs go, and nothing of another Gateway.",
		Holds: removalLeavesNothing,
	},
}

// shapeIs returns a condition on shapes: that they have a value.
func shapeIs(v env.Value) func(env.Shape) bool { return func(s env.Shape) bool { return s.Is(v) } }

// severalPodsOfTheirOwn reports whether there are several pods in networks of their own.
func severalPodsOfTheirOwn(s env.Shape) bool { return s[env.Pods] != env.OnePod && !s.InHostNetwork() }

// severalPodsSeeClients reports whether UDP datagrams of a client reach one of several pods with the client's address.
func severalPodsSeeClients(s env.Shape) bool {
	return s[env.Pods] != env.OnePod && s.KeepsClientAddresses()
}

// offloadAsAskedFor reports whether the requested offload engine works at the network interfaces of the pods. XDP does
// not support the interfaces of pods, and only one process of a node at a time can attach its program to an interface.
// In these cases there is a finding, and the pods use TC.
func offloadAsAskedFor(s env.Shape) bool {
	return s[env.MediaPath] != env.XDP || s.InHostNetwork() && s[env.Gateways] == env.OneGateway
}
