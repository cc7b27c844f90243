package balancer

import (
	"slices"
	"strings"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
)

// Provider is a row of the table: the load balancers of a cloud provider, or of a controller in the cluster.
type Provider struct {
	// Name is the value of spec.loadBalancerProvider of a GatewayConfig.
	Name stunnerv1.LoadBalancerProvider
	// Title is the name for users, and Subject the subject of sentences about the load balancers.
	Title, Subject string
	// Schemes are the schemes in spec.providerID of the nodes.
	Schemes []string
	// Classes are the values of spec.loadBalancerClass of a Service that the controller serves.
	Classes []string
	// Marks are prefixes of annotations of a Service that no other controller reads.
	Marks []string

	// Address, UDP, Mixed, SamePort, Affinity, Health, IPv6 and Source are the abilities for the features.
	Address, UDP, Mixed, SamePort, Affinity, Health, IPv6, Source Ability
	// Cautions are settings that the controller reads and that do not work with TURN.
	Cautions []Caution
	// Reads are the annotations of a Service that affect TURN, with their effects.
	Reads []Annotation
	// Notes are sentences about other properties, such as timeouts.
	Notes []string
	// Sources are the pages of public documentation from which the row is taken.
	Sources []Source
}

// Annotation is an annotation that a provider reads.
type Annotation struct{ Name, Effect string }

// Source is a page of public documentation.
type Source struct{ Title, URL string }

// How is the way in which a provider was found.
type How int

// The values of How, in order of precedence.
const (
	// ByConfig means spec.loadBalancerProvider of the GatewayConfig.
	ByConfig How = iota
	// ByClass means spec.loadBalancerClass of the Service.
	ByClass
	// ByAnnotation means an annotation of the Service.
	ByAnnotation
	// ByNodes means spec.providerID of the nodes.
	ByNodes
)

// Find returns the provider of the load balancer of a Service; nil if it is unknown. configured is
// spec.loadBalancerProvider of the GatewayConfig. schemes are the schemes in spec.providerID of all nodes. They decide
// only if one provider has all nodes.
func Find(configured stunnerv1.LoadBalancerProvider, s Service, schemes []string) (*Provider, How) {
	if configured != "" {
		return find(func(p *Provider) bool { return p.Name == configured }), ByConfig
	}
	if s.Class != "" {
		return find(func(p *Provider) bool { return slices.Contains(p.Classes, s.Class) }), ByClass
	}
	if p := find(func(p *Provider) bool { return p.marks(s) }); p != nil {
		return p, ByAnnotation
	}
	if len(schemes) != 1 {
		return nil, ByNodes
	}
	return find(func(p *Provider) bool { return slices.Contains(p.Schemes, schemes[0]) }), ByNodes
}

func find(match func(*Provider) bool) *Provider {
	for i := range Providers {
		if match(&Providers[i]) {
			return &Providers[i]
		}
	}
	return nil
}

func (p *Provider) marks(s Service) bool {
	for name := range s.Annotations {
		if slices.ContainsFunc(p.Marks, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			return true
		}
	}
	return false
}
