package decode

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// outline prints objects and problems, one a line.
func outline(objects []Located, problems []Problem) string {
	var lines []string
	for _, o := range objects {
		gvk := o.GetObjectKind().GroupVersionKind()
		lines = append(lines, fmt.Sprintf(
			"%d: %s %s %s", o.Line, gvk.GroupVersion(), gvk.Kind, strings.TrimPrefix(resource.KeyOf(o).String(), "/"),
		))
	}
	for _, p := range problems {
		lines = append(lines, fmt.Sprintf("%s %s", p.Severity, p))
	}
	return strings.Join(lines, "\n")
}

func TestDecodeReadsAndLocates(t *testing.T) {
	for _, c := range []struct{ name, yaml, want string }{
		{
			name: "an empty file, comments and empty documents are nothing",
			yaml: "# nothing\n---\n---\n# more\n...\n---\n",
		},
		{
			name: "objects are located by their first line, namespaces have a default",
			yaml: "# on top\n---\napiVersion: v1\nkind: Service\nmetadata: {name: media}\n--- # again\n\napiVersion: v1\nkind: Namespace\nmetadata: {name: calls, namespace: calls}\n",
			want: "3: v1 Service default/media\n8: v1 Namespace calls\nInfo f.yaml:10: Namespace calls: metadata.namespace: Namespace has no namespace: ignored",
		},
		{
			name: "a byte order mark, CRLF line ends, directives and end markers are no obstacle",
			yaml: "\uFEFF%YAML 1.2\r\n---\r\napiVersion: v1\r\nkind: Node\r\nmetadata:\r\n  name: worker\r\n...\r\n%YAML 1.1\r\n---\r\napiVersion: v1\r\nkind: Node\r\nmetadata:\r\n  name: other\r\n",
			want: "3: v1 Node worker\n10: v1 Node other",
		},
		{
			name: "what looks like a marker inside a block or a quoted string is indented and is none",
			yaml: "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData:\n  a: |\n    ---\n    x\n  b: \"\n    --- \n    y\"\n",
			want: "1: v1 Secret default/s",
		},
		{
			name: "the list that kubectl prints is its items",
			yaml: "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Node\n  metadata: {name: a}\n- apiVersion: v1\n  kind: Node\n  metadata: {nam: b}\n",
			want: "4: v1 Node a\nError f.yaml:9: Node: metadata.name: fragment without metadata.name: an object needs apiVersion, kind and metadata.name as strings",
		},
		{
			name: "aliases and merge keys are followed, own keys win",
			yaml: "apiVersion: v1\nkind: Service\nmetadata:\n  name: s\n  labels: &l {a: x, b: y}\n  annotations:\n    <<: *l\n    b: z\n",
			want: "1: v1 Service default/s",
		},
		{
			name: "older versions with the same schema become the newer",
			yaml: "apiVersion: gateway.networking.k8s.io/v1beta1\nkind: GatewayClass\nmetadata: {name: c}\nspec: {controllerName: x/y}\n---\napiVersion: stunner.l7mp.io/v1alpha1\nkind: StaticService\nmetadata: {name: s}\nspec: {prefixes: [192.0.2.7]}\n---\napiVersion: gateway.networking.k8s.io/v1beta1\nkind: ReferenceGrant\nmetadata: {name: g}\nspec: {from: [{group: a, kind: B, namespace: c}], to: [{group: '', kind: Secret}]}\n",
			want: "1: gateway.networking.k8s.io/v1 GatewayClass c\n6: stunner.l7mp.io/v1 StaticService default/s\n11: gateway.networking.k8s.io/v1 ReferenceGrant default/g",
		},
		{
			name: "a field that has lost its meaning is taken and said",
			yaml: "apiVersion: stunner.l7mp.io/v1alpha1\nkind: GatewayConfig\nmetadata: {name: g}\nspec:\n  realm: r\n  minPort: 5000\n",
			want: "1: stunner.l7mp.io/v1 GatewayConfig default/g\nInfo f.yaml:6: GatewayConfig default/g: spec.minPort: has no effect: remove it, and set spec.relayPortRange of the Dataplane",
		},
		{
			name: "a kind that nobody reads is passed through and said",
			yaml: "apiVersion: autoscaling.example.org/v3\nkind: Scaler\nmetadata: {name: s, namespace: n}\nspec: {anything: [1, {goes: true}]}\n",
			want: "1: autoscaling.example.org/v3 Scaler n/s\nInfo f.yaml:2: Scaler n/s: kind: Scaler of autoscaling.example.org/v3 is not read here: passed through as it is",
		},
		{
			name: "a document without a name or a kind is a fragment",
			yaml: "apiVersion: stunner.l7mp.io/v1\nkind: GatewayConfig\nspec: {realm: r}\n---\n# why\nlisteners: []\n---\njust words\n",
			want: "Error f.yaml:1: GatewayConfig: metadata.name: fragment without metadata.name: an object needs apiVersion, kind and metadata.name as strings\n" +
				"Error f.yaml:6: apiVersion: fragment without apiVersion: an object needs apiVersion, kind and metadata.name as strings\n" +
				"Error f.yaml:6: kind: fragment without kind: an object needs apiVersion, kind and metadata.name as strings\n" +
				"Error f.yaml:6: metadata.name: fragment without metadata.name: an object needs apiVersion, kind and metadata.name as strings\n" +
				"Error f.yaml:8: fragment: document is a string, an object is a mapping with apiVersion, kind and metadata",
		},
		{
			name: "unknown versions and kinds of known groups are errors with the remedy",
			yaml: "apiVersion: gateway.networking.k8s.io/v7\nkind: UDPRoute\nmetadata: {name: r}\n---\napiVersion: stunner.l7mp.io/v1\nkind: UDPRoutes\nmetadata: {name: r}\n",
			want: "Error f.yaml:1: UDPRoute r: apiVersion: gateway.networking.k8s.io/v7 of kind UDPRoute is not served: use gateway.networking.k8s.io/v1 or gateway.networking.k8s.io/v1alpha2\n" +
				"Error f.yaml:6: UDPRoutes r: kind: stunner.l7mp.io has no kind UDPRoutes: use GatewayConfig, Dataplane, StaticService, Revocation or UDPRoute",
		},
		{
			name: "the same object twice: the first is in force and both places are named",
			yaml: "apiVersion: v1\nkind: Node\nmetadata: {name: a}\n---\napiVersion: v1\nkind: Node\nmetadata: {name: a}\n",
			want: "1: v1 Node a\nError f.yaml:5: Node a: metadata.name: is written twice: f.yaml:1 is in force and f.yaml:5 is not; remove or rename one",
		},
		{
			name: "a document that cannot be turned into values is named all the same",
			yaml: "apiVersion: v1\nkind: Node\nmetadata:\n  name: a\n  labels: {x: !vault y}\n",
			want: "Error f.yaml:5: Node a: tag is not known: remove it, or put quotes around the value",
		},
		{
			name: "a key that stands twice is an error at the second",
			yaml: "apiVersion: v1\nkind: Node\nmetadata:\n  name: a\n  labels:\n    x: y\n    x: z\n",
			want: "Error f.yaml:7: Node a: metadata.labels.x: is set twice, first at line 6: remove one",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, outline(File("f.yaml", []byte(c.yaml)))); diff != "" {
				t.Errorf("outline (-want +got):\n%s", diff)
			}
		})
	}
}

