package kube

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
)

// Rules of the Gateway API for routes and for listeners with routes, with UDPRoutes of both API groups.
func TestConformance_Route(t *testing.T) {
	t.Parallel()
	newStage(t).shared(map[string]func(*tenant){
		"attached": routesAreCounted,
		"masked":   ourRoutesMaskOfficialOnes,
		"parents":  eachParentHasAStatus,
		"others":   foreignParentStatusesStay,
		"allowed":  listenersChooseNamespaces,
		"labels":   labelsAttachAndDetach,
		"gone":     deletedGatewaysAcceptNoRoutes,
	})
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

// officialUDPRoute returns a UDPRoute of the Gateway API, in its newest version, which requires ports.
func officialUDPRoute(name, parents, backends string) string {
	return fmt.Sprintf(`
---
apiVersion: gateway.networking.k8s.io/v1
kind: UDPRoute
metadata: {name: %s}
spec: {parentRefs: [%s], rules: [{backendRefs: [%s]}]}
`, name, parents, backends)
}

// A listener counts its accepted routes of both groups, whether or not their backends exist and the listener is served.
func routesAreCounted(n *tenant) {
	n.apply(lobby + `
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: broken}
spec:
  gatewayClassName: CLASS
  listeners: [{name: tls, port: 443, protocol: TURN-TLS, tls: {certificateRefs: [{name: missing}]}}]
`)
	counts := func(udp, tcp int) {
		n.Helper()
		n.listeners("lobby", listener("udp", udp, bothKinds, served), listener("tcp", tcp, bothKinds, served))
	}
	counts(0, 0)
	n.apply(udpRoute("one", "{name: lobby}", "{name: rooms}"))
	counts(1, 1)
	n.apply(officialUDPRoute("two", "{name: lobby, sectionName: udp}", "{name: missing, port: 1}"))
	counts(2, 1)
	n.apply(udpRoute("three", "{name: lobby, port: 3479}, {name: lobby, sectionName: tcp}", "{name: rooms}"))
	counts(2, 2)
	n.route("one", "lobby/: "+routed)
	n.officialRoute("two", "lobby/udp: Accepted !ResolvedRefs:BackendNotFound")
	n.route("three", "lobby/: "+routed, "lobby/tcp: "+routed)
	n.apply(udpRoute("four", "{name: broken}", "{name: missing}"))
	n.listeners("broken", listener(
		"tls", 1, bothKinds, "Accepted !Conflicted:NoConflicts !Programmed:Invalid !ResolvedRefs:InvalidCertificateRef",
	))
	n.route("four", "broken/: Accepted !ResolvedRefs:BackendNotFound")
	n.remove(udpRoute("one", "{name: lobby}", "{name: rooms}"))
	counts(1, 1)
}

// Of two routes with the same name, the one of our group is used. The other one has Accepted=False until ours is
// deleted. The port of the Gateway API's route is ignored.
func ourRoutesMaskOfficialOnes(n *tenant) {
	const ours, official = "{name: rooms, port: 7001}", "{name: rooms, port: 1}"
	n.apply(lobby + officialUDPRoute("media", "{name: lobby}", official))
	n.officialRoute("media", "lobby/: "+routed)
	n.reaches("lobby", "198.51.100.21")
	n.apply(udpRoute("media", "{name: lobby}", ours))
	n.route("media", "lobby/: "+routed)
	n.officialRoute("media", "lobby/: !Accepted:Pending ResolvedRefs")
	n.reaches("lobby", "198.51.100.21:<7001-7001>")
	n.listeners("lobby", listener("udp", 1, bothKinds, served), listener("tcp", 1, bothKinds, served))
	n.remove(udpRoute("media", "{name: lobby}", ours))
	n.officialRoute("media", "lobby/: "+routed)
	n.reaches("lobby", "198.51.100.21")
}

// After a Gateway is deleted, no route is accepted by it: the operator removes the parent status of a Gateway API
// route, and sets NoMatchingParent on a route of our group.
func deletedGatewaysAcceptNoRoutes(n *tenant) {
	n.apply(lobby + udpRoute("ours", "{name: lobby}", "{name: rooms}") + officialUDPRoute(
		"official", "{name: lobby}", "{name: rooms, port: 1}",
	))
	n.route("ours", "lobby/: "+routed)
	n.officialRoute("official", "lobby/: "+routed)
	n.remove(lobby)
	n.route("ours", "lobby/: !Accepted:NoMatchingParent !ResolvedRefs:BackendNotFound")
	n.officialRoute("official")
}

// Each parent of a route has its own status, with the reason for that parent.
func eachParentHasAStatus(n *tenant) {
	n.apply(lobby + udpRoute(
		"good",
		"{name: lobby, sectionName: udp}, {name: lobby, sectionName: web}, {name: lobby, port: 1}, {name: cellar}",
		"{name: rooms}",
	))
	n.route("good", "lobby/udp: "+routed, "lobby/web: !Accepted:NoMatchingParent ResolvedRefs", "lobby/: !Accepted:NoMatchingParent ResolvedRefs",
		"cellar/: !Accepted:NoMatchingParent ResolvedRefs")
	for name, c := range map[string]struct{ backends, want string }{
		"kind":     {"{kind: StaticService, group: stunner.l7mp.io, name: missing}, {name: rooms}", "BackendNotFound"},
		"missing":  {"{name: missing}, {name: rooms}", "BackendNotFound"},
		"external": {"{name: external}, {name: rooms}", "InvalidKind"},
		"range":    {"{name: rooms, port: 7001, endPort: 7002}", ""},
	} {
		n.apply(`
apiVersion: v1
kind: Service
metadata: {name: external}
spec: {type: ExternalName, externalName: media.example.org}
` + udpRoute(name, "{name: lobby, sectionName: udp}", c.backends))
		want := "lobby/udp: " + routed
		if c.want != "" {
			want = "lobby/udp: Accepted !ResolvedRefs:" + c.want
		}
		n.route(name, want)
	}
	n.apply(officialUDPRoute(
		"official", "{name: lobby, sectionName: udp}", "{group: example.org, kind: Pool, name: rooms, port: 1}",
	))
	n.officialRoute("official", "lobby/udp: Accepted !ResolvedRefs:InvalidKind")
}

// Parent statuses of other controllers stay when the operator writes its own, and when it removes its own.
func foreignParentStatusesStay(n *tenant) {
	n.apply(lobby + udpRoute("media", "{name: lobby}", "{name: rooms}"))
	n.route("media", "lobby/: "+routed)
	const foreign = gwapiv1.GatewayController("example.org/other")
	var said gwapiv1.RouteParentStatus
	n.await(func(ctx context.Context) error { // the operator may write at the same time
		r := &stunnerv1.UDPRoute{}
		if err := n.read(ctx, "media", r); err != nil {
			return err
		}
		said = gwapiv1.RouteParentStatus{
			ParentRef: gwapiv1.ParentReference{
				Name: "theirs", Group: r.Status.Parents[0].ParentRef.Group, Kind: r.Status.Parents[0].ParentRef.Kind,
			},
			ControllerName: foreign,
			Conditions: []metav1.Condition{{
				Type: "Accepted", Status: metav1.ConditionFalse, Reason: "Theirs", ObservedGeneration: 1,
				LastTransitionTime: metav1.NewTime(time.Unix(1, 0)),
			}},
		}
		r.Status.Parents = append(r.Status.Parents, said)
		return n.Status().Update(ctx, r)
	})
	stays := func() {
		n.Helper()
		r := &stunnerv1.UDPRoute{}
		n.must(n.read(n.Context(), "media", r))
		i := slices.IndexFunc(
			r.Status.Parents, func(p gwapiv1.RouteParentStatus) bool { return p.ControllerName == foreign },
		)
		if i < 0 || brief(r.Status.Parents[i].Conditions, 1) != brief(said.Conditions, 1) {
			n.Errorf("parents are %+v", r.Status.Parents)
		}
	}
	n.apply(udpRoute("media", "{name: lobby, sectionName: web}", "{name: missing}"))
	n.route("media", "lobby/web: !Accepted:NoMatchingParent !ResolvedRefs:BackendNotFound")
	stays()
	n.apply(udpRoute("media", "{name: lobby, sectionName: udp}", "{name: rooms}"))
	n.route("media", "lobby/udp: "+routed)
	stays()
	n.apply(`
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: CLASS-theirs}
spec: {controllerName: example.org/other}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: theirs}
spec:
  gatewayClassName: CLASS-theirs
  listeners: [{name: udp, port: 3478, protocol: TURN-UDP}]
` + udpRoute("media", "{name: theirs}", "{name: rooms}"))
	n.route("media")
	stays()
}

// K-07: listeners with Same, All and Selector accept routes of the allowed namespaces only.
func listenersChooseNamespaces(n *tenant) {
	for _, suffix := range []string{"-labelled", "-other"} {
		n.must(n.Create(n.Context(), &corev1.Namespace{
			ObjectMeta: metav1.ObjectMeta{Name: n.name + suffix, Labels: map[string]string{"media" + suffix: "yes"}},
		}))
	}
	n.apply(`
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: lobby}
spec:
  gatewayClassName: CLASS
  addresses: [{type: Hostname, value: turn.example.net}]
  listeners:
  - {name: default, port: 3478, protocol: TURN-UDP}
  - {name: same, port: 3479, protocol: TURN-UDP, allowedRoutes: {namespaces: {from: Same}}}
  - {name: all, port: 3480, protocol: TURN-UDP, allowedRoutes: {namespaces: {from: All}}}
  - {name: selector, port: 3481, protocol: TURN-UDP, allowedRoutes: {namespaces: {from: Selector, selector: {matchLabels: {media-labelled: "yes"}}}}}
`)
	for namespace, want := range map[string]struct{ local, all, selector string }{
		n.name:               {routed, routed, unheard},
		n.name + "-labelled": {unheard, routed, routed},
		n.name + "-other":    {unheard, routed, unheard},
	} {
		guest := *n
		guest.name = namespace
		const parents = "{name: lobby, namespace: %[1]s, sectionName: default}, {name: lobby, namespace: %[1]s, sectionName: same}, " +
			"{name: lobby, namespace: %[1]s, sectionName: all}, {name: lobby, namespace: %[1]s, sectionName: selector}"
		guest.apply(`
apiVersion: stunner.l7mp.io/v1
kind: StaticService
metadata: {name: rooms}
spec: {prefixes: [198.51.100.0/24]}
` + udpRoute("media", fmt.Sprintf(parents, n.name), "{group: stunner.l7mp.io, kind: StaticService, name: rooms}"))
		guest.route(
			"media", "lobby/default: "+want.local, "lobby/same: "+want.local, "lobby/all: "+want.all,
			"lobby/selector: "+want.selector,
		)
	}
	n.listeners("lobby", listener("default", 1, bothKinds, served), listener("same", 1, bothKinds, served), listener(
		"all", 3, bothKinds, served,
	),
		listener("selector", 1, bothKinds, served))
}

// K-07: routes attach when their namespace gets the label, and detach when it loses the label, in the status and in the
// config.
func labelsAttachAndDetach(n *tenant) {
	guest := *n
	guest.name = n.name + "-guest"
	n.must(n.Create(n.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: guest.name}}))
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
	guest.route("media", "lobby/: "+unheard)
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
		guest.route("media", "lobby/: "+unheard)
		n.listeners("lobby", listener("udp", 0, bothKinds, served))
		n.reaches("lobby")
	}
}
