package main

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const version = "v1.2.3"

// folder returns a folder with two files and a list of one image, and their provenance and checksums.
func folder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, "a.yaml", "a")
	write(t, dir, "b.tgz", "b")
	write(t, dir, imagesFile, "example.org/auth:1.2.3@sha256:"+strings.Repeat("01", 32)+"\n")
	for _, args := range [][]string{
		{
			"provenance", "-version", version, "-commit", strings.Repeat("a", 40), "-builder", "https://example.org/a",
			dir,
		},
		{"sums", dir},
	} {
		if err := run(args); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func write(t *testing.T, dir, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// The library of in-toto reads the provenance, and sha256sum the checksums. Both name each file, and every change of a
// file, an additional file and a missing one are found.
func TestProvenanceAndChecksums(t *testing.T) {
	for name, c := range map[string]struct {
		change func(dir string)
		want   string // in the error of the provenance; empty if it is valid
		sums   bool   // whether sha256sum accepts the folder
	}{
		"nothing": {func(string) {}, "", true},
		"a changed file": {
			func(dir string) { write(t, dir, "a.yaml", "other") }, "a.yaml has the digest", false,
		},
		"a missing file": {
			func(dir string) { _ = os.Remove(filepath.Join(dir, "b.tgz")) },
			"it names 4 files and images, and there are 3", false,
		},
		"an additional file": {func(dir string) { write(t, dir, "c", "c") }, `c has the digest ""`, true},
		"another image": {
			func(dir string) { write(t, dir, imagesFile, "example.org/auth:1.2.3@sha256:ff\n") },
			"has the digest", false,
		},
		"another predicate": {func(dir string) {
			edit(t, dir, func(s map[string]any) { s["predicateType"] = "https://example.org" })
		}, "it is a https://example.org", false},
		"no subject": {func(dir string) {
			edit(t, dir, func(s map[string]any) { s["subject"] = []any{} })
		}, "subject", false},
		"no builder": {func(dir string) {
			edit(t, dir, func(s map[string]any) { delete(s["predicate"].(map[string]any), "runDetails") })
		}, "runDetails", false},
		"a field that SLSA does not have": {func(dir string) {
			edit(t, dir, func(s map[string]any) { s["predicate"].(map[string]any)["trusted"] = true })
		}, "unknown field", false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := folder(t)
			c.change(dir)
			err := checkProvenance(dir, version)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			sums := exec.Command("sha256sum", "--check", "--strict", sumsFile)
			sums.Dir = dir
			if out, err := sums.CombinedOutput(); (err == nil) != c.sums {
				t.Errorf("sha256sum: %v\n%s", err, out)
			}
		})
	}
	if err := checkProvenance(folder(t), "v1.2.4"); err == nil || !strings.Contains(err.Error(), "refs/tags/v1.2.3") {
		t.Errorf("provenance of another version: %v", err)
	}
}

// edit changes the provenance in a folder.
func edit(t *testing.T, dir string, change func(map[string]any)) {
	t.Helper()
	name := filepath.Join(dir, provenanceFile)
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var s map[string]any
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	change(s)
	if text, err = json.Marshal(s); err != nil {
		t.Fatal(err)
	}
	write(t, dir, provenanceFile, string(text))
}

// The bill of materials of this tool's neighbour is complete. One without a licence, with a version that go.mod does
// not have, or with a module that is not in the notice, is refused.
func TestBills(t *testing.T) {
	root, dir := t.TempDir(), t.TempDir()
	program := filepath.Join(dir, "requirements")
	build := exec.Command("go", "build", "-o", program, "../requirements")
	build.Env = append(os.Environ(), "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := os.Mkdir(filepath.Join(root, "tools"), 0o755); err != nil {
		t.Fatal(err)
	}
	bill, notice := filepath.Join(dir, "requirements.spdx.json"), filepath.Join(dir, "NOTICE")
	module := filepath.Join(root, "tools/go.mod")
	required, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ file, old, new, want string }{
		{bill, "", "", ""},
		{bill, `"licenseDeclared": "BSD-3-Clause"`, `"licenseDeclared": "NOASSERTION"`, "has no licence"},
		{bill, `"SPDXID": "SPDXRef-stdlib-`, `"SPDXID": "SPDXRef-other-`, "no such package exists"},
		{bill, `"spdxVersion": "SPDX-2.3"`, `"spdxVersion": "SPDX-9"`, "SPDX-9"},
		{notice, "\ngo.yaml.in/yaml/v3 ", "\nexample.org/yaml ", "is not in NOTICE"},
		{module, "\tgo.yaml.in/yaml/v3 v3.", "\tgo.yaml.in/yaml/v3 v3.9", "go.mod requires"},
	} {
		if err := os.WriteFile(module, required, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := writeBill(bill, version, []string{program}); err != nil {
			t.Fatal(err)
		}
		if err := writeNotice(notice, version, []string{program}); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(c.file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), c.old) {
			t.Fatalf("%s does not contain %q:\n%s", c.file, c.old, text)
		}
		if err := os.WriteFile(c.file, []byte(strings.Replace(string(text), c.old, c.new, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		err = checkBills(root, dir)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q in %s: error %v, want %q", c.new, filepath.Base(c.file), err, c.want)
		}
	}
}

// The package of the TypeScript client has the version of the release, its files and its licence, and no dependencies.
func TestCheckClient(t *testing.T) {
	const manifest = `{"version": "1.2.3",
		"exports": {".": {"types": "./dist/index.d.ts", "default": "./dist/index.js"}}}`
	whole := map[string]string{
		"package.json": manifest, "dist/index.js": "1", "dist/index.d.ts": "1", "dist/LICENSE": "1",
	}
	for name, c := range map[string]struct {
		file, content string // replaces one of the whole
		want          string // in the error; empty if it is valid
	}{
		"whole":           {"dist/LICENSE", "1", ""},
		"another version": {"package.json", strings.Replace(manifest, "1.2.3", "1.2.4", 1), `version "1.2.4"`},
		"no exports":      {"package.json", `{"version": "1.2.3"}`, "exports map[]"},
		"no types":        {"dist/index.d.ts", "", "dist/index.d.ts is missing"},
		"no licence":      {"dist/LICENSE", "", "dist/LICENSE is missing"},
		"with a dependency": {
			"package.json", strings.Replace(manifest, "{", `{"dependencies": {"left-pad": "1"}, `, 1), "left-pad",
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			out, err := os.Create(filepath.Join(dir, "stunner-gateway-ice-servers-1.2.3.tgz"))
			if err != nil {
				t.Fatal(err)
			}
			compressed := gzip.NewWriter(out)
			archive := tar.NewWriter(compressed)
			files := maps.Clone(whole)
			files[c.file] = c.content
			for file, content := range files {
				h := &tar.Header{Name: "package/" + file, Mode: 0o644, Size: int64(len(content))}
				_, err := io.Copy(header(t, archive, h), strings.NewReader(content))
				if err != nil {
					t.Fatal(err)
				}
			}
			if err := errors.Join(archive.Close(), compressed.Close(), out.Close()); err != nil {
				t.Fatal(err)
			}
			err = checkClient(dir, version)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func header(t *testing.T, archive *tar.Writer, h *tar.Header) *tar.Writer {
	t.Helper()
	if err := archive.WriteHeader(h); err != nil {
		t.Fatal(err)
	}
	return archive
}
