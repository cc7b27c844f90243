package kube

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// K-06: a reference into another namespace needs a ReferenceGrant: always for certificates, and for credentials and
// backends if the GatewayConfig requires it.
func TestConformance_Grants(t *testing.T) {
	t.Parallel()
	newStage(t).shared(map[string]func(*tenant){
		"certificate": certificatesNeedGrants,
		"auth":        credentialsNeedGrants,
		"backend":     backendsNeedGrants,
		"static":      staticBackendsNeedGrants,
		"free":        backendsNeedNoGrantsByDefault,
	})
}

// permit is one entry of a ReferenceGrant. holder is the namespace of the grant.
type permit struct{ holder, fromGroup, fromKind, fromNamespace, toGroup, toKind, toName string }

// grant returns a ReferenceGrant in YAML.
func (l permit) grant(name string) string {
	return fmt.Sprintf(`
---
apiVersion: gateway.networking.k8s.io/v1
kind: ReferenceGrant
metadata: {name: %s, namespace: %s}
spec:
  from: [{group: "%s", kind: %s, namespace: %s}]
  to: [{group: "%s", kind: %s%s}]
`, name, l.holder, l.fromGroup, l.fromKind, l.fromNamespace, l.toGroup, l.toKind, l.toName)
}

// mismatched returns grants that each differ from the needed one in one field.
func (l permit) mismatched(elsewhere string) string {
	all := strings.Builder{}
	for i, change := range []func(*permit){
		func(l *permit) { l.holder = elsewhere },
		func(l *permit) { l.fromGroup = "example.org" },
		func(l *permit) { l.fromKind = "HTTPRoute" },
		func(l *permit) { l.fromNamespace = elsewhere },
		func(l *permit) { l.toGroup = "example.org" },
		func(l *permit) { l.toKind = "ConfigMap" },
		func(l *permit) { l.toName = ", name: another" },
	} {
		wrong := l
		change(&wrong)
		all.WriteString(wrong.grant(fmt.Sprintf("mismatched-%d", i)))
	}
	return all.String()
}

// needsGrant checks that a reference is rejected without a grant and with each mismatched one, that it is accepted with
// a grant for all objects or for the one object, and that it is rejected again without the grant. The operator has
// processed the mismatched grants by then.
func (n *tenant) needsGrant(l permit, refused, granted func()) {
	n.Helper()
	refused()
	n.apply(l.mismatched(n.name + "-else"))
	specific, all := l, l
	all.toName = ""
	for _, g := range []string{all.grant("right"), specific.grant("right")} {
		n.apply(g)
		granted()
		n.remove(g)
		refused()
	}
}

// neighbours creates two namespaces beside that of the test and returns the first.
func (n *tenant) neighbours() string {
	n.Helper()
	for _, suffix := range []string{"-next", "-else"} {
		n.must(n.Create(n.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n.name + suffix}}))
	}
	return n.name + "-next"
}

// gatewayWith returns a Gateway with a GatewayConfig of its own.
func gatewayWith(settings string) string {
	return `
apiVersion: stunner.l7mp.io/v1
kind: GatewayConfig
metadata: {name: settings}
spec: {dataplane: CLASS, ` + settings + `}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: lobby}
spec:
  gatewayClassName: CLASS
  addresses: [{type: Hostname, value: turn.example.net}]
  infrastructure: {parametersRef: {group: stunner.l7mp.io, kind: GatewayConfig, name: settings}}
  listeners: [{name: udp, port: 3478, protocol: TURN-UDP}]
`
}

// strict is the content of a GatewayConfig that requires grants.
const strict = "requireReferenceGrants: true, userName: caller, password: marzipan-and-rosewater"

// A certificate is not served without its grant, even if it was served before.
func certificatesNeedGrants(n *tenant) {
	next := n.neighbours()
	n.certify(next, "door")
	n.apply(`
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: lobby}
spec:
  gatewayClassName: CLASS
  addresses: [{type: Hostname, value: turn.example.net}]
  listeners:
  - {name: udp, port: 3478, protocol: TURN-UDP}
  - {name: tls, port: 443, protocol: TURN-TLS, tls: {certificateRefs: [{name: door, namespace: ` + next + `}]}}
`)
	n.needsGrant(permit{next, "gateway.networking.k8s.io", "Gateway", n.name, "", "Secret", ", name: door"}, func() {
		n.Helper()
		n.listeners("lobby", listener("udp", 0, bothKinds, served),
			listener(
				"tls", 0, bothKinds,
				"Accepted !Conflicted:NoConflicts !Programmed:Invalid !ResolvedRefs:RefNotPermitted",
			))
		n.serves("lobby", "udp turn.example.net")
	}, func() {
		n.Helper()
		n.listeners("lobby", listener("udp", 0, bothKinds, served), listener("tls", 0, bothKinds, served))
		n.serves("lobby", "udp turn.example.net", "tls turn.example.net")
	})
}

