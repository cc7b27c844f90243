package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// The table of field manifests: manifests as users write them for their platforms, with other names. A row is an
// archive testdata/field/NAME.txtar. Its comment describes the expected outcome:
//
//	in/*.yaml                       objects, applied in order; CERTIFICATE and KEY are replaced
//	then/*.yaml                     objects that are applied after the first outcome
//	want/server.txt, server2.txt    with the API server: objects that it rejects, outcome and messages; and after then/
//	want/folder.txt, folder2.txt    the same with a folder
//	want/check.txt                  exit codes and output of stunnerctl lint and render, and of operator --watch=false
const fieldFiles = "testdata/field/*.txtar"

// TestFieldManifestsAtAPIServer compares each row with the API server. The rows run one after another, and not beside
// other tests, because the manifests have usual names, such as Dataplane default, and the operators of several tests
// have the same controller name.
func TestFieldManifestsAtAPIServer(t *testing.T) {
	s := prepare(t, t.TempDir(), nameOf(t))
	s.must(installKEDA())
	s.allow("workloads", "hostNetwork", "true")
	s.startWatching("", "--controller-name", documentedController)
	common, pair := s.tenant(t), certificatePair(t)
	for _, row := range archiveRows(t, fieldFiles) {
		if !row.has("want/server.txt") {
			continue
		}
		t.Run(row.name, func(t *testing.T) {
			n := common.in(metav1.NamespaceDefault)
			n.T = t
			on := server{n}
			var applied []*unstructured.Unstructured
			shared := on.dataplane()
			defer func() {
				on.clear(slices.DeleteFunc(applied, isNamespace))
				if shared != nil {
					on.must(client.IgnoreAlreadyExists(on.Create(context.WithoutCancel(t.Context()), shared)))
				}
			}()
			for _, step := range []struct{ dir, want string }{{"in/", "want/server.txt"}, {"then/", "want/server2.txt"}} {
				var rejected strings.Builder
				for _, o := range row.objects(t, step.dir, pair) {
					if ns := o.GetNamespace(); ns != "" {
						err := n.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})
						n.must(client.IgnoreAlreadyExists(err))
					}
					if err := n.try(o); err != nil {
						fmt.Fprintf(&rejected, "rejected: %s\n", undeclared.ReplaceAllString(err.Error(), "a field not declared in schema"))
						continue
					}
					applied = append(applied, o)
				}
				if row.has(step.want) {
					row.compare(t, step.want, "", func(ctx context.Context) (string, error) {
						text, err := fieldOutcome(ctx, on, applied)
						return rejected.String() + text, err
					})
				}
			}
		})
	}
}

// undeclared is the field in an error of the API server about a field that the schema does not have. If there are
// several, the server names only one.
var undeclared = regexp.MustCompile(`\.[\w.]+: field not declared in schema`)

// dataplane returns Dataplane default, which all tests share and a row may replace, or nil.
func (s server) dataplane() *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(schema.GroupVersionKind{Group: "stunner.l7mp.io", Version: "v1", Kind: "Dataplane"})
	err := s.Get(s.Context(), client.ObjectKey{Name: "default"}, o)
	if apierrors.IsNotFound(err) {
		return nil
	}
	s.must(err)
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": o.GetAPIVersion(), "kind": o.GetKind(), "metadata": map[string]any{"name": o.GetName()},
		"spec": o.Object["spec"],
	}}
}

func isNamespace(o *unstructured.Unstructured) bool { return o.GetKind() == "Namespace" }

// TestFieldManifestsInFolder compares each row with a file provider.
func TestFieldManifestsInFolder(t *testing.T) {
	t.Parallel()
	programs, pair := harnesstest.Build(t, harness.Operator, harness.Stunnerctl), certificatePair(t)
	for _, row := range archiveRows(t, fieldFiles) {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			f := newFolder(t, filepath.Join(programs, "operator"))
			if row.has("want/check.txt") {
				row.check(t, programs, pair)
			}
			if !row.has("want/folder.txt") {
				return
			}
			row.write(f, "in/", pair)
			f.start()
			objects := row.objects(t, "in/", pair)
			outcome := func(ctx context.Context) (string, error) { return fieldOutcome(ctx, f, objects) }
			row.compare(t, "want/folder.txt", "", outcome)
			if row.has("want/folder2.txt") {
				row.write(f, "then/", pair)
				objects = append(objects, row.objects(t, "then/", pair)...)
				row.compare(t, "want/folder2.txt", "", outcome)
			}
		})
	}
}

