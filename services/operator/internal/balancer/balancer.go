// Package balancer describes what the load balancers of providers do for a Service of type LoadBalancer. It is a table
// of values. Condition LoadBalancerLimited of a Gateway and docs/providers.md are made from it.
//
// A fact that no public documentation states is Unknown. An Unknown fact limits nothing.
//
// # Files
//
//	balancer.go  a Service, and the features that load balancers lack
//	feature.go   what a Service may need
//	provider.go  a row of the table, and which row applies
//	table.go     the rows
//	page.go      docs/providers.md, which page/main.go writes
package balancer

import (
	"slices"
	"strings"
)

// Service contains the features that a Service needs from its load balancer.
type Service struct {
	// UDP and TCP are the ports of listeners by transport.
	UDP, TCP []int32
	// HealthPort means that the Service has a TCP port for health checks.
	HealthPort bool
	// Affinity means session affinity by client IP.
	Affinity bool
	// Local means externalTrafficPolicy Local.
	Local bool
	// IPv6 means that the Service requires an IPv6 address.
	IPv6 bool
	// CountsSources means that dataplanes limit the allocations of an address.
	CountsSources bool
	// Addressed means that clients receive addresses that the load balancer has not assigned.
	Addressed bool
	// Class is spec.loadBalancerClass.
	Class string
	// Annotations are the annotations of the Service.
	Annotations map[string]string
}

// Limit is something that a load balancer does not do for a Service. Problem continues a sentence whose subject is the
// load balancer, and Remedy starts with a verb.
type Limit struct{ Problem, Remedy string }

// Limits returns the features that a Service needs and that the load balancers of a provider do not have, in the order
// of the features.
func (p *Provider) Limits(s Service) (limits []Limit) {
	noUDP := false
	for _, f := range Features {
		ability := f.Of(p)
		if !f.needed(s) || f.udp && noUDP || ability.suffices(s) {
			continue
		}
		noUDP = noUDP || f.Name == nameUDP
		limits = append(limits, f.limit(ability))
	}
	for _, c := range p.Cautions {
		if c.applies(s) {
			limits = append(limits, Limit{c.Problem, c.Remedy})
		}
	}
	return limits
}

// Setting is a setting of a Service. Exactly one of Annotation, Classes, Local and Cluster is set.
type Setting struct {
	// Annotation is the name of an annotation, and Values are its values. Without Values any value will do.
	Annotation string
	Values     []string
	// Classes are values of spec.loadBalancerClass.
	Classes []string
	// Local and Cluster are the values of externalTrafficPolicy.
	Local, Cluster bool
}

func (x Setting) in(s Service) bool {
	switch {
	case x.Local:
		return s.Local
	case x.Cluster:
		return !s.Local
	case len(x.Classes) > 0:
		return slices.Contains(x.Classes, s.Class)
	}
	value := strings.TrimSpace(s.Annotations[x.Annotation])
	is := func(one string) bool { return strings.EqualFold(one, value) }
	return value != "" && (len(x.Values) == 0 || slices.ContainsFunc(x.Values, is))
}

// String returns the setting as the object of the verb "set".
func (x Setting) String() string {
	switch {
	case x.Local:
		return "annotation stunner.l7mp.io/external-traffic-policy: local"
	case x.Cluster:
		return `annotation stunner.l7mp.io/external-traffic-policy: ""`
	case len(x.Classes) > 0:
		return "spec.service.loadBalancerClass of the Dataplane to " + strings.Join(x.Classes, " or ")
	case len(x.Values) == 0:
		return "annotation " + x.Annotation
	}
	values := slices.Clone(x.Values)
	for i, v := range values {
		if v == "true" || v == "*" {
			values[i] = `"` + v + `"`
		}
	}
	return "annotation " + x.Annotation + ": " + strings.Join(values, " or ")
}

func anyIn(settings []Setting, s Service) bool {
	return slices.ContainsFunc(settings, func(x Setting) bool { return x.in(s) })
}

// Caution is a problem of a setting, or of a combination of settings.
type Caution struct {
	// If are settings. A Service with at least one of them has the problem.
	If []Setting
	// Unless are settings. One of them prevents the problem.
	Unless []Setting
	// UDP limits the problem to Services with UDP ports. TCP limits the problem to Services with TCP ports.
	UDP, TCP        bool
	Problem, Remedy string
}

func (c Caution) applies(s Service) bool {
	return anyIn(c.If, s) && !anyIn(c.Unless, s) && (!c.UDP || len(s.UDP) > 0) && (!c.TCP || len(s.TCP) > 0)
}
