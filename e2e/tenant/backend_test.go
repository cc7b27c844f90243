package tenant

import (
	"fmt"
	"strings"
)

// static returns a StaticService and a route to it.
func static(prefixes string) string {
	return gateway("") + fmt.Sprintf(`
---
apiVersion: stunner.l7mp.io/v1
kind: StaticService
metadata: {name: there}
spec: {prefixes: [%s]}
`, prefixes) + routeTo(`group: stunner.l7mp.io, kind: StaticService, name: there`)
}

// slice returns a Service with an endpoint that the tenant wrote, and a route to it.
func slice(addresses string) string {
	return gateway("") + fmt.Sprintf(`
---
apiVersion: v1
kind: Service
metadata: {name: there}
spec: {clusterIP: None, ports: [{port: 53, protocol: UDP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: there, labels: {kubernetes.io/service-name: there}}
addressType: IPv4
endpoints: [{addresses: [%s]}]
`, addresses) + routeTo(`name: there`)
}

// official returns a route of the Gateway API through the tenant's Gateway to a backend.
func official(version, backend string) string {
	return fmt.Sprintf(`
---
apiVersion: gateway.networking.k8s.io/%s
kind: UDPRoute
metadata: {name: way}
spec: {parentRefs: [{name: door}], rules: [{backendRefs: [{%s}]}]}
`, version, backend)
}

