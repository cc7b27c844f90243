package env

import (
	"fmt"
	"slices"
	"strings"
)

// Factor is one property of a Shape.
type Factor int

// The factors of a shape.
const (
	Listeners Factor = iota
	Pods
	Gateways
	Families
	Place
	Input
	Credentials
	MediaPath
	Event
	factors
)

// Value is a value of a factor. Values of different factors differ.
type Value string

// Values of Listeners: the listeners of each Gateway.
const (
	UDP          Value = "udp"
	UDPAndTCP    Value = "udp+tcp"
	AllProtocols Value = "udp+tcp+tls+dtls"
	TwoUDP       Value = "2udp" // two UDP listeners with different routes
)

// Values of Pods: the pods of each Gateway.
const (
	OnePod    Value = "1pod"
	TwoPods   Value = "2pods"
	ThreePods Value = "3pods"
)

// Values of Gateways.
const (
	OneGateway Value = "1gateway"
	SameOwner  Value = "2gateways" // in one namespace
	TwoOwners  Value = "2owners"   // in two namespaces
)

// Values of Families: the address families of clients, Services, pods and peers.
const (
	IPv4      Value = "ipv4"
	IPv6      Value = "ipv6"
	DualStack Value = "dual"
)

// Values of Place: where clients reach the pods.
const (
	KeepsSource Value = "keeps"    // a load balancer that keeps the addresses of clients
	HidesSource Value = "hides"    // a load balancer that replaces them by its own
	NodePort    Value = "nodeport" // a port of the nodes
	HostNetwork Value = "host"     // the addresses of the nodes, in whose network the pods run
	BehindNAT   Value = "nat"      // a public address that a NAT translates; spec.addresses contains it
	Headless    Value = "headless" // as KeepsSource, or in a folder as HostNetwork; relays of the Gateway are peers too

	TLSAtBalancer Value = "tls-lb"     // as KeepsSource, and the load balancer ends TLS in front of the TCP listener
	ProxyProtocol Value = "proxy"      // as KeepsSource, and the load balancer sends the PROXY protocol before TCP and TLS
	ManyAddresses Value = "addresses"  // as KeepsSource, with two load balancer addresses of each family; in a folder spec.addresses has them
	PortError     Value = "port-error" // as KeepsSource, and the load balancer reports an error for the port of the last listener
	SharedAddress Value = "shared"     // as KeepsSource, or in a folder as HostNetwork; the clients share one public address
)

// Values of Input: where objects come from.
const (
	Folder    Value = "folder"
	APIServer Value = "apiserver"
)

// Values of Credentials.
const (
	Static    Value = "static"
	Ephemeral Value = "ephemeral"
	JWT       Value = "jwt" // ephemeral, from an auth service that wants a token
)

// Values of MediaPath: the offload engine that the Dataplane requests.
const (
	UserSpace Value = "userspace"
	TC        Value = "tc"
	XDP       Value = "xdp"
)

// Values of Event: what happens while calls run, before the behaviours are tested.
const (
	Nothing  Value = "nothing"
	Change   Value = "change"   // the routes change
	Rotation Value = "rotation" // the credentials change
	Crash    Value = "crash"    // one dataplane crashes
	Update   Value = "update"   // all dataplanes are updated
	Restart  Value = "restart"  // the operator, the auth service, and then both at once are restarted
	Mistake  Value = "mistake"  // an object gets a mistake, then as Restart
)

// Values are the values of each factor. A new value needs a row here. The file that reads the factor defines its
// meaning.
var Values = [factors][]Value{
	Listeners: {UDP, UDPAndTCP, AllProtocols, TwoUDP},
	Pods:      {OnePod, TwoPods, ThreePods},
	Gateways:  {OneGateway, SameOwner, TwoOwners},
	Families:  {IPv4, IPv6, DualStack},
	Place: {
		KeepsSource, HidesSource, NodePort, HostNetwork, BehindNAT, Headless, TLSAtBalancer, ProxyProtocol, ManyAddresses,
		PortError, SharedAddress,
	},
	Input:       {APIServer, Folder},
	Credentials: {Static, Ephemeral, JWT},
	MediaPath:   {UserSpace, TC, XDP},
	Event:       {Nothing, Change, Rotation, Crash, Update, Restart, Mistake},
}

var names = [factors]string{
	"listeners", "pods", "gateways", "families", "place", "input", "credentials", "media path", "event",
}

func (f Factor) String() string { return names[f] }

// Impossible is a pair of values that exclude each other.
type Impossible struct {
	A, B Value
	Why  string
}

// ImpossiblePairs are the pairs of values that exclude each other.
var ImpossiblePairs = []Impossible{
	{Folder, TwoPods, onePodInFolder},
	{Folder, ThreePods, onePodInFolder},
	{Folder, KeepsSource, noServiceInFolder},
	{Folder, HidesSource, noServiceInFolder},
	{Folder, NodePort, noServiceInFolder},
	{Folder, PortError, noServiceInFolder},
	{TLSAtBalancer, UDP, noConnections},
	{TLSAtBalancer, TwoUDP, noConnections},
	{ProxyProtocol, UDP, noConnections},
	{ProxyProtocol, TwoUDP, noConnections},
	{PortError, UDP, noListenerLeft},
}

// variants are places that differ from KeepsSource only in the network between clients and nodes. Cover does not pair
// them with the factors that describe the network behind the nodes, because that would double the number of shapes.
var variants = struct {
	places []Value
	behind []Factor
}{
	[]Value{TLSAtBalancer, ProxyProtocol, ManyAddresses, PortError, SharedAddress}, []Factor{Credentials, MediaPath, Event},
}

const (
	onePodInFolder    = "a file provider starts one process for each Gateway"
	noServiceInFolder = "a file provider has no Services: clients reach its host"
	noConnections     = "the load balancer does that with connections, and all listeners have UDP"
	noListenerLeft    = "the load balancer would serve no listener"
)

// Shape is one value of each factor.
type Shape [factors]Value

// String returns the values. ParseShape accepts them.
func (s Shape) String() string {
	var words []string
	for _, v := range s {
		words = append(words, string(v))
	}
	return strings.Join(words, ",")
}

// Is reports whether the shape has all the values.
func (s Shape) Is(values ...Value) bool {
	return !slices.ContainsFunc(values, func(v Value) bool { return !slices.Contains(s[:], v) })
}

// ParseShape returns the shape with the values of a list. A factor without a value in the list gets its first value.
func ParseShape(list string) (s Shape, err error) {
	for f, values := range Values {
		s[f] = values[0]
	}
	for _, word := range strings.Split(list, ",") {
		f := slices.IndexFunc(Values[:], func(values []Value) bool { return slices.Contains(values, Value(word)) })
		if f < 0 {
			return s, fmt.Errorf("shape %q: no factor has the value %q: use those of env.Values", list, word)
		}
		s[f] = Value(word)
	}
	if why := s.impossible(); why != "" {
		return s, fmt.Errorf("shape %q: %s", list, why)
	}
	return s, nil
}

// impossible returns why the shape cannot exist, or "".
func (s Shape) impossible() string {
	for _, p := range ImpossiblePairs {
		if s.Is(p.A, p.B) {
			return fmt.Sprintf("%s with %s: %s", p.A, p.B, p.Why)
		}
	}
	return ""
}

// PodCount returns the number of pods of each Gateway.
func (s Shape) PodCount() int { return 1 + slices.Index(Values[Pods], s[Pods]) }
