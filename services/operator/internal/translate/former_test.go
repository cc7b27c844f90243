package translate_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/services/operator/internal/decode"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// formerInputs are inputs that the existing system accepts, for Gateway turn/lobby. The existing system has created the
// Service of the Gateway, which exposes all of its listeners.
var formerInputs = []struct {
	name string
	// listeners are NAME PROTOCOL PORT [tls], with tls in YAML.
	listeners []string
	// annotations of the Gateway, in YAML.
	annotations string
	// objects are further objects, in YAML.
	objects string
	// says are texts in the statuses, or in the problems of the folder.
	says []string
	// held means that no config is published, so that the dataplanes keep theirs.
	held bool
}{
	{
		name: "protocol UDP", listeners: []string{"a UDP 3478"},
		says: []string{`DeprecatedInput: protocol "UDP" is read as TURN-UDP: write protocol: TURN-UDP`},
	},
	{
		name: "protocol TCP", listeners: []string{"a TCP 3478"},
		says: []string{`protocol "TCP" is read as TURN-TCP`},
	},
	{
		name: "protocol TLS", listeners: []string{"a TLS 5349 {certificateRefs: [{name: own}]}"},
		says: []string{`protocol "TLS" is read as TURN-TLS`},
	},
	{
		name: "protocol DTLS", listeners: []string{"a DTLS 5349 {certificateRefs: [{name: own}]}"},
		says: []string{`protocol "DTLS" is read as TURN-DTLS`},
	},
	{
		name: "protocol in lower case", listeners: []string{"a udp 3478", "b turn-tcp 3478"},
		says: []string{`protocol "udp" is read as TURN-UDP`, "listener b: routes 0: good"},
	},
	{
		name: "TURN and short names", listeners: []string{"a TURN-UDP 3478", "b TCP 3478"},
		says: []string{`protocol "TCP" is read as TURN-TCP`},
	},
	{
		name:      "two short names on one port",
		listeners: []string{"a UDP 3478", "b DTLS 3478 {certificateRefs: [{name: own}]}"},
		says:      []string{"udp port 3478 is taken", "Service lobby of the existing system exposes it"},
		held:      true,
	},
	{
		name: "a protocol of HTTP routes", listeners: []string{"a UDP 3478", "b HTTP 80"},
		says: []string{`protocol "HTTP" is not supported`, "Service lobby of the existing system exposes it"},
		held: true,
	},
	{
		name:      "TLS that is passed through",
		listeners: []string{"a UDP 3478", "b TLS 443 {mode: Passthrough}"},
		says:      []string{`tls.mode "Passthrough" is not supported`},
		held:      true,
	},
	{
		name:      "a certificate of another namespace",
		listeners: []string{"a UDP 3478", "b TLS 443 {certificateRefs: [{namespace: guests, name: lent}]}"},
		says: []string{
			"ResolvedRefs=False/RefNotPermitted",
			"create a ReferenceGrant in namespace guests",
			"Service lobby of the existing system exposes it",
		},
		held: true,
	},
	{
		name:      "a certificate of another namespace with legacyGrants",
		listeners: []string{"a UDP 3478", "b TLS 443 {certificateRefs: [{namespace: guests, name: lent}]}"},
		objects:   siteWithSecret("legacyGrants: true"),
		says: []string{
			"GatewayConfig turn/site\n  Accepted=True/Accepted DeprecatedInput=True/Warning",
			`from: {group: gateway.networking.k8s.io, kind: Gateway, namespace: turn} and to: {group: "", kind: Secret, name: lent}`,
		},
	},
	{
		name:      "a certificate that is not there",
		listeners: []string{"a UDP 3478", "b TLS 443 {certificateRefs: [{name: absent}]}"},
		says:      []string{"Secret turn/absent does not exist"},
		held:      true,
	},
	{
		name:      "certificate keys of other names",
		listeners: []string{"a TURN-TLS 443 {certificateRefs: [{name: opaque}]}"},
		says:      []string{"Gateway turn/lobby [IPAddress 203.0.113.40]: good"},
	},
	{
		name: "a DaemonSet with one replica", listeners: []string{"a UDP 3478"},
		objects: dataplaneSpec("dataplaneResource: DaemonSet, replicas: 1"),
		says: []string{
			"Dataplane default\n  Accepted=True/Accepted DeprecatedInput=True/Warning",
			"spec.replicas is ignored",
		},
	},
	{
		name: "a DaemonSet with three replicas", listeners: []string{"a UDP 3478"},
		objects: dataplaneSpec("dataplaneResource: DaemonSet, replicas: 3"),
		says:    []string{"spec.replicas is ignored"},
	},
	{
		name: "an offload engine", listeners: []string{"a UDP 3478"},
		objects: dataplaneSpec("offloadEngine: XDP, offloadInterfaces: [eth0]"),
	},
	{
		name: "a chosen offload engine", listeners: []string{"a UDP 3478"},
		objects: dataplaneSpec("offloadEngine: Auto"),
		says:    []string{"Dataplane default: good"},
	},
	{
		name: "a route in version v1alpha2", listeners: []string{"a UDP 3478"},
		objects: `
apiVersion: gateway.networking.k8s.io/v1alpha2
kind: UDPRoute
metadata: {namespace: turn, name: media, generation: 1}
spec:
  parentRefs: [{name: lobby}]
  rules: [{backendRefs: [{namespace: rooms, name: sfu, port: 1}]}]
`,
		says: []string{
			"UDPRoute turn/media (gateway.networking.k8s.io/v1alpha2)\n  parent lobby: good", "listener a: routes 1",
		},
	},
	{
		name:      "a ReferenceGrant in version v1beta1",
		listeners: []string{"a TURN-TLS 443 {certificateRefs: [{namespace: guests, name: lent}]}"},
		objects: `
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {namespace: guests, name: lent}
spec:
  from: [{group: gateway.networking.k8s.io, kind: Gateway, namespace: turn}]
  to: [{group: "", kind: Secret}]
`,
		says: []string{"Gateway turn/lobby [IPAddress 203.0.113.40]: good"},
	},
	{
		name: "a GatewayConfig in version v1alpha1", listeners: []string{"a UDP 3478"},
		objects: strings.Replace(siteWithSecret("minPort: 10000, stunnerConfig: conf"), "/v1\n", "/v1alpha1\n", 1),
		says:    []string{"GatewayConfig turn/site: good"},
	},
	{
		name: "authentication of type plaintext", listeners: []string{"a UDP 3478"},
		objects: siteSpec("authType: plaintext, userName: caller, password: marzipan-and-rosewater"),
		says:    []string{"InsecureInlineCredentials"},
	},
	{
		name: "authentication of type longterm", listeners: []string{"a UDP 3478"},
		objects: siteSpec("authType: longterm, sharedSecret: marzipan-and-rosewater"),
		says:    []string{"InsecureInlineCredentials"},
	},
	{
		name: "authentication of type timewindowed", listeners: []string{"a UDP 3478"},
		objects: siteSpec("authType: timewindowed, sharedSecret: marzipan-and-rosewater"),
		says:    []string{"InsecureInlineCredentials"},
	},
	{
		name: "annotations as booleans without quotes", listeners: []string{"a UDP 3478", "b TCP 3478"},
		annotations: "stunner.l7mp.io/enable-mixed-protocol-lb: true",
		says:        []string{"quote", "Gateway turn/lobby [IPAddress 203.0.113.40]: good"},
	},
	{
		name: "a map of ports without braces", listeners: []string{"a UDP 3478"},
		annotations: `stunner.l7mp.io/nodeport: '"a":30001'`,
		says:        []string{"Gateway turn/lobby [IPAddress 203.0.113.40]: good"},
	},
	{
		name: "no authentication", listeners: []string{"a UDP 3478"},
		objects: siteSpec("authType: static"),
		says:    []string{"InvalidCredentials", "no config is published"},
		held:    true,
	},
}

