package kube

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
)

// Rules of the Gateway API for Gateways and GatewayClasses, with TURN listeners.
func TestConformance_Gateway(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.allow("services", "externalIPs", "['192.0.2.0/24']")
	s.shared(map[string]func(*tenant){
		"listeners":      listenersAreAddedAndRemoved,
		"kinds":          listenersAcceptAllowedRouteKinds,
		"protocols":      listenersNeedATURNProtocol,
		"certificates":   listenersNeedCertificates,
		"conflicts":      listenersShareNoPort,
		"mixed":          transportsHaveServices,
		"addresses":      addressesAreRequested,
		"infrastructure": infrastructureLabelsAreCopied,
		"parameters":     classesNeedParameters,
		"foreign":        foreignObjectsAreNotWritten,
	})
}

// After each edit the status lists exactly the listeners of the spec. The status of an unchanged listener does not
// change.
func listenersAreAddedAndRemoved(n *tenant) {
	gateway := func(listeners string) {
		n.Helper()
		n.apply(`
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: gateway}
spec:
  gatewayClassName: CLASS
  addresses: [{type: Hostname, value: turn.example.net}]
  listeners:
  - {name: udp, port: 3478, protocol: TURN-UDP}
` + listeners)
	}
	udp := func() config.Listener {
		n.Helper()
		c, err := n.config(n.Context(), "gateway")
		n.must(err)
		return c.Listeners[0]
	}
	gateway("")
	n.gateway("gateway", programmed)
	n.listeners("gateway", listener("udp", 0, bothKinds, served))
	before := udp()
	n.certify(n.name, "door")
	gateway(`
  - {name: tcp, port: 3478, protocol: TURN-TCP}
  - {name: tls, port: 5349, protocol: TURN-TLS, tls: {certificateRefs: [{name: door}]}}
`)
	n.listeners(
		"gateway", listener("udp", 0, bothKinds, served), listener("tcp", 0, bothKinds, served),
		listener("tls", 0, bothKinds, served),
	)
	n.gateway("gateway", programmed)
	n.serves("gateway", "udp turn.example.net", "tcp turn.example.net", "tls turn.example.net")
	gateway("  - {name: tls, port: 443, protocol: TURN-TLS, tls: {certificateRefs: [{name: door}]}}")
	n.listeners("gateway", listener("udp", 0, bothKinds, served), listener("tls", 0, bothKinds, served))
	gateway("")
	n.listeners("gateway", listener("udp", 0, bothKinds, served))
	n.serves("gateway", "udp turn.example.net")
	if after := udp(); !reflect.DeepEqual(before, after) {
		n.Errorf("listener udp is %+v, was %+v", after, before)
	}
}

func listenersAcceptAllowedRouteKinds(n *tenant) {
	n.apply(`
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: gateway}
spec:
  gatewayClassName: CLASS
  addresses: [{type: Hostname, value: turn.example.net}]
  listeners:
  - {name: none, port: 3478, protocol: TURN-UDP, allowedRoutes: {kinds: [{kind: HTTPRoute}]}}
  - {name: some, port: 3479, protocol: TURN-UDP, allowedRoutes: {kinds: [{kind: HTTPRoute}, {kind: UDPRoute}]}}
  - {name: ours, port: 3480, protocol: TURN-UDP, allowedRoutes: {kinds: [{group: stunner.l7mp.io, kind: UDPRoute}]}}
`)
	const unknown = "Accepted !Conflicted:NoConflicts Programmed !ResolvedRefs:InvalidRouteKinds"
	n.listeners("gateway", listener("none", 0, "", unknown), listener(
		"some", 0, "gateway.networking.k8s.io/UDPRoute", unknown,
	),
		listener("ours", 0, "stunner.l7mp.io/UDPRoute", served))
}

func listenersNeedATURNProtocol(n *tenant) {
	n.apply(`
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: none}
spec:
  gatewayClassName: CLASS
  addresses: [{type: Hostname, value: turn.example.net}]
  listeners:
  - {name: web, port: 80, protocol: HTTP}
  - {name: raw, port: 5000, protocol: example.org/raw}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: some}
spec:
  gatewayClassName: CLASS
  addresses: [{type: Hostname, value: turn.example.net}]
  listeners:
  - {name: udp, port: 3478, protocol: TURN-UDP}
  - {name: odd, port: 1111, protocol: example.org/odd}
`)
	const unknown = "!Accepted:UnsupportedProtocol !Conflicted:NoConflicts !Programmed:Invalid ResolvedRefs"
	n.gateway("none", "!Accepted:ListenersNotValid !Programmed:Invalid")
	n.listeners("none", listener("web", 0, "", unknown), listener("raw", 0, "", unknown))
	n.gateway("some", "Accepted:ListenersNotValid Programmed")
	n.listeners("some", listener("udp", 0, bothKinds, served), listener("odd", 0, "", unknown))
	n.serves("some", "udp turn.example.net")
}

