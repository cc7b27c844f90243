// Package modules rejects programs that contain a module version with a known vulnerability. It checks the versions in
// a table only; govulncheck covers more where its database is reachable.
package modules

import (
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// holes are the vulnerable versions. Each module must be part of at least one program, so that every row is effective.
var holes = []struct {
	module string
	bad    func(v version) bool
	why    string
	// unless is a symbol prefix of the vulnerable code. A program may contain the module if the linker has removed that
	// code.
	unless string
}{
	{"github.com/pion/dtls/v3", func(v version) bool {
		return v.before(3, 0, 11) || v == version{
			3, 1, 0,
		}
	}, "CVE-2026-26014: nonces repeat", ""},
	// pion/stun has a client that dials with DTLS v2. No code here uses it, and no version of it has a fix.
	{"github.com/pion/dtls/v2", func(
		version,
	) bool {
		return true
	}, "CVE-2026-26014: nonces repeat", "github.com/pion/dtls/v2.(*Conn)"},
	{"github.com/golang-jwt/jwt/v5", func(v version) bool {
		return v.before(
			5, 2, 2,
		)
	}, "CVE-2025-30204: a header of dots exhausts memory", ""},
	{"golang.org/x/crypto", func(v version) bool {
		return v.before(
			0, 45, 0,
		)
	}, "CVE-2025-47914, CVE-2025-58181: ssh panics and exhausts memory", ""},
	{"golang.org/x/net", func(v version) bool {
		return v.before(
			0, 45, 0,
		)
	}, "CVE-2025-47911, CVE-2025-58190: html does not terminate", ""},
}

// G-04, D-22: no program contains a module version of the table, unless the linker has removed the vulnerable code.
func TestNoProgramContainsAKnownVulnerability(t *testing.T) {
	root := harnesstest.Root(t)
	bin, found := t.TempDir(), map[string]bool{}
	for _, program := range []string{harness.Operator, harness.Stunnerd, harness.Auth} {
		if err := harness.Build(t.Context(), root, bin, program); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(bin, filepath.Base(program))
		info, err := buildinfo.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range info.Deps {
			if m.Replace != nil {
				m = m.Replace
			}
			for _, h := range holes {
				if h.module != m.Path {
					continue
				}
				found[m.Path] = true
				v, err := parse(m.Version)
				if err != nil {
					t.Errorf("%s: %s: %v", program, m.Path, err)
				} else if h.bad(v) && (h.unless == "" || linked(t, file, h.unless)) {
					t.Errorf("%s contains %s %s: %s", program, m.Path, m.Version, h.why)
				}
			}
		}
	}
	for _, h := range holes {
		if !found[h.module] {
			t.Errorf("no program contains %s: remove it from the table", h.module)
		}
	}
}

// Every program prints its name, its version, the version of Go and the commit. Its version is the version of a release
// if the linker sets it.
func TestProgramsPrintTheirVersion(t *testing.T) {
	root := harnesstest.Root(t)
	const release = "github.com/stunner-gateway/stunner/services/api/telemetry.release=v1.2.3"
	for _, folder := range []string{harness.Operator, harness.Stunnerd, harness.Auth, harness.Stunnerctl,
		harness.Echo} {
		name := filepath.Base(folder)
		file := filepath.Join(t.TempDir(), name)
		build := exec.Command("go", "build", "-ldflags=-X "+release, "-o", file, "./"+folder)
		build.Dir = root
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", folder, err, out)
		}
		out, err := exec.Command(file, "--version").CombinedOutput()
		want := regexp.MustCompile(`^` + name + ` v1\.2\.3 go1\.\S+( [0-9a-f]{40})?\n$`)
		if err != nil || !want.Match(out) {
			t.Errorf("%s --version: %v, %q does not match %s", name, err, out, want)
		}
	}
}

// Programs are tested in the workspace and released from their modules. Both use the same module versions, and share
// the build cache.
func TestReleasedVersionsAreTested(t *testing.T) {
	root := harnesstest.Root(t)
	for _, folder := range []string{"services/api", harness.Operator, harness.Stunnerd, harness.Auth, "dashboards",
		"e2e"} {
		tested, shipped := modules(t, filepath.Join(root, folder), ""), modules(t, filepath.Join(root, folder), "off")
		for path, v := range shipped {
			if tested[path] != v {
				t.Errorf(
					"%s is built with %s %s alone, and with %q in the workspace: run make tidy", folder, path, v,
					tested[path],
				)
			}
		}
		if len(shipped) < 3 {
			t.Errorf("%s is built with %v", folder, shipped)
		}
	}
}

// modules returns the external modules of a folder's packages with their versions.
func modules(t *testing.T, folder, workspace string) map[string]string {
	t.Helper()
	list := exec.Command(
		"go", "list", "-deps", "-f",
		"{{with .Module}}{{if and .Version (not .Replace)}}{{.Path}} {{.Version}}{{end}}{{end}}", "./...",
	)
	list.Dir, list.Env, list.Stderr = folder, append(os.Environ(), "GOWORK="+workspace), os.Stderr
	out, err := list.Output()
	if err != nil {
		t.Fatalf("list modules of %s: %v", folder, err)
	}
	all := map[string]string{}
	for line := range strings.Lines(string(out)) {
		if path, version, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			all[path] = version
		}
	}
	return all
}

// linked reports whether a program contains a symbol with a prefix.
func linked(t *testing.T, program, name string) bool {
	t.Helper()
	symbols, err := exec.Command("go", "tool", "nm", program).Output()
	if err != nil || !strings.Contains(string(symbols), " main.main\n") {
		t.Fatalf("read symbols of %s: %v", program, err)
	}
	return strings.Contains(string(symbols), " "+name)
}

// version is a semantic version vMAJOR.MINOR.PATCH.
type version [3]int

func parse(s string) (v version, err error) {
	if _, err := fmt.Sscanf(s, "v%d.%d.%d", &v[0], &v[1], &v[2]); err != nil {
		return version{}, fmt.Errorf("read version %q: %w", s, err)
	}
	return v, nil
}

func (v version) before(major, minor, patch int) bool {
	for i, n := range []int{major, minor, patch} {
		if v[i] != n {
			return v[i] < n
		}
	}
	return false
}

func TestVersionsAreOrdered(t *testing.T) {
	for s, want := range map[string]bool{
		"v3.0.10": true, "v2.9.9": true, "v3.0.11": false, "v3.1.0": false, "v4.0.0": false,
		"v3.0.9-0.20240101000000-abcdef012345": true,
	} {
		if v, err := parse(s); err != nil || v.before(3, 0, 11) != want {
			t.Errorf("%s before v3.0.11: %v, %v", s, !want, err)
		}
	}
	if _, err := parse("(devel)"); err == nil {
		t.Error("no error for an invalid version")
	}
}
