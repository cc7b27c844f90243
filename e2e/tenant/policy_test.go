package tenant

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

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
func policyAttempts() (attempts []attempt) {
	for _, c := range []struct{ what, spec, backend, reaches string }{
		{"denies no backend and needs no grants", `deniedBackends: [], requireReferenceGrants: false`, dns, ""},
		{"denies no backend", `deniedBackends: []`, `name: kubernetes, namespace: default`, ""},
		{"denies another namespace than kube-system", `deniedBackends: [{namespace: nowhere}]`, dns, ""},
		{"denies by a selector that selects nothing",
			`deniedBackends: [{namespace: kube-system, selector: {matchLabels: {no: such}}}]`, dns, ""},
		{"needs no grants, for a route to a Service of others", `requireReferenceGrants: false`,
			`name: gateway0-first, namespace: media-1`, mediaServer},
		{"needs no grants, for a route to a StaticService of others", `requireReferenceGrants: false`,
			`group: stunner.l7mp.io, kind: StaticService, name: office, namespace: media-1`, "198.18.0.1"},
	} {
		closed := forbidden
		if c.reaches != "" {
			closed = []string{c.reaches}
		}
		attempts = append(attempts, attempt{
			name: "an own GatewayConfig " + c.what, apply: ownConfig(plain+", "+c.spec) + routeTo(c.backend),
			object: "route/way", told: unresolved, try: reachesNoneOf(closed...),
		})
	}
	for spec, of := range map[string]struct {
		limit func(config.Admin) int64
		most  int64 // limit of the class, see patches
	}{
		`userQuota: 0`:             {func(a config.Admin) int64 { return int64(a.UserQuota) }, 10},
		`userQuota: 1000000`:       {func(a config.Admin) int64 { return int64(a.UserQuota) }, 10},
		`sourceQuota: 1000000`:     {func(a config.Admin) int64 { return int64(a.SourceQuota) }, 20},
		`sessionByteRate: 0`:       {func(a config.Admin) int64 { return a.SessionByteRate }, 30000},
		`userByteRate: 1000000000`: {func(a config.Admin) int64 { return a.UserByteRate }, 40000},
	} {
		attempts = append(attempts, attempt{
			name: "an own GatewayConfig sets " + spec, apply: ownConfig(plain + ", " + spec),
			try: func(n *tenant) {
				if got := of.limit(n.config("door").Admin); got < 1 || got > of.most {
					n.Errorf("the limit is %d, that of the class is %d", got, of.most)
				}
			},
		})
	}
	const gatewayClass = `
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: TENANT}
spec: {controllerName: stunner.l7mp.io/calls-1, parametersRef: {group: stunner.l7mp.io, kind: GatewayConfig, name: own, namespace: TENANT}}
`
	for what, text := range map[string]string{
		"writes the GatewayConfig of the class": `{apiVersion: stunner.l7mp.io/v1, kind: GatewayConfig, ` +
			`metadata: {name: turn, namespace: system-1}, spec: {requireReferenceGrants: false}}`,
		"makes a Dataplane with privileges":             `{apiVersion: stunner.l7mp.io/v1, kind: Dataplane, metadata: {name: TENANT}, spec: {hostNetwork: true}}`,
		"changes the shared Dataplane":                  `{apiVersion: stunner.l7mp.io/v1, kind: Dataplane, metadata: {name: default}, spec: {image: mine}}`,
		"makes a GatewayClass with a policy of its own": gatewayClass,
	} {
		attempts = append(attempts, attempt{name: "a tenant " + what, apply: text, refused: "forbidden"})
	}
	for object, text := range map[string]string{
		"gateway/door": gateway(""), "route/way": gateway("") + routeTo(`name: nothing`), "config/own": ownConfig(plain),
		"service/door": gateway(""), // would be the load balancer address of another tenant
	} {
		attempts = append(attempts, attempt{
			name: "a tenant writes the status of its own " + object, apply: text,
			try: func(n *tenant) {
				status := fmt.Sprintf(`{"status":{"conditions":[],"loadBalancer":{"ingress":[{"ip":%q}]}}}`, run.balanced)
				n.isRefused(n.Status().Patch(
					n.Context(), n.object(object), client.RawPatch(types.MergePatchType, []byte(status)),
				), "forbidden")
			},
		})
	}
	parameters := func(ref string) string { return gateway(`, infrastructure: {parametersRef: {` + ref + `}}`) }
	return append(attempts, []attempt{
		{
			name:  "an own GatewayConfig names a Dataplane of the administrator, in the network of the host",
			apply: ownConfig(plain + `, dataplane: for-admins`), object: "gateway/door", told: `Dataplane`,
			try: func(n *tenant) {
				d := &appsv1.Deployment{}
				if run.admin.Get(n.Context(), types.NamespacedName{Namespace: n.name, Name: "door"}, d) == nil &&
					d.Spec.Template.Spec.HostNetwork {
					n.Errorf("a Deployment uses hostNetwork: %+v", d.Spec.Template.Spec.Volumes)
				}
			},
		},
		{
			name:  "an own GatewayConfig allows itself addresses of the cluster",
			apply: ownConfig(plain+`, allowedAddresses: [0.0.0.0/0]`) + `  addresses: [{value: 10.96.0.10}]`,
			try:   func(n *tenant) { n.hasNoAddress(dnsService) },
		},
		{
			name:   "parametersRef names the GatewayConfig of the class by its namespace",
			apply:  parameters(`group: stunner.l7mp.io, kind: GatewayConfig, name: system-1/turn`),
			object: "gateway/door", told: `InvalidParameters`,
		},
		{
			name: "parametersRef names a ConfigMap", apply: parameters(`group: "", kind: ConfigMap, name: kube-root-ca.crt`),
			object: "gateway/door", told: `InvalidParameters`,
		},
	}...)
}
