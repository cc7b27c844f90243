package translate

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/finding"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
)

// Names of the annotations of a Gateway. spec.loadBalancerServiceAnnotations of a GatewayConfig sets defaults for all
// Gateways that use the GatewayConfig.
const (
	annotationServiceType    = "stunner.l7mp.io/service-type"
	annotationMixedProtocol  = "stunner.l7mp.io/enable-mixed-protocol-lb"
	annotationTrafficPolicy  = "stunner.l7mp.io/external-traffic-policy"
	annotationUnmanaged      = "stunner.l7mp.io/disable-managed-dataplane"
	annotationNodePorts      = "stunner.l7mp.io/nodeport"
	annotationTargetPorts    = "stunner.l7mp.io/targetport"
	annotationHideHealth     = "stunner.l7mp.io/disable-health-check-expose"
	annotationNoAffinity     = "stunner.l7mp.io/disable-session-affinity"
	annotationNoExternalIPs  = "stunner.l7mp.io/disable-external-ips"
	annotationRelayDiscovery = "stunner.l7mp.io/enable-relay-address-discovery"
	annotationTakeOver       = "stunner.l7mp.io/take-over"
	annotationHealthPort     = "stunner.l7mp.io/health-port"
	annotationMetricsPort    = "stunner.l7mp.io/metrics-port"
	annotationTLSAtBalancer  = "stunner.l7mp.io/tls-at-load-balancer"
	annotationProxyProtocol  = "stunner.l7mp.io/proxy-protocol"

	// Annotations that configure the health check of a load balancer differ between cloud providers. These parts of
	// their names are common.
	healthPrefix         = "service.beta.kubernetes.io/"
	healthPortSuffix     = "port"
	healthProtocolSuffix = "protocol"
)

// annotations holds the parsed values of the annotations of a Gateway.
type annotations struct {
	serviceType corev1.ServiceType
	mixed       mixedProtocol
	// sourceAddress sets externalTrafficPolicy to Local, which preserves the client's source address.
	sourceAddress bool
	// unmanaged means that the operator must not create the dataplane pods.
	unmanaged bool
	// nodePorts are the requested node ports by listener name.
	nodePorts map[string]int32
	// targetPorts are the ports on which the dataplane pods listen, as requested by an annotation, by listener name.
	targetPorts map[string]int32
	// processPorts are the ports of the probes and the metrics in the pod, with defaults.
	processPorts manifest.ProcessPorts
	// healthPort is the port of a load balancer's health check; 0 means none.
	healthPort int32
	// affinity enables session affinity by client IP.
	affinity       bool
	externalIPs    bool
	relayDiscovery bool
	takeOver       bool
	// tlsAtBalancer are the names of the TURN-TCP listeners whose TLS ends at a load balancer. Other names have no
	// effect.
	tlsAtBalancer []string
	// tlsAtAWS are the names of the listeners whose TLS ends at a load balancer according to annotations of AWS. With
	// the file provider there are none, because a host has no such load balancer.
	tlsAtAWS []string
	// proxyProtocol are the prefixes of load balancers that send the PROXY protocol to the TCP and TLS listeners.
	proxyProtocol []string
	// notes are warnings about annotation values that are ignored.
	notes []condition.Finding
}

// mixedProtocol determines how many Services a Gateway with both UDP and TCP listeners gets.
type mixedProtocol int

const (
	// separate creates one Service for UDP ports and one for TCP ports, because not all load balancers support a
	// Service with both protocols.
	separate mixedProtocol = iota
	// together creates one Service with all ports.
	together
	// single creates one Service, which has only the ports whose network (UDP or TCP) is that of the first listener.
	single
)

