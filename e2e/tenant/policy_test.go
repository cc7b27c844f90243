package tenant

import (
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/config"
)

// routeTo returns a route through the tenant's Gateway to a backend.
func routeTo(backend string) string {
	return `
---
apiVersion: stunner.l7mp.io/v1
kind: UDPRoute
metadata: {name: way}
spec: {parentRefs: [{name: door}], rules: [{backendRefs: [{` + backend + `}]}]}
`
}

const (
	dns        = `name: kube-dns, namespace: kube-system`
	unresolved = `ResolvedRefs=False`
)

// policyAttempts: the class's GatewayConfig is the policy for all its Gateways. A GatewayConfig of a tenant narrows it
// and never widens it.
func policyAttempts() []attempt {
	closed := func(n *tenant) { n.reachesNone("door", forbidden...) }
	return []attempt{
		{
			name:  "an own GatewayConfig denies no backend and needs no grants, for a route to the cluster's DNS",
			apply: ownConfig(plain+`, deniedBackends: [], requireReferenceGrants: false`) + routeTo(dns),
			told:  map[string]string{"route/way": unresolved},
			try:   closed,
		},
		{
			name:  "an own GatewayConfig denies no backend, for a route to the API server",
			apply: ownConfig(plain+`, deniedBackends: []`) + routeTo(`name: kubernetes, namespace: default`),
			told:  map[string]string{"route/way": unresolved},
			try:   closed,
		},
		{
			name:  "an own GatewayConfig denies another namespace in the place of kube-system",
			apply: ownConfig(plain+`, deniedBackends: [{namespace: nowhere}]`) + routeTo(dns),
			told:  map[string]string{"route/way": unresolved},
			try:   closed,
		},
		{
			name: "an own GatewayConfig denies by a selector that selects nothing",
			apply: ownConfig(
				plain+`, deniedBackends: [{namespace: kube-system, selector: {matchLabels: {no: such}}}]`,
			) + routeTo(dns),
			told: map[string]string{"route/way": unresolved},
			try:  closed,
		},
		{
			name:  "an own GatewayConfig needs no grants, for a route to a Service of the victim",
			apply: ownConfig(plain+`, requireReferenceGrants: false`) + routeTo(`name: sfu, namespace: victim`),
			told:  map[string]string{"route/way": unresolved},
			try:   func(n *tenant) { n.reachesNone("door", mediaPod) },
		},
		{
			name: "an own GatewayConfig needs no grants, for a route to a StaticService of the victim",
			apply: ownConfig(plain+`, requireReferenceGrants: false`) + routeTo(
				`group: stunner.l7mp.io, kind: StaticService, name: office, namespace: victim`,
			),
			told: map[string]string{"route/way": unresolved},
			try:  func(n *tenant) { n.reachesNone("door", "198.18.0.1") },
		},
		{
			name:  "an own GatewayConfig names a Dataplane of the administrator, in the network of the host",
			apply: ownConfig(plain + `, dataplane: for-admins`),
			told:  map[string]string{"gateway/door": `Dataplane`},
			try: func(n *tenant) {
				d := &appsv1.Deployment{}
				if house.Get(n.Context(), types.NamespacedName{Namespace: n.name, Name: "door"}, d) == nil &&
					d.Spec.Template.Spec.HostNetwork {
					n.Errorf("a Deployment uses hostNetwork: %+v", d.Spec.Template.Spec.Volumes)
				}
			},
		},
		{
			name:  "an own GatewayConfig lifts the quota of users",
			apply: ownConfig(plain + `, userQuota: 0`),
			try:   bounded(func(a config.Admin) int64 { return int64(a.UserQuota) }, 10),
		},
		{
			name:  "an own GatewayConfig raises the quota of users",
			apply: ownConfig(plain + `, userQuota: 1000000`),
			try:   bounded(func(a config.Admin) int64 { return int64(a.UserQuota) }, 10),
		},
		{
			name:  "an own GatewayConfig raises the quota of sources",
			apply: ownConfig(plain + `, sourceQuota: 1000000`),
			try:   bounded(func(a config.Admin) int64 { return int64(a.SourceQuota) }, 20),
		},
		{
			name:  "an own GatewayConfig lifts the rate of sessions",
			apply: ownConfig(plain + `, sessionByteRate: 0`),
			try:   bounded(func(a config.Admin) int64 { return a.SessionByteRate }, 30000),
		},
		{
			name:  "an own GatewayConfig raises the rate of users",
			apply: ownConfig(plain + `, userByteRate: 1000000000`),
			try:   bounded(func(a config.Admin) int64 { return a.UserByteRate }, 40000),
		},
		{
			name:  "an own GatewayConfig allows itself addresses of the cluster",
			apply: ownConfig(plain+`, allowedAddresses: [0.0.0.0/0]`) + `  addresses: [{value: 10.96.0.10}]`,
			try:   func(n *tenant) { n.hasNoAddress(dnsService) },
		},
		{
			name: "parametersRef names the GatewayConfig of the class by its namespace",
			apply: gateway(
				`, infrastructure: {parametersRef: {group: stunner.l7mp.io, kind: GatewayConfig, name: stunner-system/stunner}}`,
			),
			told: map[string]string{"gateway/door": `InvalidParameters`},
		},
		{
			name:  "parametersRef names a ConfigMap",
			apply: gateway(`, infrastructure: {parametersRef: {group: "", kind: ConfigMap, name: kube-root-ca.crt}}`),
			told:  map[string]string{"gateway/door": `InvalidParameters`},
		},
		{
			name:    "a tenant writes the GatewayConfig of the class",
			apply:   `{apiVersion: stunner.l7mp.io/v1, kind: GatewayConfig, metadata: {name: stunner, namespace: stunner-system}, spec: {requireReferenceGrants: false}}`,
			refused: "forbidden",
		},
		{
			name:    "a tenant makes a Dataplane with privileges",
			apply:   `{apiVersion: stunner.l7mp.io/v1, kind: Dataplane, metadata: {name: TENANT}, spec: {hostNetwork: true}}`,
			refused: "forbidden",
		},
		{
			name:    "a tenant changes the shared Dataplane",
			apply:   `{apiVersion: stunner.l7mp.io/v1, kind: Dataplane, metadata: {name: default}, spec: {image: example.net/mine}}`,
			refused: "forbidden",
		},
		{
			name: "a tenant makes a GatewayClass with a policy of its own",
			apply: `
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: TENANT}
spec: {controllerName: stunner.l7mp.io/gateway-operator, parametersRef: {group: stunner.l7mp.io, kind: GatewayConfig, name: own, namespace: TENANT}}
`,
			refused: "forbidden",
		},
		{
			name:  "a tenant writes the status of its own Gateway",
			apply: gateway(""),
			try:   func(n *tenant) { n.writesNoStatus("gateways.gateway.networking.k8s.io/door") },
		},
		{
			name:  "a tenant writes the status of its own route",
			apply: gateway("") + routeTo(`name: nothing`),
			try:   func(n *tenant) { n.writesNoStatus("udproutes.stunner.l7mp.io/way") },
		},
		{
			name:  "a tenant writes the status of its own GatewayConfig",
			apply: ownConfig(plain),
			try:   func(n *tenant) { n.writesNoStatus("gatewayconfigs.stunner.l7mp.io/own") },
		},
		{
			name:  "a tenant gives its Gateway's Service the address of the victim's load balancer",
			apply: gateway(""),
			try:   func(n *tenant) { n.writesNoStatus("services/door") },
		},
	}
}

// bounded checks that a limit in the config of the tenant's Gateway is set, and not above that of the class.
func bounded(of func(config.Admin) int64, most int64) func(*tenant) {
	return func(n *tenant) {
		n.Helper()
		if got := of(n.config("door").Admin); got < 1 || got > most {
			n.Errorf("the limit is %d, that of the class is %d", got, most)
		}
	}
}

// writesNoStatus checks that the tenant must not write a status.
func (n *tenant) writesNoStatus(object string) {
	n.Helper()
	_, err := control.Kubectl(n.Context(), "patch", object, "-n", n.name, "--as", n.name, "--subresource=status", "--type=merge",
		"-p", `{"status":{"conditions":[],"loadBalancer":{"ingress":[{"ip":"`+balanced+`"}]}}}`)
	n.isRefused(err, "forbidden")
}
