package stunnerctl

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// manifest has the fields of a plugin in the API of krew that are used here.
type manifest struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Version          string `json:"version"`
		Homepage         string `json:"homepage"`
		ShortDescription string `json:"shortDescription"`
		Description      string `json:"description"`
		Caveats          string `json:"caveats"`
		Platforms        []struct {
			Selector struct {
				MatchLabels struct{ OS, Arch string } `json:"matchLabels"`
			} `json:"selector"`
			URI    string `json:"uri"`
			SHA256 string `json:"sha256"`
			Bin    string `json:"bin"`
		} `json:"platforms"`
	} `json:"spec"`
}

// The plugin has the form that krew installs: the manifest has the checksum of the archive, and the program in the
// archive is "kubectl stunner".
func TestPlugin(t *testing.T) {
	out := t.TempDir()
	build := exec.CommandContext(t.Context(), filepath.Join(harnesstest.Root(t), ".ci/plugin"), "v1.2.3", out)
	build.Env = append(os.Environ(), "PLATFORMS="+runtime.GOOS+"/"+runtime.GOARCH)
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	text, err := os.ReadFile(filepath.Join(out, "krew.yaml"))
	harnesstest.NoError(t, err)
	var m manifest
	harnesstest.NoError(t, yaml.UnmarshalStrict(text, &m))
	// The file has the name of the plugin.
	if m.APIVersion != "krew.googlecontainertools.github.com/v1alpha2" || m.Kind != "Plugin" || m.Metadata.Name != "stunner" ||
		m.Spec.Version != "v1.2.3" || m.Spec.Homepage == "" || m.Spec.Description == "" || len(m.Spec.Platforms) != 1 ||
		!regexp.MustCompile(`^.{1,50}[^.]$`).MatchString(m.Spec.ShortDescription) {
		t.Fatalf("%+v", m)
	}
	p := m.Spec.Platforms[0]
	archive := filepath.Join(out, filepath.Base(p.URI))
	content, err := os.ReadFile(archive)
	harnesstest.NoError(t, err)
	if p.SHA256 != fmt.Sprintf("%x", sha256.Sum256(content)) || p.Selector.MatchLabels.OS != runtime.GOOS ||
		p.Selector.MatchLabels.Arch != runtime.GOARCH || !strings.Contains(p.URI, "/releases/download/v1.2.3/") {
		t.Errorf("%+v", p)
	}
	installed := t.TempDir()
	if text, err := exec.Command("tar", "-xzf", archive, "-C", installed).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if _, err := os.Stat(filepath.Join(installed, "LICENSE")); err != nil {
		t.Error(err)
	}
	for args, want := range map[string]string{"version --client": "stunnerctl", "status --help": "kubectl stunner status"} {
		text, err := exec.Command(filepath.Join(installed, p.Bin), strings.Fields(args)...).CombinedOutput()
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s: %v\n%s", args, err, text)
		}
	} // kubectl runs kubectl_complete-stunner for the words after "kubectl stunner".
	complete := exec.Command(filepath.Join(installed, "kubectl_complete-stunner"), "stat")
	complete.Env = append(os.Environ(), "PATH="+installed+":"+os.Getenv("PATH"))
	if text, err := complete.CombinedOutput(); err != nil || !strings.HasPrefix(string(text), "status\t") {
		t.Errorf("completion: %v\n%s", err, text)
	}
}