// annotationsOf parses the annotations of a Gateway. It returns a finding for an annotation with an invalid port or map
// of ports, and for one about a load balancer: if it were ignored, the ports of a running Gateway could change, or
// clients could not connect. Any other invalid value is ignored; for a boolean and for the Service type, a note warns
// about it.
func annotationsOf(gw *gwapiv1.Gateway, gc *stunnerv1.GatewayConfig) (annotations, condition.Finding) {
	texts := map[string]string{}
	if gc != nil {
		maps.Copy(texts, gc.Spec.LoadBalancerServiceAnnotations)
	}
	maps.Copy(texts, gw.Annotations)
	a := annotations{
		mixed:          mixedOf(texts[annotationMixedProtocol]),
		sourceAddress:  strings.EqualFold(strings.TrimSpace(texts[annotationTrafficPolicy]), "local"),
		unmanaged:      isTrue(texts[annotationUnmanaged]),
		affinity:       !isTrue(texts[annotationNoAffinity]),
		externalIPs:    !isTrue(texts[annotationNoExternalIPs]),
		relayDiscovery: isTrue(texts[annotationRelayDiscovery]),
		takeOver:       isTrue(texts[annotationTakeOver]),
		notes:          booleanNotes(texts),
	}
	a.serviceType = serviceTypeOf(texts[annotationServiceType], gw)
	if wanted := texts[annotationServiceType]; wanted != "" && !strings.EqualFold(wanted, string(a.serviceType)) {
		a.notes = append(a.notes, condition.ServiceType(wanted, string(a.serviceType)))
	}
	// Cloud providers read the annotations of the Service, which also include those of spec.infrastructure.
	ofService := manifest.OwnerOf(gw, parameters{config: gc}.defaultAnnotations()).Annotations
	if !isTrue(texts[annotationHideHealth]) {
		a.healthPort = healthPortOf(ofService)
	}
	var nodePorts, targetPorts, processPorts condition.Finding
	a.nodePorts, nodePorts = portsOf(texts, annotationNodePorts)
	a.targetPorts, targetPorts = portsOf(texts, annotationTargetPorts)
	a.processPorts, processPorts = processPortsOf(texts)
	var tlsAtBalancer, proxyProtocol condition.Finding
	a.tlsAtBalancer, tlsAtBalancer = tlsAtBalancerOf(texts[annotationTLSAtBalancer])
	if _, named := texts[annotationTLSAtBalancer]; !named && a.serviceType == corev1.ServiceTypeLoadBalancer {
		a.tlsAtAWS = tlsAtAWS(ofService, gw, gc)
	}
	a.proxyProtocol, proxyProtocol = proxyProtocolOf(texts[annotationProxyProtocol])
	return a, first(nodePorts, targetPorts, processPorts, tlsAtBalancer, proxyProtocol)
}

// processPortsOf returns the ports of the probes and the metrics.
func processPortsOf(a map[string]string) (manifest.ProcessPorts, condition.Finding) {
	var p manifest.ProcessPorts
	for _, one := range []struct {
		annotation string
		port       *int32
	}{{annotationHealthPort, &p.Health}, {annotationMetricsPort, &p.Metrics}} {
		text := strings.TrimSpace(a[one.annotation])
		if text == "" {
			continue
		}
		n, err := parsePort(text)
		if err != nil {
			return manifest.ProcessPorts{}.OrDefault(), condition.AnnotationInvalid(one.annotation, err)
		}
		*one.port = n
	}
	if p = p.OrDefault(); p.Health == p.Metrics {
		err := finding.Errorf("use another one", "%d is the port of the probes as well", p.Metrics)
		return manifest.ProcessPorts{}.OrDefault(), condition.AnnotationInvalid(annotationMetricsPort, err)
	}
	return p, condition.Finding{}
}

// booleans are the annotations with boolean values.
var booleans = []string{
	annotationMixedProtocol, annotationUnmanaged, annotationHideHealth,
	annotationNoAffinity, annotationNoExternalIPs, annotationRelayDiscovery, annotationTakeOver,
}

// booleanNotes returns a warning for each annotation whose value is not a boolean.
func booleanNotes(a map[string]string) (notes []condition.Finding) {
	for _, name := range booleans {
		if _, known := parseBoolean(a[name]); !known && strings.TrimSpace(a[name]) != "" {
			notes = append(notes, condition.AnnotationBoolean(name, a[name]))
		}
	}
	return notes
}

// parseBoolean reads a boolean. known is false if the text is not a boolean.
func parseBoolean(s string) (value, known bool) {
	switch strings.ToLower(strings.TrimSpace(s)) {
	case "true", "1", "yes":
		return true, true
	case "false", "0", "no":
		return false, true
	}
	return false, false
}

func isTrue(s string) bool {
	value, _ := parseBoolean(s)
	return value
}

