package command

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/manifests"
)

// lintFolder returns the findings of lint for a folder, with file names relative to it, and the exit code.
func lintFolder(t *testing.T, dir string, flags ...string) ([]manifests.Finding, int) {
	t.Helper()
	out, errs, code := execute(t, "", append([]string{"lint", dir, "-o", "json"}, flags...)...)
	var l linted
	if err := json.Unmarshal([]byte(out), &l); err != nil {
		t.Fatalf("%v: %s%s", err, out, errs)
	}
	if (l.Verdict == "fail") != (code == exitFailed) || l.Version != manifests.Version {
		t.Errorf("exit code %d with verdict %q of version %q", code, l.Verdict, l.Version)
	}
	for i := range l.Findings {
		l.Findings[i].File = strings.TrimPrefix(l.Findings[i].File, dir+string(filepath.Separator))
	}
	return l.Findings, code
}

// repository is the root of the repository, relative to this package.
const repository = "../../../.."

// quickstart returns the files of docs/examples/quickstart by name.
func quickstart(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	paths, err := filepath.Glob(filepath.Join(repository, "docs/examples/quickstart/*.yaml"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no quickstart: %v", err)
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		files[filepath.Base(path)] = string(data)
	}
	return files
}

func writeFolder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Each single mistake in the quickstart is found at its line, with its field.
func TestLint_SingleMistakes(t *testing.T) {
	for _, c := range []struct{ file, old, new, want string }{
		// The API server rejects the document.
		{"gateway.yaml", "kind: Gateway\n", "kind: Gatewy\n", "error gateway.yaml:4 kind"},
		{"gateway.yaml", "networking.k8s.io/v1\n", "networking.k8s.io/v1alpha2\n", "error gateway.yaml:3 apiVersion"},
		{"udproute.yaml", "l7mp.io/v1\n", "l7mp.io/v1alpha1\n", "error udproute.yaml:3 apiVersion"},
		{"udproute.yaml", "kind: UDPRoute", "kind: UDProute", "error udproute.yaml:4 kind"},
		{"dataplane.yaml", "enableMetricsEndpoint: true", "enableMetrics: true", "error dataplane.yaml:8 spec.enableMetrics"},
		{"dataplane.yaml", "Endpoint: true", "Endpoint: 'true'", "error dataplane.yaml:8 spec.enableMetricsEndpoint"},
		{"gateway.yaml", "port: 3478", "port: 99999", "error gateway.yaml:12 spec.listeners[0].port"},
		{"gateway.yaml", "port: 3478", "port: '3478'", "error gateway.yaml:12 spec.listeners[0].port"},
		{"gateway.yaml", "  gatewayClassName: calls\n", "", "error gateway.yaml:8 spec.gatewayClassName"},
		{"gateway.yaml", "- name: tcp", "- name: udp", "error gateway.yaml:14 spec.listeners[1]"},
		{"gateway.yaml", "protocol: TURN-UDP", "protocol: TURN-UDP\n      protocol: TURN-TCP", "error gateway.yaml:14 spec.listeners[0].protocol"},
		{"gateway.yaml", "  listeners:", "  listenrs:", "error gateway.yaml:10 spec.listenrs"},
		{"gatewayconfig.yaml", "realm: meet.example.org", "realm: \"meet\\\"\"", "error gatewayconfig.yaml:8 spec.realm"},
		{"udproute.yaml", "endPort: 7002", "endPort: 7000", "error udproute.yaml:13 spec.rules[0].backendRefs[0]"},
		{"gatewayclass.yaml", "metadata:\n  name: calls", "metadata:\n  nam: calls", "error gatewayclass.yaml:5 metadata.name"},
		// The operator refuses it.
		{"gateway.yaml", "TURN-UDP", "TURN-UPD", "error gateway.yaml:13 spec.listeners[0].protocol"},
		{"gateway.yaml", "TURN-TCP", "TURN-TLS", "error gateway.yaml:14 spec.listeners[1].tls.certificateRefs"},
		{
			"gateway.yaml", "TURN-TCP", "TURN-TLS\n      tls: {certificateRefs: [{name: turn}]}",
			"error gateway.yaml:17 spec.listeners[1].tls.certificateRefs[0].name",
		},
		{"gateway.yaml", "TURN-TCP", "TURN-DTLS\n      tls: {mode: Passthrough}", "error gateway.yaml:15 spec.listeners[1].port"},
		{"gateway.yaml", "ClassName: calls", "ClassName: call", "error gateway.yaml:9 spec.gatewayClassName"},
		{"gatewayclass.yaml", "gateway-operator", "gateway-operatr", "error gatewayclass.yaml:8 spec.controllerName"},
		{"gatewayclass.yaml", "    name: calls\n", "    name: cals\n", "error gatewayclass.yaml:12 spec.parametersRef.name"},
		{"gatewayclass.yaml", "kind: GatewayConfig", "kind: GatewayConfg", "error gatewayclass.yaml:11 spec.parametersRef.kind"},
		{"gatewayclass.yaml", "    namespace: meet\n", "", "error gatewayclass.yaml:9 spec.parametersRef"},
		{"gatewayconfig.yaml", "dataplane: default", "dataplane: defualt", "error gatewayconfig.yaml:10 spec.dataplane"},
		{"gatewayconfig.yaml", "type: ephemeral", "type: ephemral", "error gatewayconfig.yaml:22 stringData.type"},
		{"gatewayconfig.yaml", "  secret: quick", "  secrt: quick", "error gatewayconfig.yaml:21 stringData.secret"},
		{"udproute.yaml", "- name: front-door", "- name: frontdoor", "error udproute.yaml:10 spec.parentRefs[0].name"},
		{"udproute.yaml", "- name: front-door", "- name: front-door\n      sectionName: upd", "error udproute.yaml:11 spec.parentRefs[0].sectionName"},
		{"udproute.yaml", "  namespace: meet", "  namespace: met", "error udproute.yaml:10 spec.parentRefs[0].name"},
		{"udproute.yaml", "  parentRefs:\n    - name: front-door\n", "", "error udproute.yaml:8 spec.parentRefs"},
		{
			"udproute.yaml", "- name: echo", "- name: echo\n          kind: StaticService\n          group: stunner.l7mp.io",
			"error udproute.yaml:13 spec.rules[0].backendRefs[0].name",
		},
		{"udproute.yaml", "- name: echo", "- name: echo\n          kind: Pod", "error udproute.yaml:14 spec.rules[0].backendRefs[0].kind"},
		{"gateway.yaml", "  namespace: meet", "  namespace: meet\n  annotations: {stunner.l7mp.io/nodeport: 'udp: x'}", "error gateway.yaml:8 metadata.annotations.stunner.l7mp.io/nodeport"},
		{"gateway.yaml", "spec:\n", "spec:\n  addresses: [{value: 203.0.113.7}]\n", "error gateway.yaml:9 spec.addresses[0].value"},
		// It has no effect, or cannot be checked.
		{"gateway.yaml", "TURN-UDP", "UDP", "warning gateway.yaml:13 spec.listeners[0].protocol"},
		{"gatewayconfig.yaml", "quickstart-only-choose-your-own", "short", "warning gatewayconfig.yaml:11 spec.authRef"},
		{"gatewayconfig.yaml", "realm: meet.example.org", "realm: Meet", "warning gatewayconfig.yaml:8 spec.realm"},
		{"gatewayconfig.yaml", "logLevel: all:INFO", "logLevel: debug", "remark gatewayconfig.yaml:9 spec.logLevel"},
		{"gatewayconfig.yaml", "name: turn-credentials\n---", "name: turn-credential\n---", "remark gatewayconfig.yaml:12 spec.authRef.name"},
		{"udproute.yaml", "- name: echo", "- name: ecco", "remark udproute.yaml:13 spec.rules[0].backendRefs[0].name"},
		{"echo.yaml", "service-name: echo", "service-name: ecco", "remark echo.yaml:24 metadata.labels.kubernetes.io/service-name"},
		{"gateway.yaml", "  namespace: meet", "  namespace: meet\n  annotations: {stunner.l7mp.io/node-port: 'udp: 1'}", "remark gateway.yaml:8 metadata.annotations.stunner.l7mp.io/node-port"},
		{"gateway.yaml", "  namespace: meet", "  namespace: meet\n  annotations: {stunner.l7mp.io/service-type: None}", "remark gateway.yaml:8 metadata.annotations.stunner.l7mp.io/service-type"},
		{"gateway.yaml", "port: 3478", "port: 3478\n      hostname: turn.example.org", "remark gateway.yaml:13 spec.listeners[0].hostname"},
	} {
		t.Run(c.file+" "+strings.Join(strings.Fields(c.new), " "), func(t *testing.T) {
			files := quickstart(t)
			if !strings.Contains(files[c.file], c.old) {
				t.Fatalf("%s does not contain %q", c.file, c.old)
			}
			files[c.file] = strings.Replace(files[c.file], c.old, c.new, 1)
			findings, code := lintFolder(t, writeFolder(t, files))
			var got []string
			for _, f := range findings {
				got = append(got, fmt.Sprintf("%s %s:%d %s", f.Severity, f.File, f.Line, f.Field))
				if f.Problem == "" || f.Remedy == "" && f.Severity != manifests.Remark {
					t.Errorf("no problem or remedy in %+v", f)
				}
			}
			if !slices.Contains(got, c.want) {
				t.Errorf("no finding %q, but\n%s", c.want, strings.Join(got, "\n"))
			}
			if fails := strings.HasPrefix(c.want, "error"); fails != (code == exitFailed) {
				t.Errorf("exit code %d, findings\n%s", code, strings.Join(got, "\n"))
			}
		})
	}
}

// The examples and the manifests of the repository would be in force.
func TestLint_OwnExamples(t *testing.T) {
	var folders []string
	for _, pattern := range []string{"docs/examples/*", "keda", "kustomize/base", "kustomize/overlays/*", "kustomize/overlays", "kustomize"} {
		found, err := filepath.Glob(filepath.Join(repository, pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}
		folders = append(folders, found...)
	}
	for _, folder := range folders {
		if findings, code := lintFolder(t, folder, "--fail-on=warning"); code != 0 {
			t.Errorf("%s: exit code %d: %+v", folder, code, findings)
		}
	}
}

// --fail-on decides which severity fails, and --secrets-elsewhere whether an absent certificate is an error.
func TestLint_Flags(t *testing.T) {
	remark, warning, certificate := quickstart(t), quickstart(t), quickstart(t)
	delete(remark, "dataplane.yaml")
	warning["gateway.yaml"] = strings.Replace(warning["gateway.yaml"], "TURN-UDP", "UDP", 1)
	certificate["gateway.yaml"] = strings.Replace(certificate["gateway.yaml"], "TURN-TCP",
		"TURN-TLS\n      tls: {certificateRefs: [{name: turn}]}", 1)
	maker := maps.Clone(certificate)
	maker["certificate.yaml"] = "apiVersion: cert-manager.io/v1\nkind: Certificate\nmetadata: {name: any, namespace: meet}\nspec: {secretName: turn}\n"
	for _, c := range []struct {
		files map[string]string
		flags string
		want  int
	}{
		{remark, "--fail-on=error", 0},
		{remark, "--fail-on=warning", 0},
		{remark, "--fail-on=remark", exitFailed},
		{warning, "--fail-on=error", 0},
		{warning, "--fail-on=warning", exitFailed},
		{certificate, "--secrets-elsewhere=false", exitFailed},
		{certificate, "--secrets-elsewhere", 0},
		{maker, "--secrets-elsewhere=false", 0},
	} {
		if findings, code := lintFolder(t, writeFolder(t, c.files), c.flags); code != c.want {
			t.Errorf("%s: exit code %d, want %d: %+v", c.flags, code, c.want, findings)
		}
	}
}

// withoutFinding are the fields whose text may be anything, with the reason.
var withoutFinding = map[string]string{
	"EndpointSlice metadata.name":          "nothing refers to it",
	"EndpointSlice ports[].name":           "routes name ports by number",
	"Gateway spec.listeners[].name":        "a route without sectionName attaches to every listener",
	"GatewayConfig spec.realm":             "a DNS label is a realm",
	"ReferenceGrant metadata.name":         "nothing refers to it",
	"ReferenceGrant metadata.namespace":    "objects of another team may be elsewhere",
	"ReferenceGrant spec.from[].namespace": "objects of another team may be elsewhere",
	"ReferenceGrant spec.to[].name":        "objects of another team may be elsewhere",
	"Service spec.ports[].name":            "routes name ports by number",
	"UDPRoute metadata.name":               "nothing refers to it",
}

// There is a finding when any text of the quickstart, or of objects of further kinds, is replaced by another text.
func TestLint_EveryText(t *testing.T) {
	base := quickstart(t)
	base["more.yaml"] = `apiVersion: stunner.l7mp.io/v1
kind: StaticService
metadata: {name: fixed, namespace: meet}
spec: {prefixes: [203.0.113.0/24]}
---
apiVersion: stunner.l7mp.io/v1
kind: UDPRoute
metadata: {name: to-fixed, namespace: meet}
spec:
  parentRefs: [{name: front-door, sectionName: udp, kind: Gateway, group: gateway.networking.k8s.io, namespace: meet}]
  rules: [{backendRefs: [{name: fixed, kind: StaticService, group: stunner.l7mp.io, namespace: meet}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: ReferenceGrant
metadata: {name: grant, namespace: other}
spec:
  from: [{group: stunner.l7mp.io, kind: UDPRoute, namespace: meet}]
  to: [{group: "", kind: Service, name: media}]
`
	if findings, _ := lintFolder(t, writeFolder(t, base)); len(findings) > 0 {
		t.Fatalf("findings without a mistake: %+v", findings)
	}
	used := map[string]bool{}
	for _, file := range slices.Sorted(maps.Keys(base)) {
		for i, document := range strings.Split(base[file], "\n---\n") {
			var fields map[string]any
			if err := yaml.Unmarshal([]byte(document), &fields); err != nil {
				t.Fatal(err)
			}
			visitTexts(fields, "", func(path string, set func(string)) {
				set("nonsense")
				documents := strings.Split(base[file], "\n---\n")
				text, err := yaml.Marshal(fields)
				if err != nil {
					t.Fatal(err)
				}
				documents[i] = string(text)
				files := maps.Clone(base)
				files[file] = strings.Join(documents, "\n---\n")
				findings, _ := lintFolder(t, writeFolder(t, files))
				id := strings.SplitN(document[strings.Index(document, "kind: ")+len("kind: "):], "\n", 2)[0] + " " + path
				if len(findings) > 0 {
					return
				}
				if used[id] = true; withoutFinding[id] == "" {
					t.Errorf("%s: %s may be nonsense without a finding", file, id)
				}
			})
		}
	}
	for id, reason := range withoutFinding {
		if !used[id] {
			t.Errorf("exception %s (%s) is not needed", id, reason)
		}
	}
}

// visitTexts calls visit for each text below a value. set replaces it for the time of the call.
func visitTexts(fields any, path string, visit func(path string, set func(string))) {
	each := func(value any, at string, put func(any)) {
		if _, isText := value.(string); !isText {
			visitTexts(value, at, visit)
			return
		}
		visit(at, func(text string) { put(text) })
		put(value)
	}
	switch fields := fields.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(fields)) {
			each(fields[key], strings.TrimPrefix(path+"."+key, "."), func(v any) { fields[key] = v })
		}
	case []any:
		for i := range fields {
			each(fields[i], path+"[]", func(v any) { fields[i] = v })
		}
	}
}
