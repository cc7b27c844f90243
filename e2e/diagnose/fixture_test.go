package diagnose

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
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

// After each fault, the first finding names the fault, with its remedy. A healthy Gateway has no finding.
func TestFirstFindingIsTheFault(t *testing.T) {
	o := startOperator(t)
	all := fixtures(t)
	if len(all) < 25 {
		t.Errorf("%d fixtures", len(all))
	}
	g := newGateway(t, o, "healthy")
	g.connect(t)
	for _, args := range [][]string{{"why", "healthy/front-door"}, {"doctor", "-n", "healthy"}} {
		until(t, func(ctx context.Context) error {
			found, err := o.findings(ctx, control.Admin.Kubeconfig, args...)
			if err == nil && len(found) > 0 {
				err = fmt.Errorf("%v finds %+v", args, found)
			}
			return err
		})
	}
	t.Run("rights", func(t *testing.T) { testRights(t, g) })
	t.Run("of one Gateway", func(t *testing.T) {
		t.Run("answers", func(t *testing.T) { // the fixtures share one dataplane, so they run one after another
			t.Parallel()
			g := newGateway(t, o, "answers")
			g.connect(t)
			for _, f := range all {
				if f.kind() == ofDataplane {
					t.Run(f.name, func(t *testing.T) { f.run(t, g) })
				}
			}
			t.Run("sysdump", func(t *testing.T) { testSysdump(t, g) })
		})
		for _, f := range all {
			if f.kind() == ofGateway {
				t.Run(f.name, func(t *testing.T) {
					t.Parallel()
					g := newGateway(t, o, strings.ReplaceAll(f.name, "_", "-"))
					if f.parts["answers"] == "" {
						g.connect(t)
					}
					f.run(t, g)
				})
			}
		}
	})
	for _, f := range all {
		if f.kind() == shared {
			t.Run(f.name, func(t *testing.T) { f.run(t, g) })
		}
	}
}

// The kinds of faults: in the answers of a connected dataplane, in the objects of a Gateway, and in what Gateways
// share.
const (
	ofDataplane = iota
	ofGateway
	shared
)

func (f fixture) kind() int {
	_, alone := f.parts["alone"]
	answers := strings.TrimSpace(f.parts["answers"])
	switch {
	case alone:
		return shared
	case answers == "" || answers == "null" || f.parts["patch"]+f.parts["apply"] != "":
		return ofGateway
	}
	return ofDataplane
}

func (f fixture) run(t *testing.T, g *gateway) {
	t.Cleanup(func() { f.change(t, g, "undo") })
	if answers := f.parts["answers"]; answers != "" {
		g.answer(t, answers)
	}
	if text := f.parts["apply"]; text != "" {
		apply(t, g.namespace, g.filled(text))
	}
	f.change(t, g, "patch")
	args := strings.Fields(g.filled("why NS/front-door"))
	if text := f.parts["args"]; text != "" {
		args = strings.Fields(g.filled(text))
	}
	lines := strings.Split(strings.TrimSpace(g.filled(f.parts["want"])), "\n")
	if len(lines) != 3 {
		t.Fatalf("want has %d lines", len(lines))
	}
	until(t, func(ctx context.Context) error {
		found, err := g.findings(ctx, control.Admin.Kubeconfig, args...)
		if err != nil {
			return err
		}
		if len(found) == 0 {
			return errors.New("no finding")
		}
		first := found[0]
		if first.Severity+" "+first.Object != lines[0] || first.Field != lines[1] ||
			!strings.Contains(first.Problem, lines[2]) || first.Remedy == "" {
			return fmt.Errorf("the first of %d findings is %+v", len(found), first)
		}
		return nil
	})
}

// namespaces has the namespace for each prefix of an object.
var namespaces = map[string]string{"system": "kube-system", "operator": system}

// change makes the changes of a part. An object of another namespace has a prefix, as in system:RESOURCE/NAME.
func (f fixture) change(t *testing.T, g *gateway, part string) {
	t.Helper()
	ctx := context.Background() // the context of the test is canceled before its cleanup
	for line := range strings.Lines(g.filled(f.parts[part])) {
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
		change := func(context.Context) error { // an admission plugin may still use an earlier state
			return control.Patch(ctx, namespace, object, types.MergePatchType, strings.Join(words[1:], " "))
		}
		switch {
		case object == "await":
			awaitField(t, namespace, words[1], ".metadata.namespace", namespace)
			continue
		case deleted:
			args := []string{"delete", "-n", namespace, "--wait=false", object}
			if strings.HasPrefix(object, "pod/") { // without --force, the deletion would wait for a kubelet
				args = append(args, "--force", "--grace-period=0")
			}
			change = func(ctx context.Context) error { _, err := control.Kubectl(ctx, args...); return err }
		case words[1] == "status":
			change = func(context.Context) error {
				return control.Patch(ctx, namespace, object, types.MergePatchType, words[2], "status")
			}
		}
		limited, cancel := context.WithTimeout(ctx, timeout)
		err := harness.Until(limited, change)
		cancel()
		must(t, err)
	}
}
