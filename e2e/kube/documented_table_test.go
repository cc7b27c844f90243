package kube

import (
	"strings"
)

// documented is a row of the table of the manifests that the documentation of the existing system shows: the manifests
// of its reference, in testdata/documented/reference, and the manifests of a platform that uses it, in
// testdata/documented/platform. They are applied unchanged.
type documented struct {
	manifest string   // path in testdata/documented, without suffix
	when     string   // distinguishes rows of one manifest
	with     []string // manifests that are applied before; the outcome includes their Gateways
	also     string   // objects that the manifest needs and that no manifest shows
	// contradicts names the manifests or sentences that contradict each other, and the one that the operator follows.
	contradicts string
	refused     string            // error of the API server
	remedy      *strings.Replacer // edits a refused manifest, so that it is accepted
	problem     string            // that the file provider reports, as SEVERITY FIELD: MESSAGE
	says        string            // part of the message of a condition
	outcome     string
	folder      *strings.Replacer // edits the outcome for a folder; nil if it is the same
}

// around are objects that the manifests refer to and do not show.
const around = `apiVersion: v1
kind: Namespace
metadata: {name: stunner}
---
apiVersion: v1
kind: Namespace
metadata: {name: media-plane}
---
apiVersion: v1
kind: Namespace
metadata: {name: apps}
---
apiVersion: v1
kind: Namespace
metadata: {name: developers, labels: {app: dev}}
---
apiVersion: v1
kind: Secret
metadata: {name: stunner-auth-secret, namespace: stunner}
stringData: {type: static, username: visitor, password: open-sesame-and-close}
---
apiVersion: v1
kind: Secret
metadata: {name: stunner-credentials, namespace: stunner}
stringData: {password: open-sesame-and-close}
---
apiVersion: v1
kind: Secret
metadata: {name: tls-secret, namespace: stunner}
type: kubernetes.io/tls
stringData: {tls.crt: CERTIFICATE, tls.key: KEY}
---
apiVersion: v1
kind: Service
metadata: {name: media-server-pool, namespace: media-plane}
spec: {clusterIP: 10.96.200.30, ports: [{port: 5000, protocol: UDP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: media-server-pool, namespace: media-plane, labels: {kubernetes.io/service-name: media-server-pool}}
addressType: IPv4
endpoints: [{addresses: [10.3.0.4]}]
---
apiVersion: v1
kind: Service
metadata: {name: media-server, namespace: apps}
spec: {clusterIP: 10.96.200.31, ports: [{port: 5000, protocol: UDP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: media-server, namespace: apps, labels: {kubernetes.io/service-name: media-server}}
addressType: IPv4
endpoints: [{addresses: [10.4.0.4]}]
`

// profile are the objects that the profile openova of the chart creates for the manifests of the platform.
const profile = `apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: stunner-gatewayclass}
spec:
  controllerName: stunner.l7mp.io/gateway-operator
  parametersRef: {group: stunner.l7mp.io, kind: GatewayConfig, name: stunner-config, namespace: stunner}
---
apiVersion: stunner.l7mp.io/v1
kind: Dataplane
metadata: {name: default}
spec: {workloadName: stunner}
`

// withoutProfile has the objects of profile without the name of the Deployment.
var withoutProfile = strings.Replace(profile, "spec: {workloadName: stunner}", "spec: {}", 1)

// grant permits the Gateway of the manifest tls-gateway to use its Secret.
const grant = `apiVersion: gateway.networking.k8s.io/v1
kind: ReferenceGrant
metadata: {name: tls-gateway, namespace: stunner}
spec:
  from: [{group: gateway.networking.k8s.io, kind: Gateway, namespace: default}]
  to: [{group: "", kind: Secret, name: tls-secret}]
`

