package env

import (
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/stunner-gateway/stunner/e2e/internal/topology"
)

// Ports of the listeners, and of the media servers.
const (
	plainPort  = 3478 // UDP and TCP
	securePort = 5349 // DTLS and TLS
	secondPort = 3480 // the second UDP listener
	mediaPort  = 7000
	icePort    = 7003 // of a media server with an ICE agent
	// shift is the distance between the ports of two Gateways that share a host.
	shift = 100
)

// protocol describes a listener and its clients.
type protocol struct {
	name      string
	protocol  string // protocol in the Gateway API
	transport string // udp or tcp
	port      int32
	route     string
}

// protocols are the listeners of a Gateway.
var protocols = map[Value][]protocol{
	UDP:       {{"udp", "TURN-UDP", "udp", plainPort, firstRoute}},
	UDPAndTCP: {{"udp", "TURN-UDP", "udp", plainPort, firstRoute}, {"tcp", "TURN-TCP", "tcp", plainPort, firstRoute}},
	AllProtocols: {
		{"udp", "TURN-UDP", "udp", plainPort, firstRoute}, {"tcp", "TURN-TCP", "tcp", plainPort, firstRoute},
		{"tls", "TURN-TLS", "tcp", securePort, firstRoute}, {"dtls", "TURN-DTLS", "udp", securePort, firstRoute},
	},
	TwoUDP: {{"udp", "TURN-UDP", "udp", plainPort, firstRoute}, {"second", "TURN-UDP", "udp", secondPort, secondRoute}},
}

// classYAML returns the GatewayClass, its GatewayConfig and the Dataplane. The class and the Dataplane are
// cluster-scoped.
func (e *Env) classYAML() string {
	more := ""
	if e.PerGateway {
		more += "  signingKey: PerGateway\n"
	}
	if e.userQuota > 0 {
		more += fmt.Sprintf("  userQuota: %d\n", e.userQuota)
	}
	return fmt.Sprintf(`
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: %[1]s}
spec:
  controllerName: %[2]s
  parametersRef: {group: stunner.l7mp.io, kind: GatewayConfig, name: turn, namespace: %[3]s}
---
apiVersion: stunner.l7mp.io/v1
kind: GatewayConfig
metadata: {name: turn, namespace: %[3]s}
spec:
  realm: turn.example.org
  dataplane: %[1]s
  authRef: {name: turn}
  sourceQuota: 1000
  allowedAddresses: [203.0.113.0/24, 198.51.100.0/24, "2001:db8::/32"]
%[4]s`, e.class, e.controller, e.system, more)
}

// dataplaneYAML returns the Dataplane with an image and a number of pods.
func (e *Env) dataplaneYAML(image string, pods int) string {
	var spec strings.Builder
	grace := 60
	if e.Shape.place().hostNetwork {
		// A draining pod that has calls over connections runs until its grace period is over. The next pod on the node can
		// start only then.
		grace = 5
		spec.WriteString("  hostNetwork: true\n")
	}
	if engine := map[Value]string{TC: "TC", XDP: "XDP"}[e.Shape[MediaPath]]; engine != "" {
		fmt.Fprintf(&spec, "  offloadEngine: %s\n", engine)
	}
	return fmt.Sprintf(`
apiVersion: stunner.l7mp.io/v1
kind: Dataplane
metadata: {name: %s}
spec:
  image: %s
  replicas: %d
  enableMetricsEndpoint: true
  terminationGracePeriodSeconds: %d
  service: {%s}
%s`, e.class, image, pods, grace, e.ipFamilies(), spec.String())
}

// ipFamilies returns the fields of a Service that select the families of the shape.
func (e *Env) ipFamilies() string {
	switch e.Shape[Families] {
	case IPv4:
		return "ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]"
	case IPv6:
		return "ipFamilyPolicy: SingleStack, ipFamilies: [IPv6]"
	}
	return "ipFamilyPolicy: RequireDualStack, ipFamilies: [IPv4, IPv6]"
}