func siteWithSecret(fields string) string { return siteSpec("authRef: {name: site-users}, " + fields) }

func siteSpec(fields string) string {
	return "apiVersion: stunner.l7mp.io/v1\nkind: GatewayConfig\n" +
		"metadata: {namespace: turn, name: site, generation: 4}\nspec: {" + fields + "}\n"
}

func dataplaneSpec(fields string) string {
	return "apiVersion: stunner.l7mp.io/v1\nkind: Dataplane\n" +
		"metadata: {name: default, generation: 1}\nspec: {" + fields + "}\n"
}

// An input that the existing system accepts has the same effect, or a condition gives the reason. At the first start, a
// config that dataplanes run is never replaced by a config with fewer listeners.
func TestFormerInputs(t *testing.T) {
	for _, in := range formerInputs {
		t.Run(in.name, func(t *testing.T) {
			var specs, ports, names []string
			for _, l := range in.listeners {
				f := strings.SplitN(l, " ", 4)
				spec := fmt.Sprintf("    - {name: %s, protocol: %s, port: %s", f[0], f[1], f[2])
				if len(f) == 4 {
					spec += ", tls: " + f[3]
				}
				network := "UDP"
				if strings.Contains("TCP TLS TURN-TLS turn-tcp HTTP", f[1]) {
					network = "TCP"
				}
				specs, names = append(specs, spec+"}"), append(names, "turn/lobby/"+f[0])
				ports = append(ports, fmt.Sprintf("    - {name: %s, protocol: %s, port: %s}", f[0], network, f[2]))
			}
			folder := []string{
				fmt.Sprintf(formerGateway, in.annotations, strings.Join(specs, "\n")),
				fmt.Sprintf(formerService, strings.Join(ports, "\n")), formerSecrets(t), in.objects,
			}
			c := &testCase{options: translate.DefaultOptions()}
			c.options.Now = now
			said := ""
			for _, text := range folder {
				located, problems := decode.File("f.yaml", []byte(text))
				for _, l := range located {
					c.objects = append(c.objects, l.Object)
				}
				for _, p := range problems {
					said += p.String() + "\n"
				}
			}
			c.objects = append(c.objects, c.missingOf(base(t), nil)...)
			o := translateAll(c.view(), c.options)
			said += string(o.renderStatuses())
			for _, want := range in.says {
				if !strings.Contains(said, want) {
					t.Errorf("it does not say %q:\n%s", want, said)
				}
			}
			r := o.Gateways[0]
			if held := r.Decision == translate.Held; held != in.held {
				t.Fatalf("%s, want held %t:\n%s", r.Decision, in.held, said)
			}
			if in.held {
				return
			}
			var served []string
			for _, l := range r.Config.Listeners {
				served = append(served, l.Name)
			}
			if !slices.Equal(served, names) {
				t.Errorf("serves %v, want %v", served, names)
			}
		})
	}
}

