package kube

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// K-06: a reference into another namespace needs a ReferenceGrant: certificates always, credentials and backends where the GatewayConfig says so.
func TestConformance_Grants(t *testing.T) {
	t.Parallel()
	newStage(t).shared(map[string]func(*tenant){
		"certificate": certificatesNeedLeave,
		"auth":        credentialsNeedLeave,
		"backend":     backendsNeedLeave,
		"static":      staticBackendsNeedLeave,
		"free":        nothingElseNeedsLeave,
	})
}

// leave is one entry of a ReferenceGrant: who may refer to what.
type leave struct{ holder, fromGroup, fromKind, fromNamespace, toGroup, toKind, toName string }

// grant is a ReferenceGrant in YAML.
func (l leave) grant(name string) string {
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

// mistaken are grants that miss in one way each.
func (l leave) mistaken(elsewhere string) string {
	all := strings.Builder{}
	for i, change := range []func(*leave){
		func(l *leave) { l.holder = elsewhere },
		func(l *leave) { l.fromGroup = "example.org" },
		func(l *leave) { l.fromKind = "HTTPRoute" },
		func(l *leave) { l.fromNamespace = elsewhere },
		func(l *leave) { l.toGroup = "example.org" },
		func(l *leave) { l.toKind = "ConfigMap" },
		func(l *leave) { l.toName = ", name: another" },
	} {
		wrong := l
		change(&wrong)
		all.WriteString(wrong.grant(fmt.Sprintf("mistaken-%d", i)))
	}
	return all.String()
}

// needsLeave holds that the reference is refused without a grant and with every mistaken one, that a grant for all or for the one object lets it
// pass, and that it is refused again when the grant goes. What is seen after that has seen the mistaken ones.
func (n *tenant) needsLeave(l leave, refused, granted func()) {
	n.Helper()
	refused()
	n.apply(l.mistaken(n.name + "-else"))
	specific, all := l, l
	all.toName = ""
	for _, g := range []string{all.grant("right"), specific.grant("right")} {
		n.apply(g)
		granted()
		n.remove(g)
		refused()
	}
}

// neighbours makes two namespaces beside that of the test, and returns the first.
func (n *tenant) neighbours() string {
	n.Helper()
	for _, suffix := range []string{"-next", "-else"} {
		n.must(n.Create(n.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n.name + suffix}}))
	}
	return n.name + "-next"
}

// gatewayWith is a Gateway with a GatewayConfig of its own.
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

// strict are the settings of a GatewayConfig that requires grants.
const strict = "requireReferenceGrants: true, userName: caller, password: marzipan-and-rosewater"

// A certificate whose grant is taken back goes out of use, though it were the last good one.
func certificatesNeedLeave(n *tenant) {
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
	n.needsLeave(leave{next, "gateway.networking.k8s.io", "Gateway", n.name, "", "Secret", ", name: door"}, func() {
		n.Helper()
		n.listeners("lobby", listener("udp", 0, bothKinds, served),
			listener("tls", 0, bothKinds, "Accepted !Conflicted:NoConflicts !Programmed:Invalid !ResolvedRefs:RefNotPermitted"))
		n.serves("lobby", "udp turn.example.net")
	}, func() {
		n.Helper()
		n.listeners("lobby", listener("udp", 0, bothKinds, served), listener("tls", 0, bothKinds, served))
		n.serves("lobby", "udp turn.example.net", "tls turn.example.net")
	})
}

// Credentials whose grant is taken back cannot be read any more. Clients go on with those that are published.
func credentialsNeedLeave(n *tenant) {
	next := n.neighbours()
	n.apply(gatewayWith("authRef: {name: vault, namespace: "+next+"}") + `
---
apiVersion: v1
kind: Secret
metadata: {name: vault, namespace: ` + next + `}
stringData: {type: static, username: caller, password: marzipan-and-rosewater}
`)
	var published []string
	n.needsLeave(leave{next, "stunner.l7mp.io", "GatewayConfig", n.name, "", "Secret", ", name: vault"}, func() {
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

// roomsIn is the Service of the lobby in another namespace.
func roomsIn(namespace string) string {
	return strings.ReplaceAll(rooms, "metadata: {", "metadata: {namespace: "+namespace+", ")
}

func backendsNeedLeave(n *tenant) {
	next := n.neighbours()
	n.apply(gatewayWith(strict) + roomsIn(next) +
		udpRoute("ours", "{name: lobby}", "{name: rooms, namespace: "+next+", port: 7001}") +
		officialUDPRoute("official", "{name: lobby}", "{name: rooms, namespace: "+next+", port: 1}"))
	const refused = "lobby/: Accepted !ResolvedRefs:RefNotPermitted"
	ours := leave{next, "stunner.l7mp.io", "UDPRoute", n.name, "", "Service", ", name: rooms"}
	official := ours
	official.fromGroup = "gateway.networking.k8s.io"
	n.needsLeave(ours, func() {
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
	n.needsLeave(official, func() {
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

func staticBackendsNeedLeave(n *tenant) {
	next := n.neighbours()
	n.apply(gatewayWith(strict) + `
---
apiVersion: stunner.l7mp.io/v1
kind: StaticService
metadata: {name: rooms, namespace: ` + next + `}
spec: {prefixes: [198.51.100.0/24]}
` + udpRoute("media", "{name: lobby}", "{group: stunner.l7mp.io, kind: StaticService, name: rooms, namespace: "+next+"}"))
	n.needsLeave(leave{next, "stunner.l7mp.io", "UDPRoute", n.name, "stunner.l7mp.io", "StaticService", ", name: rooms"}, func() {
		n.Helper()
		n.route("media", "lobby/: Accepted !ResolvedRefs:RefNotPermitted")
		n.reaches("lobby")
	}, func() {
		n.Helper()
		n.route("media", "lobby/: "+routed)
		n.reaches("lobby", "198.51.100.0/24")
	})
}

// A GatewayConfig that does not require grants needs none for backends.
func nothingElseNeedsLeave(n *tenant) {
	next := n.neighbours()
	n.apply(gatewayWith("userName: caller, password: marzipan-and-rosewater") + roomsIn(next) +
		udpRoute("media", "{name: lobby}", "{name: rooms, namespace: "+next+"}"))
	n.gatewayConfig("settings", "Accepted InUse:Used InsecureInlineCredentials:Warning")
	n.gateway("lobby", programmed)
	n.route("media", "lobby/: "+routed)
	n.reaches("lobby", "198.51.100.21")
}