// secretYAML returns the Secret with the credentials.
func (e *Env) secretYAML() string {
	if e.Shape[Credentials] == Static {
		return e.secretOf(map[string]string{"type": "static", "username": e.user, "password": e.secret})
	}
	return e.secretOf(map[string]string{"type": "ephemeral", "secret": e.secret})
}

// secretOf returns the Secret with some keys. They are in data, because server-side apply removes no key of stringData.
func (e *Env) secretOf(keys map[string]string) string {
	var data []string
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		data = append(data, key+": "+base64.StdEncoding.EncodeToString([]byte(keys[key])))
	}
	return fmt.Sprintf(`
apiVersion: v1
kind: Secret
metadata: {name: turn, namespace: %s}
data: {%s}
`, e.system, strings.Join(data, ", "))
}

// certificateYAML returns the Secret with the certificate of the TLS and DTLS listeners of a Gateway.
func (g *Gateway) certificateYAML(chain, key []byte) string {
	encode := base64.StdEncoding.EncodeToString
	return fmt.Sprintf(`
apiVersion: v1
kind: Secret
metadata: {name: %s-certificate, namespace: %s}
type: kubernetes.io/tls
data: {tls.crt: %s, tls.key: %s}
`, g.Name, g.Namespace, encode(chain), encode(key))
}

func (g *Gateway) yaml() string {
	e := g.env
	var text strings.Builder
	fmt.Fprintf(&text, `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata:
  name: %s
  namespace: %s
  annotations: {%s}
spec:
  gatewayClassName: %s
`, g.Name, g.Namespace, g.annotations(), e.class)
	if addresses := g.requested(); len(addresses) > 0 {
		text.WriteString("  addresses:\n")
		for _, a := range addresses {
			fmt.Fprintf(&text, "  - {type: IPAddress, value: %q}\n", a)
		}
	}
	text.WriteString("  listeners:\n")
	for _, l := range g.Listeners {
		tls := ""
		if l.Secure() {
			tls = fmt.Sprintf(", tls: {certificateRefs: [{name: %s-certificate}]}", g.Name)
		}
		fmt.Fprintf(&text, "  - {name: %s, port: %d, protocol: %s%s}\n", l.Name, l.port, l.Protocol, tls)
	}
	return text.String()
}

// annotations returns the annotations of the Gateway. If pods of several Gateways share a node, the endpoints of each
// Gateway have different ports.
func (g *Gateway) annotations() string {
	text := g.env.Shape.place().annotation
	if g.env.Shape.place().header {
		text += fmt.Sprintf(", stunner.l7mp.io/proxy-protocol: %q", g.proxy.prefixes(g.env))
	}
	if more := g.env.Annotation; more != "" {
		text = strings.TrimPrefix(text+", "+more, ", ")
	}
	if health, metrics := g.endpointPorts(); health != healthPort {
		text += fmt.Sprintf(", stunner.l7mp.io/health-port: \"%d\", stunner.l7mp.io/metrics-port: \"%d\"", health, metrics)
	}
	return text
}

// endpointPorts returns the ports of the endpoints of the dataplane pods.
func (g *Gateway) endpointPorts() (health, metrics int) {
	if !g.env.Shape.place().hostNetwork {
		return healthPort, metricsPort
	}
	return healthPort + g.number, metricsPort + g.number
}

// Suffixes of the names of routes and of their Services, after the name of the Gateway. extra is the route of AddRoute.
const (
	firstRoute  = "first"
	secondRoute = "second"
	extraRoute  = "extra"
)

