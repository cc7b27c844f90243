package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
)

const root = "../../.."

// K-13: two builds of the same sources in different folders are packed into the same image, which holds the program and
// the certificate authorities only.
func TestPack(t *testing.T) {
	digest, archive := packed(t, build(t))
	if again, same := packed(t, build(t)); again != digest || !bytes.Equal(archive, same) {
		t.Errorf("packed twice: %s and %s", digest, again)
	}

	files := untar(t, archive)
	for name, content := range files {
		if d, isBlob := strings.CutPrefix(name, "blobs/sha256/"); isBlob && sum(content) != "sha256:"+d {
			t.Errorf("%s has the digest %s", name, sum(content))
		}
	}
	var top, platforms index
	decode(t, files["index.json"], &top)
	if name := top.Manifests[0].Annotations["io.containerd.image.name"]; name != ref ||
		top.Manifests[0].Digest != digest {
		t.Errorf("index names %s %s, want %s %s", name, top.Manifests[0].Digest, ref, digest)
	}
	decode(t, blob(t, files, top.Manifests[0]), &platforms)
	var m manifest
	decode(t, blob(t, files, platforms.Manifests[0]), &m)
	var c imageConfig
	decode(t, blob(t, files, m.Config), &c)
	if c.Config.User != user || !slices.Equal(c.Config.Entrypoint, []string{"/usr/local/bin/tally"}) ||
		c.OS != "linux" || c.Architecture != runtime.GOARCH {
		t.Errorf("config: %+v", c)
	}
	held := map[string][]byte{}
	for i, l := range m.Layers {
		r, err := gzip.NewReader(bytes.NewReader(blob(t, files, l)))
		if err != nil {
			t.Fatal(err)
		}
		plain, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if sum(plain) != c.RootFS.DiffIDs[i] {
			t.Errorf("layer %d unpacks to %s, the config says %s", i, sum(plain), c.RootFS.DiffIDs[i])
		}
		maps.Copy(held, untar(t, plain))
	}
	if got, want := slices.Sorted(maps.Keys(held)), []string{roots, "usr/local/bin/tally"}; !slices.Equal(got, want) {
		t.Errorf("the image holds %v, want %v", got, want)
	}
	if !x509.NewCertPool().AppendCertsFromPEM(held[roots]) {
		t.Error("no certificate authority can be read")
	}
}

// TestPackArchitectures: one name stands for the program of every architecture.
func TestPackArchitectures(t *testing.T) {
	image, err := layout(ref, []program{made("amd64"), made("arm64")})
	if err != nil {
		t.Fatal(err)
	}
	files := untar(t, image.archive)
	var top, platforms index
	decode(t, files["index.json"], &top)
	decode(t, blob(t, files, top.Manifests[0]), &platforms)
	var got []string
	for _, d := range platforms.Manifests {
		got = append(got, d.Platform.OS+"/"+d.Platform.Architecture)
	}
	if want := []string{"linux/amd64", "linux/arm64"}; !slices.Equal(got, want) {
		t.Errorf("platforms %v, want %v", got, want)
	}
}

// made is a program with modules of every sort.
func made(arch string) program {
	return program{content: []byte(arch), info: &debug.BuildInfo{
		GoVersion: "go1.26.0",
		Path:      repository + "/services/auth",
		Main:      debug.Module{Path: repository + "/services/auth", Version: "v1.2.3+dirty"},
		Deps: []*debug.Module{
			{Path: "example.org/a/v2", Version: "v2.0.1", Sum: "h1:abc="},
			{Path: "example.org/old", Version: "v0.1.0", Replace: &debug.Module{
				Path: "example.org/new", Version: "v0.2.0",
			}},
			{Path: repository + "/services/api", Version: "v0.0.0", Replace: &debug.Module{
				Path: "../api", Version: "(devel)",
			}},
		},
		Settings: []debug.BuildSetting{
			{Key: "GOOS", Value: "linux"}, {Key: "GOARCH", Value: arch},
			{Key: "vcs.time", Value: "2024-05-06T07:08:09Z"}, {Key: "vcs.revision", Value: "0123abcd"},
		},
	}}
}

