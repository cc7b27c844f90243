package manifest_test

import (
	"encoding/json"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/manifest"
)

func TestAPatchMakesAPodOrIsRefused(t *testing.T) {
	for _, test := range []struct{ name, patch, want string }{
		{"nothing", `{}`, ""},
		{"a sidecar", `{spec: {containers: [{name: tap, image: tap}]}}`, ""},
		{"a variable", `{spec: {containers: [{name: stunner-daemon, env: [{name: A, value: b}]}]}}`, ""},
		{"annotations", `{metadata: {annotations: {a: b}}}`, ""},
		{"a label", `{metadata: {labels: {a: b}}}`, ""},
		{"a volume that goes", `{spec: {volumes: null}}`, ""},
		{"a misspelt field", `{spec: {priorityClas: media}}`, `unknown field "spec.priorityClas"`},
		{"a misspelt list", `{spec: {sidecars: [{name: tap}]}}`, "sidecars"},
		{"a wrong type", `{spec: {priority: high}}`, "priority"},
		{"a list without names", `{spec: {containers: [{image: tap}]}}`, "merge key"},
		{"a directive that is none", `{spec: {$patch: please}}`, "is no strategic merge patch"},
		{"a list for a pod", `{spec: []}`, "does not make a pod template"},
		{"the label of the Gateway", `{metadata: {labels: {stunner.l7mp.io/related-gateway-name: other}}}`, "changes label stunner.l7mp.io/related-gateway-name"},
		{"all labels", `{metadata: {labels: null}}`, "changes label app"},
		{"no labels at all", `{metadata: null}`, "changes label app"},
		{"a finalizer", `{metadata: {finalizers: [example.net/hold]}}`, "other metadata"},
		{"a name", `{metadata: {name: mine}}`, "other metadata"},
		{"another container instead", `{spec: {containers: [{$patch: replace}, {name: tap}]}}`, "takes container stunner-daemon away"},
		{"no container", `{spec: {containers: [{$patch: delete, name: stunner-daemon}]}}`, "takes container stunner-daemon away"},
		{"a list as name", `{spec: {containers: [{name: []}]}}`, "the name or key of an element is no text"},
		{"an object as name", `{spec: {containers: [{name: stunner-daemon, env: [{name: {}}]}]}}`, "the name or key of an element is no text"},
		{"a list to be deleted", `{spec: {volumes: [{$patch: delete, name: [a]}]}}`, ""},
		{"no pod", `{spec: null}`, "takes container stunner-daemon away"},
	} {
		raw, err := yaml.YAMLToJSON([]byte(test.patch))
		if err != nil {
			t.Fatal(err)
		}
		err = manifest.CheckPatch(patching(raw))
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%s: refused: %v", test.name, err)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
}

// F-08: a patch is rejected, or the pod has the labels that Services select by and the dataplane container.
func FuzzPatch(f *testing.F) {
	for _, seed := range []string{
		`{"spec":{"containers":[{"name":"tap"},{"$patch":"replace"}]}}`,
		`{"spec":{"containers":[{"name":"stunner-daemon","env":[{"name":"A","$patch":"delete"}]}],"$setElementOrder/containers":[{"name":"tap"}]}}`,
		`{"$patch":"delete"}`, `{"metadata":{"$retainKeys":["labels"],"labels":{"app":"stunner"}}}`,
		`{"spec":{"$deleteFromPrimitiveList/x":[1]}}`, `null`, `[]`,
		`{"spec":{"containers":[{"name":[]}]}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, patch []byte) {
		if !json.Valid(patch) {
			return // rejected by the API server and by a decoder
		}
		built, err := manifest.Workload{Template: patching(patch)}.Build(owner)
		if err != nil {
			return
		}
		d := built.(*appsv1.Deployment)
		for _, e := range d.Spec.Selector.MatchExpressions {
			if got := d.Spec.Template.Labels[e.Key]; got != e.Values[0] {
				t.Errorf("%s: label %s is %q", patch, e.Key, got)
			}
		}
		if c := d.Spec.Template.Spec.Containers; len(c) == 0 || c[0].Name != manifest.ContainerName {
			t.Errorf("%s: the dataplane is not the first container", patch)
		}
	})
}

func patching(raw []byte) *stunnerv1.Dataplane {
	return &stunnerv1.Dataplane{Spec: stunnerv1.DataplaneSpec{PodTemplatePatch: &runtime.RawExtension{Raw: raw}}}
}
