package crd

import (
	"reflect"
	"strings"
	"testing"
)

// admission is a row of the admission table: an object, and the answer of an API server.
type admission struct {
	name, kind, spec string
	want             string // part of the error; empty when the object is valid
}

// admissions has valid and invalid objects of every kind with a CRD.
var admissions = []admission{
	{"an empty config is good", "GatewayConfig", `{}`, ""},
	{"inline credentials", "GatewayConfig", `{userName: ada, password: larkspur}`, ""},
	{"a password in a Secret", "GatewayConfig", `{userName: ada, password: {name: turn-users, key: ada}}`, ""},
	{"a password in a Secret of another namespace", "GatewayConfig", `{password: {name: turn-users, namespace: vault, key: ada}}`, ""},
	{"a user name and a shared secret in Secrets", "GatewayConfig", `{userName: {name: users}, sharedSecret: {name: signing}}`, ""},
	{"static", "GatewayConfig", `{authType: static}`, ""},
	{"longterm", "GatewayConfig", `{authType: longterm}`, ""},
	{"ephemeral", "GatewayConfig", `{authType: ephemeral}`, ""},
	{"timewindowed", "GatewayConfig", `{authType: timewindowed}`, ""},
	{"no authentication", "GatewayConfig", `{authType: none}`, ""},
	{"an unknown authentication", "GatewayConfig", `{authType: kerberos}`, `Unsupported value: "kerberos"`},
	{"a part of a known authentication", "GatewayConfig", `{authType: xplaintext}`, "Unsupported value"},
	{"a realm that is a placeholder", "GatewayConfig", `{realm: calls.<domain>}`, ""},
	{"a realm of two words", "GatewayConfig", `{realm: Field Hospital}`, ""},
	{"a realm with an umlaut", "GatewayConfig", `{realm: telefon.für.alle}`, ""},
	{"a realm of 127 characters", "GatewayConfig", `{realm: ` + strings.Repeat("r", 127) + `}`, ""},
	{"a realm of 128 characters", "GatewayConfig", `{realm: ` + strings.Repeat("r", 128) + `}`, "spec.realm: Too long"},
	{"an empty realm", "GatewayConfig", `{realm: ""}`, "spec.realm"},
	{"a realm with a quote", "GatewayConfig", `{realm: 'a"b'}`, "spec.realm"},
	{"a realm with a backslash", "GatewayConfig", `{realm: 'a\b'}`, "spec.realm"},
	{"a realm with a line break", "GatewayConfig", `{realm: "a\nb"}`, "spec.realm"},
	{"a lifetime", "GatewayConfig", `{authLifetime: 600, sessionGrace: 90s}`, ""},
	{"a lifetime of nothing", "GatewayConfig", `{authLifetime: 0}`, "spec.authLifetime"},
	{"a lifetime that is a duration", "GatewayConfig", `{authLifetime: 1h}`, "spec.authLifetime: Invalid value"},
	{"a grace without unit", "GatewayConfig", `{sessionGrace: "90"}`, "spec.sessionGrace"},
	{"a negative grace", "GatewayConfig", `{sessionGrace: -5s}`, "spec.sessionGrace"},
	{"an overlap", "GatewayConfig", `{credentialOverlap: 30m}`, ""},
	{"no overlap", "GatewayConfig", `{credentialOverlap: 0s}`, ""},
	{"an overlap without unit", "GatewayConfig", `{credentialOverlap: "90"}`, "spec.credentialOverlap"},
	{"a negative overlap", "GatewayConfig", `{credentialOverlap: -5s}`, "spec.credentialOverlap"},
	{"a quota", "GatewayConfig", `{userQuota: 12, stunMode: true, requireReferenceGrants: true}`, ""},
	{"a negative quota", "GatewayConfig", `{userQuota: -1}`, "spec.userQuota"},
	{"bounds", "GatewayConfig", `{sourceQuota: 40, sessionByteRate: 250000, userByteRate: 5000000000}`, ""},
	{"a negative source quota", "GatewayConfig", `{sourceQuota: -1}`, "spec.sourceQuota"},
	{"a negative rate of sessions", "GatewayConfig", `{sessionByteRate: -1}`, "spec.sessionByteRate"},
	{"a negative rate of users", "GatewayConfig", `{userByteRate: -1}`, "spec.userByteRate"},
	{"prefixes of StaticServices", "GatewayConfig", `{deniedPrefixes: [10.0.0.0/8, "fd00::/8"], allowedPrefixes: [10.1.0.0/16]}`, ""},
	{"a denied address without a length", "GatewayConfig", `{deniedPrefixes: [10.0.0.1]}`, "each entry must be a CIDR prefix"},
	{"an allowed prefix that is a name", "GatewayConfig", `{allowedPrefixes: [pods]}`, "each entry must be a CIDR prefix"},
	{"internal addresses of nodes", "GatewayConfig", `{nodeAddresses: ExternalOrInternal}`, ""},
	{"other addresses of nodes", "GatewayConfig", `{nodeAddresses: Internal}`, "spec.nodeAddresses"},
	{"a provider of load balancers", "GatewayConfig", `{loadBalancerProvider: kube-vip}`, ""},
	{"an unknown provider of load balancers", "GatewayConfig", `{loadBalancerProvider: AWS}`, "spec.loadBalancerProvider"},
	{"no denied backends", "GatewayConfig", `{deniedBackends: []}`, ""},
	{"denied backends", "GatewayConfig", `{deniedBackends: [{namespace: vault}, {selector: {matchLabels: {tier: secret}}}]}`, ""},
	{"denied backends of no description", "GatewayConfig", `{deniedBackends: [{}]}`, "namespace or selector must be set"},
	{"denied backends of an empty namespace", "GatewayConfig", `{deniedBackends: [{namespace: ""}]}`, "spec.deniedBackends[0].namespace"},
	{"authentication in a Secret", "GatewayConfig", `{authRef: {name: turn-auth}}`, ""},
	{"authentication in a Secret of group v1", "GatewayConfig", `{authRef: {group: v1, kind: Secret, name: turn-auth, namespace: vault}}`, ""},
	{"authentication in a ConfigMap", "GatewayConfig", `{authRef: {kind: ConfigMap, name: turn-auth}}`, "kind must be Secret"},
	{"authentication in another group", "GatewayConfig", `{authRef: {group: apps, name: turn-auth}}`, "group must be empty or v1"},
	{"authentication nowhere", "GatewayConfig", `{authRef: {kind: Secret}}`, "spec.authRef.name: Required value"},

	{"an empty dataplane is good", "Dataplane", `{}`, ""},
	{"a daemon set", "Dataplane", `{dataplaneResource: DaemonSet, offloadEngine: XDP, offloadInterfaces: [eth0]}`, ""},
	{"another workload", "Dataplane", `{dataplaneResource: StatefulSet}`, "Unsupported value"},
	{"replicas of a daemon set", "Dataplane", `{dataplaneResource: DaemonSet, replicas: 2}`, ""},
	{"relay ports", "Dataplane", `{relayPortRange: {minPort: 40000, maxPort: 40000}}`, ""},
	{"relay ports upside down", "Dataplane", `{relayPortRange: {minPort: 50000, maxPort: 40000}}`, "maxPort must not be less than minPort"},
	{"relay ports of well-known services", "Dataplane", `{relayPortRange: {minPort: 1023, maxPort: 40000}}`, "spec.relayPortRange.minPort"},
	{"relay ports beyond the last", "Dataplane", `{relayPortRange: {minPort: 40000, maxPort: 65536}}`, "spec.relayPortRange.maxPort"},
	{"relay ports without an end", "Dataplane", `{relayPortRange: {minPort: 40000}}`, "spec.relayPortRange.maxPort"},
	{"autoscaling of a daemon set", "Dataplane", `{dataplaneResource: DaemonSet, autoscaling: {maxReplicas: 2}}`, "autoscaling needs dataplaneResource Deployment"},
	{"negative replicas", "Dataplane", `{replicas: -1}`, "spec.replicas"},
	{"autoscaling", "Dataplane", `{autoscaling: {minReplicas: 2, maxReplicas: 2, allocationsPerReplica: 1, trigger: external, pollingInterval: 5}}`, ""},
	{"autoscaling by a Prometheus", "Dataplane", `{autoscaling: {maxReplicas: 2, trigger: prometheus, prometheus: {serverAddress: 'https://p.example.net/select/0'}}}`, ""},
	{"autoscaling by a Prometheus with a token", "Dataplane",
		`{autoscaling: {maxReplicas: 2, trigger: prometheus, prometheus: {serverAddress: 'http://p:9090', authModes: [bearer], authenticationRef: {name: p, kind: ClusterTriggerAuthentication}}}}`, ""},
	{"autoscaling by no Prometheus", "Dataplane", `{autoscaling: {maxReplicas: 2, trigger: prometheus}}`, "trigger prometheus needs prometheus.serverAddress"},
	{"autoscaling by the operator and a Prometheus", "Dataplane", `{autoscaling: {maxReplicas: 2, prometheus: {serverAddress: 'http://p'}}}`, "prometheus needs trigger prometheus"},
	{"a Prometheus that is no URL", "Dataplane", `{autoscaling: {maxReplicas: 2, trigger: prometheus, prometheus: {serverAddress: 'p:9090'}}}`, "serverAddress must be an http or https URL"},
	{"a Prometheus by FTP", "Dataplane", `{autoscaling: {maxReplicas: 2, trigger: prometheus, prometheus: {serverAddress: 'ftp://p'}}}`, "serverAddress must be an http or https URL"},
	{"a password in a URL", "Dataplane", `{autoscaling: {maxReplicas: 2, trigger: prometheus, prometheus: {serverAddress: 'http://ada:larkspur@p'}}}`, "serverAddress must hold no credentials"},
	{"a Prometheus with a token of nobody", "Dataplane", `{autoscaling: {maxReplicas: 2, trigger: prometheus, prometheus: {serverAddress: 'http://p', authModes: [bearer]}}}`, "authModes needs authenticationRef"},
	{"a Prometheus that knows a handshake", "Dataplane", `{autoscaling: {maxReplicas: 2, trigger: prometheus, prometheus: {serverAddress: 'http://p', authModes: [handshake], authenticationRef: {name: p}}}}`, "Unsupported value"},
	{"autoscaling that never asks", "Dataplane", `{autoscaling: {maxReplicas: 2, pollingInterval: 0}}`, "spec.autoscaling.pollingInterval"},
	{"a behavior", "Dataplane", `{autoscaling: {maxReplicas: 2, behavior: {scaleDown: {stabilizationWindowSeconds: 3600, policies: [{type: Pods, value: 1, periodSeconds: 60}]}}}}`, ""},
	{"a behavior that waits for hours", "Dataplane", `{autoscaling: {maxReplicas: 2, behavior: {scaleDown: {stabilizationWindowSeconds: 7200}}}}`, "behavior.scaleDown.stabilizationWindowSeconds must be from 0 to 3600"},
	{"autoscaling with one bound", "Dataplane", `{autoscaling: {maxReplicas: 3}}`, ""},
	{"autoscaling without upper bound", "Dataplane", `{autoscaling: {minReplicas: 2}}`, "spec.autoscaling.maxReplicas: Required value"},
	{"autoscaling with bounds reversed", "Dataplane", `{autoscaling: {minReplicas: 3, maxReplicas: 2}}`, "maxReplicas must not be less than minReplicas: raise maxReplicas"},
	{"autoscaling to zero", "Dataplane", `{autoscaling: {minReplicas: 0, maxReplicas: 2}}`, "spec.autoscaling.minReplicas"},
	{"autoscaling on too many allocations", "Dataplane", `{autoscaling: {maxReplicas: 2, allocationsPerReplica: 1000001}}`, "spec.autoscaling.allocationsPerReplica"},
	{"autoscaling on no allocations", "Dataplane", `{autoscaling: {maxReplicas: 2, allocationsPerReplica: 0}}`, "spec.autoscaling.allocationsPerReplica"},
	{"autoscaling by guess", "Dataplane", `{autoscaling: {maxReplicas: 2, trigger: guess}}`, "Unsupported value"},
	{"a workload name", "Dataplane", `{workloadName: turn-edge}`, ""},
	{"a workload name with a dot", "Dataplane", `{workloadName: turn.edge}`, "spec.workloadName"},
	{"another pull policy", "Dataplane", `{imagePullPolicy: Sometimes}`, "Unsupported value"},
	{"another offload engine", "Dataplane", `{offloadEngine: DPDK}`, "Unsupported value"},
	{"an interface twice", "Dataplane", `{offloadInterfaces: [eth0, eth0]}`, "Duplicate value"},
	{"a variable that overrides another", "Dataplane", `{env: [{name: A, value: "1"}, {name: A, value: "2"}]}`, ""},
	{"a negative grace period", "Dataplane", `{terminationGracePeriodSeconds: -1}`, "spec.terminationGracePeriodSeconds"},
	{"a Service for one family", "Dataplane", `{service: {loadBalancerClass: metal.example.net/edge, ipFamilies: [IPv6], allocateLoadBalancerNodePorts: false}}`, ""},
	{"a Service for both families", "Dataplane", `{service: {ipFamilies: [IPv6, IPv4], ipFamilyPolicy: RequireDualStack}}`, ""},
	{"a Service for both families and one stack", "Dataplane", `{service: {ipFamilies: [IPv6, IPv4], ipFamilyPolicy: SingleStack}}`, "two ipFamilies need ipFamilyPolicy"},
	{"a Service for both families of no policy", "Dataplane", `{service: {ipFamilies: [IPv6, IPv4]}}`, "two ipFamilies need ipFamilyPolicy"},
	{"a Service for one family twice", "Dataplane", `{service: {ipFamilies: [IPv6, IPv6], ipFamilyPolicy: PreferDualStack}}`, "ipFamilies must not name a family twice"},
	{"a Service for another family", "Dataplane", `{service: {ipFamilies: [IPX]}}`, "Unsupported value"},
	{"a Service for three families", "Dataplane", `{service: {ipFamilies: [IPv4, IPv6, IPv4]}}`, "Too many"},
	{"another policy of families", "Dataplane", `{service: {ipFamilyPolicy: TripleStack}}`, "Unsupported value"},
	{"a class of load balancers that is no name", "Dataplane", `{service: {loadBalancerClass: "metal balancer"}}`, "spec.service.loadBalancerClass"},
	{"a class of load balancers without name", "Dataplane", `{service: {loadBalancerClass: ""}}`, "spec.service.loadBalancerClass"},
	{"source ranges", "Dataplane", `{service: {loadBalancerSourceRanges: [198.51.100.0/24, "2001:db8::/48"]}}`, ""},
	{"a source range that is an address", "Dataplane", `{service: {loadBalancerSourceRanges: [198.51.100.7]}}`, "each source range must be a CIDR prefix"},
	{"a patch of the pods", "Dataplane", `{enableNetworkPolicy: true, podTemplatePatch: {spec: {priorityClassName: media}}}`, ""},
	{"a patch that is no object", "Dataplane", `{podTemplatePatch: [1]}`, "spec.podTemplatePatch"},

	{"prefixes of both families", "StaticService", `{prefixes: [0.0.0.0/0, "::/0", 198.51.100.0/25, "2001:db8::/32"]}`, ""},
	{"hosts of both families", "StaticService", `{prefixes: [203.0.113.9, "2001:db8::9"]}`, ""},
	{"a prefix with host bits", "StaticService", `{prefixes: [198.51.100.77/24]}`, ""},
	{"no prefixes", "StaticService", `{prefixes: []}`, ""},
	{"prefixes forgotten", "StaticService", `{}`, "spec.prefixes: Required value"},
	{"a prefix that is too long", "StaticService", `{prefixes: [10.0.0.0/8, 10.0.0.0/33]}`, "each prefix must be an IP address or a CIDR prefix"},
	{"a host name", "StaticService", `{prefixes: [bridge.example.net]}`, "each prefix must be"},
	{"a port range", "StaticService", `{prefixes: ["198.51.100.0/25:<5000-5999>"]}`, "each prefix must be"},
	{"an empty prefix", "StaticService", `{prefixes: [""]}`, "each prefix must be"},

	{"a revoked user", "Revocation", `{user: ada}`, ""},
	{"a revoked credential", "Revocation", `{credential: "1893456000:ada", until: "2030-01-01T01:00:00Z"}`, ""},
	{"all fields of a revocation", "Revocation", `{user: "a:b%25", issuedBefore: "2030-01-01T00:00:00Z", until: "2030-01-02T00:00:00Z", gateways: [lobby]}`, ""},
	{"nobody revoked", "Revocation", `{}`, "set one of user and credential"},
	{"a user and a credential", "Revocation", `{user: ada, credential: "1893456000:ada"}`, "set one of user and credential"},
	{"an empty user", "Revocation", `{user: ""}`, "spec.user"},
	{"a user that is too long", "Revocation", `{user: ` + strings.Repeat("a", 509) + `}`, "spec.user: Too long"},
	{"a credential with a time of issue", "Revocation", `{credential: "1893456000:ada", issuedBefore: "2030-01-01T00:00:00Z"}`, "issuedBefore is for user"},
	{"an end before the begin", "Revocation", `{user: ada, issuedBefore: "2030-01-01T00:00:00Z", until: "2030-01-01T00:00:00Z"}`, "until must be later than issuedBefore"},
	{"a time that is none", "Revocation", `{user: ada, until: tomorrow}`, "spec.until"},
	{"no gateways", "Revocation", `{user: ada, gateways: []}`, "spec.gateways"},
	{"a gateway twice", "Revocation", `{user: ada, gateways: [a, a]}`, "spec.gateways[1]: Duplicate value"},

	{"a backend", "UDPRoute", route(`{name: sfu}`), ""},
	{"a backend without parents", "UDPRoute", `{rules: [{backendRefs: [{name: sfu}]}]}`, ""},
	{"a backend with all said", "UDPRoute", route(
		`{group: "", kind: Service, name: sfu, namespace: media, port: 1, endPort: 65535}`,
	), ""},
	{"a static backend", "UDPRoute", route(`{group: stunner.l7mp.io, kind: StaticService, name: bridge}`), ""},
	{"a range of one port", "UDPRoute", route(`{name: sfu, port: 5004, endPort: 5004}`), ""},
	{"a range reversed", "UDPRoute", route(
		`{name: sfu, port: 5004, endPort: 5003}`,
	), "endPort must not be less than port"},
	{"a range without beginning", "UDPRoute", route(`{name: sfu, endPort: 5003}`), "endPort needs port"},
	{"port 0", "UDPRoute", route(`{name: sfu, port: 0}`), "port"},
	{"port 65536", "UDPRoute", route(`{name: sfu, port: 65536}`), "port"},
	{"a range up to port 65536", "UDPRoute", route(`{name: sfu, port: 1, endPort: 65536}`), "endPort"},
	{"a parent's port 0", "UDPRoute", `{parentRefs: [{name: front-door, port: 0}], rules: [{backendRefs: [{name: sfu}]}]}`, "spec.parentRefs[0].port"},
	{"a static backend in the core group", "UDPRoute", route(
		`{kind: StaticService, name: bridge}`,
	), "kind StaticService has group stunner.l7mp.io"},
	{"a Service in our group", "UDPRoute", route(
		`{group: stunner.l7mp.io, name: sfu}`,
	), "kind Service has an empty group"},
	{"a Service in another group", "UDPRoute", route(
		`{group: apps, kind: Service, name: sfu}`,
	), "kind Service has an empty group"},
	{"another kind of backend", "UDPRoute", route(`{kind: Deployment, name: sfu}`), "Unsupported value"},
	{"a backend without name", "UDPRoute", route(`{kind: Service}`), "name: Required value"},
	{"no rules", "UDPRoute", `{rules: []}`, "spec.rules: Invalid value"},
	{"a rule without backends", "UDPRoute", `{rules: [{backendRefs: []}]}`, "backendRefs: Invalid value"},
	{"16 rules of 16 backends", "UDPRoute", rules(16, 16), ""},
	{"17 rules", "UDPRoute", rules(17, 1), "spec.rules: Too many"},
	{"17 backends", "UDPRoute", rules(1, 17), "backendRefs: Too many"},

	{"a controller", "GatewayClass", `{controllerName: stunner.l7mp.io/gateway-operator, parametersRef: {group: stunner.l7mp.io, kind: GatewayConfig, name: turn, namespace: media}}`, ""},
	{"a controller without domain", "GatewayClass", `{controllerName: turn}`, "spec.controllerName"},
	{"a class without controller", "GatewayClass", `{}`, "spec.controllerName: Required value"},
	{"parameters without name", "GatewayClass", `{controllerName: a.b/c, parametersRef: {group: stunner.l7mp.io, kind: GatewayConfig}}`, "spec.parametersRef.name: Required value"},

	{"listeners", "Gateway", gateway(
		`{name: udp, port: 3478, protocol: TURN-UDP}, {name: tls, port: 443, protocol: TURN-TLS, hostname: turn.example.net, tls: {certificateRefs: [{name: cert}]}}`,
	), ""},
	{"an address", "Gateway", `{gatewayClassName: turn, addresses: [{value: 192.0.2.7}, {type: Hostname, value: turn.example.net}], listeners: [{name: udp, port: 3478, protocol: TURN-UDP}]}`, ""},
	{"listeners for other namespaces", "Gateway", gateway(
		`{name: udp, port: 3478, protocol: TURN-UDP, allowedRoutes: {namespaces: {from: Selector, selector: {matchLabels: {a: b}}}, kinds: [{group: stunner.l7mp.io, kind: UDPRoute}]}}`,
	), ""},
	{"infrastructure", "Gateway", `{gatewayClassName: turn, infrastructure: {labels: {a: b}, annotations: {c: d}, parametersRef: {group: stunner.l7mp.io, kind: GatewayConfig, name: own}}, listeners: [{name: udp, port: 3478, protocol: TURN-UDP}]}`, ""},
	{"a Gateway without listeners", "Gateway", `{gatewayClassName: turn}`, "spec.listeners"},
	{"a Gateway without class", "Gateway", `{listeners: [{name: udp, port: 3478, protocol: TURN-UDP}]}`, "spec.gatewayClassName: Required value"},
	{"an address that is none", "Gateway", `{gatewayClassName: turn, addresses: [{value: not-an-ip}], listeners: [{name: udp, port: 3478, protocol: TURN-UDP}]}`, "spec.addresses[0]"},
	{"a hostname that is none", "Gateway", gateway(
		`{name: tls, port: 443, protocol: TURN-TLS, hostname: ..bad..}`,
	), "spec.listeners[0].hostname"},
	{"a protocol that is none", "Gateway", gateway(
		`{name: udp, port: 3478, protocol: TURN UDP!}`,
	), "spec.listeners[0].protocol"},
	{"TLS over UDP", "Gateway", gateway(
		`{name: udp, port: 3478, protocol: UDP, tls: {certificateRefs: [{name: cert}]}}`,
	), "tls must not be specified"},
	{"two listeners on one port", "Gateway", gateway(
		`{name: a, port: 3478, protocol: TURN-UDP}, {name: b, port: 3478, protocol: TURN-UDP}`,
	), "must be unique"},
	{"two listeners of one name", "Gateway", gateway(
		`{name: a, port: 1, protocol: TURN-UDP}, {name: a, port: 2, protocol: TURN-UDP}`,
	), "spec.listeners[1]: Duplicate value"},

	{"a backend", "UDPRoute.gateway.networking.k8s.io", route(`{name: sfu, port: 5004, weight: 3}`), ""},
	{"a backend that is no Service", "UDPRoute.gateway.networking.k8s.io", route(
		`{group: stunner.l7mp.io, kind: StaticService, name: bridge}`,
	), ""},
	{"two rules", "UDPRoute.gateway.networking.k8s.io", rules(2, 1), "spec.rules: Too many"},
	{"a Service without port", "UDPRoute.gateway.networking.k8s.io", route(`{name: sfu}`), "Must have port"},

	{"a grant", "ReferenceGrant", `{from: [{group: stunner.l7mp.io, kind: GatewayConfig, namespace: media}], to: [{group: "", kind: Secret, name: turn}, {group: "", kind: Service}]}`, ""},
	{"a grant without namespace", "ReferenceGrant", `{from: [{group: stunner.l7mp.io, kind: GatewayConfig}], to: [{group: "", kind: Secret}]}`, "spec.from[0].namespace: Required value"},
	{"a grant of an empty name", "ReferenceGrant", `{from: [{group: a, kind: B, namespace: c}], to: [{group: "", kind: Secret, name: ""}]}`, "spec.to[0].name"},
	{"a grant of nothing", "ReferenceGrant", `{from: [{group: a, kind: B, namespace: c}], to: []}`, "spec.to"},
}

