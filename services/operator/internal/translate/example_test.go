package translate_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// A Gateway with one UDP listener and one route to a media server. The status is not Programmed because there is no
// public address: the operator has not created the Service yet.
func ExampleGateway() {
	system := metav1.ObjectMeta{Namespace: "stunner", Name: "config"}
	turn, media := metav1.ObjectMeta{Namespace: "turn", Name: "udp"}, metav1.ObjectMeta{
		Namespace: "turn", Name: "media",
	}
	slice := metav1.ObjectMeta{
		Namespace: "turn", Name: "media-x", Labels: map[string]string{discoveryv1.LabelServiceName: "media"},
	}
	view := resource.NewView([]resource.Object{
		&gwapiv1.GatewayClass{ObjectMeta: metav1.ObjectMeta{Name: "stunner"}, Spec: gwapiv1.GatewayClassSpec{
			ControllerName: translate.DefaultControllerName,
			ParametersRef: &gwapiv1.ParametersReference{
				Group: stunnerv1.GroupName, Kind: translate.KindGatewayConfig,
				Namespace: new(gwapiv1.Namespace("stunner")), Name: "config",
			},
		}},
		&stunnerv1.GatewayConfig{ObjectMeta: system, Spec: stunnerv1.GatewayConfigSpec{
			AuthRef: &gwapiv1.SecretObjectReference{Name: "auth"},
		}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "stunner", Name: "auth"}, Data: map[string][]byte{
			"type": []byte("ephemeral"), "secret": []byte("a secret of at least 16 bytes"),
		}},
		&stunnerv1.Dataplane{ObjectMeta: metav1.ObjectMeta{Name: "default"}},
		&gwapiv1.Gateway{ObjectMeta: turn, Spec: gwapiv1.GatewaySpec{
			GatewayClassName: "stunner",
			Listeners:        []gwapiv1.Listener{{Name: "udp-listener", Protocol: "TURN-UDP", Port: 3478}},
		}},
		&stunnerv1.UDPRoute{ObjectMeta: media, Spec: stunnerv1.UDPRouteSpec{
			CommonRouteSpec: gwapiv1.CommonRouteSpec{ParentRefs: []gwapiv1.ParentReference{{Name: "udp"}}},
			Rules:           []stunnerv1.UDPRouteRule{{BackendRefs: []stunnerv1.BackendRef{{Name: "media"}}}},
		}},
		&corev1.Service{ObjectMeta: media, Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.7"}},
		&discoveryv1.EndpointSlice{
			ObjectMeta: slice, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.244.0.9"}}},
		},
	})

	result := translate.Gateway(view, resource.KeyOf(&gwapiv1.Gateway{ObjectMeta: turn}), translate.DefaultOptions())

	for _, l := range result.Config.Listeners {
		fmt.Println("listener", l.Name, l.Protocol, l.Port, "routes", l.Routes)
	}
	for _, c := range result.Config.Clusters {
		fmt.Println("cluster", c.Name, c.Endpoints)
	}
	for _, o := range result.Objects {
		fmt.Println("object", o.GetObjectKind().GroupVersionKind().Kind, o.GetNamespace()+"/"+o.GetName())
	}
	for _, c := range result.Status.Conditions {
		fmt.Println("condition", c.Type, c.Status, c.Reason)
	}
	// Output:
	// listener turn/udp/udp-listener TURN-UDP 3478 routes [turn/media]
	// cluster turn/media [10.244.0.9 10.96.0.7]
	// object ConfigMap turn/udp
	// object Deployment turn/udp
	// object Service turn/udp
	// condition Accepted True Accepted
	// condition Programmed False AddressNotAssigned
}
