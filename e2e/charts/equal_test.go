package charts

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// bare returns the objects without the labels and annotations that only Helm sets. `helm --create-namespace` makes the
// namespace of the release.
func bare(t *testing.T, objects []object) map[string]object {
	t.Helper()
	all := byName(t, objects)
	delete(all, "Namespace/"+home)
	for _, o := range all {
		without(o, "labels", func(key string) bool {
			return key == "helm.sh/chart" || strings.HasPrefix(key, "app.kubernetes.io/")
		})
		without(o, "annotations", func(key string) bool { return key == "helm.sh/resource-policy" })
	}
	// Helm renders the namespace of the release into the policies. Kustomize cannot, so its policies match the operator
	// in any namespace.
	for _, o := range all {
		if condition, found := at(o.Object, "spec.matchConditions.0").(map[string]any); found {
			condition["expression"] = strings.Replace(condition["expression"].(string), "[^:]+", home, 1)
		}
	}
	return all
}

func without(o object, field string, ours func(string) bool) {
	kept, _, _ := unstructured.NestedStringMap(o.Object, "metadata", field)
	maps.DeleteFunc(kept, func(key, _ string) bool { return ours(key) })
	unstructured.RemoveNestedField(o.Object, "metadata", field)
	if len(kept) > 0 {
		_ = unstructured.SetNestedStringMap(o.Object, kept, "metadata", field)
	}
}

// Helm and kustomize install the same objects.
func TestKustomize_EqualsTheCharts(t *testing.T) {
	for folder, r := range map[string]release{
		"kustomize/overlays/default": {},
		"e2e/charts/testdata/everything": {files: []string{"values-openova.yaml"}, set: `
watchNamespaces: [stunner]
monitoring: {podMonitor: {enabled: true}, prometheusRule: {enabled: true}, dashboards: {enabled: true}}`},
	} {
		r.chart = app
		want := bare(t, append(r.objects(t), release{chart: crds}.objects(t)...))
		got := bare(t, append(kustomize(t, folder), kustomize(t, "kustomize/base/crds")...))
		all := maps.Clone(want)
		maps.Copy(all, got)
		for _, name := range slices.Sorted(maps.Keys(all)) {
			if w, g := want[name].Object, got[name].Object; !reflect.DeepEqual(w, g) {
				t.Errorf("%s: %s differs\nonly in the chart:\n%s\nonly in kustomize:\n%s",
					folder, name, only(t, w, g), only(t, g, w))
			}
		}
	}
}

// only returns the lines of an object that another object does not have.
func only(t *testing.T, of, without map[string]any) string {
	t.Helper()
	var lines [2][]string
	for i, o := range []map[string]any{of, without} {
		text, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		lines[i] = strings.Split(string(text), "\n")
	}
	return strings.Join(slices.DeleteFunc(
		lines[0], func(line string) bool { return slices.Contains(lines[1], line) },
	), "\n")
}

// Rendering a chart twice gives the same result, as GitOps tools need: it contains no random values and no Secret.
func TestChart_RenderingIsDeterministic(t *testing.T) {
	for title, r := range combinations {
		r.chart = app
		first, err := r.templates(t)
		if err != nil {
			t.Fatal(err)
		}
		again, err := r.templates(t)
		if err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(first, again) {
			t.Errorf("%s: the second rendering differs", title)
		}
		for file, text := range first {
			if strings.Contains(text, "\nkind: Secret\n") {
				t.Errorf("%s: %s contains a Secret", title, file)
			}
		}
	}
}

// Two releases in one cluster have no object in common.
func TestReleases_ShareNothing(t *testing.T) {
	north := release{chart: app, namespace: home, set: `watchNamespaces: [stunner-system, north]`}
	south := release{chart: app, namespace: "calls", set: `
watchNamespaces: [calls, south, stunner-system]
stunnerGatewayOperator: {controllerName: example.org/calls, dataplane: {name: calls}}
defaults: {gatewayClass: {name: calls}}`}
	theirs := byName(t, north.objects(t))
	for _, o := range south.objects(t) {
		if _, both := theirs[name(o)]; both {
			t.Errorf("%s is in both", name(o))
		}
	}
	calls := byName(t, south.objects(t))
	policies := 0
	for _, o := range calls {
		if o.GetKind() != "ValidatingAdmissionPolicy" {
			continue
		}
		policies++
		if text := fmt.Sprint(o.Object); !strings.Contains(text, "'^system:serviceaccount:calls:stunner-operator$'") ||
			strings.Contains(text, "stunner-system") {
			t.Errorf("%s refers to the operator of another release: %s", name(o), text)
		}
		if got := at(calls["ValidatingAdmissionPolicyBinding/"+o.GetName()].Object, "spec.policyName"); got != o.GetName() {
			t.Errorf("the binding refers to policy %v, not %q", got, o.GetName())
		}
	}
	if policies != 9 {
		t.Errorf("found %d policies", policies)
	}
	if got := at(calls["GatewayConfig/calls/stunner"].Object, "spec.dataplane"); got != "calls" {
		t.Errorf("the GatewayConfig uses Dataplane %v", got)
	}
}

