package crd

import (
	"fmt"
	"path"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	runtimeschema "k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

// embedded returns the versions of the embedded CRDs.
func embedded(t testing.TB) (all []runtimeschema.GroupVersionKind) {
	t.Helper()
	entries, err := files.ReadDir("crds")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		data, err := files.ReadFile(path.Join("crds", entry.Name()))
		var crd apiextensionsv1.CustomResourceDefinition
		if err == nil {
			err = yaml.Unmarshal(data, &crd)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range crd.Spec.Versions {
			all = append(
				all, runtimeschema.GroupVersionKind{Group: crd.Spec.Group, Version: v.Name, Kind: crd.Spec.Names.Kind},
			)
		}
	}
	return all
}

// Each version of each embedded CRD is found by its kind, and its rules compile.
func TestFindCompilesEveryVersion(t *testing.T) {
	all := embedded(t)
	if len(all) < 8 {
		t.Fatalf("%d versions are embedded", len(all))
	}
	for _, gvk := range all {
		s := Find(gvk)
		if s == nil {
			t.Errorf("%s is not found", gvk)
			continue
		}
		if _, errs := s.Admit(
			map[string]any{"apiVersion": gvk.GroupVersion().String(), "kind": gvk.Kind},
		); strings.Contains(fmt.Sprint(errs), "compile") {
			t.Errorf("%s: %v", gvk, errs)
		}
	}
	for _, gvk := range []runtimeschema.GroupVersionKind{
		{Version: "v1", Kind: "Service"}, {Group: "stunner.l7mp.io", Version: "v0", Kind: "Dataplane"},
	} {
		if Find(gvk) != nil {
			t.Errorf("%s is found", gvk)
		}
	}
}

// BenchmarkCompile compiles every version once, as a folder with all kinds does at the first read.
func BenchmarkCompile(b *testing.B) {
	all := embedded(b)
	for b.Loop() {
		for _, gvk := range all {
			if _, err := compile(gvk); err != nil {
				b.Fatal(err)
			}
		}
	}
}
