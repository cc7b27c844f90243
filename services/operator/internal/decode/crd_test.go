package decode

import (
	"fmt"
	"strings"
	"testing"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// Objects that violate their CRD are refused. No message has the value.
func TestDecodeRefusesWhatTheCRDsForbid(t *testing.T) {
	const own, gatewayAPI = "stunner.l7mp.io/v1", "gateway.networking.k8s.io/v1"
	route := func(backend string) string { return "{rules: [{backendRefs: [" + backend + "]}]}" }
	gateway := func(rest string) string {
		return "{gatewayClassName: c, listeners: [{name: a, port: 1, protocol: UDP}" + rest
	}
	for _, c := range []struct{ name, version, kind, spec, want string }{
		{"a negative grace period", own, "Dataplane", "{terminationGracePeriodSeconds: -1}",
			"spec.terminationGracePeriodSeconds: Invalid value: should be greater than or equal to 0"},
		{"an interface twice", own, "Dataplane", "{offloadInterfaces: [eth0, eth0]}", "spec.offloadInterfaces[1]: Duplicate value"},
		{"too many allocations", own, "Dataplane", "{autoscaling: {maxReplicas: 2, allocationsPerReplica: 1000001}}",
			"spec.autoscaling.allocationsPerReplica: Invalid value: should be less than or equal to 1000000"},
		{"authRef to a ConfigMap", own, "GatewayConfig", "{authRef: {kind: ConfigMap, name: s}}", "spec.authRef: Invalid value: kind must be Secret"},
		{"authRef in group apps", own, "GatewayConfig", "{authRef: {group: apps, name: s}}", "spec.authRef: Invalid value: group must be empty or v1"},
		{"authRef without name", own, "GatewayConfig", "{authRef: {}}", "spec.authRef.name: Required value"},
		{"an empty realm", own, "GatewayConfig", `{realm: ""}`, "spec.realm: Invalid value: should be at least 1 chars long"},
		{"a negative grace", own, "GatewayConfig", "{sessionGrace: -5s}", "spec.sessionGrace: Invalid value: should match"},
		{"a StaticService in the core group", own, "UDPRoute", route("{kind: StaticService, name: s}"),
			"spec.rules[0].backendRefs[0]: Invalid value: kind Service has an empty group"},
		{"a Service in group apps", own, "UDPRoute", route("{group: apps, kind: Service, name: s}"),
			"spec.rules[0].backendRefs[0]: Invalid value: kind Service has an empty group"},
		{"a backend of kind Deployment", own, "UDPRoute", route("{kind: Deployment, name: s}"),
			`spec.rules[0].backendRefs[0].kind: Unsupported value: supported values: "Service", "StaticService"`},
		{"port 0 of a parent", own, "UDPRoute", "{parentRefs: [{name: g, port: 0}], rules: [{backendRefs: [{name: b}]}]}",
			"spec.parentRefs[0].port: Invalid value: should be greater than or equal to 1"},
		{"no prefixes", own, "StaticService", "{}", "spec.prefixes: Required value"},
		{"a patch that is a list", own, "Dataplane", "{podTemplatePatch: [1]}", "spec.podTemplatePatch: is a list, must be a mapping"},
		{"a variable without name", own, "Dataplane", "{env: [{value: x}]}", "spec.env[0].name: Required value"},
		{"an address that is none", gatewayAPI, "Gateway", gateway(
			"], addresses: [{value: not-an-ip}]}",
		), "spec.addresses[0]: Invalid value"},
		{"a hostname that is none", gatewayAPI, "Gateway", gateway(
			", {name: b, port: 2, protocol: X, hostname: ..bad..}]}",
		),
			"spec.listeners[1].hostname: Invalid value: should match"},
		{"a protocol that is none", gatewayAPI, "Gateway", gateway(", {name: b, port: 2, protocol: TURN UDP!}]}"),
			"spec.listeners[1].protocol: Invalid value: should match"},
		{"TLS over UDP", gatewayAPI, "Gateway", gateway(
			", {name: b, port: 2, protocol: UDP, tls: {certificateRefs: [{name: s}]}}]}",
		),
			"spec.listeners[1]: Invalid value: tls must not be specified"},
		{"two listeners on one port", gatewayAPI, "Gateway", gateway(", {name: b, port: 1, protocol: UDP}]}"),
			"spec.listeners: Invalid value: Combination of port, protocol and hostname must be unique"},
		{"a bad prefix among good ones", own, "StaticService", "{prefixes: [192.0.2.1, bad, 192.0.2.0/24]}",
			"spec.prefixes[1]: Invalid value: each prefix must be an IP address"},
		{"a password in a URL", own, "Dataplane",
			"{autoscaling: {maxReplicas: 2, trigger: prometheus, prometheus: {serverAddress: 'http://ada:hunter2@p'}}}",
			"spec.autoscaling.prometheus.serverAddress: Invalid value: serverAddress must hold no credentials"},
		{"a secret of the wrong type", own, "GatewayConfig", "{userQuota: hunter2}", "spec.userQuota: is a string, must be a whole number"},
		{"a secret in a word of a list", own, "GatewayConfig", "{authType: hunter2}", "spec.authType: Unsupported value: supported values"},
		{"a secret with a format", own, "Dataplane", "{podTemplatePatch: hunter2}", "spec.podTemplatePatch: is a string, must be a mapping"},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {name: n}\nspec: %s\n", c.version, c.kind, c.spec)
			objects, problems := File("f.yaml", []byte(text))
			if len(objects) != 0 || len(problems) == 0 {
				t.Fatalf("in force, want %q", c.want)
			}
			got := problems[0].Field + ": " + problems[0].Message
			if !strings.HasPrefix(got, c.want) || problems[0].Line != 4 ||
				strings.Contains(fmt.Sprint(problems), "hunter2") {
				t.Errorf("got %v, want %q at line 4", problems, c.want)
			}
		})
	}
}

