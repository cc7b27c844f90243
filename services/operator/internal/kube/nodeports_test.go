package kube

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// onHosts returns a Gateway in the host network, with a GatewayClass, a GatewayConfig and a Dataplane of its own, all
// of one name. Its credentials are in a Secret.
func onHosts(name string, created time.Time, listeners ...gwapiv1.Listener) (
	*gwapiv1.GatewayClass, *stunnerv1.GatewayConfig, *stunnerv1.Dataplane, *gwapiv1.Gateway, *corev1.Secret,
) {
	of := metav1.ObjectMeta{Namespace: gatewayKey.Namespace, Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(created)}
	all := metav1.ObjectMeta{Name: name}
	class := &gwapiv1.GatewayClass{ObjectMeta: all, Spec: gwapiv1.GatewayClassSpec{
		ControllerName: translate.DefaultControllerName, ParametersRef: &gwapiv1.ParametersReference{
			Group: stunnerv1.GroupName, Kind: "GatewayConfig", Name: name, Namespace: new(gwapiv1.Namespace(of.Namespace)),
		},
	}}
	gc := &stunnerv1.GatewayConfig{ObjectMeta: of, Spec: stunnerv1.GatewayConfigSpec{
		Dataplane: name, AuthRef: &gwapiv1.SecretObjectReference{Name: gwapiv1.ObjectName(name)},
	}}
	d := &stunnerv1.Dataplane{ObjectMeta: all, Spec: stunnerv1.DataplaneSpec{HostNetwork: true, WorkloadName: name + "-pods"}}
	gw := &gwapiv1.Gateway{ObjectMeta: of, Spec: gwapiv1.GatewaySpec{GatewayClassName: gwapiv1.ObjectName(name), Listeners: listeners}}
	s := &corev1.Secret{ObjectMeta: of, Data: map[string][]byte{
		"type": []byte("static"), "username": []byte("ann"), "password": []byte("correct-horse-battery"),
	}}
	s.ResourceVersion = "1"
	return class, gc, d, gw, s
}

