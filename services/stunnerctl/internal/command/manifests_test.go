package command

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// execute runs a command line and returns its output, its errors and its exit code.
func execute(t *testing.T, stdin string, args ...string) (out, errs string, code int) {
	t.Helper()
	var o, e bytes.Buffer
	io := Streams{In: strings.NewReader(stdin), Out: &o, ErrOut: &e}
	code = Run(t.Context(), append([]string{"stunnerctl"}, args...), io)
	return o.String(), e.String(), code
}

const gateway = `apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: turn}
spec:
  controllerName: stunner.l7mp.io/gateway-operator
  parametersRef: {group: stunner.l7mp.io, kind: GatewayConfig, name: turn, namespace: media}
---
apiVersion: stunner.l7mp.io/v1
kind: GatewayConfig
metadata: {name: turn, namespace: media}
spec: {authType: ephemeral, sharedSecret: marker-of-the-shared-secret}
---
apiVersion: stunner.l7mp.io/v1
kind: Dataplane
metadata: {name: default}
spec: {}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata:
  name: turn
  namespace: media
  annotations: {stunner.l7mp.io/enable-mixed-protocol-lb: true}
spec:
  gatewayClassName: turn
  listeners: [{name: udp, port: 3478, protocol: TURN-UDP}]
`

// quoted is gateway without mistakes.
var quoted = strings.Replace(gateway, "lb: true", "lb: 'true'", 1)

func TestRender(t *testing.T) {
	out, errs, code := execute(t, quoted, "render", "-")
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, errs)
	}
	for _, want := range []string{
		"kind: Deployment", "kind: Service", "kind: ConfigMap", // objects
		"name: media/turn\n",                                 // the config
		"type: InsecureInlineCredentials", "attachedRoutes:", // statuses
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if strings.Contains(out, "marker-of-the-shared-secret") {
		t.Error("the shared secret is printed")
	}
	out, _, _ = execute(t, quoted, "render", "-", "--show", "configs", "--show-secrets")
	if !strings.Contains(out, "marker-of-the-shared-secret") {
		t.Errorf("the shared secret is not printed with --show-secrets:\n%s", out)
	}
}

func TestRenderToFolder(t *testing.T) {
	dir := t.TempDir()
	if out, errs, code := execute(t, quoted, "render", "-", "--to", dir); code != 0 || out != "" {
		t.Fatalf("exit code %d: %s%s", code, out, errs)
	}
	for _, want := range []string{
		"objects/media/deployment-turn.yaml", "configs/media/turn.yaml", "statuses/media/gateway-turn.yaml",
		"statuses/gatewayclass-turn.yaml",
	} {
		if _, err := os.Stat(filepath.Join(dir, want)); err != nil {
			t.Error(err)
		}
	}
}

func TestRenderRejectsInvalidDocuments(t *testing.T) {
	out, errs, code := execute(t, strings.Replace(gateway, "port: 3478", "port: 99999", 1), "render", "-")
	if code != exitFailed || !strings.Contains(errs, "error: -:") || !strings.Contains(errs, "spec.listeners[0].port") {
		t.Errorf("exit code %d: %s", code, errs)
	}
	if !strings.Contains(out, "kind: GatewayConfig") {
		t.Errorf("valid documents are left out:\n%s", out)
	}
	if _, errs, code = execute(t, gateway, "render", "-", "--show", "pods"); code != exitUsage {
		t.Errorf("--show pods: exit code %d: %s", code, errs)
	}
}

// A document cannot make render write outside of its folder.
func TestRenderToFolder_HostileNames(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "in")
	for _, name := range []string{"../../out", "..", "a/../../../out"} {
		execute(t, strings.ReplaceAll(gateway, "name: turn\n", "name: "+name+"\n"), "render", "-", "--to", dir)
		execute(t, strings.ReplaceAll(gateway, "namespace: media", "namespace: "+name), "render", "-", "--to", dir)
	}
	entries, err := os.ReadDir(parent)
	if err != nil || len(entries) > 1 || len(entries) == 1 && entries[0].Name() != "in" {
		t.Errorf("entries beside the folder: %v, %v", entries, err)
	}
}

func TestLintFix(t *testing.T) {
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	if err := os.WriteFile(file, []byte(gateway), 0o640); err != nil {
		t.Fatal(err)
	}
	out, _, code := execute(t, "", "lint", file)
	if code != exitFailed || !strings.Contains(out, "ERROR    "+file) || !strings.Contains(strings.Join(strings.Fields(out), " "), "put quotes around it") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	if !strings.Contains(out, "WARNING  "+file+":11  GatewayConfig media/turn\n  Field    spec.sharedSecret\n") {
		t.Errorf("no warning about the inline secret:\n%s", out)
	}
	if out, errs, code := execute(t, "", "lint", "--fix", file); code != 0 || !strings.Contains(errs, "fixed: "+file) {
		t.Errorf("exit code %d:\n%s%s", code, out, errs)
	}
	got, err := os.ReadFile(file)
	if want := strings.Replace(gateway, "lb: true", "lb: 'true'", 1); err != nil || string(got) != want {
		t.Errorf("file after --fix, %v:\n%s", err, got)
	}
	if out, _, code := execute(t, "", "lint", file); code != 0 || strings.Contains(out, "ERROR") {
		t.Errorf("after --fix: exit code %d:\n%s", code, out)
	}
	if _, errs, code := execute(t, gateway, "lint", "--fix", "-"); code != exitUsage {
		t.Errorf("--fix of the standard input: exit code %d: %s", code, errs)
	}
}

// lint and render print each format of a value, and reject formats that only tables have.
func TestManifestsFormat(t *testing.T) {
	for line, want := range map[string]int{ // the Gateway has an unquoted boolean
		"lint - -o json": exitFailed, "lint - -o yaml": exitFailed, "lint -": exitFailed, "lint - -o xml": exitUsage,
		"render - -o json": exitFailed, "render - -o yaml": exitFailed, "render -": exitFailed, "render - -o wide": exitUsage,
		"render - -o json --to x": exitUsage, "lint - --fail-on info": exitUsage, "render - --fail-on info": exitUsage,
	} {
		if out, errs, code := execute(t, gateway, strings.Fields(line)...); code != want {
			t.Errorf("%s: exit code %d, want %d\n%s%s", line, code, want, out, errs)
		}
	}
}