// K-13: the bill of materials lists the modules of the program by the names that vulnerability databases use.
func TestMaterials(t *testing.T) {
	bill, err := materials([]program{made("amd64"), made("arm64")})
	if err != nil {
		t.Fatal(err)
	}
	var doc document
	decode(t, bill, &doc)
	var got []string
	ids := map[string]bool{}
	for _, c := range doc.Packages {
		ids[c.ID] = true
		if !regexp.MustCompile(`^SPDXRef-[A-Za-z0-9.-]+$`).MatchString(c.ID) {
			t.Errorf("%s: identifier %s", c.Name, c.ID)
		}
		url, version, _ := strings.Cut(c.References[0].Locator, "@")
		if c.Name == rootsModule && strings.HasPrefix(version, "v0.0.0-") {
			version = "pinned"
		}
		got = append(got, url+"@"+version)
	}
	slices.Sort(got)
	want := []string{
		"pkg:golang/" + repository + "/services/api@v1.2.3%2Bdirty",
		"pkg:golang/" + repository + "/services/auth@v1.2.3%2Bdirty", // for each architecture
		"pkg:golang/" + repository + "/services/auth@v1.2.3%2Bdirty",
		"pkg:golang/example.org/a/v2@v2.0.1",
		"pkg:golang/example.org/new@v0.2.0",
		"pkg:golang/" + rootsModule + "@pinned",
		"pkg:golang/stdlib@1.26.0",
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the bill lists\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if len(ids) != len(doc.Packages) || !strings.HasPrefix(doc.Creation.Created, "2024-05-06") {
		t.Errorf("%d identifiers for %d packages, created %s", len(ids), len(doc.Packages), doc.Creation.Created)
	}
	for _, r := range doc.Relationships {
		if !ids[r.Related] {
			t.Errorf("relationship with %s, which is not listed", r.Related)
		}
	}
}

// TestRefusals: what would not run in the image, or not be the same tomorrow, is not packed.
func TestRefusals(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "image.tar")
	for _, c := range []struct {
		name, ref, out string
		programs       []string
		want           string
	}{
		{"program as it is built for a test", ref, out, []string{self}, "it was built with"},
		{"no program", ref, out, nil, "name the program"},
		{"script", ref, out, []string{"pack_test.go"}, "build it with Go"},
		{"no tag", "example.org:5000/auth", out, []string{self}, "NAME:TAG"},
		{"no archive", ref, "image", []string{self}, "-o must end with .tar"},
	} {
		if _, err := pack(c.ref, c.out, c.programs); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(out), "*")); len(left) != 0 {
		t.Errorf("refused and yet written: %v", left)
	}
}

// TestOtherBuilders: what docker and ko build is what pack packs.
func TestOtherBuilders(t *testing.T) {
	services, err := filepath.Glob(root + "/services/*/main.go")
	if err != nil || len(services) == 0 {
		t.Fatalf("find services: %v, %v", services, err)
	}
	docker, ko := read(t, "Dockerfile"), read(t, ".ko.yaml")
	for _, line := range []string{"USER " + user, "ENV PATH=" + folder} {
		if !strings.Contains(docker, "\n"+line+"\n") {
			t.Errorf("Dockerfile has no line %s", line)
		}
	}
	for _, d := range demands[1:] { // ko builds for Linux without being told
		for name, text := range map[string]string{"Dockerfile": docker, ".ko.yaml": ko} {
			if want := strings.TrimSuffix(d.setting+"="+d.value, "=true"); !strings.Contains(text, want) {
				t.Errorf("%s does not build with %s", name, want)
			}
		}
	}
	for _, file := range services {
		name := filepath.Base(filepath.Dir(file))
		if name == "stunnerctl" { // has no image
			continue
		}
		if want := fmt.Sprintf("AS %s\nENTRYPOINT [\"%s/%s\"]\n", name, folder, name); !strings.Contains(docker, want) {
			t.Errorf("Dockerfile has no stage %s", name)
		}
		if !strings.Contains(ko, "dir: services/"+name+"\n") {
			t.Errorf(".ko.yaml does not build %s", name)
		}
	}
}