// write writes the files of a folder of the archive.
func (r placeRow) write(f *folder, dir string, pair *strings.Replacer) {
	f.Helper()
	for _, part := range r.archive.Files {
		if name, ok := strings.CutPrefix(part.Name, dir); ok {
			f.write(strings.TrimSuffix(name, ".yaml"), pair.Replace(string(part.Data)))
		}
	}
}

// objects returns the objects in a folder of the archive. Objects of namespaced kinds without a namespace are in
// default.
func (r placeRow) objects(t *testing.T, dir string, pair *strings.Replacer) (list []*unstructured.Unstructured) {
	t.Helper()
	for _, part := range r.archive.Files {
		if strings.HasPrefix(part.Name, dir) {
			list = append(list, (&folder{T: t}).objects(pair.Replace(string(part.Data)))...)
		}
	}
	return list
}

// fieldKinds are the kinds whose outcome is compared.
var fieldKinds = []string{"GatewayClass", "GatewayConfig", "Dataplane", "StaticService", "Gateway", "UDPRoute"}

// fieldOutcome formats the outcome of objects, followed by the messages of their conditions.
func fieldOutcome(ctx context.Context, a applier, all []*unstructured.Unstructured) (string, error) {
	var b, said strings.Builder
	for _, o := range all {
		if !slices.Contains(fieldKinds, o.GetKind()) {
			continue
		}
		text, messages, err := outcome(ctx, a, []*unstructured.Unstructured{o})
		if errors.Is(err, fs.ErrNotExist) || apierrors.IsNotFound(err) {
			text, messages, err = fmt.Sprintf("%s %s: not read\n", o.GetKind(), o.GetName()), "", nil
		}
		if err != nil {
			return "", err
		}
		b.WriteString(text)
		for line := range strings.Lines(messages) {
			fmt.Fprintf(&said, "%s %s says: %s", o.GetKind(), o.GetName(), line)
		}
	}
	if f, ok := a.(*folder); ok {
		problems, err := f.problems()
		if err != nil {
			return "", err
		}
		said.WriteString(problems)
	}
	return b.String() + said.String(), nil
}

// chosenPort matches a port that the file provider has chosen, which differs between runs.
var chosenPort = regexp.MustCompile(`((?:has|use) port )\d+`)

// problems formats the problems of all files.
func (f *folder) problems() (string, error) {
	data, err := os.ReadFile(filepath.Join(f.out, "problems.yaml"))
	if err != nil {
		return "", err
	}
	var problems []struct{ File, Severity, Field, Message string }
	err = yaml.Unmarshal(data, &problems)
	var b strings.Builder
	for _, p := range problems {
		fmt.Fprintf(&b, "problem in %s: %s %s: %s\n", p.File, p.Severity, p.Field, chosenPort.ReplaceAllString(p.Message, "${1}ANY"))
	}
	return b.String(), err
}

// check compares the outputs of the checks before a deployment.
func (r placeRow) check(t *testing.T, programs string, pair *strings.Replacer) {
	t.Helper()
	f := &folder{T: t, in: filepath.Join(t.TempDir(), "in"), out: t.TempDir()}
	r.write(f, "in/", pair)
	var b strings.Builder
	for _, command := range [][]string{
		{"stunnerctl", "lint", f.in}, {"stunnerctl", "render", f.in, "--show", "statuses"},
		{"operator", "--input", f.in, "--output", filepath.Join(t.TempDir(), "out"), "--watch=false"},
	} {
		c := exec.CommandContext(t.Context(), filepath.Join(programs, command[0]), command[1:]...)
		var output bytes.Buffer
		c.Stdout, c.Stderr = &output, &output
		err := c.Run()
		if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s exits with %d\n", strings.Join(command[:min(2, len(command))], " "), c.ProcessState.ExitCode())
		if command[0] == "stunnerctl" && command[1] == "lint" {
			b.WriteString(strings.ReplaceAll(output.String(), f.in+"/", ""))
		}
	}
	text := strings.ReplaceAll(b.String(), "operator --input", "operator --watch=false")
	r.compare(t, "want/check.txt", "", func(context.Context) (string, error) { return text, nil })
}
