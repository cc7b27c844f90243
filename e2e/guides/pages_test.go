package guides

import (
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/e2e/internal/guide"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// maxWords is the limit of a guide in words.
const maxWords = 1200

// TestGuidesAreShort: a guide is at most maxWords long, because it is read while a system is set up.
func TestGuidesAreShort(t *testing.T) {
	for _, page := range guide.All(t) {
		if words := len(strings.Fields(page.Text)); words > maxWords {
			t.Errorf("guide %s has %d words, want at most %d", page.Name, words, maxWords)
		}
	}
}

// TestGuidesPassLint: stunnerctl lint finds no error and no warning in the manifests of a guide. The certificate that
// cert-manager issues is not in the manifests.
func TestGuidesPassLint(t *testing.T) {
	program := filepath.Join(harnesstest.Build(t, harness.Stunnerctl), "stunnerctl")
	for _, page := range guide.All(t) {
		t.Run(page.Name, func(t *testing.T) {
			lint := exec.Command(program, "lint", "--fail-on", "warning", "--secrets-elsewhere", "-o", "json", "-")
			lint.Stdin = strings.NewReader(page.Manifests())
			out, err := lint.CombinedOutput()
			if err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// TestGuidesHaveValidCommands: stunnerctl and kubectl accept the flags and arguments of each command. Files that a
// command names are on the page.
func TestGuidesHaveValidCommands(t *testing.T) {
	stunnerctl := filepath.Join(harnesstest.Build(t, harness.Stunnerctl), "stunnerctl")
	programs := map[string]string{"stunnerctl": stunnerctl, "kubectl": published(t, "kube", "kubectl")}
	manual := harnesstest.Read(t, "docs/stunnerctl.md")
	// elsewhere contains the pages whose commands of helm a guide may repeat.
	elsewhere := harnesstest.Read(t, "docs/reference/auth-callers.md") + harnesstest.Read(t, "docs/autoscaling.md")
	for _, page := range guide.All(t) {
		for _, command := range page.Commands() {
			words := strings.Fields(strings.ReplaceAll(command, "'", ""))
			program, known := programs[words[0]]
			if !known {
				same, _, _ := strings.Cut(command, " --set ")
				if words[0] != "curl" && (words[0] != "helm" || !strings.Contains(elsewhere, same)) {
					t.Errorf("guide %s: %s: want a program of %v, or a command of another page",
						page.Name, command, slices.Sorted(maps.Keys(programs)))
				}
				continue
			}
			if program == stunnerctl && !strings.Contains(manual, "\n## stunnerctl "+words[1]) {
				t.Errorf("guide %s: %s: there is no such command", page.Name, command)
			}
			// With --help the program still parses the flags before it, but executes nothing.
			if out, err := exec.Command(program, append(words[1:], "--help")...).CombinedOutput(); err != nil {
				t.Errorf("guide %s: %s: %v\n%s", page.Name, command, err, out)
			}
			for i, word := range words {
				if word == "-f" {
					page.File(t, words[i+1])
				}
			}
			if words[0] == "stunnerctl" && words[1] != "cred" {
				refers(t, page, command, words[2:])
			}
		}
	}
}

// refers checks that the Gateway or the namespace in a command of stunnerctl is one of the page.
func refers(t *testing.T, page guide.Page, command string, args []string) {
	t.Helper()
	var gateways, namespaces []string
	for _, object := range page.Objects(t) {
		metadata, _ := object["metadata"].(map[string]any)
		name, _ := metadata["name"].(string)
		namespace, _ := metadata["namespace"].(string)
		switch object["kind"] {
		case "Gateway":
			gateways = append(gateways, namespace+"/"+name)
		case "Namespace":
			namespaces = append(namespaces, name)
		}
	}
	switch {
	case slices.Equal(args, []string{"-A"}):
	case len(args) == 2 && args[0] == "--namespace":
		if !slices.Contains(namespaces, args[1]) {
			t.Errorf("guide %s: %s: the page has the namespaces %v", page.Name, command, namespaces)
		}
	case !slices.Contains(gateways, args[0]):
		t.Errorf("guide %s: %s: the page has the Gateways %v", page.Name, command, gateways)
	}
}

// TestGuidesNameNoOtherServer: no guide makes a media server ask a STUN server or announce a public address.
func TestGuidesNameNoOtherServer(t *testing.T) {
	for _, page := range guide.All(t) {
		for _, block := range page.Blocks {
			for _, setting := range []string{
				"stun:", "stun_server ", "stun_servers:", "use_external_ip: true", "nat_1_1_mapping =", "node_ip:",
				"JVB_ADVERTISE_IPS", "announcedIp:",
			} {
				if strings.Contains(block.Text, setting) {
					t.Errorf("guide %s has %q in a block of code", page.Name, setting)
				}
			}
		}
	}
}

// TestIndexOfGuides: docs/guides/README.md links to each guide.
func TestIndexOfGuides(t *testing.T) {
	index := harnesstest.Read(t, guide.Folder+"/README.md")
	for _, page := range guide.All(t) {
		if !strings.Contains(index, "("+page.Name+".md)") {
			t.Errorf("the index does not link to %s.md", page.Name)
		}
	}
}