// routeYAML returns the UDPRoute of the listeners that share a route, or the extra route of all listeners.
func (g *Gateway) routeYAML(name string) string {
	var parents []string
	for _, l := range g.Listeners {
		if name == extraRoute || name == l.route {
			parents = append(parents, fmt.Sprintf("{name: %s, sectionName: %s}", g.Name, l.Name))
		}
	}
	own := ""
	if g.env.Shape.place().nested {
		own = fmt.Sprintf(", {name: %s}", g.Name)
	}
	return fmt.Sprintf(`
apiVersion: stunner.l7mp.io/v1
kind: UDPRoute
metadata: {name: %[1]s-%[2]s, namespace: %[3]s}
spec:
  parentRefs: [%[4]s]
  rules: [{backendRefs: [{name: %[1]s-%[2]s, port: %[5]d, endPort: %[6]d}%[7]s]}]
`, g.Name, name, g.Namespace, strings.Join(parents, ", "), mediaPort, mediaPort+shift, own)
}

// backendYAML returns a Service of media servers, without a selector, and its EndpointSlices.
func (g *Gateway) backendYAML(name string, peers ...topology.Both[netip.Addr]) string {
	var text strings.Builder
	fmt.Fprintf(&text, `
apiVersion: v1
kind: Service
metadata: {name: %s-%s, namespace: %s}
spec: {clusterIP: None, ports: [{name: media, port: %d, protocol: UDP}]}
`, g.Name, name, g.Namespace, mediaPort)
	lists := map[string][]string{}
	for _, p := range peers {
		for _, a := range g.env.families(p) {
			kind := addressType(a)
			lists[kind] = append(lists[kind], fmt.Sprintf("{addresses: [%q]}", a))
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(lists)) {
		fmt.Fprintf(&text, `---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s-%[2]s-%[3]s, namespace: %[4]s, labels: {kubernetes.io/service-name: %[1]s-%[2]s}}
addressType: %[5]s
endpoints: [%[6]s]
ports: [{name: media, port: %[7]d, protocol: UDP}]
`, g.Name, name, strings.ToLower(kind), g.Namespace, kind, strings.Join(lists[kind], ", "), mediaPort)
	}
	return text.String()
}

// addressType returns the type of the EndpointSlice of an address.
func addressType(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}

// routeBackendYAML returns the Service of the first or the second route: its media server, the media server of
// stunnerctl, and more.
func (g *Gateway) routeBackendYAML(name string, more ...topology.Both[netip.Addr]) string {
	return g.backendYAML(name, append(more, g.env.Net.Peer(g.peerNumber(name)), g.env.input.ctlPeer())...)
}

// Apply writes objects in YAML to the API server or the folder. Objects without a namespace get the given namespace.
func (e *Env) Apply(ctx context.Context, namespace, text string) error {
	return e.input.apply(ctx, namespace, text)
}

// Delete deletes an object, KIND/NAME.
func (e *Env) Delete(ctx context.Context, namespace, object string) error {
	return e.input.remove(ctx, namespace, object)
}

// System returns the namespace of the operator, of the GatewayConfig and of the Secret with the credentials.
func (e *Env) System() string { return e.system }

// ClassYAML returns the GatewayClass and its GatewayConfig.
func (e *Env) ClassYAML() string { return e.classYAML() }

// SecretYAML returns the Secret with the credentials. If keys are given, they replace the keys of the Secret.
func (e *Env) SecretYAML(keys map[string]string) string {
	if keys == nil {
		return e.secretYAML()
	}
	return e.secretOf(keys)
}

// YAML returns the Gateway.
func (g *Gateway) YAML() string { return g.yaml() }

// RouteYAML returns the first route of the Gateway.
func (g *Gateway) RouteYAML() string { return g.routeYAML(firstRoute) }

// BackendYAML returns the Service of the first route with its EndpointSlices.
func (g *Gateway) BackendYAML() string { return g.routeBackendYAML(firstRoute) }

// CertificateYAML returns the Secret of the TLS and DTLS listeners with another certificate.
func (g *Gateway) CertificateYAML(chain, key []byte) string { return g.certificateYAML(chain, key) }