// K-14: an API server accepts valid objects, and refuses invalid objects with the violated field or rule.
func TestAdmission(t *testing.T) {
	kinds := readKinds(t)
	for _, c := range admissions {
		t.Run(c.kind+": "+c.name, func(t *testing.T) {
			errs := kinds[c.kind].admit(t, parse(t, c.kind, c.spec))
			switch {
			case c.want == "" && len(errs) > 0:
				t.Errorf("refused: %v", errs.ToAggregate())
			case c.want != "" && len(errs) == 0:
				t.Errorf("accepted, want an error with %q", c.want)
			case c.want != "" && !strings.Contains(errs.ToAggregate().Error(), c.want):
				t.Errorf("the error is\n%v\nwant one with %q", errs.ToAggregate(), c.want)
			}
		})
	}
}

// gateway returns a spec with listeners.
func gateway(listeners string) string {
	return `{gatewayClassName: turn, listeners: [` + listeners + `]}`
}

// route returns a spec with one parent and one backend.
func route(backend string) string {
	return `{parentRefs: [{name: front-door}], rules: [{backendRefs: [` + backend + `]}]}`
}

// rules returns a spec with m rules of n backends.
func rules(m, n int) string {
	rule := `{backendRefs: [` + strings.Repeat(`{name: sfu, port: 5004, endPort: 5005},`, n) + `]},`
	return `{rules: [` + strings.Repeat(rule, m) + `]}`
}

