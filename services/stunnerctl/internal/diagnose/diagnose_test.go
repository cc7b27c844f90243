package diagnose

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "rewrite the goldens")

// load returns the snapshot of a fixture: the healthy installation with changes. Each document of apply is merged into
// the object of the same kind, namespace and name, or added; {delete: true} removes the object. live is merged into the
// answers. problems are the problems that the operator reports.
func load(t *testing.T, apply, live, problems []byte) *Snapshot {
	t.Helper()
	var objects []map[string]any
	for _, o := range append(documents(t, read(t, "base.yaml")), documents(t, apply)...) {
		at := slices.IndexFunc(objects, func(p map[string]any) bool { return identity(p) == identity(o) })
		switch {
		case o["delete"] == true && at < 0:
			t.Fatalf("%s is not in base.yaml", identity(o))
		case o["delete"] == true:
			objects = slices.Delete(objects, at, at+1)
		case at >= 0:
			objects[at] = merge(objects[at], o).(map[string]any)
		default:
			objects = append(objects, o)
		}
	}
	var base, change any
	if err := errors.Join(yaml.Unmarshal(read(t, "base.live.yaml"), &base), yaml.UnmarshalStrict(live, &change)); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(merge(base, change))
	if err != nil {
		t.Fatal(err)
	}
	s := &Snapshot{}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(s); err != nil {
		t.Fatal(err)
	}
	if len(problems) > 0 {
		if err := yaml.UnmarshalStrict(problems, &s.Operator.Problems); err != nil {
			t.Fatal(err)
		}
	}
	for _, o := range objects {
		s.Objects = append(s.Objects, unstructured.Unstructured{Object: o})
	}
	return s
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func documents(t *testing.T, text []byte) (all []map[string]any) {
	t.Helper()
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		var o map[string]any
		err := decoder.Decode(&o)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(o) > 0 {
			all = append(all, o)
		}
	}
}

func identity(o map[string]any) string {
	u := unstructured.Unstructured{Object: o}
	return u.GroupVersionKind().GroupKind().String() + " " + u.GetNamespace() + "/" + u.GetName()
}

// merge is a JSON merge patch (RFC 7396).
func merge(base, change any) any {
	patch, ok := change.(map[string]any)
	if !ok {
		if change == nil {
			return base
		}
		return change
	}
	target, ok := base.(map[string]any)
	if !ok {
		target = map[string]any{}
	}
	for name, value := range patch {
		if value == nil {
			delete(target, name)
			continue
		}
		target[name] = merge(target[name], value)
	}
	return target
}

func show(findings []Finding) string {
	var b strings.Builder
	for _, f := range findings {
		fmt.Fprintf(
			&b,
			"%s in %s: %s\n  field   %s\n  problem %s\n  remedy  %s\n",
			f.Severity,
			f.Stage,
			f.Object,
			f.Field,
			f.Problem,
			f.Remedy,
		)
		if f.Command != "" {
			fmt.Fprintf(&b, "  command %s\n", f.Command)
		}
	}
	return b.String()
}

// Each fixture is a fault. The first finding of why names it. So does the first finding of doctor, unless the fault
// concerns no Gateway.
func TestFaults(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) < 25 {
		t.Fatalf("%d fixtures, %v", len(files), err)
	}
	ran := map[string]bool{}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			parts := map[string][]byte{}
			for _, f := range a.Files {
				parts[f.Name] = f.Data
			}
			s := load(t, parts["apply"], parts["live"], parts["problems"])
			why, doctor := Why(s, "meet", "front-door"), All(Doctor(s, ""))
			got := "why\n" + show(why.Findings) + "doctor\n" + show(doctor)
			for _, f := range slices.Concat(why.Findings, doctor) {
				ran[f.Stage] = true
				if f.Object == "" || f.Problem == "" || f.Remedy == "" || f.Stage == "" {
					t.Errorf("a part is missing: %+v", f)
				}
			}
			if len(why.Findings)+len(doctor) == 0 {
				t.Error("no finding")
			}
			if *update {
				a.Files = slices.DeleteFunc(a.Files, func(f txtar.File) bool { return f.Name == "want" })
				a.Files = append(a.Files, txtar.File{Name: "want", Data: []byte(got)})
				if err := os.WriteFile(file, txtar.Format(a), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(parts["want"]) {
				t.Errorf("got\n%s\nwant\n%s", got, parts["want"])
			}
		})
	}
	for _, stage := range slices.Concat(GatewayStages, SharedStages) {
		if !ran[stage.Name] {
			t.Errorf("no fixture has a finding of stage %s", stage.Name)
		}
	}
}

// Every phrase that a file provider replaces is a phrase of the package.
func TestReplacedPhrasesExistInThePackage(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var sources strings.Builder
	for _, file := range files {
		if text, err := os.ReadFile(file); err != nil {
			t.Fatal(err)
		} else if file != "stagedocuments.go" {
			sources.Write(text)
		}
	}
	for i := 0; i < len(folderWords); i += 2 {
		if !strings.Contains(sources.String(), folderWords[i]) {
			t.Errorf("no finding or fact contains %q", folderWords[i])
		}
	}
}