func listenersNeedCertificates(n *tenant) {
	n.certify(n.name, "one")
	n.certify(n.name, "other")
	var one, other corev1.Secret
	n.must(n.read(n.Context(), "one", &one))
	n.must(n.read(n.Context(), "other", &other))
	for name, data := range map[string]map[string][]byte{
		"malformed":  {"tls.crt": []byte("no certificate"), "tls.key": []byte("no key")},
		"mismatched": {"tls.crt": one.Data["tls.crt"], "tls.key": other.Data["tls.key"]},
		"keyless":    {"tls.crt": one.Data["tls.crt"]},
	} {
		n.must(n.Create(
			n.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: n.name, Name: name}, Data: data},
		))
	}
	references := map[string]string{
		"malformed": "name: malformed", "mismatched": "name: mismatched", "keyless": "name: keyless",
		"missing": "name: missing",
		"group":   "name: one, group: example.org", "kind": "name: one, kind: ConfigMap",
	}
	for name, ref := range references {
		n.apply(fmt.Sprintf(`
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: %s}
spec:
  gatewayClassName: CLASS
  addresses: [{type: Hostname, value: turn.example.net}]
  listeners:
  - {name: udp, port: 3478, protocol: TURN-UDP}
  - {name: tls, port: 443, protocol: TURN-TLS, tls: {certificateRefs: [{%s}]}}
`, name, ref))
	}
	for name := range references {
		n.listeners(name, listener("udp", 0, bothKinds, served),
			listener(
				"tls", 0, bothKinds,
				"Accepted !Conflicted:NoConflicts !Programmed:Invalid !ResolvedRefs:InvalidCertificateRef",
			))
		n.gateway(name, "Accepted:ListenersNotValid Programmed")
		n.serves(name, "udp turn.example.net")
	}
}

// Two listeners that need the same socket conflict, and the first one wins. Conflicts that the API server rejects
// itself are listed separately.
func listenersShareNoPort(n *tenant) {
	n.certify(n.name, "door")
	const taken = "!Accepted:PortUnavailable Conflicted:ProtocolConflict !Programmed:Invalid ResolvedRefs"
	for name, c := range map[string]struct{ first, second, want string }{
		"udp-dtls": {"protocol: TURN-UDP", "protocol: TURN-DTLS, tls: {certificateRefs: [{name: door}]}", taken},
		"tcp-tls":  {"protocol: TURN-TCP", "protocol: TURN-TLS, tls: {certificateRefs: [{name: door}]}", taken},
		"hostnames": {
			"protocol: TURN-UDP, hostname: a.example.org", "protocol: TURN-UDP, hostname: b.example.org", taken,
		},
		"udp-tcp": {"protocol: TURN-UDP", "protocol: TURN-TCP", served},
	} {
		n.apply(fmt.Sprintf(`
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: %s}
spec:
  gatewayClassName: CLASS
  addresses: [{type: Hostname, value: turn.example.net}]
  listeners:
  - {name: first, port: 3478, %s}
  - {name: second, port: 3478, %s}
`, name, c.first, c.second))
		n.listeners(name, listener("first", 0, bothKinds, served), listener("second", 0, bothKinds, c.want))
	}
	for want, second := range map[string]string{
		"spec.listeners": "{name: first, port: 3479, protocol: TURN-UDP}",
		"Combination of port, protocol and hostname must be unique": "{name: second, port: 3478, protocol: TURN-UDP}",
	} {
		err := n.try(n.objects(`
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: twice}
spec:
  gatewayClassName: CLASS
  listeners: [{name: first, port: 3478, protocol: TURN-UDP}, ` + second + `]
`)[0])
		if err == nil || !strings.Contains(err.Error(), want) {
			n.Errorf("%s: %v, want an error with %q", second, err, want)
		}
	}
}