func TestSecretReferencesAreNotPruned(t *testing.T) {
	want := map[string]any{"name": "turn-users", "namespace": "vault", "key": "ada"}
	object := parse(t, "GatewayConfig", `{password: {name: turn-users, namespace: vault, key: ada}}`)
	if errs := readKinds(t)["GatewayConfig"].admit(t, object); len(errs) > 0 {
		t.Fatal(errs.ToAggregate())
	}
	if got := object["spec"].(map[string]any)["password"]; !reflect.DeepEqual(got, want) {
		t.Errorf("password is stored as %v, want %v", got, want)
	}
}

// A patch without schema and an empty list are stored unchanged.
func TestObjectsAreStoredAsWritten(t *testing.T) {
	for kind, spec := range map[string]string{
		"Dataplane":     `{podTemplatePatch: {spec: {containers: [{name: tap, image: tap, $patch: replace}], volumes: null}}}`,
		"GatewayConfig": `{deniedBackends: []}`,
	} {
		object := parse(t, kind, spec)
		if errs := readKinds(t)[kind].admit(t, object); len(errs) > 0 {
			t.Fatal(errs.ToAggregate())
		}
		for field, want := range parse(t, kind, spec)["spec"].(map[string]any) {
			if got := object["spec"].(map[string]any)[field]; !reflect.DeepEqual(got, want) {
				t.Errorf("%s is stored as %v, want %v", field, got, want)
			}
		}
	}
}

