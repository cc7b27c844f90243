package kube

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// The operator writes nothing to objects of other controllers, not even a status.
func TestForeignObjectsAreNotWritten(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
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
---` + lobby)
	n.gateway("lobby", programmed) // the operator has processed this Gateway
	n.patch(&gwapiv1.Gateway{ObjectMeta: metav1.ObjectMeta{Name: "foreign"}}, `{"metadata":{"labels":{"looked":"at"}}}`)
	n.patch(&gwapiv1.Gateway{ObjectMeta: metav1.ObjectMeta{Name: "lobby"}}, `{"metadata":{"labels":{"looked":"at"}}}`)
	n.await(func(ctx context.Context) error {
		d := &appsv1.Deployment{}
		if err := n.read(ctx, "lobby", d); err != nil || d.Labels["looked"] != "at" {
			return fmt.Errorf("the Deployment has labels %v: %v", d.Labels, err)
		}
		return nil
	})
	log, err := control.Audit(begun)
	n.must(err)
	for _, e := range log {
		touched := e.Namespace == n.name && !strings.HasPrefix(e.Name, "lobby") || e.Name == n.class+"-foreign"
		if e.Write() && e.User == n.user() && touched && e.Resource != "leases" && e.Resource != "events" {
			n.Errorf("%s %s/%s %s", e.Verb, e.Resource, e.Subresource, e.Name)
		}
	}
}

// K-06: a certificate of another namespace is not served without its grant, even if it was served before.
func TestCertificateNeedsAGrant(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	next := n.namespace("-next")
	next.certify("door")
	n.apply(`
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: lobby}
spec:
  gatewayClassName: CLASS
  addresses: [{type: Hostname, value: turn.example.net}]
  listeners:
  - {name: udp, port: 3478, protocol: TURN-UDP}
  - {name: tls, port: 443, protocol: TURN-TLS, tls: {certificateRefs: [{name: door, namespace: NAMESPACE-next}]}}
`)
	grant := func(secret string) string {
		return `
apiVersion: gateway.networking.k8s.io/v1
kind: ReferenceGrant
metadata: {name: doors, namespace: NAMESPACE-next}
spec:
  from: [{group: gateway.networking.k8s.io, kind: Gateway, namespace: NAMESPACE}]
  to: [{group: "", kind: Secret, name: ` + secret + `}]
`
	}
	refused := func() {
		n.Helper()
		n.listeners("lobby", listener("udp", 0, bothKinds, served), listener("tls", 0, bothKinds,
			"Accepted !Conflicted:NoConflicts !Programmed:Invalid !ResolvedRefs:RefNotPermitted"))
		n.serves("lobby", "udp turn.example.net")
	}
	refused()
	n.apply(grant("another"))
	refused()
	n.apply(grant("door"))
	n.listeners("lobby", listener("udp", 0, bothKinds, served), listener("tls", 0, bothKinds, served))
	n.serves("lobby", "udp turn.example.net", "tls turn.example.net")
	n.remove(grant("door"))
	refused()
}

// rooms is a headless Service with one endpoint.
const rooms = `
---
apiVersion: v1
kind: Service
metadata: {name: rooms}
spec: {clusterIP: None, ports: [{port: 7001, protocol: UDP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: rooms, labels: {kubernetes.io/service-name: rooms}}
addressType: IPv4
endpoints: [{addresses: [198.51.100.21]}]
`

// lobby is a Gateway with two listeners, and the Service rooms.
const lobby = `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: lobby}
spec:
  gatewayClassName: CLASS
  addresses: [{type: Hostname, value: turn.example.net}]
  listeners:
  - {name: udp, port: 3478, protocol: TURN-UDP}
  - {name: tcp, port: 3479, protocol: TURN-TCP}
` + rooms

// udpRoute returns a UDPRoute of our API group. Parents and backends are in YAML flow style.
func udpRoute(name, parents, backends string) string {
	return fmt.Sprintf(`
---
apiVersion: stunner.l7mp.io/v1
kind: UDPRoute
metadata: {name: %s}
spec: {parentRefs: [%s], rules: [{backendRefs: [%s]}]}
`, name, parents, backends)
}

// K-07: routes attach when their namespace gets the label, and detach when it loses the label, in the status and in the
// config.
func TestNamespaceLabelsAttachRoutes(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	guest := n.namespace("-guest")
	n.apply(`
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: lobby}
spec:
  gatewayClassName: CLASS
  addresses: [{type: Hostname, value: turn.example.net}]
  listeners:
  - {name: udp, port: 3478, protocol: TURN-UDP, allowedRoutes: {namespaces: {from: Selector, selector: {matchExpressions: [{key: media, operator: Exists}]}}}}
`)
	guest.apply(`
apiVersion: stunner.l7mp.io/v1
kind: StaticService
metadata: {name: rooms}
spec: {prefixes: [198.51.100.0/24]}
` + udpRoute("media", "{name: lobby, namespace: "+n.name+"}", "{group: stunner.l7mp.io, kind: StaticService, name: rooms}"))
	guest.route("media", "lobby/: "+notAllowed)
	n.reaches("lobby")
	for range 2 {
		n.patch(
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: guest.name}},
			`{"metadata":{"labels":{"media":"any"}}}`,
		)
		guest.route("media", "lobby/: "+routed)
		n.listeners("lobby", listener("udp", 1, bothKinds, served))
		n.reaches("lobby", "198.51.100.0/24")
		n.patch(
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: guest.name}},
			`{"metadata":{"labels":{"media":null}}}`,
		)
		guest.route("media", "lobby/: "+notAllowed)
		n.listeners("lobby", listener("udp", 0, bothKinds, served))
		n.reaches("lobby")
	}
}