// A Gateway has one Service per transport. Annotations select one Service for both, or only the first transport.
func transportsHaveServices(n *tenant) {
	for name, mixed := range map[string]string{"two": "", "one": "true", "half": "false"} {
		n.apply(fmt.Sprintf(`
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: %s, annotations: {stunner.l7mp.io/enable-mixed-protocol-lb: "%s"}}
spec:
  gatewayClassName: CLASS
  listeners:
  - {name: udp, port: 3478, protocol: TURN-UDP}
  - {name: tcp, port: 3478, protocol: TURN-TCP}
`, name, mixed))
	}
	n.gateway("two", homeless)
	n.expose("two", "192.0.2.7")
	n.gateway("two", homeless)
	n.listeners("two", listener("udp", 0, bothKinds, served), listener("tcp", 0, bothKinds, unexposed))
	n.addresses("two", "192.0.2.7")
	n.expose("two-tcp", "192.0.2.8")
	n.gateway("two", programmed)
	n.addresses("two", "192.0.2.7", "192.0.2.8")
	n.serves("two", "udp 192.0.2.7", "tcp 192.0.2.8")

	n.expose("one", "192.0.2.9")
	n.gateway("one", programmed)
	n.serves("one", "udp 192.0.2.9", "tcp 192.0.2.9")

	n.expose("half", "192.0.2.10")
	n.listeners("half", listener("udp", 0, bothKinds, served), listener("tcp", 0, bothKinds, unexposed))
	n.gateway("half", homeless)
	n.serves("half", "udp 192.0.2.10", "tcp ")
	var services corev1.ServiceList
	n.must(n.List(n.Context(), &services, client.InNamespace(n.name)))
	var names []string
	for _, s := range services.Items {
		names = append(names, s.Name)
	}
	if slices.Sort(names); !slices.Equal(names, []string{"half", "one", "two", "two-tcp"}) {
		n.Errorf("the Services are %q", names)
	}
}

// The first address counts. An unknown type is rejected. An address that no Service can have, or outside of the ranges
// of the class, is not usable. An empty address means any. The address is reported when the load balancer has assigned
// it.
func addressesAreRequested(n *tenant) {
	gateway := func(addresses string) {
		n.Helper()
		n.apply(`
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: gateway}
spec:
  gatewayClassName: CLASS
  addresses: ` + addresses + `
  listeners: [{name: udp, port: 3478, protocol: TURN-UDP}]
`)
	}
	gateway(`[{type: example.org/odd, value: somewhere}, {value: 127.0.0.1}, {value: 192.0.2.7}]`)
	n.gateway("gateway", "!Accepted:UnsupportedAddress !Programmed:Invalid")
	for _, unusable := range []string{"127.0.0.1", "0.0.0.0", "169.254.1.1", "224.0.0.5", `"::1"`} {
		gateway(`[{value: ` + unusable + `}, {value: 192.0.2.7}]`)
		n.gateway("gateway", "Accepted !Programmed:AddressNotUsable")
	}
	gateway(`[{value: 192.0.2.7}]`)
	n.gateway("gateway", "Accepted !Programmed:AddressNotUsable") // the class allows no address
	n.patch(
		&stunnerv1.GatewayConfig{ObjectMeta: metav1.ObjectMeta{Namespace: n.class, Name: n.class}},
		`{"spec":{"allowedAddresses":["192.0.2.0/25"]}}`,
	)
	n.gateway("gateway", homeless)
	n.addresses("gateway")
	n.expose("gateway", "192.0.2.8")
	n.gateway("gateway", homeless)
	n.addresses("gateway", "192.0.2.8")
	n.expose("gateway", "192.0.2.7")
	n.gateway("gateway", programmed)
	n.addresses("gateway", "192.0.2.7")
	var svc corev1.Service
	n.must(n.read(n.Context(), "gateway", &svc))
	if svc.Spec.LoadBalancerIP != "192.0.2.7" || !slices.Equal(svc.Spec.ExternalIPs, []string{"192.0.2.7"}) {
		n.Errorf(
			"loadBalancerIP and externalIPs of the Service are %q and %q", svc.Spec.LoadBalancerIP,
			svc.Spec.ExternalIPs,
		)
	}
	n.expose("gateway", "192.0.2.8")
	gateway(`[{type: Hostname, value: turn.example.org}]`)
	n.addresses("gateway", "turn.example.org")
	n.serves("gateway", "udp turn.example.org")
	gateway(`[{type: IPAddress}]`)
	n.addresses("gateway", "192.0.2.8")
	n.gateway("gateway", programmed)
}

// Labels and annotations of spec.infrastructure are copied to all generated objects, and removed from them when they
// are removed from the Gateway.
func infrastructureLabelsAreCopied(n *tenant) {
	gateway := func(infrastructure string) {
		n.Helper()
		n.apply(`
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: gateway}
spec:
  gatewayClassName: CLASS
  infrastructure: ` + infrastructure + `
  listeners: [{name: udp, port: 3478, protocol: TURN-UDP}]
`)
	}
	marked := func(want string) {
		n.Helper()
		for _, o := range []client.Object{&corev1.Service{}, &appsv1.Deployment{}, &corev1.ConfigMap{}} {
			n.awaitText(want, func(ctx context.Context) (string, error) {
				err := n.read(ctx, "gateway", o)
				all := maps.Clone(o.GetLabels())
				maps.Copy(all, o.GetAnnotations())
				return fmt.Sprintf("%s %s %s", all["team"], all["ticket"], all[gwapiv1.GatewayNameLabelKey]), err
			})
		}
	}
	gateway(`{labels: {team: media}, annotations: {ticket: "7"}}`)
	marked("media 7 gateway")
	gateway(`{labels: {team: voice}}`)
	marked("voice  gateway")
}

