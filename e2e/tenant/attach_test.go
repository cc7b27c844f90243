package tenant

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// attaching returns a route at Gateways of others.
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

// attachingAttempts: a route attaches to a Gateway of others only if the Gateway allows its namespace. It does not
// affect other routes there.
func attachingAttempts() (attempts []attempt) {
	const ours, api, theirs = "stunner.l7mp.io/v1", "gateway.networking.k8s.io/v1", `{name: gateway0, namespace: media-1`
	const members, allowed = `{name: members-only, namespace: club}`, `{name: gateway1, namespace: games-1}`
	var many []string
	for i := range 32 {
		many = append(many, fmt.Sprintf(`%s, port: %d}`, theirs, []int{3478, 443}[i%2]+i/2))
	}
	for _, c := range []struct {
		what, object, text string
		try                func(*tenant)
	}{
		{"attaches to a Gateway of others", "route/way", attaching(ours, theirs+`}`), nil},
		{"attaches to a listener of others", "route/way", attaching(ours, theirs+`, sectionName: udp}`), nil},
		{"attaches to a port of a Gateway of others", "route/way", attaching(ours, theirs+`, port: 3478}`), nil},
		{"attaches to a Gateway of others 32 times", "route/way", attaching(ours, strings.Join(many, ", ")), nil},
		{"of the Gateway API attaches to a Gateway of others", "officialroute/way", attaching(api, theirs+`}`), nil},
		{"of the alpha attaches to a Gateway of others", "officialroute/way", attaching(api+"alpha2", theirs+`}`), nil},
		{"attaches to a Gateway that selects other namespaces", "route/way", attaching(ours, members), nil},
		{
			"of a tenant that labels its namespace as one that a Gateway selects", "route/way", attaching(ours, members),
			func(n *tenant) {
				n.isRefused(n.patch(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n.name}},
					map[string]any{"metadata": map[string]any{"labels": map[string]string{"team": "members"}}}), "forbidden")
			},
		},
		{
			"has the labels that a Gateway selects namespaces by", "route/way", strings.Replace(attaching(ours, members),
				"metadata: {name: way}", "metadata: {name: way, labels: {team: members}}", 1), nil,
		},
	} {
		attempts = append(attempts, attempt{
			name: "a route " + c.what, apply: c.text, object: c.object,
			told: `Accepted=False (NotAllowedByListeners|NoMatchingParent)`, try: c.try,
		})
	}
	return append(attempts, []attempt{
		{name: "a route names a Service as its parent", apply: attaching(
			ours, `{group: "", kind: Service, name: gateway0, namespace: media-1}`,
		)},
		{
			name:   "a route has the same name as a route of others, at a Gateway that allows all namespaces",
			apply:  strings.ReplaceAll(attaching(ours, allowed), "name: way", "name: gateway1-first"),
			object: "route/gateway1-first", told: "Accepted=True",
			try: func(n *tenant) {
				n.await(func(ctx context.Context) error {
					if clusters := n.clustersOfShared(ctx, "gateway1-first"); len(clusters) != 1 {
						return fmt.Errorf("the shared Gateway has clusters %+v of the route", clusters)
					}
					return nil
				})
			},
		},
		{
			name:   "a route adds more endpoints than a config may have to a Gateway that allows all namespaces",
			apply:  flood("there") + floodRoute("way", "name: gateway1, namespace: games-1", 16, 7),
			object: "route/way", told: `=False`,
		},
		{
			name: "a StaticService of a tenant leads a Gateway that allows all namespaces to kube-system",
			apply: strings.Replace(strings.TrimPrefix(static(`"10.96.0.10/32", "10.244.0.2", "10.1.1.2", "192.0.2.1"`),
				gateway("")), "{name: door}", allowed, 1),
			try: func(n *tenant) {
				for _, c := range n.clustersOfShared(n.Context(), "way") {
					for _, e := range c.Endpoints {
						if slices.ContainsFunc(forbidden, func(a string) bool { return opens(c, e, a) }) {
							n.Errorf("clients of the shared Gateway reach %s", e)
						}
					}
				}
			},
		},
		{
			name: "an own GatewayConfig raises the object limits, for a route with more endpoints than a config may have",
			apply: flood("there") + ownConfig(plain+`, budget: {routes: 10000, endpointsPerRoute: 100000, endpoints: 200000}`) +
				floodRoute("way", "name: door", 16, 7),
			object: "route/way", told: `=False`,
		},
	}...)
}

// flood returns a StaticService with 1,024 prefixes.
func flood(name string) string {
	var prefixes []string
	for i := range 1024 {
		prefixes = append(prefixes, fmt.Sprintf("100.64.%d.%d", i/256, i%256))
	}
	return fmt.Sprintf(
		"\n---\n{apiVersion: stunner.l7mp.io/v1, kind: StaticService, metadata: {name: %s}, spec: {prefixes: [%s]}}\n---\n",
		name, strings.Join(prefixes, ", "))
}

// floodRoute returns a route with that StaticService as many backends, each with other ports.
func floodRoute(name, parent string, refs, rules int) string {
	var list []string
	for rule := range rules {
		var backends []string
		for i := range refs {
			backends = append(backends,
				fmt.Sprintf(`{group: stunner.l7mp.io, kind: StaticService, name: there, port: %d}`, 2+rule*refs+i))
		}
		list = append(list, `{backendRefs: [`+strings.Join(backends, ", ")+`]}`)
	}
	return fmt.Sprintf("\n---\n{apiVersion: stunner.l7mp.io/v1, kind: UDPRoute, metadata: {name: %s}, "+
		"spec: {parentRefs: [{%s}], rules: [%s]}}\n", name, parent, strings.Join(list, ", "))
}

// clustersOfShared returns the clusters of a route of the tenant in the config of the Gateway that allows all
// namespaces.
func (n *tenant) clustersOfShared(ctx context.Context, route string) []config.Cluster {
	n.Helper()
	c, err := run.wholeConfigOf(ctx, run.Gateways[1])
	n.must(err)
	return slices.DeleteFunc(c.Clusters, func(c config.Cluster) bool { return c.Name != n.name+"/"+route })
}
