package bill

import (
	"bytes"
	"os/exec"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdxlib"
)

const root = "../../.."

// made is a program with modules of every sort. The external ones are those of this test.
func made(t *testing.T, arch string) Program {
	t.Helper()
	find := func(path string) *debug.Module {
		out, err := exec.Command("go", "list", "-m", "-f", "{{.Version}} {{.Sum}}", path).Output()
		version, sum, ok := strings.Cut(strings.TrimSpace(string(out)), " ")
		if err != nil || !ok {
			t.Fatalf("find %s: %q, %v", path, out, err)
		}
		return &debug.Module{Path: path, Version: version, Sum: sum}
	}
	replaced := find("github.com/sergi/go-diff")
	return Program{Content: []byte(arch), Release: "v1.2.3", Info: &debug.BuildInfo{
		GoVersion: "go1.26.0",
		Path:      Repository + "/services/auth",
		Main:      debug.Module{Path: Repository + "/services/auth", Version: "v0.0.0-2024"},
		Deps: []*debug.Module{
			find("go.yaml.in/yaml/v3"), find("github.com/google/licenseclassifier/v2"),
			{Path: "example.org/old", Version: "v0.1.0", Replace: replaced},
			{Path: Repository + "/services/api", Version: "v0.0.0", Replace: &debug.Module{
				Path: "../api", Version: "(devel)",
			}},
		},
		Settings: []debug.BuildSetting{
			{Key: "GOOS", Value: "linux"}, {Key: "GOARCH", Value: arch},
			{Key: "vcs.time", Value: "2024-05-06T07:08:09+02:00"}, {Key: "vcs.revision", Value: "0123abcd"},
		},
	}}
}

// K-13: the bill of materials is a valid SPDX document. It lists the modules of the program by the names that
// vulnerability databases use, each with its version and licence.
func TestDocument(t *testing.T) {
	d, err := Document(root, []Program{made(t, "amd64"), made(t, "arm64")}, &Image{
		Name: "example.org/auth", Tag: "v1.2.3", Digest: "sha256:0123",
	})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := spdxjson.Write(d, &out); err != nil {
		t.Fatal(err)
	}
	read, err := spdxjson.Read(bytes.NewReader(out.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if err := spdxlib.ValidateDocument(read); err != nil {
		t.Error(err)
	}
	if read.CreationInfo.Created != "2024-05-06T05:08:09Z" {
		t.Errorf("created %s", read.CreationInfo.Created)
	}
	version := regexp.MustCompile(`@v[0-9].*`)
	var got []string
	for _, p := range read.Packages {
		name := p.PackageExternalReferences[0].Locator
		if !strings.Contains(name, Repository) {
			name = version.ReplaceAllString(name, "@pinned")
		}
		got = append(got, name+" "+p.PackageLicenseDeclared)
	}
	want := []string{
		"pkg:golang/" + Repository + "/services/api@v1.2.3 Apache-2.0",
		"pkg:golang/" + Repository + "/services/auth@v1.2.3 Apache-2.0", // for each architecture
		"pkg:golang/" + Repository + "/services/auth@v1.2.3 Apache-2.0",
		"pkg:golang/github.com/google/licenseclassifier/v2@pinned Apache-2.0",
		"pkg:golang/github.com/sergi/go-diff@pinned MIT",
		"pkg:golang/go.yaml.in/yaml/v3@pinned Apache-2.0 AND MIT",
		"pkg:golang/stdlib@1.26.0 BSD-3-Clause",
		"pkg:oci/auth@sha256%3A0123?repository_url=example.org/auth&tag=v1.2.3 NOASSERTION",
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the bill lists\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A module whose content is not that of the program has another licence, perhaps.
func TestChecksumDiffers(t *testing.T) {
	p := made(t, "amd64")
	p.Info.Deps[0].Sum = "h1:other="
	_, err := Document(root, []Program{p}, nil)
	if err == nil || !strings.Contains(err.Error(), "run go mod verify") {
		t.Errorf("%v", err)
	}
}

// K-13: the notice has the licence text of each module, and equal texts once.
func TestNoticeHasTheLicenceOfEachModule(t *testing.T) {
	modules := Linked(made(t, "amd64"))
	licences, err := Licences(root, modules)
	if err != nil {
		t.Fatal(err)
	}
	text, err := Notice(modules, licences)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Copyright (c) 2012-2016 The go-diff Authors", "stdlib 1.26.0: BSD-3-Clause",
		"Copyright 2009 The Go Authors",
	} {
		if strings.Count(text, want) != 1 {
			t.Errorf("the notice contains %d times %q:\n%s", strings.Count(text, want), want, text)
		}
	}
	licences[modules[0]] = Licence{}
	if _, err := Notice(modules, licences); err == nil || !strings.Contains(err.Error(), modules[0].Path+" ") {
		t.Errorf("a module without a licence: %v", err)
	}
}

// TestVersion: the release takes precedence over the version of the build, which is empty outside of a repository.
func TestVersion(t *testing.T) {
	info := &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}
	for want, p := range map[string]Program{"": {Info: info}, "v1.0.0": {Info: info, Release: "v1.0.0"}} {
		if got := p.Version(); got != want {
			t.Errorf("version %q, want %q", got, want)
		}
	}
	if got := (Program{Info: info}).Created(); got.Unix() != 0 {
		t.Errorf("created %s", got)
	}
}
