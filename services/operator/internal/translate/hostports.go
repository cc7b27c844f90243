package translate

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// Gateways whose pods run in the host network share the ports of the nodes. The older Gateway keeps a port that two of
// them need:
//
//   - A listener on a port of an older Gateway is not served.
//   - If the port of the probes or the metrics is taken, the pods have none, and a note says so. The Gateway is served,
//     because calls do not need probes, and the answer of another process to a probe would have no meaning.
//
// Two Gateways are left out if node affinity keeps their pods on different nodes.

// The published ports of an older Gateway count like those in its spec, because its pods keep them while it cannot be
// served as specified, see NodePortsOf.

// hostPort is a port of the nodes.
type hostPort = resource.NodePort

// hostPorts are the ports of nodes that other Gateways use, with the part of the Gateway that uses them, for messages.
type hostPorts map[hostPort]string

// NodePortsOf returns the ports of nodes that the pods of a Gateway bind according to a config. It returns nil if a
// workload, which may be nil, has no pods in the host network.
func NodePortsOf(gateway types.NamespacedName, c config.Config, workload resource.Object) *resource.NodePorts {
	var pod corev1.PodSpec
	switch w := workload.(type) {
	case *appsv1.Deployment:
		pod = w.Spec.Template.Spec
	case *appsv1.DaemonSet:
		pod = w.Spec.Template.Spec
	}
	if !pod.HostNetwork {
		return nil
	}
	n := &resource.NodePorts{
		ObjectMeta: metav1.ObjectMeta{Namespace: gateway.Namespace, Name: gateway.Name},
		Pod:        corev1.PodSpec{NodeSelector: pod.NodeSelector, Affinity: pod.Affinity},
	}
	for _, l := range c.Listeners {
		name := strings.TrimPrefix(l.Name, gateway.String()+"/")
		port := hostPort{Network: l.Protocol.Network(), Number: int32(l.Port)}
		n.Sockets = append(n.Sockets, resource.NodeSocket{NodePort: port, Use: fmt.Sprintf("listener %q of ", name)})
	}
	for i, endpoint := range adminEndpoints(c) {
		if number := endpointPort(endpoint); number != 0 {
			port := hostPort{Network: "tcp", Number: number}
			n.Sockets = append(n.Sockets, resource.NodeSocket{NodePort: port, Use: [...]string{"the probes of ", "the metrics of "}[i]})
		}
	}
	return n
}

// adminEndpoints returns the endpoints of probes and metrics in a config.
func adminEndpoints(c config.Config) [2]string {
	return [...]string{ptr.Deref(c.Admin.HealthcheckEndpoint, ""), c.Admin.MetricsEndpoint}
}

// endpointPort returns the port of an endpoint of the dataplane process, or 0.
func endpointPort(endpoint string) int32 {
	u, err := url.Parse(endpoint)
	if err != nil {
		return 0
	}
	port, _ := strconv.ParseUint(u.Port(), 10, 16)
	return int32(port)
}

// takenHostPorts returns the ports that older Gateways use on the nodes of a Gateway. It returns none if the pods of
// the Gateway are not in the host network, or are not managed by the operator.
func takenHostPorts(v *resource.View, gw *gwapiv1.Gateway, p parameters, a annotations, opt Options) hostPorts {
	if !onHosts(v, p, a) {
		return nil
	}
	taken := hostPorts{}
	taken.addPublished(v, gw, p)
	for _, other := range gatewaysOnHosts(v) {
		if !older(other, gw) {
			continue
		}
		class, _ := classOf(v, other, opt)
		if class == nil {
			continue
		}
		theirs, found := parametersOf(v, other, class, opt)
		b, _ := annotationsOf(other, theirs.config)
		if !found.OK() || b.unmanaged || !theirs.dataplane.Spec.HostNetwork ||
			manifest.OnDifferentNodes(p.dataplane, theirs.dataplane) {
			continue
		}
		taken.add(v, gw.Namespace, other, theirs, b)
	}
	return taken
}

