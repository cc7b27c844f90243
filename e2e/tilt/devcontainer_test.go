package tilt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

const timeout = time.Minute

// The devcontainer has the program versions that the repository is tested with.
func TestDevcontainer(t *testing.T) {
	d := open(t)
	type options = map[string]string
	var c struct {
		Image, PostCreateCommand string
		Features                 map[string]options
	}
	if err := json.Unmarshal(
		uncommented(read(t, filepath.Join(d.root, ".devcontainer/devcontainer.json"))), &c,
	); err != nil {
		t.Fatal(err)
	}
	for _, w := range []struct{ feature, option, file, pattern string }{
		{"ghcr.io/devcontainers/features/go:1", "version", "go.work", `(?m)^go (\d+\.\d+)`},
		{"ghcr.io/devcontainers/features/kubectl-helm-minikube:1", "version", ".ci/kube/go.mod", `k8s.io/kubernetes v(\S+)`},
		{"ghcr.io/devcontainers/features/kubectl-helm-minikube:1", "helm", "e2e/go.mod", `helm.sh/helm/v4 v(\S+)`},
		{"./tools", "tilt", "Tiltfile", `constraint='>=(\S+)'`},
	} {
		match := regexp.MustCompile(w.pattern).FindStringSubmatch(read(t, filepath.Join(d.root, w.file)))
		if got := c.Features[w.feature][w.option]; match == nil || got != match[1] {
			t.Errorf("%s: %s is %q, and %q in %s", w.feature, w.option, got, match, w.file)
		}
	}
	for feature, given := range c.Features {
		for option, value := range given {
			if !regexp.MustCompile(`^\d+(\.\d+)*$`).MatchString(value) && value != "none" {
				t.Errorf("%s: %s %q is not a fixed version", feature, option, value)
			}
		}
	}
	if !strings.HasSuffix(c.Image, ":bookworm") {
		t.Errorf("the packages of .ci/install are of bookworm, the image is %s", c.Image)
	}
	for _, path := range []string{c.PostCreateCommand, ".devcontainer/tools/install.sh"} {
		if info, err := os.Stat(filepath.Join(d.root, path)); err != nil || info.Mode()&0o111 == 0 {
			t.Errorf("%s cannot be run: %v", path, err)
		}
	}
	d.tools(t, c.Features["./tools"])
}

// tools: our devcontainer feature has exactly the given options, with equal defaults.
func (d *desk) tools(t *testing.T, given map[string]string) {
	t.Helper()
	var feature struct {
		ID      string
		Options map[string]struct{ Default string }
	}
	if err := json.Unmarshal(
		[]byte(read(t, filepath.Join(d.root, ".devcontainer/tools/devcontainer-feature.json"))), &feature,
	); err != nil {
		t.Fatal(err)
	}
	if feature.ID != "tools" || len(given) == 0 || len(given) != len(feature.Options) {
		t.Errorf("feature %q has the options %v, given are %v", feature.ID, feature.Options, given)
	}
	script := read(t, filepath.Join(d.root, ".devcontainer/tools/install.sh"))
	for name, value := range given {
		if feature.Options[name].Default != value || !strings.Contains(script, "$"+strings.ToUpper(name)) {
			t.Errorf("%s %s: the feature has %q", name, value, feature.Options[name].Default)
		}
	}
}

// uncommented removes comment lines from JSON.
func uncommented(text string) []byte {
	return regexp.MustCompile(`(?m)^\s*//.*$`).ReplaceAll([]byte(text), nil)
}

// The wrapper script in the container runs the program with its arguments, restarts it on SIGHUP, and exits with its
// exit code.
func TestScript(t *testing.T) {
	root := harnesstest.Root(t)
	match := regexp.MustCompile(`(?s)<<'EOF'[^\n]*\n(.*?\n)EOF\n`).FindStringSubmatch(
		read(t, filepath.Join(root, ".ci/tilt/Dockerfile")),
	)
	if match == nil {
		t.Fatal("the Dockerfile has no script")
	}
	service := filepath.Join(t.TempDir(), "service")
	write(t, service, match[1])
	program := func(name, begins string) string {
		return fmt.Sprintf(
			"#!/bin/sh\ntrap 'exit 7' TERM\n%s\necho \"%s $*\"\nwhile :; do sleep 0.1; done\n", begins, name,
		)
	}
	write(t, service+".second", program("second", ""))
	// The request arrives as early as possible, when the script may not have stored the PID yet.
	write(t, service+".program", program("first", `kill -HUP $PPID; mv "${0%.program}.second" "$0"`))
	// A shell cannot trap a signal that its parent ignores, as nohup does.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	p, err := harness.Start(harness.Command{Name: "service", Path: service, Args: []string{"an argument"},
		Logs: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	if _, err := p.AwaitOutput(ctx, regexp.MustCompile("(?m)^second an argument$")); err != nil {
		t.Fatal(errors.Join(err, p.Kill()))
	}
	if err := p.Stop(timeout); err != nil {
		t.Fatal(err)
	}
	if err := p.Err(); err == nil || err.Error() != "exit status 7" {
		t.Errorf("%v, want the exit code of the program", err)
	}
}

// write creates an executable script.
func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}
