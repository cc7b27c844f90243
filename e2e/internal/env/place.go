package env

import (
	"net/netip"

	"github.com/stunner-gateway/stunner/e2e/internal/topology"
)

// place is what a value of Place means.
type place struct {
	// annotation of the Gateway.
	annotation string
	// at is where clients reach the Gateway when its objects come from the API server; from a folder they reach the host.
	at reach
	// keeps reports that UDP datagrams reach the pods with the addresses of their clients.
	keeps bool
	// nat translates the addresses that clients use, which spec.addresses names.
	nat bool
	// hostNetwork makes the pods run in the network of the nodes. spec.addresses names the nodes.
	hostNetwork bool
	// nested makes the Service of the Gateway a backend of its routes.
	nested bool
}

// reach is a kind of address.
type reach int

const (
	balancer reach = iota // of a load balancer of the Gateway's own
	node                  // of the first node, at the port of the listener
	nodePort              // of the first node, at a node port
)

const (
	localTraffic = "stunner.l7mp.io/external-traffic-policy: local"
	serviceType  = "stunner.l7mp.io/service-type: "
)

// places are the values of Place. A new place is a value and a row.
var places = map[Value]place{
	KeepsSource: {annotation: localTraffic, at: balancer, keeps: true},
	HidesSource: {at: balancer},
	NodePort:    {annotation: serviceType + "NodePort", at: nodePort},
	HostNetwork: {annotation: serviceType + "ClusterIP", at: node, hostNetwork: true},
	BehindNAT:   {annotation: localTraffic, at: balancer, keeps: true, nat: true},
	Headless:    {annotation: localTraffic, at: balancer, keeps: true, nested: true},
}

func (s Shape) place() place { return places[s[Place]] }

// KeepsClientAddresses reports whether UDP datagrams reach the pods with the addresses of their clients.
func (s Shape) KeepsClientAddresses() bool { return s.place().keeps }

// InHostNetwork reports whether dataplanes run in the network of a node: pods as their Dataplane asks for it, and the
// processes of a folder always.
func (s Shape) InHostNetwork() bool { return s[Input] == Folder || s.place().hostNetwork }

// addressOf returns the address of a load balancer and the public one, of a new Gateway.
func (e *Env) addressOf() (own, public topology.Both[netip.Addr], err error) {
	p, first := e.Shape.place(), e.Net.Nodes[0]
	switch {
	case e.Shape[Input] == APIServer && p.at == balancer:
		return e.Net.AddBalancer(p.nat)
	case p.nat:
		public = e.Net.NextTranslated()
		return own, public, e.Net.Translate(public, first.Internal)
	}
	return own, first.External, nil
}

// requested returns spec.addresses.
func (g *Gateway) requested() (list []netip.Addr) {
	e := g.env
	switch p := e.Shape.place(); {
	case p.nat:
		return e.families(g.public)
	case p.hostNetwork:
		for _, n := range e.Net.Nodes {
			list = append(list, e.families(n.External)...)
		}
	}
	return list
}