// The status of a document is kept. Defaults and rules do not apply to it.
func TestDecodeKeepsTheStatus(t *testing.T) {
	text := gatewayWith("    port: 1\n    protocol: X\n")
	for _, status := range []string{"", "status: {addresses: [{value: 192.0.2.1}]}\n"} {
		objects, problems := File("f.yaml", []byte(text+status))
		if len(objects) != 1 || len(problems) != 0 {
			t.Fatalf("%d objects, problems %v", len(objects), problems)
		}
		got := objects[0].Object.(*gatewayv1.Gateway).Status
		if len(got.Conditions) != 0 || (len(got.Addresses) == 1) != (status != "") {
			t.Errorf("status %+v of %q", got, status)
		}
	}
}

// BenchmarkFolder decodes 500 files, without reading them from disk.
func BenchmarkFolder(b *testing.B) {
	documents := []string{
		gatewayWith(
			"    port: 3478\n    protocol: TURN-UDP\n  - name: b\n    port: 443\n    protocol: TURN-TLS\n    tls: {certificateRefs: [{name: cert}]}\n",
		),
		"apiVersion: stunner.l7mp.io/v1\nkind: UDPRoute\nmetadata: {name: r}\nspec:\n  parentRefs: [{name: edge}]\n  rules: [{backendRefs: [{name: b, port: 1, endPort: 9}]}]\n",
		"apiVersion: stunner.l7mp.io/v1\nkind: GatewayConfig\nmetadata: {name: c}\nspec: {authRef: {name: s}, deniedBackends: [{namespace: a}]}\n",
		"apiVersion: stunner.l7mp.io/v1\nkind: Dataplane\nmetadata: {name: d}\nspec: {autoscaling: {maxReplicas: 3}, env: [{name: A, value: b}]}\n",
		three[0] + "---\n" + three[1] + "---\n" + three[2],
	}
	for b.Loop() {
		for i := range 500 {
			if _, problems := File("f.yaml", []byte(documents[i%len(documents)])); len(problems) != 0 {
				b.Fatal(problems)
			}
		}
	}
}