// gatewayWith returns a Gateway whose listener has the given fields.
func gatewayWith(listener string) string {
	return "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata:\n  name: edge\nspec:\n  gatewayClassName: c\n  listeners:\n  - name: a\n" + listener
}

func TestDecodeNamesFieldAndLine(t *testing.T) {
	for _, c := range []struct {
		name, yaml string
		want       []string // findings, as LINE FIELD: start of the message
	}{
		{"an unknown field", gatewayWith("    port: 3478\n    protocol: TURN-UDP\n    hosts: x\n"), []string{
			"11 spec.listeners[0].hosts: is not known",
		}},
		{"a duplicate key does not hide other errors", gatewayWith(
			"    port: 0\n    port: 1\n    protocol: TURN-UDP\n    hosts: x\n",
		), []string{
			"10 spec.listeners[0].port: is set twice, first at line 9", "12 spec.listeners[0].hosts: is not known"}},
		{"every wrong type", gatewayWith("    port: \"3478\"\n    protocol: [TURN-UDP]\n  - 7\n"), []string{
			"9 spec.listeners[0].port: is a string, must be a whole number, without quotes",
			"10 spec.listeners[0].protocol: is a list, must be a string",
			"11 spec.listeners[1]: Invalid value: must be an object",
			"11 spec.listeners[1]: is a number, must be a mapping"}},
		{"a number that does not fit", gatewayWith("    port: 99999999999\n    protocol: TURN-UDP\n"), []string{
			"9 spec.listeners[0].port: Invalid value: must be of type integer with format int32",
			"9 spec.listeners[0].port: Invalid value: should be less than or equal to 65535",
		}},
		{"port 0", gatewayWith("    port: 0\n    protocol: TURN-UDP\n"), []string{
			"9 spec.listeners[0].port: Invalid value: should be greater than or equal to 1",
		}},
		{"port 70000", gatewayWith("    port: 70000\n    protocol: TURN-UDP\n"), []string{
			"9 spec.listeners[0].port: Invalid value: should be less than or equal to 65535",
		}},
		{"addresses of endpoints", "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: e\naddressType: IPv4\n" +
			"endpoints:\n- addresses: [127.0.0.1]\n- addresses: [10.0.0.300]\n- addresses: ['2001:db8::1']\n- addresses: []\n", []string{
			"8 endpoints[1].addresses[0]: Invalid value: must be an IPv4 address",
			"9 endpoints[2].addresses[0]: Invalid value: must be an IPv4 address",
			"10 endpoints[3].addresses: Required value: must contain an address",
		}},
		{"no port", gatewayWith("    protocol: TURN-UDP\n"), []string{"8 spec.listeners[0].port: Required value"}},
		{"double listener names", gatewayWith("    port: 1\n    protocol: X\n  - name: a\n    port: 2\n    protocol: X\n"), []string{"7 spec.listeners: Invalid value: Listener name must be unique", "11 spec.listeners[1]: Duplicate value"}},
		{"an unknown word", gatewayWith("    port: 1\n    protocol: X\n    allowedRoutes: {namespaces: {from: Some}}\n"), []string{`11 spec.listeners[0].allowedRoutes.namespaces.from: Unsupported value: supported values: "All", "Selector", "Same"`}},
		{"no listeners", "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: edge}\nspec:\n  gatewayClassName: c\n", []string{"4 spec.listeners: Required value"}},
		{"a prefix that is none", "apiVersion: stunner.l7mp.io/v1\nkind: StaticService\nmetadata: {name: s}\nspec:\n  prefixes:\n  - 10.0.0.0/8\n  - 10.0.0.0/33\n  - 10.0.0.1:<1-2>\n",
			[]string{
				"7 spec.prefixes[1]: Invalid value: each prefix must be an IP address",
				"8 spec.prefixes[2]: Invalid value",
			}},
		{"endPort before port", "apiVersion: stunner.l7mp.io/v1\nkind: UDPRoute\nmetadata: {name: r}\nspec:\n  rules:\n  - backendRefs:\n    - name: b\n      port: 20\n      endPort: 10\n    - name: c\n      endPort: 10\n",
			[]string{
				"7 spec.rules[0].backendRefs[0]: Invalid value: endPort must not be less than port",
				"10 spec.rules[0].backendRefs[1]: Invalid value: endPort needs port",
			}},
		{"two rules in the official route", "apiVersion: gateway.networking.k8s.io/v1\nkind: UDPRoute\nmetadata: {name: r}\nspec:\n  rules:\n  - backendRefs: [{name: a}]\n  - backendRefs: [{name: b}]\n",
			[]string{"5 spec.rules: Too many: must have at most 1 item"}},
		{"a name that is none", "apiVersion: v1\nkind: Service\nmetadata:\n  name: Media_Server\n", []string{
			"4 metadata.name: Invalid value",
		}},
		{"an unreadable quantity", "apiVersion: stunner.l7mp.io/v1\nkind: Dataplane\nmetadata: {name: d}\nspec:\n  resources:\n    limits:\n      memory: 1Gi\n      cpu: two\n",
			[]string{"8 spec.resources.limits.cpu: Invalid value: should match"}},
		{"bad base64, without repeating it", "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata:\n  good: eA==\n  bad: hunter2!\n", []string{"6 data.bad: is not base64: encode it"}},
		{"a realm that no client can be told", "apiVersion: stunner.l7mp.io/v1\nkind: GatewayConfig\nmetadata: {name: c}\nspec:\n  realm: 'a\"b'\n", []string{"5 spec.realm: Invalid value"}},
		{"a realm with a control character beyond ASCII", "apiVersion: stunner.l7mp.io/v1\nkind: GatewayConfig\nmetadata: {name: c}\nspec:\n  realm: \"a\\x85b\"\n", []string{"5 spec.realm: Invalid value"}},
		{"a prefix with all ports", "apiVersion: stunner.l7mp.io/v1\nkind: StaticService\nmetadata: {name: s}\nspec:\n  prefixes:\n  - 10.0.0.1:<1-65535>\n", []string{"6 spec.prefixes[0]: Invalid value"}},
		{"a DaemonSet with a number of pods", "apiVersion: stunner.l7mp.io/v1\nkind: Dataplane\nmetadata: {name: d}\nspec:\n  dataplaneResource: DaemonSet\n  replicas: 2\n  autoscaling: {maxReplicas: 5}\n  workloadName: Not.Good\n",
			[]string{
				"4 spec: Invalid value: autoscaling needs dataplaneResource Deployment",
				"8 spec.workloadName: Invalid value",
			}},
		{"a field of the first version in the second", "apiVersion: stunner.l7mp.io/v1\nkind: GatewayConfig\nmetadata: {name: c}\nspec:\n  minPort: 5000\n", []string{"5 spec.minPort: is not known"}},
		{"bounds below nothing", "apiVersion: stunner.l7mp.io/v1\nkind: GatewayConfig\nmetadata: {name: c}\nspec:\n  userQuota: -1\n  sourceQuota: -1\n  sessionByteRate: -1\n  userByteRate: -1\n",
			[]string{
				"5 spec.userQuota: Invalid value: should be", "6 spec.sourceQuota: Invalid value: should be",
				"7 spec.sessionByteRate: Invalid value: should be", "8 spec.userByteRate: Invalid value: should be",
			}},
		{"denied backends of no description", "apiVersion: stunner.l7mp.io/v1\nkind: GatewayConfig\nmetadata: {name: c}\nspec:\n  deniedBackends:\n  - {}\n",
			[]string{"6 spec.deniedBackends[0]: Invalid value: namespace or selector must be set"}},
		{"a Service that cannot be", "apiVersion: stunner.l7mp.io/v1\nkind: Dataplane\nmetadata: {name: d}\nspec:\n  service:\n    loadBalancerClass: a b\n    ipFamilies: [IPv6, IPv6]\n    loadBalancerSourceRanges: [192.0.2.1]\n",
			[]string{
				"5 spec.service: Invalid value: ipFamilies must not name a family twice",
				"5 spec.service: Invalid value: two ipFamilies need", "6 spec.service.loadBalancerClass: Invalid value",
				"8 spec.service.loadBalancerSourceRanges[0]: Invalid value",
			}},
		{"relay ports of well-known services", "apiVersion: stunner.l7mp.io/v1\nkind: Dataplane\nmetadata: {name: d}\nspec:\n  relayPortRange:\n    minPort: 1023\n    maxPort: 65536\n",
			[]string{
				"6 spec.relayPortRange.minPort: Invalid value: should be greater than or equal to 1024",
				"7 spec.relayPortRange.maxPort: Invalid value: should be less than or equal to 65535",
			}},
		{"relay ports upside down", "apiVersion: stunner.l7mp.io/v1\nkind: Dataplane\nmetadata: {name: d}\nspec:\n  relayPortRange: {minPort: 50000, maxPort: 40000}\n",
			[]string{
				`5 spec.relayPortRange: Invalid value: maxPort must not be less than minPort: raise maxPort or lower minPort`,
			}},
		{"autoscaling beyond its bounds", "apiVersion: stunner.l7mp.io/v1\nkind: Dataplane\nmetadata: {name: d}\nspec:\n  autoscaling:\n    minReplicas: 0\n    maxReplicas: -1\n    pollingInterval: 0\n    behavior:\n      scaleDown: {stabilizationWindowSeconds: 7200}\n    prometheus: {serverAddress: http://p}\n",
			[]string{"5 spec.autoscaling: Invalid value: behavior.scaleDown.stabilizationWindowSeconds must be from 0 to 3600",
				"5 spec.autoscaling: Invalid value: maxReplicas must not be less than minReplicas",
				"5 spec.autoscaling: Invalid value: prometheus needs trigger prometheus",
				"6 spec.autoscaling.minReplicas: Invalid value: should be", "7 spec.autoscaling.maxReplicas: Invalid value: should be", "8 spec.autoscaling.pollingInterval: Invalid value: should be"}},
		{"autoscaling by a Prometheus nowhere", "apiVersion: stunner.l7mp.io/v1\nkind: Dataplane\nmetadata: {name: d}\nspec:\n  autoscaling:\n    maxReplicas: 2\n    trigger: prometheus\n",
			[]string{"5 spec.autoscaling: Invalid value: trigger prometheus needs prometheus.serverAddress"}},
		{"autoscaling by a Prometheus that is no URL", "apiVersion: stunner.l7mp.io/v1\nkind: Dataplane\nmetadata: {name: d}\nspec:\n  autoscaling:\n    maxReplicas: 2\n    trigger: prometheus\n    prometheus:\n      serverAddress: prometheus:9090\n      authModes: [bearer]\n",
			[]string{
				"8 spec.autoscaling.prometheus: Invalid value: authModes needs authenticationRef",
				"9 spec.autoscaling.prometheus.serverAddress: Invalid value: serverAddress must be an http or https URL",
			}},
		{"a password in a URL", "apiVersion: stunner.l7mp.io/v1\nkind: Dataplane\nmetadata: {name: d}\nspec:\n  autoscaling:\n    maxReplicas: 2\n    trigger: prometheus\n    prometheus: {serverAddress: 'http://ada:hunter2@p'}\n",
			[]string{
				"8 spec.autoscaling.prometheus.serverAddress: Invalid value: serverAddress must hold no credentials",
			}},
		{"a grant for nobody, of nothing", "apiVersion: gateway.networking.k8s.io/v1\nkind: ReferenceGrant\nmetadata: {name: g}\nspec:\n  from:\n  - {group: a, kind: '', namespace: ''}\n  to:\n  - {group: a, kind: ''}\n  - {group: a, kind: Secret, name: ''}\n",
			[]string{
				"6 spec.from[0].", "6 spec.from[0].", "8 spec.to[0].kind: Invalid value: should be at least 1",
				"9 spec.to[1].name: Invalid value: should be at least 1",
			}},
		{"a tag from elsewhere", "apiVersion: v1\nkind: Node\nmetadata:\n  name: !vault x\n", []string{
			"4 : tag is not known",
		}},
		{"no UTF-8", "apiVersion: v1\nkind: \xff\n", []string{"1 : document is not UTF-8"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			objects, problems := File("f.yaml", []byte(c.yaml))
			if len(objects) != 0 {
				t.Errorf("%d objects are in force, want none", len(objects))
			}
			if len(problems) != len(c.want) {
				t.Fatalf("got %d problems, want %d:\n%s", len(problems), len(c.want), outline(nil, problems))
			}
			for i, p := range problems {
				got := fmt.Sprintf("%d %s: %s", p.Line, p.Field, p.Message)
				if p.Severity != Error || !strings.HasPrefix(got, c.want[i]) || strings.Contains(got, "hunter2") {
					t.Errorf("got  %s %s\nwant %s…", p.Severity, got, c.want[i])
				}
			}
		})
	}
}