// addPublished adds the published ports of the Gateways that are older than a Gateway with parameters p.
func (h hostPorts) addPublished(v *resource.View, gw *gwapiv1.Gateway, p parameters) {
	for _, n := range v.NodePorts() {
		other := v.Gateway(resource.KeyOf(n))
		if other == nil || !older(other, gw) || manifest.OnOtherNodes(p.dataplane, n.Pod) {
			continue
		}
		for _, s := range n.Sockets {
			h.use(s.NodePort, s.Use, gw.Namespace, other)
		}
	}
}

// onHosts reports whether the pods of a Gateway are in the host network and managed by the operator.
func onHosts(v *resource.View, p parameters, a annotations) bool {
	return v.Host() == nil && p.dataplane != nil && p.dataplane.Spec.HostNetwork && !a.unmanaged
}

// gatewaysOnHosts returns the Gateways that may have a Dataplane with host network, the oldest first. For a
// GatewayConfig that names Dataplane "default", the Dataplane of the class may be used, see dataplaneFor.
func gatewaysOnHosts(v *resource.View) (list []*gwapiv1.Gateway) {
	for _, name := range v.Dataplanes() {
		if d := v.Dataplane(name); name != stunnerv1.DefaultDataplane && (d == nil || !d.Spec.HostNetwork) {
			continue
		}
		for config := range v.ConfigsOfDataplane(name) {
			sets := []resource.Set{v.GatewaysOfConfig(config)}
			for class := range v.ClassesOfConfig(config) {
				sets = append(sets, v.GatewaysOfClass(class.Name))
			}
			for _, set := range sets {
				for key := range set {
					if gw := v.Gateway(key); gw != nil {
						list = append(list, gw)
					}
				}
			}
		}
	}
	slices.SortFunc(list, compareAge)
	return list
}

// use adds a port of a Gateway, unless another Gateway was added with it. A Gateway of another namespace than the
// reader of the message is not named, because the reader may have no right to see it.
func (h hostPorts) use(port hostPort, use, reader string, gw *gwapiv1.Gateway) {
	name := "a Gateway of another namespace"
	if gw.Namespace == reader {
		name = "Gateway " + resource.KeyOf(gw).String()
	}
	if _, taken := h[port]; !taken {
		h[port] = use + name
	}
}

// add adds the ports in the spec of a Gateway.
func (h hostPorts) add(v *resource.View, reader string, gw *gwapiv1.Gateway, p parameters, a annotations) {
	for _, l := range gw.Spec.Listeners {
		if protocol, _ := protocolOf(l.Protocol); protocol != "" {
			port := cmp.Or(a.targetPorts[string(l.Name)], int32(l.Port))
			h.use(hostPort{Network: protocol.Network(), Number: port}, fmt.Sprintf("listener %q of ", l.Name), reader, gw)
		}
	}
	for port, purpose := range processPorts(v, a, p) {
		h.use(hostPort{Network: "tcp", Number: port}, "the "+purpose+" of ", reader, gw)
	}
}

// avoidsHostPorts rejects a listener on a port of the nodes that an older Gateway uses.
func (l *listener) avoidsHostPorts(taken hostPorts) condition.Finding {
	if user, clash := taken[hostPort{Network: l.network(), Number: l.target}]; clash {
		return condition.HostPortTaken(l.network(), l.target, user)
	}
	return condition.Finding{}
}

// leaveHostPorts removes probes and metrics from the Dataplane of the Gateway if an older Gateway uses their ports on
// the nodes. It returns notes about that.
func (d *draft) leaveHostPorts(taken hostPorts) []condition.Finding {
	return d.leavePorts(taken, condition.HostPortLeft)
}

// leaveUnknownPorts removes probes and metrics that the published config does not have, if their ports may be those of
// an older Gateway whose parameters cannot be resolved: its pods still run, perhaps on the same nodes, and a process
// whose port is in use ends at its start. It returns notes about that.
func (d *draft) leaveUnknownPorts() []condition.Finding {
	added := processPorts(d.view, d.annotations, d.parameters)
	maps.DeleteFunc(added, func(port int32, _ string) bool { return d.publishes(port) })
	if len(added) == 0 || !onHosts(d.view, d.parameters, d.annotations) {
		return nil
	}
	every := stunnerv1.DataplaneSpec{EnableMetricsEndpoint: true}
	taken, theirs := hostPorts{}, parameters{dataplane: &stunnerv1.Dataplane{Spec: every}}
	for _, key := range d.view.Gateways() {
		if other := d.view.Gateway(key); older(other, d.gateway) && unresolved(d.view, other, d.opt) {
			for _, gc := range knownConfigs(d.view, other, d.opt) {
				if a, _ := annotationsOf(other, gc); !a.unmanaged {
					taken.add(d.view, d.gateway.Namespace, other, theirs, a)
				}
			}
		}
	}
	maps.DeleteFunc(taken, func(p hostPort, _ string) bool { return added[p.Number] == "" })
	if d.unknownPorts = len(taken) > 0; d.opt.Published == nil {
		return nil
	}
	return d.leavePorts(taken, condition.UnknownPortLeft)
}

