package tenant

import (
	"fmt"
	"strings"
)

// static returns a StaticService and a route to it.
func static(prefixes string) string {
	return gateway("") + fmt.Sprintf(`
---
{apiVersion: stunner.l7mp.io/v1, kind: StaticService, metadata: {name: there}, spec: {prefixes: [%s]}}
`, prefixes) + routeTo(`group: stunner.l7mp.io, kind: StaticService, name: there`)
}

// slice returns a Service with an endpoint that the tenant wrote.
func slice(addresses string) string {
	return gateway("") + fmt.Sprintf(`
---
{apiVersion: v1, kind: Service, metadata: {name: there}, spec: {clusterIP: None, ports: [{port: 53, protocol: UDP}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: there, labels: {kubernetes.io/service-name: there}}
addressType: IPv4
endpoints: [{addresses: [%s]}]
`, addresses)
}

// service returns a Service and a route to it.
func service(spec string) string {
	return gateway("") + "---\n{apiVersion: v1, kind: Service, metadata: {name: there}, spec: {" + spec + "}}\n" +
		routeTo(`name: there`)
}

// official returns a route of the Gateway API through the tenant's Gateway to a backend.
func official(version, backend string) string {
	return gateway("") + fmt.Sprintf(`
---
apiVersion: gateway.networking.k8s.io/%s
kind: UDPRoute
metadata: {name: way}
spec: {parentRefs: [{name: door}], rules: [{backendRefs: [{%s}]}]}
`, version, backend)
}