// CRDs stay when their release is deleted, unless keep=false.
func TestCRDs_AreKept(t *testing.T) {
	kept := func(set string) (all []bool) {
		for _, o := range (release{chart: crds, set: set}).objects(t) {
			all = append(all, o.GetAnnotations()["helm.sh/resource-policy"] == "keep")
		}
		return all
	}
	own, every := kept(`{}`), kept(`gatewayAPI: {enabled: true}`)
	if len(own) != 5 || slices.Contains(own, false) {
		t.Errorf("kept CRDs of ours: %v", own)
	}
	if len(every) < 14 || slices.Contains(every, false) {
		t.Errorf("kept CRDs: %v", every)
	}
	if given := kept(`keep: false`); slices.Contains(given, true) {
		t.Errorf("CRDs kept despite keep=false: %v", given)
	}
}

// Helm stores chart and manifest of a release in one Secret, compressed and in base64. A Secret is limited to 1 MiB.
func TestReleases_FitASecret(t *testing.T) {
	for _, r := range []release{{chart: app}, {chart: crds, set: `gatewayAPI: {enabled: true}`}} {
		c := load(t, r.chart)
		files := c.Files
		for _, below := range c.Dependencies() {
			files = append(files, below.Files...)
			for _, deeper := range below.Dependencies() {
				files = append(files, deeper.Files...)
			}
		}
		manifest, err := r.templates(t)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		z := gzip.NewWriter(&out)
		if err := json.NewEncoder(z).Encode(
			map[string]any{"chart": c.Templates, "files": files, "manifest": manifest},
		); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		if size := out.Len() * 4 / 3; size > 900<<10 {
			t.Errorf("a release of %s takes %d bytes", r.chart, size)
		}
	}
}

// K-13: images have the application version or a digest, and never the tag latest. The annotations for Artifact Hub
// list them.
func TestImages(t *testing.T) {
	metadata := load(t, app).Metadata
	for _, program := range []string{"auth", "operator", "stunnerd"} {
		image := "ghcr.io/stunner-gateway/" + program + ":" + metadata.AppVersion
		if !strings.Contains(metadata.Annotations["artifacthub.io/images"], image+"\n") {
			t.Errorf("the annotations for Artifact Hub do not list %s", image)
		}
	}
	digest := "sha256:" + strings.Repeat("0123456789abcdef", 4)
	own := []string{
		"ghcr.io/stunner-gateway/auth:0.1.0", "ghcr.io/stunner-gateway/operator:0.1.0",
		"ghcr.io/stunner-gateway/stunnerd:0.1.0",
	}
	with := func(images []string, image string) []string { return append(slices.Clone(images), image) }
	pinned := []string{own[0], own[1], "ghcr.io/stunner-gateway/stunnerd@" + digest}
	for set, want := range map[string][]string{
		`{}`: own,
		`
stunnerGatewayOperator:
  deployment: {container: {manager: {image: {name: mirror.example.org/operator, tag: 1.2.3}}}}
  dataplane: {image: {tag: 4.5.6, digest: "` + digest + `"}}
stunnerAuthService: {deployment: {container: {authService: {image: {digest: "` + digest + `"}}}}}`: {
			"ghcr.io/stunner-gateway/auth@" + digest, "mirror.example.org/operator:1.2.3",
			"ghcr.io/stunner-gateway/stunnerd@" + digest,
		},
		// Fields missing in the Dataplane's image are taken from dataplane.image.
		`stunnerGatewayOperator: {dataplane: {spec: {image: {tag: v1.2}}}}`:                                                         with(own, "ghcr.io/stunner-gateway/stunnerd:v1.2"),
		`stunnerGatewayOperator: {dataplane: {spec: {image: {tag: 20250101}}}}`:                                                     with(own, "ghcr.io/stunner-gateway/stunnerd:20250101"),
		`stunnerGatewayOperator: {dataplane: {spec: {image: {pullPolicy: Always}}}}`:                                                with(own, "ghcr.io/stunner-gateway/stunnerd:0.1.0"),
		`stunnerGatewayOperator: {dataplane: {spec: {image: {name: mirror/stunnerd}}}}`:                                             with(own, "mirror/stunnerd:0.1.0"),
		`stunnerGatewayOperator: {dataplane: {spec: {image: {digest: "` + digest + `"}}}}`:                                          with(own, "ghcr.io/stunner-gateway/stunnerd@"+digest),
		`stunnerGatewayOperator: {dataplane: {spec: {image: "mirror/stunnerd:v1"}}}`:                                                with(own, "mirror/stunnerd:v1"),
		`stunnerGatewayOperator: {dataplane: {image: {digest: "` + digest + `"}, spec: {image: {name: mirror/stunnerd}}}}`:          with(pinned, "mirror/stunnerd@"+digest),
		`stunnerGatewayOperator: {dataplane: {image: {digest: "` + digest + `"}, spec: {image: {name: mirror/stunnerd, tag: v1}}}}`: with(pinned, "mirror/stunnerd:v1"),
	} {
		objects := byName(t, release{chart: app, set: set}.objects(t))
		manager := container(t, objects["Deployment/"+home+"/stunner-operator"])
		got := []string{container(t, objects["Deployment/"+home+"/stunner-auth"]).Image, manager.Image}
		for _, e := range manager.Env {
			if e.Name == "STUNNER_OPERATOR_IMAGE" {
				got = append(got, e.Value)
			}
		}
		if image := at(objects["Dataplane/default"].Object, "spec.image"); image != nil {
			got = append(got, image.(string))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s\nimages are %q, want %q", set, got, want)
		}
	}
}