// Credentials without a grant are not read. The published credentials stay in use.
func credentialsNeedGrants(n *tenant) {
	next := n.neighbours()
	n.apply(gatewayWith("authRef: {name: vault, namespace: "+next+"}") + `
---
apiVersion: v1
kind: Secret
metadata: {name: vault, namespace: ` + next + `}
stringData: {type: static, username: caller, password: marzipan-and-rosewater}
`)
	var published []string
	n.needsGrant(permit{next, "stunner.l7mp.io", "GatewayConfig", n.name, "", "Secret", ", name: vault"}, func() {
		n.Helper()
		n.gatewayConfig("settings", "!Accepted:RefNotPermitted InUse:Used")
		n.gateway("lobby", "!Accepted:Pending !Programmed:Invalid")
		n.serves("lobby", published...)
	}, func() {
		n.Helper()
		n.gatewayConfig("settings", "Accepted InUse:Used")
		n.gateway("lobby", programmed)
		published = []string{"udp turn.example.net"}
		n.serves("lobby", published...)
	})
}

// roomsIn returns the Service rooms in another namespace.
func roomsIn(namespace string) string {
	return strings.ReplaceAll(rooms, "metadata: {", "metadata: {namespace: "+namespace+", ")
}

func backendsNeedGrants(n *tenant) {
	next := n.neighbours()
	n.apply(gatewayWith(strict) + roomsIn(next) +
		udpRoute("ours", "{name: lobby}", "{name: rooms, namespace: "+next+", port: 7001}") +
		officialUDPRoute("official", "{name: lobby}", "{name: rooms, namespace: "+next+", port: 1}"))
	const refused = "lobby/: Accepted !ResolvedRefs:RefNotPermitted"
	ours := permit{next, "stunner.l7mp.io", "UDPRoute", n.name, "", "Service", ", name: rooms"}
	official := ours
	official.fromGroup = "gateway.networking.k8s.io"
	n.needsGrant(ours, func() {
		n.Helper()
		n.route("ours", refused)
		n.officialRoute("official", refused)
		n.reaches("lobby")
	}, func() {
		n.Helper()
		n.route("ours", "lobby/: "+routed)
		n.officialRoute("official", refused)
		n.reaches("lobby", "198.51.100.21:<7001-7001>")
	})
	n.needsGrant(official, func() {
		n.Helper()
		n.officialRoute("official", refused)
		n.reaches("lobby")
	}, func() {
		n.Helper()
		n.officialRoute("official", "lobby/: "+routed)
		n.route("ours", refused)
		n.reaches("lobby", "198.51.100.21")
	})
}

func staticBackendsNeedGrants(n *tenant) {
	next := n.neighbours()
	n.apply(gatewayWith(strict) + `
---
apiVersion: stunner.l7mp.io/v1
kind: StaticService
metadata: {name: rooms, namespace: ` + next + `}
spec: {prefixes: [198.51.100.0/24]}
` + udpRoute("media", "{name: lobby}", "{group: stunner.l7mp.io, kind: StaticService, name: rooms, namespace: "+next+"}"))
	n.needsGrant(permit{
		next, "stunner.l7mp.io", "UDPRoute", n.name, "stunner.l7mp.io", "StaticService", ", name: rooms",
	}, func() {
		n.Helper()
		n.route("media", "lobby/: Accepted !ResolvedRefs:RefNotPermitted")
		n.reaches("lobby")
	}, func() {
		n.Helper()
		n.route("media", "lobby/: "+routed)
		n.reaches("lobby", "198.51.100.0/24")
	})
}

// Without requireReferenceGrants, backends need no grant.
func backendsNeedNoGrantsByDefault(n *tenant) {
	next := n.neighbours()
	n.apply(gatewayWith("userName: caller, password: marzipan-and-rosewater") + roomsIn(next) +
		udpRoute("media", "{name: lobby}", "{name: rooms, namespace: "+next+"}"))
	n.gatewayConfig("settings", "Accepted InUse:Used InsecureInlineCredentials:Warning")
	n.gateway("lobby", programmed)
	n.route("media", "lobby/: "+routed)
	n.reaches("lobby", "198.51.100.21")
}
