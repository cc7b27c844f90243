package command

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/connect"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/output"
)

// exposure describes the traffic that a firewall in front of a Gateway must allow.
type exposure struct {
	// Ports are the ports that clients use, by listener.
	Ports []exposedPort `json:"ports,omitempty"`
	// Services are the Services of the Gateway.
	Services []exposedService `json:"services,omitempty"`
	// RelayPorts are the UDP ports at which media servers reach the pods. It is empty unless the pods are in the network of
	// their node, or have a range.
	RelayPorts string `json:"relayPorts,omitempty"`
}

// exposedPort is the port of a listener that clients use.
type exposedPort struct {
	Listener  string `json:"listener"`
	Transport string `json:"transport"` // UDP or TCP
	Port      int    `json:"port"`
}

// exposedService is a Service of a Gateway.
type exposedService struct {
	Name string             `json:"name"`
	Type corev1.ServiceType `json:"type"`
	// ExternalTrafficPolicy is empty for a Service without the field, such as a Service of type ClusterIP.
	ExternalTrafficPolicy corev1.ServiceExternalTrafficPolicy `json:"externalTrafficPolicy,omitempty"`
}

// exposedPorts returns the ports in a published config. A listener without an address has the port at which its pods
// listen.
func exposedPorts(c inspection.Config) (ports []exposedPort) {
	var published struct {
		Listeners []struct {
			Name       string `json:"name"`
			Protocol   string `json:"protocol"`
			Port       int    `json:"port"`
			PublicPort int    `json:"public_port"`
		} `json:"listeners"`
	}
	if json.Unmarshal(c.Config, &published) != nil {
		return nil // the config has the form of a later release
	}
	for _, l := range published.Listeners {
		protocol, known := config.ParseProtocol(l.Protocol)
		if !known {
			continue
		}
		ports = append(ports, exposedPort{
			Listener:  l.Name[strings.LastIndexByte(l.Name, '/')+1:],
			Transport: strings.ToUpper(protocol.Network()), Port: cmp.Or(l.PublicPort, l.Port),
		})
	}
	return ports
}

// serviceExposure returns the Services and the relay ports of Gateways. If the source has no objects, both are empty.
func serviceExposure(
	ctx context.Context, s connect.Source, gateways []types.NamespacedName,
) (map[types.NamespacedName]exposure, error) {
	found := map[types.NamespacedName]exposure{}
	if connect.HasNoObjects(s) || len(gateways) == 0 {
		return found, nil
	}
	objects, err := objectsOf(ctx, s, gateways, schema.GroupKind{Kind: "Service"}, connect.KindPod)
	if err != nil {
		return found, err
	}
	for _, o := range objects {
		gateway := types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetLabels()[labelGateway]}
		if !slices.Contains(gateways, gateway) {
			continue
		}
		e := found[gateway]
		switch o.GetKind() {
		case "Service":
			e.addService(o)
		case "Pod":
			e.addPod(o)
		}
		found[gateway] = e
	}
	return found, nil
}

// commonNamespace returns the namespace of all Gateways, or "" if they have several.
func commonNamespace(gateways []types.NamespacedName) string {
	namespace := gateways[0].Namespace
	for _, gateway := range gateways {
		if gateway.Namespace != namespace {
			return ""
		}
	}
	return namespace
}

func (e *exposure) addService(o unstructured.Unstructured) {
	var svc corev1.Service
	if runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &svc) == nil {
		e.Services = append(e.Services, exposedService{svc.Name, cmp.Or(svc.Spec.Type, corev1.ServiceTypeClusterIP), svc.Spec.ExternalTrafficPolicy})
	}
}

// relayPortsVariable is the environment variable that contains the relay ports of a pod.
const relayPortsVariable = "STUNNER_RELAY_PORTS"

func (e *exposure) addPod(o unstructured.Unstructured) {
	var pod corev1.Pod
	if runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &pod) != nil {
		return
	}
	for _, c := range pod.Spec.Containers {
		for _, v := range c.Env {
			if v.Name == relayPortsVariable && v.Value != "" {
				e.RelayPorts = v.Value
			}
		}
	}
	if e.RelayPorts == "" && pod.Spec.HostNetwork {
		e.RelayPorts = anyPort
	}
}

// anyPort is the value of relay ports for pods that are in the network of their node and have no range of relay ports.
const anyPort = "any"

// exposureTable returns a row for each Gateway, or no row if nothing is known.
func exposureTable(all []gatewayStatus) output.Table {
	table := output.Table{Columns: []output.Column{
		{Name: "GATEWAY"}, {Name: "PORTS OF CLIENTS", Wrap: true}, {Name: "SERVICE", Drop: 2}, {Name: "TRAFFIC POLICY", Drop: 1},
		{Name: "PORTS OF PEERS"},
	}}
	for _, gateway := range all {
		e := gateway.Exposure
		if len(e.Ports)+len(e.Services) == 0 {
			continue
		}
		var ports, services, policies []string
		for _, p := range e.Ports {
			ports = append(ports, fmt.Sprintf("%s/%d %s", p.Transport, p.Port, p.Listener))
		}
		for _, s := range e.Services {
			services = append(services, string(s.Type))
			if s.ExternalTrafficPolicy != "" {
				policies = append(policies, string(s.ExternalTrafficPolicy))
			}
		}
		relays := ""
		if e.RelayPorts != "" {
			relays = "UDP/" + e.RelayPorts
		}
		table.Add(output.T(gateway.Gateway), output.T(strings.Join(ports, ", ")), output.T(distinct(services)),
			output.T(distinct(policies)), output.T(relays))
	}
	return table
}

// distinct returns the different values, separated by commas.
func distinct(values []string) string {
	slices.Sort(values)
	return strings.Join(slices.Compact(values), ", ")
}