// With ports for the API server set, the operator may connect to the API server, the auth service to its key set URL,
// and both to DNS and config discovery.
func TestNetworkPolicy_AllowsNeededEgress(t *testing.T) {
	for jwt, auth := range map[string]string{
		`{}`: "[53 53 cds]",
		`{issuer: me, audience: calls, existingSecret: web-app}`:                                   "[53 53 cds]",
		`{issuer: me, audience: calls, jwksURL: "https://id.example.org/keys"}`:                    "[53 53 cds 443]",
		`{issuer: me, audience: calls, jwksURL: "https://id.example.org:8443/keys?of=tenant:123"}`: "[53 53 cds 8443]",
		`{issuer: me, audience: calls, jwksURL: "https://[2001:db8::1]/keys"}`:                     "[53 53 cds 443]",
		`{issuer: me, audience: calls, jwksURL: "https://[2001:db8::1]:8443/keys"}`:                "[53 53 cds 8443]",
	} {
		objects := byName(t, release{
			chart: app, set: `{networkPolicy: {egressPorts: [6443, 443]}, stunnerAuthService: {jwt: ` + jwt + `}}`,
		}.objects(t))
		for policy, want := range map[string]string{"stunner-operator": "[53 53 cds 6443 443]", "stunner-auth": auth} {
			var ports []any
			for _, rule := range at(objects["NetworkPolicy/"+home+"/"+policy].Object, "spec.egress").([]any) {
				for _, port := range at(rule, "ports").([]any) {
					ports = append(ports, at(port, "port"))
				}
			}
			if got := fmt.Sprint(ports); got != want {
				t.Errorf("jwt: %s: %s allows ports %s, want %s", jwt, policy, got, want)
			}
		}
	}
}

// A label of an object overrides the label for all objects, and no key occurs twice.
func TestLabels_OfTheObjectComeFirst(t *testing.T) {
	objects := byName(t, release{chart: app, set: `
commonLabels: {app: all, release: all, grafana_dashboard: all, stunner.l7mp.io/config-discovery-service: all, team: calls}
monitoring:
  podMonitor: {enabled: true, labels: {release: prometheus}}
  prometheusRule: {enabled: true, labels: {release: prometheus, app.kubernetes.io/part-of: rules}}
  dashboards: {enabled: true}`}.objects(t))
	for of, want := range map[string]string{
		"PodMonitor/stunner-dataplane":     "release=prometheus",
		"PrometheusRule/stunner":           "release=prometheus app.kubernetes.io/part-of=rules",
		"ConfigMap/stunner-dashboards":     "grafana_dashboard=1 release=all",
		"Deployment/stunner-operator":      "app=stunner-operator",
		"Deployment/stunner-auth":          "app=stunner-auth",
		"Service/stunner-auth":             "app=stunner-auth",
		"Service/stunner-config-discovery": "stunner.l7mp.io/config-discovery-service=true app=all",
	} {
		kind, name, _ := strings.Cut(of, "/")
		o := objects[kind+"/"+home+"/"+name]
		labels := o.GetLabels()
		for label := range strings.FieldsSeq(want + " team=calls") {
			if key, value, _ := strings.Cut(label, "="); labels[key] != value {
				t.Errorf("%s has label %s=%q, want %s", of, key, labels[key], label)
			}
		}
	}
}
