package crd

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"sigs.k8s.io/yaml"

	"github.com/stunner-gateway/stunner/e2e/internal/cluster"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
)

// The objects of KEDA that the operator creates, and the objects of KEDA in the examples, are valid according to the
// CRDs of KEDA.
func TestKEDAObjectsAreValidByItsCRDs(t *testing.T) {
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	folder, err := cluster.KEDA(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	kinds := kindsOf(t, readCRDs(t, filepath.Join(folder, "keda.sh_*.yaml")), "v1alpha1")
	documents := asked(t, root)
	if len(documents) < 8 {
		t.Fatalf("found %d objects", len(documents))
	}
	for where, text := range documents {
		var o map[string]any
		if err := yaml.UnmarshalStrict(text, &o); err != nil {
			t.Fatalf("%s: %v", where, err)
		}
		o = wholeNumbers(o).(map[string]any)
		k, ok := kinds[o["kind"].(string)]
		if !ok {
			t.Errorf("%s: KEDA has no kind %s", where, o["kind"])
			continue
		}
		unknown := pruning.PruneWithOptions(
			o, k.structural, true, schema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true},
		)
		if len(unknown) > 0 {
			t.Errorf("%s: KEDA does not know %v", where, unknown)
		}
		if errs := k.admit(t, o); len(errs) > 0 {
			t.Errorf("%s: %v", where, errs.ToAggregate())
		}
	}
}

// asked returns the objects of KEDA in the folder keda and in the golden cases of the translation.
func asked(t *testing.T, root string) map[string][]byte {
	t.Helper()
	documents := map[string][]byte{}
	add := func(where string, text []byte) {
		for i, document := range bytes.Split(text, []byte("---\n")) {
			if bytes.Contains(document, []byte("apiVersion: keda.sh/")) {
				documents[where+"/"+string(rune('0'+i))] = document
			}
		}
	}
	for _, pattern := range []string{"keda/*.yaml", "services/operator/internal/translate/testdata/*.txtar"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if filepath.Ext(file) == ".yaml" {
				add(filepath.Base(file), text)
				continue
			}
			for _, part := range txtar.Parse(text).Files {
				if part.Name == "want/scaling.yaml" {
					add(filepath.Base(file), part.Data)
				}
			}
		}
	}
	return documents
}