// A Gateway in the host network that cannot be served as specified keeps its published ports, also if its spec no
// longer has them, and also after a restart: its pods still run. A younger Gateway cannot have them, and its condition
// says why.
func TestPublishedPortsOfNodesStayTaken(t *testing.T) {
	udp := func(name gwapiv1.SectionName, port gwapiv1.PortNumber) gwapiv1.Listener {
		return gwapiv1.Listener{Name: name, Port: port, Protocol: "TURN-UDP"}
	}
	oldest := time.Unix(1_900_000_000, 0)
	class, gc, d, gw, secret := onHosts(gatewayKey.Name, oldest, udp("udp", 3478), udp("more", 3479))
	sideClass, sideConfig, sideDataplane, side, sideSecret := onHosts("side", oldest.Add(time.Hour), udp("udp", 3478), udp("free", 5000))
	side.Spec.Listeners = append(side.Spec.Listeners, gwapiv1.Listener{Name: "probes", Port: 8086, Protocol: "TURN-TCP"})
	moved := gw.DeepCopy()
	moved.Spec.Listeners[0].Port, moved.Generation = 4000, 2
	gone := func(o resource.Object) objectChange { return objectChange{object: o, deleted: true} }
	edit := func(change func(*gwapiv1.Gateway)) objectChange {
		gw := moved.DeepCopy()
		change(gw)
		return objectChange{object: gw}
	}
	for name, mistake := range map[string][]objectChange{
		"the Secret is missing, the port moves":        {gone(&metav1.PartialObjectMetadata{ObjectMeta: secret.ObjectMeta}), {object: moved}},
		"the GatewayConfig is missing, the port moves": {gone(gc), {object: moved}},
		"the Dataplane is missing, the port moves":     {gone(d), {object: moved}},
		"the class is missing, the port moves":         {gone(class), {object: moved}},
		"the GatewayConfig is missing":                 {gone(gc)},
		"the class is missing":                         {gone(class)},
		"the port is invalid":                          {edit(func(gw *gwapiv1.Gateway) { gw.Spec.Listeners[0].Port = 70000 })},
		"the ports are in a bad annotation": {edit(func(gw *gwapiv1.Gateway) {
			gw.Annotations = map[string]string{"stunner.l7mp.io/targetport": "{"}
		})},
		"the class is that of no one": {edit(func(gw *gwapiv1.Gateway) { gw.Spec.GatewayClassName = "misspelt" })},
	} {
		start := func() *loop {
			l := startWith(t)
			l.since = func(translate.ObjectRef, time.Time) time.Duration { return 0 } // no translation is delayed
			for _, key := range []types.NamespacedName{resource.KeyOf(secret), resource.KeyOf(sideSecret)} {
				l.secrets.existing[key], l.secrets.fetched[key] = "1", "1"
			}
			return l
		}
		young := []objectChange{{object: sideClass}, {object: sideConfig}, {object: sideDataplane}, {object: sideSecret}, {object: side}}
		old := []objectChange{{object: class}, {object: gc}, {object: d}, {object: secret}, {object: gw}}
		ref := translate.ObjectRef{Kind: translate.KindGateway, NamespacedName: gatewayKey}
		running := start()
		running.applyAll(old, &task{})
		good := running.published.current(gatewayKey)
		if good == nil {
			t.Fatalf("TEST NOT VALID: %+v", running.writer.desired[ref])
		}
		var written []client.Object
		for _, o := range running.writer.desired[ref].objects {
			written = append(written, asCached(o))
		}
		running.applyAll(mistake, &task{})
		running.applyAll(young, &task{})

		restarted := start()
		s, err := newScheme()
		if err != nil {
			t.Fatal(err)
		}
		cached := fake.NewClientBuilder().WithScheme(s).WithObjects(written...).Build()
		restarted.published.nodePorts = func(gw *gwapiv1.Gateway) *resource.NodePorts {
			return previousNodePorts(t.Context(), cached, gw)
		}
		standby := manifest.Standby(gatewayKey, gw.UID, *good, testKey)
		standby.ResourceVersion = "7"
		restarted.standbyOf(t, standby)
		restarted.applyAll(append(append(old, young...), mistake...), &task{})
		restarted.fetchSecrets(t)

		for when, l := range map[string]*loop{"running": running, "restarted": restarted} {
			when = name + ", " + when
			if now := l.published.current(gatewayKey); now == nil || now.Listeners[0].Port != 3478 || len(now.Listeners) != 2 {
				t.Errorf("%s: the older Gateway has %+v", when, now)
			}
			sideKey := resource.KeyOf(side)
			now := l.published.current(sideKey)
			if now == nil || len(now.Listeners) != 1 || now.Listeners[0].Port != 5000 {
				t.Errorf("%s: the younger Gateway has %+v, want port 5000 alone", when, now)
			}
			status := l.writer.desired[translate.ObjectRef{Kind: translate.KindGateway, NamespacedName: sideKey}].status
			said := status.(gwapiv1.GatewayStatus).Listeners[0].Conditions[0]
			if said.Reason != string(gwapiv1.ListenerReasonPortUnavailable) ||
				!strings.Contains(said.Message, `udp port 3478 of the nodes is that of listener "udp" of Gateway `+gatewayKey.String()) {
				t.Errorf("%s: the younger Gateway says %+v", when, said)
			}
			// The spec has another port now. When the mistake is corrected, the published port becomes free.
			l.secrets.existing[resource.KeyOf(secret)] = "1"
			l.applyAll(append(old[:4:4], objectChange{object: moved}), &task{})
			l.fetchSecrets(t)
			if now := l.published.current(sideKey); now == nil || len(now.Listeners) != 2 {
				t.Errorf("%s: after the correction the younger Gateway has %+v", when, now)
			}
		}
	}
}