// guests are routes of two namespaces to the Gateway of the manifest complex-gateway, whose second listener accepts
// routes of only one namespace, and a Node for its NodePort Service.
const guests = `apiVersion: stunner.l7mp.io/v1
kind: UDPRoute
metadata: {name: labelled, namespace: developers}
spec:
  parentRefs: [{name: complex-gateway, namespace: stunner}]
  rules: [{backendRefs: [{name: media-server-pool, namespace: media-plane}]}]
---
apiVersion: stunner.l7mp.io/v1
kind: UDPRoute
metadata: {name: unlabelled, namespace: media-plane}
spec:
  parentRefs: [{name: complex-gateway, namespace: stunner}]
  rules: [{backendRefs: [{name: media-server-pool}]}]
---
apiVersion: v1
kind: Node
metadata: {name: edge}
status:
  addresses: [{type: ExternalIP, address: 203.0.113.20}]
`

const (
	unquoted = "cannot unmarshal bool into Go struct field ObjectMeta.annotations of type string"
	asString = "Info metadata.annotations.stunner.l7mp.io/enable-mixed-protocol-lb: is read as a string: " +
		"put quotes around it, the API server wants them"
	passed = "Info kind: ScaledObject of keda.sh/v1alpha1 is not read here: passed through as it is"
)

// quotes is the remedy of unquoted booleans in annotations.
var quotes = strings.NewReplacer("enable-mixed-protocol-lb: true", `enable-mixed-protocol-lb: "true"`)

// reference lists manifests of the reference, before others.
func reference(more ...string) []string {
	all := []string{"reference/gatewayclass", "reference/gatewayconfig", "reference/dataplane"}
	for _, name := range more {
		all = append(all, "reference/"+name)
	}
	return all
}

// The parts of outcomes that several rows share.
const (
	referenceDeployment = "l7mp/stunnerd:latest -w --udp-thread-num=16, 500m CPU 128Mi, 2 CPU 512Mi, 3600 s\n"
	platformDeployment  = "ghcr.io/stunner-gateway/stunnerd:latest -w --udp-thread-num=16, 3600 s\n"

	referenceConfig = "config: all:DEBUG,turn:INFO, static, password username for realm stunner.l7mp.io\n"

	udpGateway = `Gateway v1 stunner/udp-gateway: Accepted Programmed at ADDRESS
  udp-listener, 0 routes: Accepted !Conflicted:NoConflicts Programmed ResolvedRefs
` + referenceConfig + `  TURN-UDP on 3478, public ADDRESS:3478
Service udp-gateway: LoadBalancer, UDP 3478 to 3478
Deployment udp-gateway: ` + referenceDeployment

	routedTo = `Gateway v1 stunner/udp-gateway: Accepted Programmed at ADDRESS
  udp-listener, 1 routes: Accepted !Conflicted:NoConflicts Programmed ResolvedRefs
` + referenceConfig + `  TURN-UDP on 3478, public ADDRESS:3478, to stunner/media-plane-route
  stunner/media-plane-route: ENDPOINTS
Service udp-gateway: LoadBalancer, UDP 3478 to 3478
Deployment udp-gateway: ` + referenceDeployment

	tlsGateway = `Gateway v1 default/tls-gateway: Accepted Programmed at ADDRESS
  tls-listener, 0 routes: Accepted !Conflicted:NoConflicts Programmed ResolvedRefs
` + referenceConfig + `  TURN-TLS on 44321, public ADDRESS:443, with a certificate
Service tls-gateway: LoadBalancer, TCP 443 to 44321
Deployment tls-gateway: ` + referenceDeployment

	platformGateway = `Gateway v1 stunner/stunner-gateway: Accepted Programmed at ADDRESS
  udp-listener, 0 routes: Accepted !Conflicted:NoConflicts Programmed ResolvedRefs
  tcp-listener, 0 routes: Accepted !Conflicted:NoConflicts Programmed ResolvedRefs
config: all:INFO, ephemeral, password secret username for realm stunner.<domain>
  TURN-UDP on 3478, public ADDRESS:3478
  TURN-TCP on 3478, public ADDRESS:3478
Service stunner-gateway: LoadBalancer, UDP 3478 to 3478
Service stunner-gateway-tcp: LoadBalancer, TCP 3478 to 3478
Deployment stunner: ` + platformDeployment
)

