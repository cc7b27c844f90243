// Package snapshot generates random Kubernetes objects for tests. They are the objects of a cluster that uses STUNner,
// and some are invalid.
package snapshot

import (
	"fmt"
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
)

// Object is any Kubernetes object.
type Object interface {
	metav1.Object
	runtime.Object
}

// maker generates the objects of a snapshot.
type maker struct {
	*rand.Rand
	namespace string
	objects   []Object
}

// Make returns the objects of one namespace: Gateways, routes and backends, and a GatewayClass of a controller with its
// configuration. Any of them may be invalid or missing. The GatewayClass and the Dataplane are named after the
// namespace.
func Make(random *rand.Rand, namespace, controller string) []Object {
	m := &maker{Rand: random, namespace: namespace}
	m.class(controller)
	for g := range 1 + m.IntN(3) {
		m.gateway(fmt.Sprintf("gw-%d", g))
	}
	for r := range 1 + m.IntN(4) {
		m.route(fmt.Sprintf("route-%d", r))
	}
	for b := range 3 {
		m.backend(fmt.Sprintf("media-%d", b), b+1)
	}
	return m.objects
}

func (m *maker) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: m.namespace, Name: name, UID: types.UID(name), Generation: 1}
}

func (m *maker) add(o Object) { m.objects = append(m.objects, o) }

// mostly adds an object with a probability of 7/8.
func (m *maker) mostly(o Object) {
	if m.IntN(8) > 0 {
		m.add(o)
	}
}

// class adds the objects that all Gateways of the snapshot share.
func (m *maker) class(controller string) {
	class := &gwapiv1.GatewayClass{ObjectMeta: metav1.ObjectMeta{Name: m.namespace, Generation: 1}}
	class.Spec.ControllerName = gwapiv1.GatewayController(controller)
	class.Spec.ParametersRef = &gwapiv1.ParametersReference{
		Group: stunnerv1.GroupName, Kind: "GatewayConfig", Name: "turn", Namespace: new(gwapiv1.Namespace(m.namespace)),
	}
	gc := &stunnerv1.GatewayConfig{ObjectMeta: m.meta("turn")}
	gc.Spec.AuthRef = &gwapiv1.SecretObjectReference{Name: "turn"}
	gc.Spec.Dataplane = m.namespace
	m.add(class)
	m.mostly(gc)
	m.mostly(&corev1.Secret{ObjectMeta: m.meta("turn"), Data: map[string][]byte{
		"type": []byte("static"), "username": []byte("user"), "password": []byte("pass"),
	}})
	m.mostly(&stunnerv1.Dataplane{ObjectMeta: metav1.ObjectMeta{Name: m.namespace, Generation: 1}})
}

// gateway adds a Gateway. Its listeners have different ports or protocols, because the API server rejects duplicates.
func (m *maker) gateway(name string) {
	protocols := []gwapiv1.ProtocolType{"TURN-UDP", "TURN-TCP", "TURN-TLS", "UDP", "HTTP"}
	gw := &gwapiv1.Gateway{ObjectMeta: m.meta(name)}
	gw.Spec.GatewayClassName = gwapiv1.ObjectName(m.namespace)
	if m.IntN(2) == 0 {
		kinds := []string{"ClusterIP", "NodePort", "LoadBalancer", "nonsense"}
		gw.Annotations = map[string]string{
			"stunner.l7mp.io/service-type":             kinds[m.IntN(len(kinds))],
			"stunner.l7mp.io/enable-mixed-protocol-lb": fmt.Sprint(m.IntN(2) == 0),
		}
	}
	seen := map[string]bool{}
	for i := range 1 + m.IntN(3) {
		l := gwapiv1.Listener{
			Name: gwapiv1.SectionName(fmt.Sprintf("l-%d", i)), Port: gwapiv1.PortNumber(3478 + m.IntN(3)),
			Protocol: protocols[m.IntN(len(protocols))],
		}
		if socket := fmt.Sprint(l.Port, l.Protocol); !seen[socket] {
			seen[socket] = true
			gw.Spec.Listeners = append(gw.Spec.Listeners, l)
		}
	}
	m.add(gw)
}

// route adds a route. Its Gateway and its backend may not exist.
func (m *maker) route(name string) {
	route := &stunnerv1.UDPRoute{ObjectMeta: m.meta(name)}
	route.Spec.ParentRefs = []gwapiv1.ParentReference{{Name: gwapiv1.ObjectName(fmt.Sprintf("gw-%d", m.IntN(4)))}}
	backend := stunnerv1.BackendRef{Name: gwapiv1.ObjectName(fmt.Sprintf("media-%d", m.IntN(3)))}
	if m.IntN(3) == 0 {
		backend.Group, backend.Kind = new(gwapiv1.Group(stunnerv1.GroupName)), new(gwapiv1.Kind("StaticService"))
	}
	route.Spec.Rules = []stunnerv1.UDPRouteRule{{BackendRefs: []stunnerv1.BackendRef{backend}}}
	m.add(route)
}

// backend adds a Service with an EndpointSlice, and a StaticService with the same name, so that a route can refer to
// either kind. number makes the address of the endpoint unique.
func (m *maker) backend(name string, number int) {
	m.mostly(&corev1.Service{ObjectMeta: m.meta(name), Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone}})
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: m.meta(name), AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{fmt.Sprintf("192.0.2.%d", number)}}},
	}
	slice.Labels = map[string]string{discoveryv1.LabelServiceName: name}
	m.mostly(slice)
	prefixes := []string{"192.0.2.0/24", "nonsense"}
	m.mostly(&stunnerv1.StaticService{
		ObjectMeta: m.meta(name), Spec: stunnerv1.StaticServiceSpec{Prefixes: prefixes[:1+m.IntN(2)]},
	})
}
