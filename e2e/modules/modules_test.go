// Package modules refuses programs that hold a module version with a known hole. It asks no database, so it knows of what its table says and of
// nothing else: govulncheck, where its database can be reached, knows more.
package modules

import (
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
)

// holes are the versions that no program may hold. Each module is in one of the programs: a row for one that is gone would check nothing.
var holes = []struct {
	module string
	bad    func(v version) bool
	why    string
	// unless is code without which the hole cannot be reached: a program may hold the module while the linker has left that out.
	unless string
}{
	{"github.com/pion/dtls/v3", func(v version) bool { return v.before(3, 0, 11) || v == version{3, 1, 0} }, "CVE-2026-26014: nonces repeat", ""},
	// pion/stun has a client that dials with it. Nothing here calls that, and no version of it was mended.
	{"github.com/pion/dtls/v2", func(version) bool { return true }, "CVE-2026-26014: nonces repeat", "github.com/pion/dtls/v2.(*Conn)"},
	{"github.com/golang-jwt/jwt/v5", func(v version) bool { return v.before(5, 2, 2) }, "CVE-2025-30204: a header of dots takes all memory", ""},
	{"golang.org/x/crypto", func(v version) bool { return v.before(0, 45, 0) }, "CVE-2025-47914, CVE-2025-58181: ssh panics and takes all memory", ""},
	{"golang.org/x/net", func(v version) bool { return v.before(0, 45, 0) }, "CVE-2025-47911, CVE-2025-58190: html takes for ever", ""},
}

// G-04, D-22: no program holds a module version of the table, unless the linker has left the vulnerable code out.
func TestNoProgramHoldsAKnownHole(t *testing.T) {
	root, err := bed.Root()
	if err != nil {
		t.Fatal(err)
	}
	bin, found := t.TempDir(), map[string]bool{}
	for _, program := range []string{bed.Operator, bed.Stunnerd, bed.Auth} {
		if err := bed.Build(t.Context(), root, bin, program); err != nil {
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
					t.Errorf("%s holds %s %s: %s", program, m.Path, m.Version, h.why)
				}
			}
		}
	}
	for _, h := range holes {
		if !found[h.module] {
			t.Errorf("no program holds %s: take it out of the table", h.module)
		}
	}
}

// A program is tested in the workspace and shipped from its module. Both hold the same versions; the build cache, too, serves both then.
func TestWhatIsShippedIsWhatIsTested(t *testing.T) {
	root, err := bed.Root()
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{"services/api", bed.Operator, bed.Stunnerd, bed.Auth, "dashboards", "e2e"} {
		tested, shipped := modules(t, filepath.Join(root, folder), ""), modules(t, filepath.Join(root, folder), "off")
		for path, v := range shipped {
			if tested[path] != v {
				t.Errorf("%s is built with %s %s alone, and with %q in the workspace: run make tidy", folder, path, v, tested[path])
			}
		}
		if len(shipped) < 3 {
			t.Errorf("%s is built of %v", folder, shipped)
		}
	}
}

// modules are the modules of others that a folder's packages are built of, and their versions.
func modules(t *testing.T, folder, workspace string) map[string]string {
	t.Helper()
	list := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{if and .Version (not .Replace)}}{{.Path}} {{.Version}}{{end}}{{end}}", "./...")
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

// linked tells whether a program holds code whose name begins so.
func linked(t *testing.T, program, name string) bool {
	t.Helper()
	symbols, err := exec.Command("go", "tool", "nm", program).Output()
	if err != nil || !strings.Contains(string(symbols), " main.main\n") {
		t.Fatalf("read symbols of %s: %v", program, err)
	}
	return strings.Contains(string(symbols), " "+name)
}

// version is vMAJOR.MINOR.PATCH.
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
	for s, want := range map[string]bool{"v3.0.10": true, "v2.9.9": true, "v3.0.11": false, "v3.1.0": false, "v4.0.0": false, "v3.0.9-0.20240101000000-abcdef012345": true} {
		if v, err := parse(s); err != nil || v.before(3, 0, 11) != want {
			t.Errorf("%s before v3.0.11: %v, %v", s, !want, err)
		}
	}
	if _, err := parse("(devel)"); err == nil {
		t.Error("a version that is none is read")
	}
}