func mixedOf(s string) mixedProtocol {
	switch value, known := parseBoolean(s); {
	case !known:
		return separate
	case value:
		return together
	}
	return single
}

// serviceTypeOf returns the type of the generated Services. The default is LoadBalancer. ExternalName is possible only
// if the Gateway requests a host name.
func serviceTypeOf(s string, gw *gwapiv1.Gateway) corev1.ServiceType {
	for _, t := range []corev1.ServiceType{corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort} {
		if strings.EqualFold(strings.TrimSpace(s), string(t)) {
			return t
		}
	}
	if strings.EqualFold(strings.TrimSpace(s), string(corev1.ServiceTypeExternalName)) && requestedHostname(gw) != "" {
		return corev1.ServiceTypeExternalName
	}
	return corev1.ServiceTypeLoadBalancer
}

// healthPortOf returns the port of a TCP or HTTP health check that annotations of a cloud provider request; 0 means
// none.
func healthPortOf(a map[string]string) int32 {
	var port int32
	var probed bool
	for key, value := range a {
		rest, ours := strings.CutPrefix(key, healthPrefix)
		if !ours || !strings.Contains(rest, "health") {
			continue
		}
		switch {
		case strings.HasSuffix(rest, healthPortSuffix):
			n, err := parsePort(value)
			if err == nil && (port == 0 || n < port) {
				port = n
			}
		case strings.HasSuffix(rest, healthProtocolSuffix):
			probed = probed || strings.EqualFold(value, "tcp") || strings.EqualFold(value, "http")
		}
	}
	if !probed {
		return 0
	}
	return port
}

// maxPortsLength limits the length of a port annotation in bytes. A Gateway has at most 64 listeners, and an entry with
// the longest listener name takes less than 300 bytes.
const maxPortsLength = 64 * 300

func portsOf(a map[string]string, annotation string) (map[string]int32, condition.Finding) {
	ports, err := parsePorts(a[annotation])
	if err != nil {
		return nil, condition.AnnotationInvalid(annotation, err)
	}
	return ports, condition.Finding{}
}

// parsePorts reads a map from listener name to port. It accepts all forms that users write: a JSON object, a YAML flow
// map without quotes, both also without braces, and a=1,b=2.
func parsePorts(s string) (map[string]int32, error) {
	s = strings.TrimSpace(s)
	if len(s) > maxPortsLength {
		return nil, fmt.Errorf("is longer than %d characters", maxPortsLength)
	}
	if strings.HasPrefix(s, "{") != strings.HasSuffix(s, "}") {
		return nil, finding.Errorf(`write {"listener": port}`, `has a brace on one side only`)
	}
	s = strings.TrimSpace(strings.TrimSuffix(strings.TrimPrefix(s, "{"), "}"))
	ports := map[string]int32{}
	for entry := range strings.SplitSeq(s, ",") {
		if strings.TrimSpace(entry) == "" {
			continue
		}
		i := strings.LastIndexAny(entry, ":=")
		if i < 0 {
			return nil, finding.Errorf(`write {"listener": port}`, `%q is no listener with a port`, strings.TrimSpace(entry))
		}
		name := unquoted(entry[:i])
		if _, twice := ports[name]; twice || name == "" {
			return nil, fmt.Errorf("listener %q stands there twice or has no name", name)
		}
		port, err := parsePort(unquoted(entry[i+1:]))
		if err != nil {
			return nil, fmt.Errorf("listener %q: %w", name, err)
		}
		ports[name] = port
	}
	return ports, nil
}

func unquoted(s string) string { return strings.Trim(strings.TrimSpace(s), `"'`) }

func parsePort(s string) (int32, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		return 0, finding.Errorf("use 1 to 65535", "%q is no port", s)
	}
	return int32(n), nil
}

// IsAnnotation reports whether the operator reads an annotation, of a Gateway or as a default in a GatewayConfig.
func IsAnnotation(name string) bool {
	return slices.Contains(booleans, name) || slices.Contains([]string{
		annotationServiceType, annotationTrafficPolicy, annotationNodePorts, annotationTargetPorts,
		annotationHealthPort, annotationMetricsPort, annotationTLSAtBalancer, annotationProxyProtocol,
	}, name)
}