func classesNeedParameters(n *tenant) {
	for name, parameters := range map[string]string{
		"none":      ``,
		"group":     `parametersRef: {group: example.org, kind: GatewayConfig, name: CLASS, namespace: CLASS}`,
		"kind":      `parametersRef: {group: stunner.l7mp.io, kind: Dataplane, name: CLASS, namespace: CLASS}`,
		"missing":   `parametersRef: {group: stunner.l7mp.io, kind: GatewayConfig, name: missing, namespace: CLASS}`,
		"namespace": `parametersRef: {group: stunner.l7mp.io, kind: GatewayConfig, name: CLASS}`,
	} {
		n.apply(fmt.Sprintf(`
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: CLASS-%[1]s}
spec:
  controllerName: CONTROLLER
  %[2]s
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: %[1]s}
spec:
  gatewayClassName: CLASS-%[1]s
  listeners: [{name: udp, port: 3478, protocol: TURN-UDP}]
`, name, parameters))
		n.accepts(name, "!Accepted:InvalidParameters")
		n.gateway(name, "!Accepted:Pending !Programmed:Invalid")
		n.patch(
			&gwapiv1.GatewayClass{ObjectMeta: metav1.ObjectMeta{Name: n.class + "-" + name}},
			`{"spec":{"description":"another generation"}}`,
		)
		n.accepts(name, "!Accepted:InvalidParameters")
	}
	n.apply(`
apiVersion: stunner.l7mp.io/v1
kind: GatewayConfig
metadata: {name: missing, namespace: CLASS}
spec: {dataplane: CLASS, userName: caller, password: marzipan-and-rosewater}
`)
	n.accepts("missing", "Accepted")
	n.gateway("missing", homeless)
	n.patch(&gwapiv1.Gateway{ObjectMeta: metav1.ObjectMeta{Name: "missing"}},
		`{"spec":{"infrastructure":{"parametersRef":{"group":"stunner.l7mp.io","kind":"GatewayConfig","name":"none"}}}}`)
	n.gateway("missing", "!Accepted:InvalidParameters !Programmed:Invalid")
}

// The operator writes nothing to objects of other controllers, not even a status.
func foreignObjectsAreNotWritten(n *tenant) {
	begun := time.Now()
	n.apply(`
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: CLASS-foreign}
spec: {controllerName: example.org/other}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: foreign}
spec:
  gatewayClassName: CLASS-foreign
  listeners: [{name: udp, port: 3478, protocol: TURN-UDP}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: nobodys}
spec:
  gatewayClassName: CLASS-nobodys
  listeners: [{name: udp, port: 3478, protocol: TURN-UDP}]
---
apiVersion: stunner.l7mp.io/v1
kind: UDPRoute
metadata: {name: foreign}
spec:
  parentRefs: [{name: foreign}]
  rules: [{backendRefs: [{name: missing}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: ours}
spec:
  gatewayClassName: CLASS
  listeners: [{name: udp, port: 3478, protocol: TURN-UDP}]
`)
	n.gateway("ours", homeless) // the operator has processed this Gateway
	n.patch(&gwapiv1.Gateway{ObjectMeta: metav1.ObjectMeta{Name: "foreign"}}, `{"metadata":{"labels":{"looked":"at"}}}`)
	n.patch(&gwapiv1.Gateway{ObjectMeta: metav1.ObjectMeta{Name: "ours"}}, `{"metadata":{"labels":{"looked":"at"}}}`)
	n.await(func(ctx context.Context) error {
		d := &appsv1.Deployment{}
		if err := n.read(ctx, "ours", d); err != nil || d.Labels["looked"] != "at" {
			return fmt.Errorf("the Deployment has labels %v: %v", d.Labels, err)
		}
		return nil
	})
	log, err := control.Audit(begun)
	n.must(err)
	for _, e := range log {
		touched := e.Namespace == n.name && !strings.HasPrefix(e.Name, "ours") || e.Name == n.class+"-foreign"
		if e.Write() && e.User == n.stage.user() && touched && e.Resource != "leases" && e.Resource != "events" {
			n.Errorf("%s %s/%s %s", e.Verb, e.Resource, e.Subresource, e.Name)
		}
	}
}