// backendAttempts: no client of a tenant's Gateway reaches nodes, the API server, kube-system, or Services of others.
func backendAttempts() (attempts []attempt) {
	closed := reachesNoneOf(append([]string{mediaServer}, forbidden...)...)
	const notPermitted, theirs = `ResolvedRefs=False RefNotPermitted`, `name: gateway0-first, namespace: media-1`
	for what, backend := range map[string]string{
		"the cluster's DNS":               dns,
		"the API server":                  `name: kubernetes, namespace: default`,
		"a Service of others":             theirs,
		"a node port of others":           `name: web, namespace: media-1`,
		"config discovery":                `name: stunner-config-discovery, namespace: system-1`,
		"a Service that does not exist":   `name: none, namespace: media-1`,
		"a namespace that does not exist": `name: none, namespace: nowhere`,
		"the Service of another Gateway":  `name: gateway0, namespace: media-1`,
	} {
		attempts = append(attempts, attempt{
			name: "a route leads to " + what, apply: gateway("") + routeTo(backend),
			object: "route/way", told: notPermitted, try: closed,
		})
	}
	for _, version := range []string{"v1", "v1alpha2"} {
		for what, c := range map[string][2]string{
			"a Service of others": {theirs + `, port: 7000`, notPermitted},
			"the cluster's DNS":   {dns + `, port: 53`, notPermitted},
			"a Secret": {
				`group: "", kind: Secret, name: cloud-admin, namespace: kube-system, port: 53`, `ResolvedRefs=False InvalidKind`,
			},
		} {
			attempts = append(attempts, attempt{
				name:  "a route of the Gateway API, " + version + ", leads to " + what,
				apply: official(version, c[0]), object: "officialroute/way", told: c[1], try: closed,
			})
		}
	}
	for what, prefix := range map[string]string{
		"the cluster's DNS by its Service":     dnsService,
		"the cluster's DNS by its pod":         dnsPod + "/32",
		"the API server":                       apiServer,
		"the API server's Service":             apiService + "/32",
		"a node":                               node,
		"a node from outside":                  nodeOutside,
		"nodes and API server by their prefix": "10.1.1.0/24\", \"192.0.2.0/24",
		"every address there is":               "0.0.0.0/0\", \"::/0",
		"a node through a /1 prefix":           "0.0.0.0/1\", \"128.0.0.0/1",
	} {
		attempts = append(attempts, attempt{
			name: "a StaticService leads to " + what, apply: static(`"` + prefix + `"`), try: reachesNoneOf(forbidden...),
		})
	}
	// A dataplane excludes these addresses only from wide prefixes. It always excludes link-local addresses.
	for what, address := range map[string]string{
		"the pod's own host": "127.0.0.1", "the pod's own host in IPv6": "::1",
		"the services of an Azure host": "168.63.129.16", "the metadata service of Oracle Cloud": "192.0.0.192",
		"the metadata service of Oracle Cloud in IPv6": "fd00:c1::a9fe:a9fe",
		"the metadata service of Google Cloud":         "fd20:ce::254",
		"the metadata service of Scaleway":             "fd00:42::42",
	} {
		attempts = append(attempts, attempt{
			name: "a StaticService leads to " + what, apply: static(fmt.Sprintf("%q", address)),
			object: "route/way", told: unresolved, try: reachesNoneOf(address),
		})
	}
	addresses := map[string]string{
		"the cluster's DNS": dnsPod, "the DNS Service": dnsService, "the API server": apiServer, "a node": node,
		"a node from outside": nodeOutside, "the API server's Service": apiService,
	}
	for what, address := range addresses {
		attempts = append(attempts, attempt{
			name:  "an EndpointSlice leads to " + what,
			apply: slice(address) + routeTo(`name: there`), try: closed, also: "writes-endpoints",
		})
	}
	for _, what := range []string{"the cluster's DNS", "the API server's Service"} {
		attempts = append(attempts, attempt{
			name: "an EndpointSlice leads to " + what + " and says that it is a pod of the tenant",
			apply: strings.Replace(slice(addresses[what]), "endpoints: [{",
				"endpoints: [{targetRef: {kind: Pod, namespace: TENANT, name: mine}, ", 1) + routeTo(`name: there`),
			also: "writes-endpoints", try: closed,
		})
	}
	return append(attempts, []attempt{
		{
			name: "a StaticService leads to a node as IPv4-mapped IPv6",
			apply: `{apiVersion: stunner.l7mp.io/v1, kind: StaticService, metadata: {name: there}, ` +
				`spec: {prefixes: ["::ffff:10.1.1.2"]}}`,
			refused: "must be an IP address or a CIDR prefix",
		},
		{name: "an editor writes an EndpointSlice", apply: slice(dnsPod), refused: "forbidden"},
		{
			name: "an EndpointSlice leads to the metadata service", apply: slice("169.254.169.254"), also: "writes-endpoints",
			refused: "may not be in the link-local range",
		},
		{
			name: "an editor writes Endpoints of its own Service", refused: "forbidden",
			apply: `{apiVersion: v1, kind: Endpoints, metadata: {name: there}, ` +
				`subsets: [{addresses: [{ip: 10.244.0.2}], ports: [{port: 53, protocol: UDP}]}]}`,
		},
		{
			name:   "an ExternalName Service leads to the API server",
			apply:  service(`type: ExternalName, externalName: kubernetes.default.svc.cluster.local`),
			object: "route/way", told: unresolved, try: closed,
		},
		{
			name:  "a Service selects the pods of kube-system",
			apply: service(`selector: {k8s-app: kube-dns}, ports: [{port: 53, protocol: UDP}]`), try: closed,
		},
		{
			name: "a Service takes the cluster IP of the DNS", refused: "already allocated",
			apply: strings.TrimSuffix(
				service(`clusterIP: 10.96.0.10, ports: [{port: 53, protocol: UDP}]`), routeTo(`name: there`)),
		},
		{
			name: "a ReferenceGrant in the tenant's namespace is for a Service in another namespace",
			apply: strings.NewReplacer("GatewayConfig", "UDPRoute", "kind: Secret", "kind: Service").Replace(grant("")) +
				gateway("") + routeTo(theirs),
			object: "route/way", told: `RefNotPermitted`, try: closed,
		},
		{
			name:  "a backend has a range of ports that ends before it begins",
			apply: gateway("") + routeTo(`name: there, port: 53, endPort: 1`), refused: "endPort must not be less than port",
		},
	}...)
}
