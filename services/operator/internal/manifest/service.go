package manifest

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// HealthPortName is the name of the Service port for health checks of a load balancer.
const HealthPortName = "gateway-health-check"

// Exposure describes a Service for some listeners of a Gateway.
type Exposure struct {
	// Name is the name of the Service.
	Name string
	Type corev1.ServiceType
	// Ports are the ports of the listeners, in the order of the listeners.
	Ports []Port
	// HealthPort is the port for health checks of a load balancer; 0 means none.
	HealthPort int32
	// SourceAddress sets externalTrafficPolicy to Local: packets keep the source address of the client, and nodes
	// without a pod drop them.
	SourceAddress bool
	// Affinity sets sessionAffinity to ClientIP.
	Affinity bool
	// LoadBalancerIP is the IP address that is requested from the load balancer, if any.
	LoadBalancerIP string
	// ExternalIPs are the IP addresses whose packets nodes forward to the Service.
	ExternalIPs []string
	// Hostname is the requested host name, if any.
	Hostname string
	// Overlay is spec.service of the Dataplane.
	Overlay stunnerv1.ServiceOverlay
}

// Port is the port of one listener.
type Port struct {
	Name     string
	Protocol corev1.Protocol
	Port     int32
	// TargetPort is the port in the pod.
	TargetPort int32
	// NodePort is the requested node port; 0 lets Kubernetes choose.
	NodePort int32
}

// Service builds the Service of an exposure.
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
	svc.Spec.ExternalIPs = e.ExternalIPs
	switch e.Type {
	case corev1.ServiceTypeLoadBalancer:
		svc.Spec.LoadBalancerIP = e.LoadBalancerIP
	case corev1.ServiceTypeExternalName:
		svc.Spec.ExternalName = e.Hostname
	}
	e.applyOverlay(svc)
	external := e.Type == corev1.ServiceTypeLoadBalancer || e.Type == corev1.ServiceTypeNodePort
	if external && e.SourceAddress {
		svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	}
	probed := e.Type == corev1.ServiceTypeLoadBalancer && e.HealthPort != 0 && !e.usesTCPPort(e.HealthPort)
	names := portNames(e.Ports, probed)
	for i, p := range e.Ports {
		target := intstr.FromInt32(p.TargetPort)
		port := corev1.ServicePort{Name: names[i], Protocol: p.Protocol, Port: p.Port, TargetPort: target}
		if external {
			port.NodePort = p.NodePort
		}
		svc.Spec.Ports = append(svc.Spec.Ports, port)
	}
	if probed {
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{
			Name: HealthPortName, Protocol: corev1.ProtocolTCP, Port: e.HealthPort,
			TargetPort: intstr.FromInt32(e.HealthPort),
		})
	}
	return svc
}

// WithoutExternalIPs returns a copy of a Service without spec.externalIPs, because policies of many clusters reject
// external IPs. It returns nil for any other object, and for a Service without external IPs.
func WithoutExternalIPs(o runtime.Object) resource.Object {
	svc, ok := o.(*corev1.Service)
	if !ok || len(svc.Spec.ExternalIPs) == 0 {
		return nil
	}
	svc = svc.DeepCopy()
	svc.Spec.ExternalIPs = nil
	return svc
}

// applyOverlay sets the fields of spec.service of a Dataplane in a Service, except those that are not valid for the
// type of the Service.
func (e Exposure) applyOverlay(svc *corev1.Service) {
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

// Fit returns a copy of wanted in which the fields that cannot be changed have the values of the existing Service: the
// load balancer class, and the IP families if the first family differs. fields are the names of those fields whose
// wanted value is not possible. If wanted sets no load balancer class, any existing class is accepted.
func Fit(wanted, existing *corev1.Service) (possible *corev1.Service, fields []string) {
	possible = wanted.DeepCopy()
	spec := &possible.Spec
	balancers := spec.Type == corev1.ServiceTypeLoadBalancer && existing.Spec.Type == corev1.ServiceTypeLoadBalancer
	if balancers && !reflect.DeepEqual(spec.LoadBalancerClass, existing.Spec.LoadBalancerClass) {
		spec.LoadBalancerClass = existing.Spec.LoadBalancerClass
		if wanted.Spec.LoadBalancerClass != nil {
			fields = append(fields, "loadBalancerClass")
		}
	}
	if is := existing.Spec.IPFamilies; len(spec.IPFamilies) > 0 && len(is) > 0 && spec.IPFamilies[0] != is[0] {
		spec.IPFamilies, spec.IPFamilyPolicy = is, existing.Spec.IPFamilyPolicy
		fields = append(fields, "ipFamilies")
	}
	return possible, fields
}

// portNames returns unique names for Service ports. A port gets the name of its listener if this is a valid port name.
// Names of listeners may be too long or contain dots. In this case, the port name is NETWORK-PORT, with a suffix if
// another port has this name.
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
		base := fmt.Sprintf("%s-%d", strings.ToLower(string(p.Protocol)), p.Port)
		name := base
		for n := 1; taken[name]; n++ {
			name = fmt.Sprintf("%s-%d", base, n)
		}
		names[i], taken[name] = name, true
	}
	return names
}

// usesTCPPort reports whether a listener uses the TCP port.
func (e Exposure) usesTCPPort(port int32) bool {
	return slices.ContainsFunc(e.Ports, func(p Port) bool { return p.Port == port && p.Protocol == corev1.ProtocolTCP })
}
