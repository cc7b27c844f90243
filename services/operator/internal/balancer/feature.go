package balancer

import (
	"slices"
	"strings"
)

// Support says whether load balancers have a feature.
type Support string

// The values of Support.
const (
	// Unknown means that no public documentation says it.
	Unknown Support = ""
	Yes     Support = "yes"
	No      Support = "no"
	// With means that one of the settings in Ability.With is necessary.
	With Support = "with settings"
	// Depends means that the feature depends on settings of the installation that the operator cannot read.
	Depends Support = "depends"
)

// Ability says whether and how load balancers have a feature.
type Ability struct {
	Support Support
	With    []Setting
	// Note explains the ability in docs/providers.md, in full sentences.
	Note string
}

// suffices reports whether a Service has the feature. It returns true if that is unknown.
func (a Ability) suffices(s Service) bool {
	switch a.Support {
	case No:
		return false
	case With:
		return anyIn(a.With, s)
	}
	return true
}

// Feature is something that a Service may need from its load balancer.
type Feature struct {
	// Name is the heading of the feature in docs/providers.md.
	Name string
	// Of returns the ability of a provider.
	Of func(*Provider) Ability
	// needed reports whether a Service needs the feature.
	needed func(Service) bool
	// udp means that the feature matters only if the load balancer serves UDP.
	udp bool
	// problem is the Problem of a Limit, and remedy a remedy that works with every provider.
	problem, remedy string
}

const nameUDP = "UDP"

const separateServices = "remove annotation stunner.l7mp.io/enable-mixed-protocol-lb, so that each transport has a " +
	"Service of its own"

// Features are in the order in which the lack of a feature is reported. Features that a load balancer needs to assign
// an address are first.
var Features = []Feature{
	{
		Name: "address", Of: func(p *Provider) Ability { return p.Address },
		needed:  func(s Service) bool { return !s.Addressed },
		problem: "assigns no address",
		remedy: "set annotation stunner.l7mp.io/service-type: NodePort, request addresses in spec.addresses of the " +
			"Gateway, or install a load balancer controller",
	},
	{
		Name: nameUDP, Of: func(p *Provider) Ability { return p.UDP },
		needed:  func(s Service) bool { return len(s.UDP) > 0 },
		problem: "serves no UDP",
		remedy: "set annotation stunner.l7mp.io/service-type: NodePort, or use another load balancer with " +
			"spec.service.loadBalancerClass of the Dataplane",
	},
	{
		Name: "UDP and TCP in one Service", Of: func(p *Provider) Ability { return p.Mixed },
		needed: func(s Service) bool { return len(s.UDP) > 0 && len(s.TCP) > 0 }, udp: true,
		problem: "serves no Service with UDP and TCP ports", remedy: separateServices,
	},
	{
		Name: "health check port beside UDP", Of: func(p *Provider) Ability { return p.Mixed },
		needed: func(s Service) bool { return len(s.UDP) > 0 && len(s.TCP) == 0 && s.HealthPort }, udp: true,
		problem: "serves no Service with UDP and TCP ports, and the port of its health check is a TCP port",
		remedy:  `set annotation stunner.l7mp.io/disable-health-check-expose: "true"`,
	},
	{
		Name: "one port for UDP and TCP", Of: func(p *Provider) Ability { return p.SamePort },
		needed: func(s Service) bool {
			return slices.ContainsFunc(s.UDP, func(port int32) bool { return slices.Contains(s.TCP, port) })
		}, udp: true,
		problem: "serves no port of a Service over both UDP and TCP",
		remedy:  "use another port for one of the listeners, or " + separateServices,
	},
	{
		Name: "session affinity", Of: func(p *Provider) Ability { return p.Affinity },
		needed:  func(s Service) bool { return s.Affinity },
		problem: "refuses a Service with sessionAffinity ClientIP",
		remedy:  `set annotation stunner.l7mp.io/disable-session-affinity: "true"`,
	},
	{
		Name: "health of UDP ports", Of: func(p *Provider) Ability { return p.Health },
		needed: func(s Service) bool { return len(s.UDP) > 0 }, udp: true,
		problem: "checks the health of UDP ports over TCP, which no pod answers there, and may forward no UDP",
	},
	{
		Name: "IPv6", Of: func(p *Provider) Ability { return p.IPv6 },
		needed:  func(s Service) bool { return s.IPv6 },
		problem: "has no IPv6 address",
		remedy:  "leave IPv6 out of spec.service.ipFamilies of the Dataplane and of spec.addresses of the Gateway",
	},
	{
		Name: "addresses of clients", Of: func(p *Provider) Ability { return p.Source },
		needed:  func(s Service) bool { return s.CountsSources },
		problem: "hides the addresses of clients, by which spec.sourceQuota of the GatewayConfig counts",
		remedy:  "remove spec.sourceQuota of the GatewayConfig",
	},
}

// limit returns the limit of a Service that needs the feature and does not have it.
func (f Feature) limit(a Ability) Limit {
	if a.Support != With {
		return Limit{f.problem, f.remedy}
	}
	remedies := []string{"set " + anyOf(a.With)}
	if f.remedy != "" {
		remedies = append(remedies, f.remedy)
	}
	return Limit{f.problem, strings.Join(remedies, "; or ")}
}

// anyOf returns a list of settings, one of which is necessary, as the object of the verb "set".
func anyOf(settings []Setting) string {
	var texts []string
	for _, x := range settings {
		texts = append(texts, x.String())
	}
	return strings.Join(texts, ", or ")
}