func TestDecodeFindsTheLineThatBreaksYAML(t *testing.T) {
	good := "apiVersion: v1\nkind: Service\nmetadata:\n  name: media\n  namespace: calls\nspec:\n  ports:\n  - name: rtp\n    port: 7001\n"
	for _, c := range []struct {
		name, yaml string
		line       int
	}{
		{"wrong indentation", strings.Replace(good, "  ports:", "   ports:\n  x:", 1), 8},
		{"deeper than its neighbours", strings.Replace(good, "    port:", "     port:", 1), 9},
		{"no colon", strings.Replace(good, "  namespace: calls", "  namespace calls", 1), 5},
		{"a tab", strings.Replace(good, "  namespace", "\tnamespace", 1), 5},
		{"an open quote", strings.Replace(good, "calls", "\"calls", 1), 5},
		{"an open bracket", strings.Replace(good, "name: rtp", "name: [rtp", 1), 8},
		{"a quoted text over lines before the mistake", strings.Replace(
			good, "name: rtp\n", "name: \"r\n      t\n      p\"\n    port 1\n", 1,
		), 11},
		{"a password that looks like an alias", strings.Replace(good, "calls", "*hunter2", 1), 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			before, after := "# top\n---\napiVersion: v1\nkind: Node\nmetadata: {name: first}\n---\n", "\n---\napiVersion: v1\nkind: Node\nmetadata: {name: last}\n"
			objects, problems := File("f.yaml", []byte(before+c.yaml+after))
			if got := outline(objects, nil); !strings.Contains(got, "Node first") ||
				!strings.Contains(got, "Node last") || len(objects) != 2 {
				t.Errorf("objects around the mistake: %s", got)
			}
			if len(problems) != 1 || problems[0].Severity != Error {
				t.Fatalf("got problems %v, want one error", problems)
			}
			p := problems[0]
			if want := c.line + strings.Count(before, "\n"); p.Line != want {
				t.Errorf("got line %d, want %d: %s", p.Line, want, p)
			}
			if strings.Contains(p.Message, "hunter2") {
				t.Errorf("message repeats a value: %s", p)
			}
			if p.Kind != "Service" || p.Name != "media" {
				t.Errorf("got object %q %q, want Service media", p.Kind, p.Name)
			}
		})
	}
}