// A healthy installation has no finding.
func TestHealthy(t *testing.T) {
	s := load(t, nil, nil, nil)
	if r := Why(s, "meet", "front-door"); len(r.Findings) > 0 || r.Wrong() {
		t.Errorf("why: %s", show(r.Findings))
	}
	reports := Doctor(s, "")
	if all := All(reports); len(all) > 0 {
		t.Errorf("doctor: %s", show(all))
	}
	for _, step := range slices.Concat(reports[0].Steps, reports[1].Steps) {
		if step.State != OK || step.Fact == "" {
			t.Errorf("step %+v", step)
		}
	}
}

// A NetworkPolicy that admits all addresses is not reported.
func TestNetworkPolicyForAllClients(t *testing.T) {
	for _, block := range []string{"{cidr: 0.0.0.0/0}", "{cidr: 0.0.0.0/0, except: [169.254.0.0/16]}", "{cidr: '::/0'}"} {
		s := load(t, []byte(`{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: all, namespace: meet},
spec: {podSelector: {}, policyTypes: [Ingress], ingress: [{from: [{ipBlock: `+block+`}]}]}}`), nil, nil)
		if r := Why(s, "meet", "front-door"); len(r.Findings) > 0 {
			t.Errorf("%s: %s", block, show(r.Findings))
		}
	}
}

// NetworkPolicies for ingress to backends and for egress of dataplane pods are additive. Labels that are not known may
// match, so a policy that only may deny the media is not reported.
func TestNetworkPoliciesOfBackends(t *testing.T) {
	const deny = "{podSelector: {matchLabels: {app: sfu}}, policyTypes: [Ingress]}"
	for _, c := range []struct {
		policies []string // specs
		finding  bool
	}{
		{[]string{deny}, true},
		{[]string{"{podSelector: {}, policyTypes: [Ingress]}"}, true},
		{[]string{"{podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress]}"}, false},
		{[]string{"{podSelector: {matchLabels: {tier: media}}, policyTypes: [Ingress]}"}, false},
		{[]string{deny, "{podSelector: {matchLabels: {tier: media}}, policyTypes: [Ingress], ingress: [{}]}"}, false},
		{[]string{deny, "{podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress], ingress: [{}]}"}, true},
		{[]string{deny, "{podSelector: {}, ingress: [{ports: [{protocol: UDP, port: 20000}]}]}"}, false},
		{[]string{deny, "{podSelector: {}, ingress: [{ports: [{port: 10000}]}]}"}, true}, // TCP
		{[]string{deny, "{podSelector: {}, ingress: [{ports: [{protocol: UDP, port: 53, endPort: 9999}]}]}"}, true},
		{[]string{deny, "{podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {app: stunner}}}]}]}"}, false},
		{[]string{deny, "{podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {app: other}}}]}]}"}, true},
		{[]string{deny, "{podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {team: a}}}]}]}"}, false},
		{[]string{deny, "{podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: shop}}}]}]}"}, true},
		{[]string{deny, "{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/24}}]}]}"}, false},
		{[]string{deny, "{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/24, except: [10.0.0.1/32, 10.0.0.2/32]}}]}]}"}, true},
		{[]string{"{podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.9.0.0/16}}], ports: [{protocol: UDP}]}]}"}, true},
		{[]string{"{podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8}}], ports: [{protocol: UDP}]}]}"}, false},
		{[]string{"{podSelector: {}, policyTypes: [Egress], egress: [{ports: [{protocol: UDP, port: 5000}]}]}"}, true},
		{[]string{"{podSelector: {}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {app: sfu}}}]}]}"}, false},
		{[]string{"{podSelector: {}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {app: web}}}]}]}"}, true},
	} {
		var all strings.Builder
		for i, spec := range c.policies {
			fmt.Fprintf(&all, "---\n{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: p%d, namespace: meet}, spec: %s}\n", i, spec)
		}
		for i := range 2 {
			fmt.Fprintf(&all, "---\n{apiVersion: v1, kind: Pod, metadata: {name: front-door-%d, namespace: meet}, status: {podIPs: [{ip: 10.0.0.%[1]d}]}}\n", i+1)
		}
		s := load(t, []byte(all.String()), nil, nil)
		named := slices.ContainsFunc(Why(s, "meet", "front-door").Findings, func(f Finding) bool {
			return strings.Contains(f.Problem, "Service meet/sfu") && strings.Contains(f.Problem, "UDP to ports 10000-20000")
		})
		if named != c.finding {
			t.Errorf("%v: finding %v, want %v", c.policies, named, c.finding)
		}
	}
}

