package diagnose

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
)

// fixture is a fault.
type fixture struct {
	name string
	// parts are the files of the archive:
	//   args     of stunnerctl; by default why NS/front-door
	//   alone    if it is there, the fault concerns what Gateways share
	//   apply    YAML that is applied
	//   patch    lines RESOURCE/NAME[ status] JSON, which are merged; delete RESOURCE/NAME; await RESOURCE/NAME
	//   answers  JSON that is merged into the answers of the dataplane; null means that it is not connected
	//   undo     lines as in patch, at the end
	//   want     SEVERITY OBJECT, FIELD, a part of the problem; a line each
	parts map[string]string
}

func fixtures(t *testing.T) (all []fixture) {
	t.Helper()
	files, err := filepath.Glob("testdata/*.txtar")
	must(t, err)
	for _, file := range files {
		a, err := txtar.ParseFile(file)
		must(t, err)
		f := fixture{name: strings.TrimSuffix(filepath.Base(file), ".txtar"), parts: map[string]string{}}
		for _, part := range a.Files {
			f.parts[part.Name] = string(part.Data)
		}
		all = append(all, f)
	}
	return all
}

// The first finding of each fault is the fault, with its remedy. A healthy Gateway has no finding.
func TestFaults(t *testing.T) {
	o := startOperator(t)
	all := fixtures(t)
	if len(all) < 25 {
		t.Errorf("%d fixtures", len(all))
	}
	t.Run("healthy", func(t *testing.T) {
		g := newGateway(t, o, "healthy")
		g.serve(t)
		for _, args := range [][]string{{"why", "healthy/front-door"}, {"doctor", "-n", "healthy"}} {
			until(t, func(ctx context.Context) error {
				found, err := o.findings(ctx, control.Admin.Kubeconfig, args...)
				if err == nil && len(found) > 0 {
					err = fmt.Errorf("%v finds %+v", args, found)
				}
				return err
			})
		}
	})
	t.Run("rights", func(t *testing.T) { testRights(t, o) })
	t.Run("sysdump", func(t *testing.T) { testSysdump(t, o) })
	t.Run("of one Gateway", func(t *testing.T) {
		for _, f := range all {
			if _, alone := f.parts["alone"]; alone {
				continue
			}
			t.Run(f.name, func(t *testing.T) {
				t.Parallel()
				f.run(t, o)
			})
		}
	})
	for _, f := range all {
		if _, alone := f.parts["alone"]; alone {
			t.Run(f.name, func(t *testing.T) { f.run(t, o) })
		}
	}
}

func (f fixture) run(t *testing.T, o operator) {
	g := newGateway(t, o, strings.ReplaceAll(f.name, "_", "-"))
	sees(t, g.namespace, "gateway/front-door", `.status.conditions[?(@.type=="Accepted")].status`, "True")
	t.Cleanup(func() { f.change(t, g, "undo") })
	if answers, ok := f.parts["answers"]; ok {
		g.answer(t, answers)
	}
	if g.connected {
		g.serve(t)
	}
	if text := f.parts["apply"]; text != "" {
		apply(t, g.namespace, g.own(text))
	}
	f.change(t, g, "patch")
	args := strings.Fields(g.own("why NS/front-door"))
	if text := f.parts["args"]; text != "" {
		args = strings.Fields(g.own(text))
	}
	lines := strings.Split(strings.TrimSpace(g.own(f.parts["want"])), "\n")
	if len(lines) != 3 {
		t.Fatalf("want has %d lines", len(lines))
	}
	until(t, func(ctx context.Context) error {
		found, err := o.findings(ctx, control.Admin.Kubeconfig, args...)
		if err != nil {
			return err
		}
		if len(found) == 0 {
			return errors.New("no finding")
		}
		first := found[0]
		if first.Severity+" "+first.Object != lines[0] || first.Field != lines[1] || !strings.Contains(first.Problem, lines[2]) ||
			first.Remedy == "" {
			return fmt.Errorf("the first of %d findings is %+v", len(found), first)
		}
		return nil
	})
}

// namespaces are those that the prefix of an object selects.
var namespaces = map[string]string{"system": "kube-system", "operator": system}

// change makes the changes of a part. The object of another namespace has a prefix, as in system:RESOURCE/NAME.
func (f fixture) change(t *testing.T, g *gateway, part string) {
	t.Helper()
	ctx := context.Background() // also at the end of a test
	for line := range strings.Lines(g.own(f.parts[part])) {
		words := strings.SplitN(strings.TrimSpace(line), " ", 3)
		if words[0] == "" {
			continue
		}
		deleted := words[0] == "delete"
		if deleted {
			words = words[1:]
		}
		namespace, object := g.namespace, words[0]
		if prefix, rest, ok := strings.Cut(object, ":"); ok {
			namespace, object = namespaces[prefix], rest
		}
		change := func(context.Context) error { // an admission plugin may still have an earlier state
			return control.Patch(ctx, namespace, object, types.MergePatchType, strings.Join(words[1:], " "))
		}
		switch {
		case object == "await":
			sees(t, namespace, words[1], ".metadata.namespace", namespace)
			continue
		case deleted:
			args := []string{"delete", "-n", namespace, "--wait=false", object}
			if strings.HasPrefix(object, "pod/") { // no kubelet confirms the deletion
				args = append(args, "--force", "--grace-period=0")
			}
			change = func(ctx context.Context) error { _, err := control.Kubectl(ctx, args...); return err }
		case words[1] == "status":
			change = func(context.Context) error {
				return control.Patch(ctx, namespace, object, types.MergePatchType, words[2], "status")
			}
		}
		limited, cancel := context.WithTimeout(ctx, patience)
		err := bed.Until(limited, change)
		cancel()
		must(t, err)
	}
}

// answer merges JSON into the answers of the dataplane.
func (g *gateway) answer(t *testing.T, text string) {
	t.Helper()
	var change map[string]map[string]any
	must(t, json.Unmarshal([]byte(g.own(strings.ReplaceAll(text, "NOW", time.Now().UTC().Format(time.RFC3339)))), &change))
	if change == nil {
		g.connected = false
	}
	for path, fields := range change {
		body, _ := g.answers[path].(map[string]any)
		if body == nil {
			body = map[string]any{}
		}
		for name, value := range fields {
			body[name] = value
		}
		g.answers[path] = body
	}
}

// output runs a program and returns its standard output and its exit code.
func output(ctx context.Context, path string, args ...string) ([]byte, int, error) {
	cmd := exec.CommandContext(ctx, path, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 && len(out) > 0 {
		return out, 1, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("%s %v: %w: %s", filepath.Base(path), args, err, stderr.String())
	}
	return out, 0, nil
}