func TestDefaultsAreFilledIn(t *testing.T) {
	for kind, c := range map[string]struct{ spec, want string }{
		"GatewayConfig": {
			`{}`,
			`{authType: plaintext, dataplane: default, realm: stunner.l7mp.io, deniedBackends: [{namespace: kube-system}]}`,
		},
		"Dataplane": {
			`{autoscaling: {maxReplicas: 4}}`,
			`{dataplaneResource: Deployment, terminationGracePeriodSeconds: 3600, offloadEngine: None,
			  autoscaling: {minReplicas: 1, maxReplicas: 4, allocationsPerReplica: 500, trigger: external}}`,
		},
		"UDPRoute": {
			`{parentRefs: [{name: front-door}], rules: [{backendRefs: [{name: sfu}]}]}`,
			`{parentRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: front-door}],
			  rules: [{backendRefs: [{group: "", kind: Service, name: sfu}]}]}`,
		},
	} {
		t.Run(kind, func(t *testing.T) {
			object := parse(t, kind, c.spec)
			if errs := readKinds(t)[kind].admit(t, object); len(errs) > 0 {
				t.Fatal(errs.ToAggregate())
			}
			if want := parse(t, kind, c.want); !reflect.DeepEqual(object["spec"], want["spec"]) {
				t.Errorf("spec is stored as\n%v\nwant\n%v", object["spec"], want["spec"])
			}
		})
	}
}
