package tenant

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// attaching returns a route to all addresses at Gateways of others.
func attaching(apiVersion, parent string) string {
	return fmt.Sprintf(`
{apiVersion: v1, kind: Service, metadata: {name: there}, spec: {clusterIP: None, ports: [{port: 53, protocol: UDP}]}}
---
apiVersion: %s
kind: UDPRoute
metadata: {name: way}
spec: {parentRefs: [%s], rules: [{backendRefs: [{name: there, port: 53}]}]}
`, apiVersion, parent)
}

// attachingAttempts: a route attaches to a Gateway of others only if that allows its namespace. It does not affect
// other routes there.
func attachingAttempts() []attempt {
	const ours, api = "stunner.l7mp.io/v1", "gateway.networking.k8s.io/v1"
	refused := func(object string) map[string]string {
		return map[string]string{object: `Accepted=False (NotAllowedByListeners|NoMatchingParent)`}
	}
	var many []string
	for i := range 32 {
		many = append(many, fmt.Sprintf(`{name: front-door, namespace: victim, port: %d}`, []int{3478, 443}[i%2]+i/2))
	}
	return []attempt{
		{name: "a route attaches to the victim's Gateway", apply: attaching(
			ours, `{name: front-door, namespace: victim}`,
		), told: refused("route/way")},
		{name: "a route attaches to a listener of the victim's Gateway", apply: attaching(
			ours, `{name: front-door, namespace: victim, sectionName: udp}`,
		), told: refused("route/way")},
		{name: "a route attaches to a port of the victim's Gateway", apply: attaching(
			ours, `{name: front-door, namespace: victim, port: 443}`,
		), told: refused("route/way")},
		{name: "a route attaches to the victim's Gateway 32 times", apply: attaching(
			ours, strings.Join(many, ", "),
		), told: refused("route/way")},
		{name: "a route of the Gateway API attaches to the victim's Gateway", apply: attaching(
			api, `{name: front-door, namespace: victim}`,
		), told: refused("officialroute/way")},
		{name: "a route of the alpha of the Gateway API attaches to the victim's Gateway", apply: attaching(
			api+"alpha2", `{name: front-door, namespace: victim}`,
		), told: refused("officialroute/way")},
		{name: "a route attaches to a Gateway that selects other namespaces", apply: attaching(
			ours, `{name: members-only, namespace: victim}`,
		), told: refused("route/way")},
		{
			name:  "a tenant labels its namespace as one that a Gateway selects",
			apply: attaching(ours, `{name: members-only, namespace: victim}`),
			told:  refused("route/way"),
			try: func(n *tenant) {
				n.isRefused(n.Patch(
					n.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n.name}},
					client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"team":"members"}}}`)),
				), "forbidden")
			},
		},
		{
			name: "a route has the labels that a Gateway selects namespaces by",
			apply: strings.Replace(
				attaching(ours, `{name: members-only, namespace: victim}`), "metadata: {name: way}",
				"metadata: {name: way, labels: {team: members}}", 1,
			),
			told: refused("route/way"),
		},
		{name: "a route names a Service as its parent", apply: attaching(
			ours, `{group: "", kind: Service, name: front-door, namespace: victim}`,
		)},
		{
			name:  "a route has the same name as a route of the victim, at a Gateway that allows all namespaces",
			apply: strings.ReplaceAll(attaching(ours, `{name: lounge, namespace: lobby}`), "name: way", "name: house"),
			told:  map[string]string{"route/house": "Accepted=True"},
			try:   func(n *tenant) { n.joins("lobby/lounge", n.name+"/house") },
		},
		{
			name:  "a route adds more endpoints than a config may have to a Gateway that allows all namespaces",
			apply: flood("there") + strings.ReplaceAll(floodRoute("lobby", "lounge", 16, 7), "NAME", "way"),
			told:  map[string]string{"route/way": `=False`},
			try:   func(n *tenant) { n.must(house.victim.proceeds(n.Context(), "lobby/lounge")) },
		},
		{
			name: "a StaticService of a tenant leads a Gateway that allows all namespaces to kube-system",
			apply: `{apiVersion: stunner.l7mp.io/v1, kind: StaticService, metadata: {name: there}, spec: {prefixes: ["10.96.0.10/32", "10.244.0.2", "192.0.2.101", "192.0.2.1"]}}` +
				strings.Replace(
					routeTo(`group: stunner.l7mp.io, kind: StaticService, name: there`), "{name: door}",
					"{name: lounge, namespace: lobby}", 1,
				),
			try: func(n *tenant) {
				n.must(house.victim.proceeds(n.Context(), "lobby/lounge"))
				for _, c := range house.victim.doors["lobby/lounge"].now().Clusters {
					for _, e := range c.Endpoints {
						if c.Name == n.name+"/way" && slices.ContainsFunc(
							forbidden, func(a string) bool { return opens(c, e, a) },
						) {
							n.Errorf("clients of the shared Gateway reach %s", e)
						}
					}
				}
			},
		},
		{
			name: "an own GatewayConfig raises the object limits, for a route with more endpoints than a config may have",
			apply: flood("there") + "\n---\n" + ownConfig(
				plain+`, budget: {routes: 10000, endpointsPerRoute: 100000, endpoints: 200000}`,
			) + strings.ReplaceAll(floodRoute("TENANT", "door", 16, 7), "NAME", "way"),
			told: map[string]string{"route/way": `=False`},
		},
	}
}

// flood returns a StaticService with 1,024 prefixes.
func flood(name string) string {
	var prefixes []string
	for i := range 1024 {
		prefixes = append(prefixes, fmt.Sprintf("100.64.%d.%d", i/256, i%256))
	}
	return fmt.Sprintf(
		"\n---\n{apiVersion: stunner.l7mp.io/v1, kind: StaticService, metadata: {name: %s}, spec: {prefixes: [%s]}}\n",
		name, strings.Join(prefixes, ", "),
	)
}

// floodRoute returns a route with that StaticService as many backends, each with other ports.
func floodRoute(namespace, gateway string, refs, rules int) string {
	var list []string
	port := 1
	for range rules {
		var backends []string
		for range refs {
			port++
			backends = append(
				backends, fmt.Sprintf(`{group: stunner.l7mp.io, kind: StaticService, name: there, port: %d}`, port),
			)
		}
		list = append(list, `{backendRefs: [`+strings.Join(backends, ", ")+`]}`)
	}
	return fmt.Sprintf("\n---\n{apiVersion: stunner.l7mp.io/v1, kind: UDPRoute, metadata: {name: NAME}, spec: {parentRefs: [{name: %s, namespace: %s}], rules: [%s]}}\n",
		gateway, namespace, strings.Join(list, ", "))
}

// joins waits until a Gateway of others has the cluster of an allowed route beside its own.
func (n *tenant) joins(gateway, cluster string) {
	n.Helper()
	ctx, cancel := context.WithTimeout(n.Context(), patience)
	defer cancel()
	n.must(house.victim.doors[gateway].await(ctx, func(c config.Config) error {
		if !slices.ContainsFunc(c.Clusters, func(c config.Cluster) bool { return c.Name == cluster }) {
			return fmt.Errorf("%s has no cluster %s", gateway, cluster)
		}
		return nil
	}))
	n.must(house.victim.proceeds(ctx, gateway))
}

// now returns the newest config of a dataplane.
func (d *door) now() config.Config {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.config
}
