package manifest

import (
	"fmt"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// HealthPortName is the name of the Service port that load balancers probe.
const HealthPortName = "gateway-health-check"

// Exposure says how a set of listeners is exposed.
type Exposure struct {
	// Name is the name of the Service.
	Name string
	Type corev1.ServiceType
	// Ports are the listeners', in their order.
	Ports []Port
	// HealthPort is opened for the probes of a load balancer; 0 opens none.
	HealthPort int32
	// SourceAddress keeps the source address of packets, at the price that nodes without a pod drop them.
	SourceAddress bool
	// Affinity sends all packets of a client to the same pod.
	Affinity bool
	// Address is the public address that the Service is to have, as an IP address or as a host name.
	Address  string
	Hostname string
	// ExternalIPs has nodes take what is sent to Address too, whoever brings it there.
	ExternalIPs bool
	// Overlay is what the Dataplane asks for.
	Overlay stunnerv1.ServiceOverlay
}

// Port is the port of one listener.
type Port struct {
	Name     string
	Protocol corev1.Protocol
	Port     int32
	// TargetPort is the port in the pod.
	TargetPort int32
	// NodePort is the wished-for port on the nodes; 0 leaves the choice to the cluster.
	NodePort int32
}

// Service builds the Service that exposes listeners.
func Service(o Owner, e Exposure) *corev1.Service {
	svc := &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: o.meta(e.Name),
		Spec: corev1.ServiceSpec{
			Type:            e.Type,
			Selector:        o.podLabels(),
			SessionAffinity: corev1.ServiceAffinityNone,
		},
	}
	if e.Affinity {
		svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	}
	if e.Address != "" && e.ExternalIPs {
		svc.Spec.ExternalIPs = []string{e.Address}
	}
	switch e.Type {
	case corev1.ServiceTypeLoadBalancer:
		svc.Spec.LoadBalancerIP = e.Address
	case corev1.ServiceTypeExternalName:
		svc.Spec.ExternalName = e.Hostname
	}
	e.lay(svc)
	external := e.Type == corev1.ServiceTypeLoadBalancer || e.Type == corev1.ServiceTypeNodePort
	if external && e.SourceAddress {
		svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	}
	probed := e.Type == corev1.ServiceTypeLoadBalancer && e.HealthPort != 0 && !e.opens(e.HealthPort)
	names := portNames(e.Ports, probed)
	for i, p := range e.Ports {
		port := corev1.ServicePort{Name: names[i], Protocol: p.Protocol, Port: p.Port, TargetPort: intstr.FromInt32(p.TargetPort)}
		if external {
			port.NodePort = p.NodePort
		}
		svc.Spec.Ports = append(svc.Spec.Ports, port)
	}
	if probed {
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{
			Name: HealthPortName, Protocol: corev1.ProtocolTCP, Port: e.HealthPort, TargetPort: intstr.FromInt32(e.HealthPort),
		})
	}
	return svc
}

// WithoutExternalIPs is a copy of a Service without its external addresses, which many clusters do not allow: its load balancer does without them. It is
// nil for what has none.
func WithoutExternalIPs(o resource.Object) resource.Object {
	svc, ok := o.(*corev1.Service)
	if !ok || len(svc.Spec.ExternalIPs) == 0 {
		return nil
	}
	svc = svc.DeepCopy()
	svc.Spec.ExternalIPs = nil
	return svc
}

// lay sets those fields of the overlay that the type of the Service has.
func (e Exposure) lay(svc *corev1.Service) {
	overlay := e.Overlay.DeepCopy()
	if e.Type != corev1.ServiceTypeExternalName {
		svc.Spec.IPFamilies, svc.Spec.IPFamilyPolicy = overlay.IPFamilies, overlay.IPFamilyPolicy
	}
	if e.Type == corev1.ServiceTypeLoadBalancer {
		svc.Spec.LoadBalancerClass = overlay.LoadBalancerClass
		svc.Spec.LoadBalancerSourceRanges = overlay.LoadBalancerSourceRanges
		svc.Spec.AllocateLoadBalancerNodePorts = overlay.AllocateLoadBalancerNodePorts
	}
}

// Fit returns what a Service can become of all that is wanted of it, and names the fields in which that is something else: Kubernetes lets
// nobody change the class of a load balancer and the first address family for as long as the Service exists. Who is asked for no class leaves
// the one that is there.
func Fit(wanted, has *corev1.Service) (possible *corev1.Service, fields []string) {
	possible = wanted.DeepCopy()
	spec, balancer := &possible.Spec, corev1.ServiceTypeLoadBalancer
	if spec.Type == balancer && has.Spec.Type == balancer && !reflect.DeepEqual(spec.LoadBalancerClass, has.Spec.LoadBalancerClass) {
		spec.LoadBalancerClass = has.Spec.LoadBalancerClass
		if wanted.Spec.LoadBalancerClass != nil {
			fields = append(fields, "loadBalancerClass")
		}
	}
	if is := has.Spec.IPFamilies; len(spec.IPFamilies) > 0 && len(is) > 0 && spec.IPFamilies[0] != is[0] {
		spec.IPFamilies, spec.IPFamilyPolicy = is, has.Spec.IPFamilyPolicy
		fields = append(fields, "ipFamilies")
	}
	return possible, fields
}

// portNames are the names of the listeners where Kubernetes takes them: listeners may have longer names, and dots in them. What a port is called in the place
// of such a name may be the name of another listener, and no two ports may have one name.
func portNames(ports []Port, probed bool) []string {
	names, taken := make([]string, len(ports)), map[string]bool{HealthPortName: probed}
	for i, p := range ports {
		if len(validation.IsDNS1123Label(p.Name)) == 0 && !taken[p.Name] {
			names[i], taken[p.Name] = p.Name, true
		}
	}
	for i, p := range ports {
		if names[i] != "" {
			continue
		}
		plain := fmt.Sprintf("%s-%d", strings.ToLower(string(p.Protocol)), p.Port)
		name := plain
		for n := 1; taken[name]; n++ {
			name = fmt.Sprintf("%s-%d", plain, n)
		}
		names[i], taken[name] = name, true
	}
	return names
}

// opens tells whether a TCP port is taken by a listener.
func (e Exposure) opens(port int32) bool {
	for _, p := range e.Ports {
		if p.Port == port && p.Protocol == corev1.ProtocolTCP {
			return true
		}
	}
	return false
}
