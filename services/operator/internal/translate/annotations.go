package translate

import (
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
)

// Annotations with a meaning, on a Gateway or, for all Gateways of a class, in loadBalancerServiceAnnotations.
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

	// Cloud providers name their health check annotations differently; these parts they have in common.
	healthPrefix         = "service.beta.kubernetes.io/"
	healthPortSuffix     = "port"
	healthProtocolSuffix = "protocol"
)

// wishes are what annotations ask for.
type wishes struct {
	serviceType    corev1.ServiceType
	mixed          mixedProtocol
	sourceAddress  bool
	unmanaged      bool
	nodePorts      map[string]int32
	targetPorts    map[string]int32
	healthPort     int32
	affinity       bool
	externalIPs    bool
	relayDiscovery bool
	notes          []string
}

// mixedProtocol says what becomes of a Gateway with listeners of both transports.
type mixedProtocol int

const (
	// separate gives each transport its own Service: some load balancers cannot do both.
	separate mixedProtocol = iota
	// together puts both into one Service.
	together
	// single exposes the transport of the first listener only.
	single
)

// wishesOf reads the annotations. A map of ports that cannot be read is a finding, because guessing could move the ports of a running Gateway.
// Any other value that cannot be read counts as absent, and a note says so.
func wishesOf(gw *gwapiv1.Gateway, gc *stunnerv1.GatewayConfig) (wishes, condition.Finding) {
	a := map[string]string{}
	if gc != nil {
		maps.Copy(a, gc.Spec.LoadBalancerServiceAnnotations)
	}
	maps.Copy(a, gw.Annotations)
	w := wishes{
		mixed:          mixedOf(a[annotationMixedProtocol]),
		sourceAddress:  strings.EqualFold(strings.TrimSpace(a[annotationTrafficPolicy]), "local"),
		unmanaged:      isTrue(a[annotationUnmanaged]),
		affinity:       !isTrue(a[annotationNoAffinity]),
		externalIPs:    !isTrue(a[annotationNoExternalIPs]),
		relayDiscovery: isTrue(a[annotationRelayDiscovery]),
		notes:          unreadable(a),
	}
	w.serviceType = serviceTypeOf(a[annotationServiceType], gw)
	if wanted := a[annotationServiceType]; wanted != "" && !strings.EqualFold(wanted, string(w.serviceType)) {
		w.notes = append(w.notes, condition.ServiceType(wanted, string(w.serviceType)))
	}
	if n := len(gw.Spec.Addresses); n > 1 {
		w.notes = append(w.notes, condition.AddressesLeftOut(n))
	}
	if !isTrue(a[annotationHideHealth]) {
		// What a load balancer probes is up to the annotations that stand on its Service, wherever they come from.
		w.healthPort = healthPortOf(manifest.OwnerOf(gw, parameters{config: gc}.annotations()).Annotations)
	}
	var nodePorts, targetPorts condition.Finding
	w.nodePorts, nodePorts = portsOf(a, annotationNodePorts)
	w.targetPorts, targetPorts = portsOf(a, annotationTargetPorts)
	return w, first(nodePorts, targetPorts)
}

// booleans are the annotations that are true or false.
var booleans = []string{
	annotationMixedProtocol, annotationUnmanaged, annotationHideHealth, annotationNoAffinity, annotationNoExternalIPs, annotationRelayDiscovery,
}

// unreadable says which booleans are none.
func unreadable(a map[string]string) (notes []string) {
	for _, name := range booleans {
		if _, known := truth(a[name]); !known && strings.TrimSpace(a[name]) != "" {
			notes = append(notes, condition.AnnotationBoolean(name, a[name]))
		}
	}
	return notes
}

// truth reads a boolean the way people write them.
func truth(s string) (value, known bool) {
	switch strings.ToLower(strings.TrimSpace(s)) {
	case "true", "1", "yes":
		return true, true
	case "false", "0", "no":
		return false, true
	}
	return false, false
}

func isTrue(s string) bool {
	value, _ := truth(s)
	return value
}

func mixedOf(s string) mixedProtocol {
	switch value, known := truth(s); {
	case !known:
		return separate
	case value:
		return together
	}
	return single
}

// serviceTypeOf takes LoadBalancer for everything that it does not know. An ExternalName needs a name to stand for.
func serviceTypeOf(s string, gw *gwapiv1.Gateway) corev1.ServiceType {
	for _, t := range []corev1.ServiceType{corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort} {
		if strings.EqualFold(strings.TrimSpace(s), string(t)) {
			return t
		}
	}
	if strings.EqualFold(strings.TrimSpace(s), string(corev1.ServiceTypeExternalName)) && wishedHostname(gw) != "" {
		return corev1.ServiceTypeExternalName
	}
	return corev1.ServiceTypeLoadBalancer
}

// healthPortOf looks for a TCP or HTTP health check that some provider's annotations describe; 0 stands for none.
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

// maxPortsLength bounds the text of a port annotation: 64 listeners of the longest name fit.
const maxPortsLength = 64 * 300

func portsOf(a map[string]string, annotation string) (map[string]int32, condition.Finding) {
	ports, err := parsePorts(a[annotation])
	if err != nil {
		return nil, condition.AnnotationInvalid(annotation, err)
	}
	return ports, condition.Finding{}
}

// parsePorts reads listener names with ports, in each of the forms that are about: a JSON map, a YAML flow map without quotes, braces
// left out, and a=1,b=2.
func parsePorts(s string) (map[string]int32, error) {
	s = strings.TrimSpace(s)
	if len(s) > maxPortsLength {
		return nil, fmt.Errorf("is longer than %d characters", maxPortsLength)
	}
	if strings.HasPrefix(s, "{") != strings.HasSuffix(s, "}") {
		return nil, errors.New(`has a brace on one side only: write {"listener": port}`)
	}
	s = strings.TrimSpace(strings.TrimSuffix(strings.TrimPrefix(s, "{"), "}"))
	ports := map[string]int32{}
	for entry := range strings.SplitSeq(s, ",") {
		if strings.TrimSpace(entry) == "" {
			continue
		}
		i := strings.LastIndexAny(entry, ":=")
		if i < 0 {
			return nil, fmt.Errorf(`%q is no listener with a port: write {"listener": port}`, strings.TrimSpace(entry))
		}
		name := bare(entry[:i])
		if _, twice := ports[name]; twice || name == "" {
			return nil, fmt.Errorf("listener %q stands there twice or has no name", name)
		}
		port, err := parsePort(bare(entry[i+1:]))
		if err != nil {
			return nil, fmt.Errorf("listener %q: %w", name, err)
		}
		ports[name] = port
	}
	return ports, nil
}

func bare(s string) string { return strings.Trim(strings.TrimSpace(s), `"'`) }

func parsePort(s string) (int32, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q is no port: use 1 to 65535", s)
	}
	return int32(n), nil
}
