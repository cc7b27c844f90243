package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/stunner-gateway/stunner/tools/bill"
)

// K-13: two builds of the same sources in different folders are packed into the same image, which contains the program
// and the certificate authorities only.
func TestPack(t *testing.T) {
	digest, archive := packed(t, build(t))
	if again, same := packed(t, build(t)); again != digest || !bytes.Equal(archive, same) {
		t.Errorf("packed twice: %s and %s", digest, again)
	}

	files := untar(t, archive)
	var top, platforms v1.IndexManifest
	decode(t, files["index.json"], &top)
	if name := top.Manifests[0].Annotations["io.containerd.image.name"]; name != ref ||
		top.Manifests[0].Digest.String() != digest {
		t.Errorf("index names %s %s, want %s %s", name, top.Manifests[0].Digest, ref, digest)
	}
	decode(t, blob(t, files, top.Manifests[0]), &platforms)
	var m v1.Manifest
	decode(t, blob(t, files, platforms.Manifests[0]), &m)
	var c v1.ConfigFile
	decode(t, blob(t, files, m.Config), &c)
	if c.Config.User != user || !slices.Equal(c.Config.Entrypoint, []string{"/usr/local/bin/tally"}) ||
		c.OS != "linux" || c.Architecture != runtime.GOARCH {
		t.Errorf("config: %+v", c)
	}
	for label, want := range map[string]string{
		"org.opencontainers.image.version": "test", "org.opencontainers.image.base.name": "scratch",
		"dev.golang.version": runtime.Version(),
	} {
		if c.Config.Labels[label] != want || m.Annotations[label] != want {
			t.Errorf("%s: label %q, annotation %q, want %q", label, c.Config.Labels[label], m.Annotations[label], want)
		}
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
		if sum(plain) != c.RootFS.DiffIDs[i].String() {
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

// reader reads an archive on stdin with Python, checks the digest of each blob, follows index.json to the layers, and
// prints what these contain.
const reader = `
import gzip, hashlib, io, json, sys, tarfile
image = tarfile.open(fileobj=sys.stdin.buffer, mode="r|")
files = {m.name: image.extractfile(m).read() for m in image if m.isfile()}
assert json.loads(files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}, files["oci-layout"]
def blob(d):
    content = files["blobs/" + d["digest"].replace(":", "/")]
    assert "sha256:" + hashlib.sha256(content).hexdigest() == d["digest"] and len(content) == d["size"], d
    return content
for top in json.loads(files["index.json"])["manifests"]:
    for platform in json.loads(blob(top))["manifests"]:
        manifest = json.loads(blob(platform))
        blob(manifest["config"])
        for layer in manifest["layers"]:
            for m in tarfile.open(fileobj=io.BytesIO(gzip.decompress(blob(layer)))):
                print("%s %o %d %s" % (m.name, m.mode, m.mtime, m.uid))
`

// K-13: GNU tar, Python and the layout reader of go-containerregistry read an archive with two architectures.
func TestReaders(t *testing.T) {
	content, digest, err := archived(ref, "test", []bill.Program{made("amd64"), made("arm64")})
	if err != nil {
		t.Fatal(err)
	}
	run := func(name string, args ...string) string {
		cmd := exec.Command(name, args...)
		cmd.Stdin = bytes.NewReader(content)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
		return string(out)
	}
	const each = "etc 755 0 0\netc/ssl 755 0 0\netc/ssl/certs 755 0 0\n" + roots + " 444 0 0\n" +
		"usr 755 0 0\nusr/local 755 0 0\nusr/local/bin 755 0 0\nusr/local/bin/auth 555 0 0\n"
	if got := run("python3", "-c", reader); got != each+each {
		t.Errorf("Python reads\n%s", got)
	}

	folder := t.TempDir()
	run("tar", "--extract", "--directory", folder)
	top, err := layout.ImageIndexFromPath(folder)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := top.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	index, err := top.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil || manifest.Manifests[0].Digest.String() != digest {
		t.Fatalf("read index %s, want %s: %v", manifest.Manifests[0].Digest, digest, err)
	}
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	platforms, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, d := range platforms.Manifests {
		got = append(got, d.Platform.String())
	}
	if want := []string{"linux/amd64", "linux/arm64"}; !slices.Equal(got, want) {
		t.Errorf("platforms %v, want %v", got, want)
	}
}

// made is a program for an architecture.
func made(arch string) bill.Program {
	return bill.Program{Content: []byte(arch), Release: "v1.2.3", Info: &debug.BuildInfo{
		Path: bill.Repository + "/services/auth",
		Settings: []debug.BuildSetting{
			{Key: "GOOS", Value: "linux"}, {Key: "GOARCH", Value: arch},
			{Key: "vcs.time", Value: "2024-05-06T07:08:09Z"}, {Key: "vcs.revision", Value: "0123abcd"},
		},
	}}
}

// K-13: the bill of materials of an image names its digest, its programs and the certificate authorities.
func TestMaterials(t *testing.T) {
	out := filepath.Join(t.TempDir(), "tally.tar")
	digest, err := pack("../"+root, ref, out, []string{build(t)})
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(strings.TrimSuffix(out, ".tar") + ".spdx.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"pkg:oci/tally@" + url.QueryEscape(digest) + "?repository_url=example.org/tally&tag=test",
		"pkg:golang/" + rootsModule + "@v0.0.0-", "pkg:golang/stdlib@1.", `"licenseDeclared": "BSD-3-Clause"`,
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the bill does not contain %s:\n%s", want, text)
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
		if _, err := pack("../"+root, c.ref, c.out, c.programs); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(out), "*")); len(left) != 0 {
		t.Errorf("refused and yet written: %v", left)
	}
}

// TestOtherBuilders: what docker and ko build is what pack packs.
func TestOtherBuilders(t *testing.T) {
	services, err := filepath.Glob("../" + root + "/services/*/main.go")
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
	module := []byte("module " + bill.Repository + "\n\ngo 1.26\n")
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
	digest, err := pack("../"+root, ref, out, []string{file})
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
	for name, files := range map[string]fstest.MapFS{
		"no files":         {},
		"an empty file":    {"a": {}},
		"one byte":         {"a": {Data: make([]byte, 1)}},
		"one block":        {"a": {Data: make([]byte, 512)}},
		"more than blocks": {"a": {Data: make([]byte, 1025)}, "b/c": {Data: make([]byte, 511)}},
		"a long name":      {strings.Repeat("folder/", 30) + "a": {Data: make([]byte, 512)}},
	} {
		var content bytes.Buffer
		if err := archive(&content, files, 0o644); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		t.Run(name, func(t *testing.T) {
			if got := untar(t, content.Bytes()); len(got) != len(files) {
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

func sum(content []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(content)) }

func blob(t *testing.T, files map[string][]byte, d v1.Descriptor) []byte {
	t.Helper()
	content, found := files["blobs/sha256/"+d.Digest.Hex]
	if !found || int64(len(content)) != d.Size || sum(content) != d.Digest.String() {
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
	data, err := os.ReadFile(filepath.Join("..", root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