const formerGateway = `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {namespace: turn, name: lobby, uid: 7d3e, generation: 3, annotations: {%s}}
spec:
  gatewayClassName: edge
  listeners:
%s
`

const formerService = `
apiVersion: v1
kind: Service
metadata:
  namespace: turn
  name: lobby
  labels: {stunner.l7mp.io/owned-by: stunner}
  annotations: {stunner.l7mp.io/related-gateway-name: turn/lobby}
  ownerReferences: [{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, name: lobby, uid: 7d3e}]
spec:
  type: LoadBalancer
  clusterIP: 10.43.0.9
  ports:
%s
status: {loadBalancer: {ingress: [{ip: 203.0.113.40}]}}
`

// formerSecrets returns the Secrets turn/own, guests/lent and, with other keys, turn/opaque.
func formerSecrets(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "a_certificate_of_another_namespace_needs_a_grant.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	data := regexp.MustCompile(`(?s)type: kubernetes.io/tls\n.*?-----END PRIVATE KEY-----\n`).FindString(string(text))
	secret := "apiVersion: v1\nkind: Secret\nmetadata: {namespace: %s, name: %s}\n%s---\n"
	opaque := strings.NewReplacer("kubernetes.io/tls", "Opaque", "tls.crt", "crt", "tls.key", "key").Replace(data)
	return fmt.Sprintf(secret, "turn", "own", data) + fmt.Sprintf(secret, "guests", "lent", data) +
		fmt.Sprintf(secret, "turn", "opaque", opaque)
}
