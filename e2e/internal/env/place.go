package env

import (
	"net/netip"

	"github.com/stunner-gateway/stunner/e2e/internal/topology"
)

// place describes a value of Place.
type place struct {
	// annotation of the Gateway.
	annotation string
	// at is the kind of address at which clients reach the Gateway if its objects come from the API server. With a
	// folder, clients use the address of the host.
	at reach
	// keeps is set if the pods receive UDP datagrams with the addresses of their clients.
	keeps bool
	// nat translates the addresses that clients use, which spec.addresses names.
	nat bool
	// hostNetwork makes the pods run in the network of the nodes. spec.addresses names the nodes.
	hostNetwork bool
	// nested makes the Service of the Gateway a backend of its routes.
	nested bool
	// tls makes the load balancer end TLS in front of the TCP listener.
	tls bool
	// header makes the load balancer send the PROXY protocol, version 2, to TCP and TLS listeners.
	header bool
	// addresses is the number of addresses of each family; 0 means one.
	addresses int
	// portError makes the load balancer report an error for the port of the last listener, which it does not serve.
	portError bool
	// shared makes the test send calls from hosts that share one public address.
	shared bool
}

// proxied reports whether the load balancer ends the connections of clients.
func (p place) proxied() bool { return p.tls || p.header }

// reach is the kind of address at which clients reach a Gateway.
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

// places describes the values of Place. A new place is a Value and a row here.
var places = map[Value]place{
	KeepsSource: {annotation: localTraffic, at: balancer, keeps: true},
	HidesSource: {at: balancer},
	NodePort:    {annotation: serviceType + "NodePort", at: nodePort},
	HostNetwork: {annotation: serviceType + "ClusterIP", at: node, hostNetwork: true},
	BehindNAT:   {annotation: localTraffic, at: balancer, keeps: true, nat: true},
	Headless:    {annotation: localTraffic, at: balancer, keeps: true, nested: true},

	TLSAtBalancer: {annotation: localTraffic + ", stunner.l7mp.io/tls-at-load-balancer: tcp", at: balancer, keeps: true, tls: true},
	ProxyProtocol: {annotation: localTraffic, at: balancer, keeps: true, header: true},
	ManyAddresses: {annotation: localTraffic, at: balancer, keeps: true, addresses: 2},
	PortError:     {annotation: localTraffic, at: balancer, keeps: true, portError: true},
	SharedAddress: {annotation: localTraffic, at: balancer, keeps: true, shared: true},
}

func (s Shape) place() place { return places[s[Place]] }

// KeepsClientAddresses reports whether the pods receive UDP datagrams with the addresses of their clients.
func (s Shape) KeepsClientAddresses() bool { return s.place().keeps }

// InHostNetwork reports whether dataplanes run in the network of a node: pods if their Dataplane requests it, and
// processes of a folder always.
func (s Shape) InHostNetwork() bool { return s[Input] == Folder || s.place().hostNetwork }

// translated reports whether a NAT translates the addresses that clients use, which spec.addresses names. The NAT of a
// host corresponds to the load balancer of Services.
func (s Shape) translated() bool {
	p := s.place()
	return p.nat || s[Input] == Folder && (p.proxied() || p.addresses > 1)
}

// addAddresses sets the addresses of a new Gateway.
func (g *Gateway) addAddresses() error {
	for range max(1, g.env.Shape.place().addresses) {
		own, public, err := g.env.addressOf()
		if err != nil {
			return err
		}
		g.balancers, g.public = append(g.balancers, own), append(g.public, public)
	}
	return nil
}

// addressOf returns an address of a load balancer or a host for a new Gateway, and the public address that leads to it.
func (e *Env) addressOf() (own, public topology.Both[netip.Addr], err error) {
	p, first := e.Shape.place(), e.Net.Nodes[0]
	switch {
	case e.Shape[Input] == APIServer && p.at == balancer:
		return e.Net.AddBalancer(p.nat)
	case e.Shape.translated():
		public = e.Net.NextTranslated()
		return first.Internal, public, e.Net.Translate(public, first.Internal)
	}
	return own, first.External, nil
}

// clientAddresses returns the addresses that clients use, of the families of the shape.
func (g *Gateway) clientAddresses() (list []netip.Addr) {
	for _, both := range g.public {
		list = append(list, g.env.families(both)...)
	}
	return list
}

// requested returns spec.addresses.
func (g *Gateway) requested() (list []netip.Addr) {
	e := g.env
	switch p := e.Shape.place(); {
	case e.Shape.translated():
		return g.clientAddresses()
	case p.hostNetwork:
		for _, n := range e.Net.Nodes {
			list = append(list, e.families(n.External)...)
		}
	}
	return list
}