// backendAttempts: no client of a tenant's Gateway reaches nodes, the API server, kube-system, or Services of others.
func backendAttempts() []attempt {
	closed := func(n *tenant) { n.reachesNone("door", append([]string{mediaPod}, forbidden...)...) }
	var attempts []attempt
	for what, backend := range map[string]string{
		"the cluster's DNS":               dns,
		"the API server":                  `name: kubernetes, namespace: default`,
		"a Service of the victim":         `name: sfu, namespace: victim`,
		"a node port of the victim":       `name: web, namespace: victim`,
		"config discovery":                `name: stunner-config-discovery, namespace: stunner-system`,
		"a Service that does not exist":   `name: none, namespace: victim`,
		"a namespace that does not exist": `name: none, namespace: nowhere`,
		"the Service of another Gateway":  `name: front-door, namespace: victim`,
	} {
		attempts = append(attempts, attempt{
			name: "a route leads to " + what, apply: gateway("") + routeTo(backend),
			told: map[string]string{"route/way": `ResolvedRefs=False RefNotPermitted`}, try: closed,
		})
	}
	for _, version := range []string{"v1", "v1alpha2"} {
		attempts = append(attempts, attempt{
			name:  "a route of the Gateway API, " + version + ", leads to a Service of the victim",
			apply: gateway("") + official(version, `name: sfu, namespace: victim, port: 10000`),
			told:  map[string]string{"officialroute/way": `ResolvedRefs=False RefNotPermitted`}, try: closed,
		}, attempt{
			name:  "a route of the Gateway API, " + version + ", leads to the cluster's DNS",
			apply: gateway("") + official(version, dns+`, port: 53`),
			told:  map[string]string{"officialroute/way": `ResolvedRefs=False RefNotPermitted`}, try: closed,
		}, attempt{
			name: "a route of the Gateway API, " + version + ", leads to a Secret",
			apply: gateway("") + official(
				version, `group: "", kind: Secret, name: cloud-admin, namespace: kube-system, port: 53`,
			),
			told: map[string]string{"officialroute/way": `ResolvedRefs=False InvalidKind`}, try: closed,
		})
	}
	for what, prefix := range map[string]string{
		"the cluster's DNS by its Service":     dnsService,
		"the cluster's DNS by its pod":         dnsPod + "/32",
		"the API server":                       apiServer,
		"the API server's Service":             apiService + "/32",
		"a node":                               node,
		"a node from outside":                  nodeOutside,
		"nodes and API server by their prefix": "192.0.2.0/24",
	} {
		attempts = append(
			attempts,
			attempt{name: "a StaticService leads to " + what, apply: static(fmt.Sprintf("%q", prefix)), try: closed},
		)
	}
	// A dataplane excludes these from wide prefixes only. It excludes link-local addresses always.
	for what, address := range map[string]string{
		"the pod's own host": "127.0.0.1", "the pod's own host in IPv6": "::1",
		"the services of an Azure host": "168.63.129.16", "the metadata service of Oracle Cloud": "192.0.0.192",
		"the metadata service of Oracle Cloud in IPv6": "fd00:c1::a9fe:a9fe",
		"the metadata service of Google Cloud":         "fd20:ce::254",
		"the metadata service of Scaleway":             "fd00:42::42",
	} {
		attempts = append(attempts, attempt{
			name: "a StaticService leads to " + what, apply: static(fmt.Sprintf("%q", address)),
			told: map[string]string{"route/way": unresolved},
			try:  func(n *tenant) { n.reachesNone("door", address) },
		})
	}
	for what, address := range map[string]string{
		"the cluster's DNS": dnsPod, "the DNS Service": dnsService, "the API server": apiServer, "a node": node,
		"a node from outside": nodeOutside, "the API server's Service": apiService,
	} {
		attempts = append(attempts, attempt{
			name: "an EndpointSlice leads to " + what, apply: slice(address), try: closed, also: "writes-endpoints",
		})
	}
	return append(attempts, []attempt{
		{
			name:  "a StaticService leads to every address there is",
			apply: static(`0.0.0.0/0, "::/0"`),
			try:   func(n *tenant) { n.reachesNone("door", forbidden...) },
		},
		{
			name: "a StaticService leads to a node as IPv4-mapped IPv6",
			apply: strings.TrimSuffix(
				static(`"::ffff:192.0.2.101"`), routeTo(`group: stunner.l7mp.io, kind: StaticService, name: there`),
			),
			refused: "must be an IP address or a CIDR prefix",
		},
		{
			name:  "a StaticService leads to a node through a /1 prefix",
			apply: static(`128.0.0.0/1`),
			try:   func(n *tenant) { n.reachesNone("door", apiServer, node, nodeOutside) },
		},
		{
			name:    "an editor writes an EndpointSlice",
			apply:   strings.Split(slice(dnsPod), routeTo(`name: there`))[0],
			refused: "forbidden",
		},
		{
			name:    "an EndpointSlice leads to the metadata service",
			apply:   strings.Split(slice("169.254.169.254"), routeTo(`name: there`))[0],
			also:    "writes-endpoints",
			refused: "may not be in the link-local range",
		},
		{
			name:    "an editor writes Endpoints of its own Service",
			apply:   `{apiVersion: v1, kind: Endpoints, metadata: {name: there}, subsets: [{addresses: [{ip: 10.244.0.2}], ports: [{port: 53, protocol: UDP}]}]}`,
			refused: "forbidden",
		},
		{
			name: "an EndpointSlice leads to the cluster's DNS and says that it is a pod of the tenant",
			apply: strings.Replace(
				slice(dnsPod), "endpoints: [{", "endpoints: [{targetRef: {kind: Pod, namespace: TENANT, name: mine}, ",
				1,
			),
			also: "writes-endpoints",
			try:  closed,
		},
		{
			name: "an EndpointSlice leads to the API server's Service and says that it is a pod of the tenant",
			apply: strings.Replace(
				slice(apiService), "endpoints: [{",
				"endpoints: [{targetRef: {kind: Pod, namespace: TENANT, name: mine}, ", 1,
			),
			also: "writes-endpoints",
			try:  closed,
		},
		{
			name: "an ExternalName Service leads to the API server",
			apply: gateway("") + `
---
{apiVersion: v1, kind: Service, metadata: {name: there}, spec: {type: ExternalName, externalName: kubernetes.default.svc.cluster.local}}
` + routeTo(`name: there`),
			told: map[string]string{"route/way": `ResolvedRefs=False`},
			try:  closed,
		},
		{
			name: "a Service selects the pods of kube-system",
			apply: gateway("") + `
---
{apiVersion: v1, kind: Service, metadata: {name: there}, spec: {selector: {k8s-app: kube-dns}, ports: [{port: 53, protocol: UDP}]}}
` + routeTo(`name: there`),
			try: closed,
		},
		{
			name:    "a Service takes the cluster IP of the DNS",
			apply:   `{apiVersion: v1, kind: Service, metadata: {name: there}, spec: {clusterIP: 10.96.0.10, ports: [{port: 53, protocol: UDP}]}}`,
			refused: "already allocated",
		},
		{
			name: "a ReferenceGrant in the tenant's namespace is for a Service in another namespace",
			apply: `
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: mine}
spec: {from: [{group: stunner.l7mp.io, kind: UDPRoute, namespace: TENANT}], to: [{group: "", kind: Service}]}
---
` + gateway("") + routeTo(`name: sfu, namespace: victim`),
			told: map[string]string{"route/way": `RefNotPermitted`},
			try:  closed,
		},
		{
			name:    "a backend has a range of ports that ends before it begins",
			apply:   gateway("") + routeTo(`name: there, port: 53, endPort: 1`),
			refused: "endPort must not be less than port",
		},
	}...)
}
