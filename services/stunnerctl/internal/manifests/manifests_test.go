package manifests

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/services/operator/render"
)

func TestQuote(t *testing.T) {
	text := "a: true # true\nb: {x: 1.5, é: it's}\nc: 007\r\n"
	got := Quote([]byte(text), []render.Span{
		{Line: 1, Column: 4, Length: 4}, {Line: 2, Column: 8, Length: 3}, {Line: 2, Column: 16, Length: 4},
		{Line: 3, Column: 4, Length: 3},
		{Line: 0, Column: 1, Length: 1}, {Line: 9, Column: 1, Length: 1}, {Line: 1, Column: 14, Length: 9}, // not in the text
	})
	if want := "a: 'true' # true\nb: {x: '1.5', é: 'it''s'}\nc: '007'\r\n"; string(got) != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestRead(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{
		"a.yaml", "b.yml", "c.txt", ".hidden.yaml", "sub/d.yaml", "sub/deeper/e.yaml", ".git/f.yaml",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	units, err := Read([]string{dir, filepath.Join(dir, "c.txt"), Stdin}, strings.NewReader("from stdin"))
	if err != nil || len(units) != 1 {
		t.Fatal(units, err)
	}
	files := units[0].Files
	var got []string
	for _, path := range slices.Sorted(maps.Keys(files)) {
		got = append(got, strings.TrimPrefix(path, dir+"/")+"="+string(files[path]))
	}
	want := []string{"-=from stdin", "a.yaml=a.yaml", "b.yml=b.yml", "c.txt=c.txt", "sub/d.yaml=sub/d.yaml"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestReadFails(t *testing.T) {
	empty := t.TempDir()
	for _, path := range []string{empty, filepath.Join(empty, "missing.yaml")} {
		if _, err := Read([]string{path}, nil); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: error %v, want one that names the path", path, err)
		}
	}
}

// A folder with a Kustomization is read as the result of its build. The place of a finding is in a file that users
// wrote.
func TestRead_Kustomization(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"base/kustomization.yaml": "resources: [gateway.yaml]\n",
		"base/gateway.yaml":       "# comment\napiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: a}\nspec:\n  gatewayClassName: nothing\n  listeners: [{name: u, port: 1, protocol: TURN-UDP}]\n",
		"test/kustomization.yaml": "namespace: calls\nnamePrefix: test-\nresources: [../base]\n",
		"prod/kustomization.yaml": "namespace: calls\nnamePrefix: test-\nresources: [../base]\n",
		"part/kustomization.yaml": "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\n",
		"url/kustomization.yaml":  "resources: ['https://example.org/a.yaml']\n",
		"plain/service.yaml":      "apiVersion: v1\nkind: Service\nmetadata: {name: s}\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	units, err := Read([]string{dir}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, u := range units {
		for _, name := range slices.Sorted(maps.Keys(u.Files)) {
			got = append(got, strings.TrimPrefix(name, dir+"/"))
		}
		for _, f := range append(u.Findings, Findings(render.Files(u.Files, render.DefaultOptions()).Problems)...) {
			if f = u.Locate(f); f.Severity == Error {
				got = append(got, fmt.Sprintf("%s:%d %s %s", strings.TrimPrefix(f.File, dir+"/"), f.Line, f.Object, f.Field))
			}
		}
	}
	want := []string{ // two environments with the same objects are not applied together
		"plain/service.yaml", "prod/kustomization.yaml", "url/kustomization.yaml:1 Kustomization ",
		"base/gateway.yaml:6 Gateway calls/test-a spec.gatewayClassName",
		"plain/service.yaml", "test/kustomization.yaml",
		"base/gateway.yaml:6 Gateway calls/test-a spec.gatewayClassName",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// No field of a Kustomization makes a check connect to a network.
func TestKustomizationsFetchNothing(t *testing.T) {
	for _, fields := range []string{
		"resources: ['https://192.0.2.1/a.yaml']", "resources: ['github.com/owner/repo//base?ref=v1']",
		"bases: ['GitHub.com/owner/repo']", "components: ['user@192.0.2.1:owner/repo']",
		"patches: [{path: 'https://192.0.2.1/patch.yaml'}]", "patchesStrategicMerge: ['http://192.0.2.1/patch.yaml']",
		"patchesJson6902: [{path: 'HTTPS://192.0.2.1/patch.yaml', target: {kind: Gateway}}]",
		"replacements: [{path: 'https://192.0.2.1/r.yaml'}]", "openapi: {path: 'https://192.0.2.1/schema.json'}",
		"configMapGenerator: [{name: a, files: ['key=https://192.0.2.1/file']}]",
		"secretGenerator: [{name: a, envs: ['https://192.0.2.1/env']}]", "helmCharts: [{name: a, repo: 'oci://192.0.2.1/a'}]",
		"crds: ['https://192.0.2.1/crd.yaml']", "generators: ['https://192.0.2.1/g.yaml']",
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(fields+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		units, err := Read([]string{dir}, nil)
		said := fmt.Sprint(err)
		for _, u := range units {
			said += fmt.Sprint(u.Findings)
		}
		if !strings.Contains(said, "URLs are not fetched") {
			t.Errorf("%s: %s", fields, said)
		}
	}
}