func TestDecodeTakesUnquotedScalarsForStrings(t *testing.T) {
	objects, problems := File("f.yaml", []byte("apiVersion: v1\nkind: Secret\nmetadata:\n  name: s\n  labels: {canary: true}\n  annotations:\n    ratio: 1.50\n    port: 0x10\n    word: yes\n"+
		"stringData:\n  password: 007\n  on: false\n  none:\ndata:\n  password: b3RoZXI=\n  kept: eA==\n"))
	if len(objects) != 1 {
		t.Fatalf("got no object: %v", problems)
	}
	s := objects[0].Object.(*corev1.Secret)
	if diff := cmp.Diff(map[string]string{"ratio": "1.50", "port": "0x10", "word": "yes"}, s.Annotations); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	if s.Labels["canary"] != "true" || len(s.StringData) != 0 || s.Type != corev1.SecretTypeOpaque {
		t.Errorf("labels %v, stringData %v, type %s", s.Labels, s.StringData, s.Type)
	}
	if diff := cmp.Diff(
		map[string][]byte{"password": []byte("007"), "on": []byte("false"), "none": {}, "kept": []byte("x")}, s.Data,
	); diff != "" {
		t.Errorf("data (-want +got):\n%s", diff)
	}
	if len(problems) != 5 {
		t.Errorf("got %d remarks, want one for each of 5 scalars: %v", len(problems), problems)
	}
	for _, p := range problems {
		if p.Severity != Info || strings.Contains(p.Message, "007") {
			t.Errorf("remark %s", p)
		}
	}
	if want := (Span{Line: 5, Column: 20, Length: 4}); problems[0].Unquoted == nil || *problems[0].Unquoted != want {
		t.Errorf("place of the first scalar %v, want %v", problems[0].Unquoted, want)
	}
}