// A stage without readable objects and without an answer is not reported as checked.
func TestNotChecked(t *testing.T) {
	s := load(t, nil, []byte(`{"unreached":{"problem":"refused"},"operator":null,"clocks":null,"served":null,"live":null,"auth":null}`), nil)
	s.Asked = Asked{Peer: "10.0.0.9:12000", User: "ada"}
	s.Objects = slices.DeleteFunc(s.Objects, func(o unstructured.Unstructured) bool { return o.GetKind() != "Gateway" })
	for _, k := range slices.Concat(ClusterKinds, InstallationKinds, RoutingKinds[1:], GatewayKinds, BackendKinds, SystemKinds) {
		s.Unreadable = append(s.Unreadable, Unreadable{Kind: k.Kind, Right: "list " + k.Resource})
	}
	read := []string{"gateway", "address", "route"} // conditions, addresses and attached routes are in the Gateway
	for _, r := range Doctor(s, "") {
		for _, step := range r.Steps {
			if (step.State == OK || step.Fact == "") && !slices.Contains(read, step.Stage) {
				t.Errorf("%+v", step)
			}
		}
	}
}

// The role in the remedy for missing rights contains all of them.
func TestRolesContainTheRights(t *testing.T) {
	viewer := struct {
		Rules []struct{ APIGroups, Resources, Verbs []string }
	}{}
	text, err := os.ReadFile("../../../../kustomize/base/inspection.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		if strings.Contains(document, "name: "+viewerRole+"\n") {
			err = yaml.Unmarshal([]byte(document), &viewer)
		}
	}
	if err != nil || len(viewer.Rules) == 0 {
		t.Fatal("no role", err)
	}
	for _, k := range slices.Concat(
		ClusterKinds, InstallationKinds, RoutingKinds, GatewayKinds, BackendKinds, OperatorKinds, SystemKinds,
	) {
		verb := "list"
		if len(k.Names) > 0 {
			verb = "get"
		}
		if !slices.ContainsFunc(viewer.Rules, func(rule struct{ APIGroups, Resources, Verbs []string }) bool {
			return slices.Contains(rule.APIGroups, k.Group) && slices.Contains(rule.Resources, k.Resource) &&
				slices.Contains(rule.Verbs, verb)
		}) {
			t.Errorf("%s does not contain %s %s", viewerRole, verb, k.GroupResource())
		}
	}
}

// Each reason for which the auth service refuses tokens has a remedy.
func TestReasonsOfTokensHaveARemedy(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/reference/auth-refusals.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Refused tokens\n")
	section, _, _ = strings.Cut(section, "\n## ")
	n := 0
	for line := range strings.Lines(section) {
		reason, _, _ := strings.Cut(strings.TrimPrefix(line, "| `"), "`")
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		n++
		if c := refusalCauses[reason]; c.field == "" || c.remedy == "" {
			t.Errorf("reason %s has no remedy", reason)
		}
	}
	if n < 15 {
		t.Errorf("%d reasons in docs/reference/auth-refusals.md", n)
	}
}

// Refused tokens are a finding if more requests are refused than accepted, or if the installation causes the refusals.
// A config that has just changed is not compared.
func TestAuthFindings(t *testing.T) {
	for name, tt := range map[string]struct{ status, want string }{
		"few of many tokens":      {`"granted":40,"refused":{"token_audience":31}`, ""},
		"most tokens":             {`"granted":30,"refused":{"token_audience":31}`, "token_audience"},
		"a scan of a quiet place": {`"granted":0,"refused":{"token_missing":3}`, ""},
		"requests of a client":    {`"granted":0,"refused":{"parameter_unknown":99}`, ""},
		"no gateway is served":    {`"granted":40,"refused":{"no_gateway_served":1}`, "no_gateway_served"},
		"an old config":           {`"configs":{"meet/front-door":"b"}`, "has revision b"},
		"a config that changes":   {`"configs":{"meet/front-door":"b"},"changed":"2026-11-23T11:59:45Z"`, ""},
		"the whole config":        {`"configs":{"meet/front-door":"3f2a9c01d4e5"}`, ""},
		"too many configs":        {`"configs":{"other/one":"b","meet/front-door":null},"omitted":1`, ""},
		"keys of an open service": {`"open":true,"keysRead":null`, ""},
		"keys of an hour ago":     {`"keysRead":"2026-11-23T11:00:00Z"`, ""},
		"older keys":              {`"keysRead":"2026-11-23T10:59:59Z"`, "has last read the keys of tokens 60 minutes ago"},
	} {
		s := load(t, nil, nil, nil)
		base, status := any(nil), any(nil)
		if err := errors.Join(json.Unmarshal(s.Auth.Items[0].Body, &base), json.Unmarshal([]byte("{"+tt.status+"}"), &status)); err != nil {
			t.Fatal(err)
		}
		body, err := json.Marshal(merge(base, status))
		if err != nil {
			t.Fatal(err)
		}
		s.Auth.Items[0].Body = body
		got := show(All(Doctor(s, "")))
		if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: %s, want %q", name, got, tt.want)
		}
	}
}
