package translate_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// Names of objects of different kinds are independent: if objects of all kinds have one name, the result is the same as
// with different names. There is a route of each API group, with a Service and a StaticService of one name as backends.
func TestNamesOfDifferentKindsAreIndependent(t *testing.T) {
	opt := translate.DefaultOptions()
	opt.Now = metav1.Unix(1, 0)
	said := func(official bool, name func(kind string) string) string {
		data, err := json.Marshal(translateAll(resource.NewView(sharedNames(official, name)), opt))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	for _, official := range []bool{false, true} {
		one := said(official, func(string) string { return "edge" })
		var kinds []string
		each := said(official, func(kind string) string {
			kinds = append(kinds, "edge-"+kind+"-x", "edge")
			return "edge-" + kind + "-x"
		})
		if diff := cmp.Diff(strings.NewReplacer(kinds...).Replace(each), one); diff != "" {
			t.Errorf(
				"official %t: with one name for all kinds something else is said (-own names +one name):\n%s", official,
				diff,
			)
		}
		for _, wanted := range []string{`10.244.0.7:\u003c10000-10010\u003e`, `192.0.2.0/24`} {
			if official {
				wanted, _, _ = strings.Cut(wanted, ":") // a UDPRoute of gateway.networking.k8s.io has no port range
			}
			if !strings.Contains(one, wanted) {
				t.Errorf("official %t: %s is not reached", official, wanted)
			}
		}
	}
}

func sharedNames(official bool, name func(kind string) string) []resource.Object {
	const namespace = "media"
	meta := func(kind string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: namespace, Name: name(kind)} }
	object := func(kind string) gwapiv1.ObjectName { return gwapiv1.ObjectName(name(kind)) }
	parents := gwapiv1.CommonRouteSpec{ParentRefs: []gwapiv1.ParentReference{{Name: object("gateway")}}}
	group, kind := new(gwapiv1.Group(stunnerv1.GroupName)), new(gwapiv1.Kind("StaticService"))
	var route resource.Object = &stunnerv1.UDPRoute{ObjectMeta: meta(
		"route",
	), Spec: stunnerv1.UDPRouteSpec{CommonRouteSpec: parents, Rules: []stunnerv1.UDPRouteRule{{
		BackendRefs: []stunnerv1.BackendRef{
			{Name: object("service"), Port: new(gwapiv1.PortNumber(10000)), EndPort: new(gwapiv1.PortNumber(10010))},
			{Name: object("static"), Group: group, Kind: kind},
		},
	}}}}
	if official {
		backend := func(o gwapiv1.BackendObjectReference) gwapiv1.BackendRef {
			return gwapiv1.BackendRef{BackendObjectReference: o}
		}
		route = &gwapiv1.UDPRoute{ObjectMeta: meta(
			"route",
		), Spec: gwapiv1.UDPRouteSpec{CommonRouteSpec: parents, Rules: []gwapiv1.UDPRouteRule{{
			BackendRefs: []gwapiv1.BackendRef{
				backend(gwapiv1.BackendObjectReference{Name: object("service")}),
				backend(gwapiv1.BackendObjectReference{Name: object("static"), Group: group, Kind: kind}),
			},
		}}}}
	}
	return []resource.Object{
		&gwapiv1.GatewayClass{ObjectMeta: metav1.ObjectMeta{Name: name("class")}, Spec: gwapiv1.GatewayClassSpec{
			ControllerName: translate.DefaultControllerName,
			ParametersRef: &gwapiv1.ParametersReference{
				Group: stunnerv1.GroupName, Kind: "GatewayConfig", Name: name("config"),
				Namespace: new(gwapiv1.Namespace(namespace)),
			},
		}},
		&stunnerv1.GatewayConfig{ObjectMeta: meta("config"), Spec: stunnerv1.GatewayConfigSpec{
			Dataplane: name("dataplane"), AuthRef: &gwapiv1.SecretObjectReference{Name: object("secret")},
		}},
		&corev1.Secret{ObjectMeta: meta("secret"), Data: map[string][]byte{
			"type": []byte("static"), "username": []byte("caller"), "password": []byte("marzipan-and-rosewater"),
		}},
		&stunnerv1.Dataplane{ObjectMeta: metav1.ObjectMeta{Name: name("dataplane")}},
		&gwapiv1.Gateway{ObjectMeta: meta("gateway"), Spec: gwapiv1.GatewaySpec{
			GatewayClassName: object("class"),
			Listeners:        []gwapiv1.Listener{{Name: "udp", Port: 3478, Protocol: "TURN-UDP"}},
		}},
		route,
		&stunnerv1.StaticService{
			ObjectMeta: meta("static"), Spec: stunnerv1.StaticServiceSpec{Prefixes: []string{"192.0.2.0/24"}},
		},
		&corev1.Service{ObjectMeta: meta("service")},
		&discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: name("slice"),
				Labels: map[string]string{discoveryv1.LabelServiceName: name("service")},
			},
			AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.244.0.7"}}},
		},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name("node")}},
	}
}
