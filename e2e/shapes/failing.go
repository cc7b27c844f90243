package shapes

import (
	"slices"

	"github.com/stunner-gateway/stunner/e2e/internal/env"
)

// Failing is a behaviour that does not hold in some shapes.
type Failing struct {
	Behaviour string
	// In are values that the shapes have, and Unless values of which they have none.
	In, Unless []env.Value
	// Symptom is a regular expression that matches a part of the error.
	Symptom string
}

// FailingCells are the cells that fail. A row is removed when the behaviour holds in its shapes.
var FailingCells = []Failing{
	// spec.addresses is a request to the Service, and not what clients are told.
	{"ToldAddressesAreReachable", values(env.BehindNAT), nil, "clients are not told"},
	{"ToldAddressesAreReachable", values(env.HostNetwork, env.APIServer), nil, "no matching gateway has a public address"},
	{"StatusIsTrue", values(env.BehindNAT), nil, "status.addresses"},
	{"StatusIsTrue", values(env.HostNetwork, env.APIServer), nil, "AddressNotAssigned"},
	{"IcetestPasses", values(env.BehindNAT, env.APIServer, env.AllProtocols), nil, "exit code 1"},
	{"TurncatCarriesData", values(env.BehindNAT, env.APIServer, env.AllProtocols), nil, "failed to verify certificate"},
	{"DoctorFindsNothing", values(env.BehindNAT, env.APIServer), nil, "spec.addresses"},
	{"WhyFindsNothing", values(env.BehindNAT, env.APIServer), nil, "spec.addresses"},
	{"DoctorFindsNothing", values(env.HostNetwork, env.APIServer), nil, "has no public address"},
	{"WhyFindsNothing", values(env.HostNetwork, env.APIServer), nil, "has no public address"},
	{"IcetestPasses", values(env.HostNetwork, env.APIServer), nil, "has no public address"},
	{"TurncatCarriesData", values(env.HostNetwork, env.APIServer), nil, "has no public address"},
	{"RestartAfterAMistakeKeepsServing", values(env.HostNetwork, env.APIServer), nil, "no matching gateway has a public address"},

	// Clients are told one address of a listener.
	{"ToldAddressesAreReachable", values(env.DualStack), values(env.BehindNAT, env.HostNetwork), "clients are not told"},
	{"StatusIsTrue", values(env.DualStack), values(env.BehindNAT, env.HostNetwork), "status.addresses"},

	// From a folder, clients are told one address of the host, and get relays of its family only.
	{"ToldAddressesAreReachable", values(env.DualStack, env.Folder), nil, "clients are not told"},
	{"StatusIsTrue", values(env.DualStack, env.Folder), nil, "status.addresses"},
	{"BothRelayFamiliesWork", values(env.DualStack, env.Folder), nil, "error 440"},

	// A node port of an IPv6 Service is told with an IPv4 address of the node.
	{"ToldAddressesAreReachable", values(env.NodePort, env.IPv6), nil, "clients are not told"},
	{"StatusIsTrue", values(env.NodePort, env.IPv6), nil, "status.addresses"},
	{"DoctorFindsNothing", values(env.NodePort, env.IPv6), nil, "no Service of the Gateway has this family"},
	{"WhyFindsNothing", values(env.NodePort, env.IPv6), nil, "no Service of the Gateway has this family"},
	{"IcetestPasses", values(env.NodePort, env.IPv6), nil, "exit code 1"},
	{"TurncatCarriesData", values(env.NodePort, env.IPv6), nil, "connection refused|all retransmissions failed"},

	// The pods of a Deployment in the host network are replaced while those before them have the ports.
	{"UpdateAdmitsNewCalls", values(env.HostNetwork, env.APIServer), nil, "error 508|is not updated"},
}

func values(list ...env.Value) []env.Value { return list }

// find returns the row of a cell.
func find(behaviour string, s env.Shape) *Failing {
	for i, f := range FailingCells {
		if f.Behaviour == behaviour && s.Is(f.In...) && !slices.ContainsFunc(f.Unless, func(v env.Value) bool { return s.Is(v) }) {
			return &FailingCells[i]
		}
	}
	return nil
}