// Quotes would change the value at another place as well, or would be inside of a tag.
func TestDecodeLeavesOutThePlaceOfScalarsThatAreShared(t *testing.T) {
	_, problems := File("f.yaml", []byte("apiVersion: v1\nkind: Secret\nmetadata:\n  name: s\n  annotations:\n"+
		"    a: &x true\n    b: *x\n    c: !!bool true\n"))
	if len(problems) != 3 {
		t.Fatalf("got %v, want 3 remarks", problems)
	}
	for _, p := range problems {
		if p.Unquoted != nil {
			t.Errorf("%s has the place %v", p, *p.Unquoted)
		}
	}
}

func TestDecodeFillsInDefaults(t *testing.T) {
	objects, problems := File("f.yaml", []byte(gatewayWith(
		"    port: 443\n    protocol: TURN-TLS\n    tls:\n      certificateRefs: [{name: cert}]\n",
	)+
		"---\napiVersion: stunner.l7mp.io/v1\nkind: UDPRoute\nmetadata: {name: r}\nspec:\n  parentRefs: [{name: edge}]\n  rules: [{backendRefs: [{name: b}]}]\n"+
		"---\napiVersion: stunner.l7mp.io/v1\nkind: GatewayConfig\nmetadata: {name: c}\nspec: {authRef: {name: s}}\n"))
	if len(problems) > 0 || len(objects) != 3 {
		t.Fatalf("got %s", outline(objects, problems))
	}
	l := objects[0].Object.(*gatewayv1.Gateway).Spec.Listeners[0]
	if *l.AllowedRoutes.Namespaces.From != gatewayv1.NamespacesFromSame || *l.TLS.Mode != gatewayv1.TLSModeTerminate ||
		*l.TLS.CertificateRefs[0].Kind != "Secret" {
		t.Errorf("listener %+v", l)
	}
	r := objects[1].Object.(*stunnerv1.UDPRoute).Spec
	if *r.ParentRefs[0].Kind != "Gateway" || *r.ParentRefs[0].Group != gatewayv1.GroupName ||
		*r.Rules[0].BackendRefs[0].Kind != stunnerv1.KindService {
		t.Errorf("route %+v", r)
	}
	c := objects[2].Object.(*stunnerv1.GatewayConfig).Spec
	if c.Dataplane != stunnerv1.DefaultDataplane || c.Realm != stunnerv1.DefaultRealm ||
		c.AuthType != stunnerv1.DefaultAuthType || *c.AuthRef.Kind != "Secret" {
		t.Errorf("config %+v", c)
	}
}