const ref = "example.org/tally:test"

// build builds the neighbour of this program from a copy of its sources.
func build(t *testing.T) string {
	t.Helper()
	sources := t.TempDir()
	if err := os.CopyFS(filepath.Join(sources, "tally"), os.DirFS("../tally")); err != nil {
		t.Fatal(err)
	}
	module := []byte("module " + repository + "\n\ngo 1.26\n")
	if err := os.WriteFile(filepath.Join(sources, "go.mod"), module, 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(sources, "program")
	cmd := exec.Command("go", "build", "-trimpath", "-o", file, "./tally")
	cmd.Dir = sources
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOOS=linux", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return file
}

func packed(t *testing.T, file string) (digest string, archive []byte) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "tally.tar")
	digest, err := pack(ref, out, []string{file})
	if err != nil {
		t.Fatal(err)
	}
	if archive, err = os.ReadFile(out); err != nil {
		t.Fatal(err)
	}
	return digest, archive
}

// TestEndOfArchive: every archive, which is an image or a layer, has the two blocks of zeros at its end without which GNU
// tar reports an unexpected end of file. untar checks those of the images and layers of the other tests.
func TestEndOfArchive(t *testing.T) {
	long := strings.Repeat("folder/", 30)
	for name, files := range map[string][]file{
		"no files":         nil,
		"an empty file":    {{"a", 0o644, nil}},
		"one byte":         {{"a", 0o644, make([]byte, 1)}},
		"one block":        {{"a", 0o644, make([]byte, 512)}},
		"more than blocks": {{"a", 0o644, make([]byte, 1025)}, {"b/c", 0o555, make([]byte, 511)}},
		"a long name":      {{long + "a", 0o644, make([]byte, 512)}},
	} {
		content, err := archived(files...)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		t.Run(name, func(t *testing.T) {
			if got := untar(t, content); len(got) != len(files) {
				t.Errorf("%d files, want %d", len(got), len(files))
			}
		})
	}
}

// complete fails the test unless an archive ends as POSIX requires, for GNU tar too.
func complete(t *testing.T, archive []byte) {
	t.Helper()
	const block = 512
	if len(archive)%block != 0 || !bytes.HasSuffix(archive, make([]byte, 2*block)) {
		t.Errorf("an archive of %d bytes, which is no multiple of %d or has no %d zero bytes at its end",
			len(archive), block, 2*block)
	}
	cmd := exec.Command("tar", "-tf", "-")
	cmd.Stdin = bytes.NewReader(archive)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("tar -t: %v\n%s", err, text)
	}
}

// untar returns the files of a complete archive, without its folders.
func untar(t *testing.T, content []byte) map[string][]byte {
	t.Helper()
	complete(t, content)
	files := map[string][]byte{}
	for archive := tar.NewReader(bytes.NewReader(content)); ; {
		h, err := archive.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if files[h.Name], err = io.ReadAll(archive); err != nil {
			t.Fatal(err)
		}
	}
}

func blob(t *testing.T, files map[string][]byte, d descriptor) []byte {
	t.Helper()
	content, found := files["blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:")]
	if !found || len(content) != d.Size {
		t.Fatalf("blob %s: %d bytes, want %d", d.Digest, len(content), d.Size)
	}
	return content
}

func decode(t *testing.T, data []byte, v any) {
	t.Helper()
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatalf("%v: %s", err, data)
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