var (
	toPods     = strings.Replace(routedTo, "ENDPOINTS", "10.3.0.4 10.96.200.30", 1)
	toPrefixes = strings.Replace(routedTo, "ENDPOINTS", "192.0.2.0/24 198.51.100.0/24", 1)
)

// documentation has a row, or several, for each manifest.
var documentation = []documented{
	{
		manifest: "reference/gatewayclass", with: reference("udp-gateway"),
		outcome: udpGateway + "GatewayClass v1 stunner-gatewayclass: Accepted\n",
	},
	{
		manifest: "reference/gatewayconfig", with: reference("udp-gateway"),
		outcome: udpGateway + "GatewayConfig v1 stunner/stunner-gatewayconfig: Accepted InUse:Used\n",
	},
	{
		manifest: "reference/dataplane", with: reference("udp-gateway"),
		outcome: udpGateway + "Dataplane v1 default: Accepted InUse:Used\n",
	},
	{manifest: "reference/udp-gateway", with: reference(), outcome: udpGateway},
	{
		manifest: "reference/complex-gateway", with: reference(), also: guests,
		contradicts: "The annotation is a boolean, and the API of Kubernetes has strings only. The file provider " +
			"reads it as a string, with a remark.",
		refused: unquoted, remedy: quotes, problem: asString,
		outcome: `Gateway v1 stunner/complex-gateway: Accepted Programmed at ADDRESS
  udp-listener, 2 routes: Accepted !Conflicted:NoConflicts Programmed ResolvedRefs
  tls-listener, 1 routes: Accepted !Conflicted:NoConflicts Programmed ResolvedRefs
` + referenceConfig + `  TURN-UDP on 3478, public ADDRESS:ANY, to developers/labelled media-plane/unlabelled
  TURN-TLS on 443, public ADDRESS:ANY, with a certificate, to developers/labelled
  developers/labelled: 10.3.0.4 10.96.200.30
  media-plane/unlabelled: 10.3.0.4 10.96.200.30
Service complex-gateway: NodePort, UDP 3478 to 3478, TCP 443 to 443
  service.beta.kubernetes.io/do-loadbalancer-healthcheck-path: /live
  service.beta.kubernetes.io/do-loadbalancer-healthcheck-port: 8086
  service.beta.kubernetes.io/do-loadbalancer-healthcheck-protocol: http
Deployment complex-gateway: ` + referenceDeployment,
		folder: strings.NewReplacer(
			// the file provider has no node ports
			"TURN-UDP on 3478, public ADDRESS:ANY", "TURN-UDP on 3478, public ADDRESS:3478",
			"TURN-TLS on 443", "TURN-TLS on ANY", // the file provider has no right to bind port 443
		),
	},
	{
		manifest: "reference/mixed-protocol-gateway", with: reference(),
		contradicts: "As for complex-gateway.",
		refused:     unquoted, remedy: quotes, problem: asString,
		outcome: `Gateway v1 default/mixed-protocol-gateway: Accepted Programmed at ADDRESS
  udp-listener, 0 routes: Accepted !Conflicted:NoConflicts Programmed ResolvedRefs
  tcp-listener, 0 routes: Accepted !Conflicted:NoConflicts Programmed ResolvedRefs
` + referenceConfig + `  TURN-UDP on 3478, public ADDRESS:3478
  TURN-TCP on 3479, public ADDRESS:3479
Service mixed-protocol-gateway: LoadBalancer, UDP 3478 to 3478, TCP 3479 to 3479
Deployment mixed-protocol-gateway: ` + referenceDeployment,
	},
	{
		manifest: "reference/tls-gateway", with: reference(),
		contradicts: "The Gateway has no namespace and its Secret is in namespace stunner; the Gateway API demands " +
			"a ReferenceGrant there.",
		says: "tls.certificateRefs[0] refers to Secret stunner/tls-secret in another namespace: create a " +
			"ReferenceGrant in namespace stunner, or move it",
		outcome: `Gateway v1 default/tls-gateway: !Accepted:ListenersNotValid !Programmed:Invalid at ADDRESS
  tls-listener, 0 routes: Accepted !Conflicted:NoConflicts !Programmed:Invalid !ResolvedRefs:RefNotPermitted
` + referenceConfig + `Service tls-gateway: LoadBalancer, TCP 443 to 44321
Deployment tls-gateway: ` + referenceDeployment,
	},
	{
		manifest: "reference/tls-gateway", when: "with a ReferenceGrant", with: reference(), also: grant,
		outcome: tlsGateway, folder: strings.NewReplacer("on 44321, public ADDRESS:443", "on ANY, public ADDRESS:ANY"),
	},
	{
		manifest: "reference/route", with: reference("udp-gateway"),
		outcome: toPods + "UDPRoute v1 stunner/media-plane-route: udp-gateway Accepted ResolvedRefs\n",
	},
	{
		manifest: "reference/route-v1alpha2", with: reference("udp-gateway"),
		outcome: toPods + "UDPRoute v1alpha2 stunner/media-plane-route: udp-gateway Accepted ResolvedRefs\n",
	},
	{
		manifest: "reference/route-v1alpha2", when: "beside route", with: reference("udp-gateway", "route"),
		contradicts: "Both routes have the same name, and a config has one cluster of a name. The route of group " +
			"stunner.l7mp.io has precedence.",
		says: "UDPRoute stunner/media-plane-route (stunner.l7mp.io/v1) has the same name and counts in the " +
			"place of this one",
		outcome: toPods + "UDPRoute v1alpha2 stunner/media-plane-route: udp-gateway !Accepted:Pending ResolvedRefs\n",
	},
	{
		manifest: "reference/staticservice", with: reference("udp-gateway", "route-to-staticservice"),
		outcome: toPrefixes + "StaticService v1 stunner/static-svc: Accepted InUse:Used\n",
	},
	{
		manifest: "reference/route-to-staticservice", with: reference("udp-gateway", "staticservice"),
		outcome: toPrefixes + "UDPRoute v1 stunner/media-plane-route: udp-gateway Accepted ResolvedRefs\n",
	},
	{
		manifest: "reference/route", when: "after route-to-staticservice",
		with: reference("udp-gateway", "staticservice", "route-to-staticservice"),
		contradicts: "Both manifests are the same object. At an API server the last one replaces the others, and in " +
			"a folder the first file has precedence.",
		problem: "Error metadata.name: is written twice: reference/route-to-staticservice.yaml:1 is in force and " +
			"reference/route.yaml:1 is not; remove or rename one",
		outcome: toPods + "UDPRoute v1 stunner/media-plane-route: udp-gateway Accepted ResolvedRefs\n",
		folder:  strings.NewReplacer("10.3.0.4 10.96.200.30", "192.0.2.0/24 198.51.100.0/24"),
	},
	{
		manifest: "platform/gateway", with: []string{"platform/gatewayconfig"}, also: profile,
		contradicts: "platform: both transports are served without an annotation. reference: one transport, without " +
			"enable-mixed-protocol-lb. The second transport has a Service of its own.",
		outcome: platformGateway,
	},
	{
		manifest: "platform/gateway", when: "in the class of the reference",
		with: []string{"platform/gatewayconfig", "reference/gatewayclass"},
		contradicts: "reference: the GatewayClass names GatewayConfig stunner-gatewayconfig. platform: it uses " +
			"stunner-config. The GatewayClass decides.",
		says: "GatewayClass stunner-gatewayclass: spec.parametersRef: GatewayConfig " +
			"stunner/stunner-gatewayconfig does not exist",
		outcome: `Gateway v1 stunner/stunner-gateway: !Accepted:Pending !Programmed:Invalid
  udp-listener, 0 routes: Accepted !Conflicted:NoConflicts !Programmed:Pending ResolvedRefs
  tcp-listener, 0 routes: Accepted !Conflicted:NoConflicts !Programmed:Pending ResolvedRefs
no config
`,
	},
	{
		manifest: "reference/udp-gateway", when: "beside platform/gateway",
		with: []string{"platform/gatewayconfig", "platform/gateway"}, also: profile,
		contradicts: "reference: every Gateway has a Deployment. platform: the Deployment has the name stunner, " +
			"which one Gateway of a namespace can have. The older Gateway has it.",
		says: `Dataplane default: spec.workloadName: "stunner" is the workload of Gateway stunner/stunner-gateway: ` +
			"use another Dataplane",
		outcome: platformGateway + `Gateway v1 stunner/udp-gateway: !Accepted:Pending !Programmed:Invalid
  udp-listener, 0 routes: Accepted !Conflicted:NoConflicts !Programmed:Pending ResolvedRefs
no config
`,
	},
	{
		manifest: "platform/route", with: []string{"platform/gatewayconfig", "platform/gateway"}, also: profile,
		outcome: strings.NewReplacer(
			"0 routes", "1 routes", ":3478\n  TURN", ":3478, to stunner/media-route\n  TURN", ":3478\nService",
			":3478, to stunner/media-route\n  stunner/media-route: 10.4.0.4 10.96.200.31\nService",
		).Replace(platformGateway) + "UDPRoute v1 stunner/media-route: stunner-gateway Accepted ResolvedRefs\n",
	},
	{
		manifest: "platform/gatewayconfig", with: []string{"platform/gateway"}, also: profile,
		contradicts: "platform: password is a reference to a Secret, longterm has no sharedSecret, and realm is no " +
			"DNS name. reference: password is a string, longterm needs a sharedSecret, and realm is a DNS " +
			"name. Both forms are accepted, and the password is the shared secret too.",
		says: `spec.realm "stunner.<domain>" is no DNS name`,
		outcome: platformGateway +
			"GatewayConfig v1 stunner/stunner-config: Accepted InUse:Used RealmNotDNSName:Warning\n",
	},
	{
		manifest: "platform/gatewayconfig", when: "in the class of the reference", with: reference(),
		contradicts: "As for platform/gateway: the GatewayClass names another GatewayConfig, so this one has no " +
			"effect.",
		outcome: "GatewayConfig v1 stunner/stunner-config: Accepted !InUse:Unused RealmNotDNSName:Warning\n",
	},
	{
		manifest: "platform/gatewayconfig-without-name", with: []string{"platform/gateway"}, also: profile,
		contradicts: "platform: authLifetime limits credentials. reference: authLifetime has no effect. It limits " +
			"those of the auth service. The manifest is a fragment.",
		refused: "metadata.name: Required value",
		problem: "Error metadata.name: fragment without metadata.name: an object needs apiVersion, kind and " +
			"metadata.name as strings",
		remedy: strings.NewReplacer("spec:\n", "metadata: {name: stunner-config, namespace: stunner}\nspec:\n"+
			"  userName: visitor\n  password: {name: stunner-credentials}\n"),
		outcome: strings.Replace(platformGateway, "stunner.<domain>", "stunner.l7mp.io for 86400 s", 1) +
			"GatewayConfig v1 stunner/stunner-config: Accepted InUse:Used\n",
	},
	{
		manifest: "platform/scaledobject", with: []string{"platform/gatewayconfig", "platform/gateway"}, also: profile,
		contradicts: "platform: the Deployment has the name stunner. reference: it has the name of the Gateway. " +
			"spec.workloadName of the Dataplane decides.",
		problem: passed,
		outcome: platformGateway + "ScaledObject v1alpha1 stunner/stunner-scaler: scales Deployment stunner\n",
	},
	{
		manifest: "platform/scaledobject", when: "without workloadName",
		with: []string{"platform/gatewayconfig", "platform/gateway"}, also: withoutProfile,
		contradicts: "As above: the Deployment has the name of the Gateway, so KEDA does not find its target, and " +
			"reports it in the status of the ScaledObject.",
		problem: passed,
		outcome: strings.Replace(platformGateway, "Deployment stunner:", "Deployment stunner-gateway:", 1) +
			"ScaledObject v1alpha1 stunner/stunner-scaler: scales Deployment stunner\n",
	},
}