// knownConfigs returns the GatewayConfigs from which a Gateway without usable parameters may have its ports: nil, which
// stands for a missing one, and those to which it and its class refer.
func knownConfigs(v *resource.View, gw *gwapiv1.Gateway, opt Options) []*stunnerv1.GatewayConfig {
	all := []*stunnerv1.GatewayConfig{nil}
	var references []reference
	if class, _ := classOf(v, gw, opt); class != nil {
		references = append(references, classReference(v, class))
	}
	if gw.Spec.Infrastructure != nil && gw.Spec.Infrastructure.ParametersRef != nil {
		references = append(references, ownReference(v, gw))
	}
	for _, r := range references {
		if gc := r.config(); gc != nil {
			all = append(all, gc)
		}
	}
	return all
}

// publishes reports whether the published config has an endpoint of probes or metrics at a port.
func (d *draft) publishes(port int32) bool {
	if d.opt.Published == nil {
		return false
	}
	endpoints := adminEndpoints(*d.opt.Published)
	return slices.ContainsFunc(endpoints[:], func(e string) bool { return endpointPort(e) == port })
}

// unresolved reports whether the class or the parameters of a Gateway cannot be resolved, so that its published objects
// stay.
func unresolved(v *resource.View, gw *gwapiv1.Gateway, opt Options) bool {
	class, decision := classOf(v, gw, opt)
	if class == nil {
		return decision == Classless
	}
	_, found := parametersOf(v, gw, class, opt)
	return !found.OK()
}

// leaveHeldPorts removes probes and metrics from the Dataplane of the Gateway if a held listener has their ports in the
// pod, for example after an annotation has moved the probes there. Otherwise one of the two could not be opened in new
// pods. It returns notes about that.
func (d *draft) leaveHeldPorts() []condition.Finding {
	if d.view.Host() != nil || d.parameters.dataplane == nil {
		return nil
	}
	taken := hostPorts{}
	for _, l := range d.listeners {
		if l.published != nil {
			taken[hostPort{Network: l.network(), Number: int32(l.published.config.Port)}] = fmt.Sprintf("listener %q", l.name())
		}
	}
	return d.leavePorts(taken, condition.HeldPortLeft)
}

// leavePorts removes probes and metrics whose ports are taken. note returns the note about one of the two.
func (d *draft) leavePorts(
	taken hostPorts, note func(use string, port int32, user, annotation string) condition.Finding,
) (notes []condition.Finding) {
	ports := d.annotations.processPorts
	for _, p := range []struct {
		use, annotation string
		port            int32
		served          func(*stunnerv1.DataplaneSpec) bool
		remove          func(*stunnerv1.DataplaneSpec)
	}{
		{"probes", annotationHealthPort, ports.Health,
			func(s *stunnerv1.DataplaneSpec) bool { return !s.DisableHealthCheck },
			func(s *stunnerv1.DataplaneSpec) { s.DisableHealthCheck = true }},
		{"metrics", annotationMetricsPort, ports.Metrics,
			func(s *stunnerv1.DataplaneSpec) bool { return s.EnableMetricsEndpoint },
			func(s *stunnerv1.DataplaneSpec) { s.EnableMetricsEndpoint = false }},
	} {
		user, clash := taken[hostPort{Network: "tcp", Number: p.port}]
		if !clash || !p.served(&d.parameters.dataplane.Spec) {
			continue
		}
		d.parameters.dataplane = d.parameters.dataplane.DeepCopy()
		p.remove(&d.parameters.dataplane.Spec)
		notes = append(notes, note(p.use, p.port, user, p.annotation))
	}
	return notes
}
