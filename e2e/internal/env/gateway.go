package env

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/topology"
	"github.com/stunner-gateway/stunner/services/api/config"
)

// Gateway is a Gateway with its routes and peers.
type Gateway struct {
	Namespace, Name string
	Listeners       []*Listener
	// Roots are the CAs that verify the certificate of TLS and DTLS listeners.
	Roots *x509.CertPool
	ca    []byte // the CAs in PEM
	// Unserved is the listener whose port the load balancer does not serve, or nil.
	Unserved *Listener

	env    *Env
	number int
	// balancers are the addresses of the load balancer. public are the addresses that clients use.
	balancers, public []topology.Both[netip.Addr]
	// proxy ends the connections of clients; nil means that no proxy does.
	proxy *proxy
}

// Listener is a listener of a Gateway.
type Listener struct {
	Gateway  *Gateway
	Name     string
	Protocol string // protocol in the Gateway API
	// Network is the transport of clients. It differs from Protocol if a load balancer ends TLS.
	Network call.Network

	transport string // udp or tcp
	port      int32
	route     string
	nodePort  int32
}

// addGateways makes the Gateways of the shape.
func (e *Env) addGateways(ctx context.Context) error {
	count := 2
	if e.Shape[Gateways] == OneGateway {
		count = 1
	}
	for i := range count {
		g := &Gateway{Namespace: fmt.Sprintf("media-%d", e.Number), Name: fmt.Sprintf("gateway%d", i), env: e, number: i}
		if i == 1 && e.Shape[Gateways] == TwoOwners {
			g.Namespace = fmt.Sprintf("games-%d", e.Number)
		}
		if err := g.addAddresses(); err != nil {
			return err
		}
		for _, p := range protocols[e.Shape[Listeners]] {
			l := &Listener{
				Gateway: g, Name: p.name, Protocol: p.protocol, Network: networks[p.protocol],
				transport: p.transport, port: p.port, route: p.route,
			}
			if e.Shape.InHostNetwork() {
				l.port += int32(i) * shift
			}
			if e.Shape.place().tls && l.Network == call.TCP {
				l.Network = call.TLS
			}
			g.Listeners = append(g.Listeners, l)
		}
		e.Gateways = append(e.Gateways, g)
		if e.Shape.place().portError {
			g.Unserved = g.Listeners[len(g.Listeners)-1]
		}
		if e.Shape.place().proxied() {
			if err := g.startProxy(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// networks are the transports of clients.
var networks = map[string]call.Network{
	"TURN-UDP": call.UDP, "TURN-TCP": call.TCP, "TURN-TLS": call.TLS, "TURN-DTLS": call.DTLS,
}

// ID returns NAMESPACE/NAME.
func (g *Gateway) ID() string { return g.Namespace + "/" + g.Name }

// Peers returns the addresses of the media servers that a route of the listener allows.
func (l *Listener) Peers() []netip.AddrPort {
	return l.Gateway.env.peersOf(l.Gateway.peerNumber(l.route))
}

// ForeignPeers returns addresses that no route of the listener allows: the peers of the other route, of other Gateways,
// and the unrouted peer. Their family is that of a relay whose client requests no family.
func (l *Listener) ForeignPeers() (list []netip.AddrPort) {
	e := l.Gateway.env
	own := l.Gateway.peerNumber(l.route)
	for number := range peerCount {
		if number != own {
			list = append(list, e.peersOf(number)[0])
		}
	}
	return list
}

// Numbers of media servers: each Gateway has two, and the unrouted peer has no route of its own.
const (
	unroutedPeer = 4
	peerCount    = unroutedPeer + 1
)

// UnroutedPeer returns the address of a media server that only the route of AddRoute allows. The address has the family
// of a relay whose client requests no family.
func (e *Env) UnroutedPeer() netip.AddrPort { return e.peersOf(unroutedPeer)[0] }

// peerNumber returns the number of the media server of the first or the second route.
func (g *Gateway) peerNumber(route string) int {
	if route == secondRoute {
		return 2*g.number + 1
	}
	return 2 * g.number
}

func (e *Env) peersOf(number int) (list []netip.AddrPort) {
	for _, a := range e.families(e.Net.Peer(number)) {
		list = append(list, netip.AddrPortFrom(a, mediaPort))
	}
	return list
}

// Secure reports whether the listener has a certificate.
func (l *Listener) Secure() bool { return l.Config().Secure() }

// roots returns the CAs that verify the certificate which clients get.
func (l *Listener) roots() *x509.CertPool {
	if p := l.Gateway.proxy; p != nil && !l.Secure() {
		return p.roots
	}
	return l.Gateway.Roots
}

// Addresses returns the addresses at which clients reach the listener.
func (l *Listener) Addresses() (list []netip.AddrPort) {
	port := l.port
	if l.nodePort != 0 {
		port = l.nodePort
	}
	for _, a := range l.Gateway.clientAddresses() {
		list = append(list, netip.AddrPortFrom(a, uint16(port)))
	}
	return list
}

// String returns GATEWAY/LISTENER.
func (l *Listener) String() string { return l.Gateway.ID() + "/" + l.Name }

// Listeners returns the listeners of all Gateways that clients reach.
func (e *Env) Listeners() (list []*Listener) {
	for _, g := range e.Gateways {
		list = append(list, g.Served()...)
	}
	return list
}

// Served returns the listeners that clients reach.
func (g *Gateway) Served() []*Listener {
	return slices.DeleteFunc(slices.Clone(g.Listeners), func(l *Listener) bool { return l == g.Unserved })
}

// routes returns the names of the routes of the listeners.
func (g *Gateway) routes() []string {
	if g.env.Shape[Listeners] == TwoUDP {
		return []string{firstRoute, secondRoute}
	}
	return []string{firstRoute}
}

// apply writes the objects of the Gateway.
func (g *Gateway) apply(ctx context.Context) error {
	e := g.env
	texts := []string{g.yaml()}
	for _, name := range g.routes() {
		texts = append(texts, g.routeBackendYAML(name), g.routeYAML(name))
	}
	if e.Shape[Listeners] == AllProtocols {
		text, err := g.newCertificate()
		if err != nil {
			return err
		}
		texts = append(texts, text)
	}
	for _, text := range texts {
		if err := e.input.apply(ctx, g.Namespace, text); err != nil {
			return err
		}
	}
	return nil
}

// newCertificate returns the Secret with a new certificate, which Roots verifies from now on.
func (g *Gateway) newCertificate() (string, error) {
	authority, err := harness.NewAuthority()
	if err != nil {
		return "", err
	}
	chain, key, err := authority.Issue(append(g.requested(), g.clientAddresses()...)...)
	if err != nil {
		return "", err
	}
	g.Roots = x509.NewCertPool()
	g.Roots.AddCert(authority.Certificate)
	g.ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.Certificate.Raw})
	return g.certificateYAML(chain, key), nil
}

// ready returns nil when as many dataplanes as wanted are ready, all with the newest config, and the addresses of
// clients are known.
func (g *Gateway) ready(ctx context.Context) error {
	list, err := g.env.input.dataplanes(g)
	if err != nil {
		return err
	}
	if len(list) != g.env.pods {
		return fmt.Errorf("%d dataplanes, want %d", len(list), g.env.pods)
	}
	for _, d := range list {
		if _, err := g.env.get(ctx, d.Admin+"/ready"); err != nil {
			return fmt.Errorf("%s: %w", d.Name, err)
		}
	}
	if c, ok := g.env.input.(*inCluster); ok {
		return c.exposed(ctx, g)
	}
	return nil
}

// Dataplanes returns the running dataplanes of the Gateway.
func (g *Gateway) Dataplanes() ([]Dataplane, error) { return g.env.input.dataplanes(g) }

// Status is the part of the status of a Gateway that tests read.
type Status struct {
	Addresses  []Address
	Conditions []metav1.Condition
	Listeners  []ListenerStatus
}

// Address is an entry of status.addresses.
type Address struct{ Type, Value string }

// ListenerStatus is the status of one listener.
type ListenerStatus struct {
	Name           string
	AttachedRoutes int
	Conditions     []metav1.Condition
}

// Status returns the status of the Gateway.
func (g *Gateway) Status(ctx context.Context) (s Status, err error) {
	text, err := g.env.input.status(ctx, g.Namespace, "gateway/"+g.Name)
	if err != nil {
		return s, err
	}
	if text == "" {
		return s, errors.New("the Gateway has no status")
	}
	return s, json.Unmarshal([]byte(text), &s)
}

// IsTrue returns nil if a condition is True.
func IsTrue(conditions []metav1.Condition, kind string) error {
	for _, c := range conditions {
		if c.Type == kind {
			if c.Status != metav1.ConditionTrue {
				return fmt.Errorf("%s is %s: %s: %s", kind, c.Status, c.Reason, strings.TrimSpace(c.Message))
			}
			return nil
		}
	}
	return fmt.Errorf("no condition %s", kind)
}

// ClientProtocol returns the protocol by which clients reach the listener.
func (l *Listener) ClientProtocol() config.Protocol {
	return config.Listener{Protocol: l.Config(), TLSAtBalancer: l.Network == call.TLS}.ClientProtocol()
}

// Config returns the protocol of the listener in a dataplane config.
func (l *Listener) Config() config.Protocol {
	p, _ := config.ParseProtocol(l.Protocol) // the protocol is one of protocols
	return p
}

// Port returns the port of the listener at the dataplane.
func (l *Listener) Port() uint16 { return uint16(l.port) }

// Sum returns the sum of a metric over the dataplanes of the Gateway. A dataplane without the metric counts as 0.
func (g *Gateway) Sum(ctx context.Context, name string) (total float64, err error) {
	list, err := g.Dataplanes()
	if err != nil {
		return 0, err
	}
	for _, d := range list {
		n, err := g.env.Metric(ctx, d, name)
		if err != nil && !errors.Is(err, harness.ErrNoMetric) {
			return 0, fmt.Errorf("%s: %w", d.Name, err)
		}
		total += n
	}
	return total, nil
}
