package kube

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/services/api/config"
)

// TestDocumented_Rendered compares the output of stunnerctl render for the same manifests with the outcome at an API
// server.
func TestDocumented_Rendered(t *testing.T) {
	t.Parallel()
	root, err := bed.Root()
	if err != nil {
		t.Fatal(err)
	}
	programs := t.TempDir()
	if err := bed.Build(t.Context(), root, programs, bed.Stunnerctl); err != nil {
		t.Fatal(err)
	}
	program, pair := filepath.Join(programs, filepath.Base(bed.Stunnerctl)), certificatePair(t)
	for _, row := range documentation {
		t.Run(row.name(), func(t *testing.T) {
			t.Parallel()
			row.rendered(t, program, pair)
		})
	}
}

// rendered renders the manifest of a row twice. The second time, the input contains the rendered Services with the
// address that the cloud of TestDocumented_OnAnAPIServer gives them.
func (row documented) rendered(t *testing.T, program string, pair *strings.Replacer) {
	r := &renderer{
		program: program, in: t.TempDir(), out: t.TempDir(), args: []string{"--discovery-url", "http://127.0.0.1:13478"},
	}
	f := folder{T: t}
	var compared []*unstructured.Unstructured
	for _, before := range row.before(t, pair) {
		list := f.objects(before.text)
		r.apply(t, list...)
		compared = append(compared, before.gateways(list)...)
	}
	text := readManifest(t, row.manifest)
	if row.refused != "" {
		text = row.remedy.Replace(text)
	}
	list := f.objects(text)
	r.apply(t, list...)
	r.run(t)
	r.apply(t, r.exposed(t)...)
	r.run(t)
	if err := row.differs(t.Context(), r, append(compared, list...), row.outcome); err != nil {
		t.Error(err)
	}
}

// renderer is the input and the output of stunnerctl render.
type renderer struct {
	program, in, out string
	args             []string
}

// apply adds objects to the input, or replaces them. As at an API server, Gateways have a UID, so that the rendered
// Services have an owner.
func (r *renderer) apply(t *testing.T, list ...*unstructured.Unstructured) {
	t.Helper()
	for _, o := range list {
		version := strings.ReplaceAll(o.GetAPIVersion(), "/", "_")
		name := strings.ToLower(strings.Join([]string{o.GetKind(), version, o.GetNamespace(), o.GetName()}, "_"))
		if o = o.DeepCopy(); o.GetKind() == "Gateway" && o.GetUID() == "" {
			o.SetUID(types.UID(o.GetNamespace() + "/" + o.GetName()))
		}
		data, err := yaml.Marshal(o.Object)
		if err == nil {
			err = os.WriteFile(filepath.Join(r.in, name+".yaml"), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func (r *renderer) run(t *testing.T) {
	t.Helper()
	var errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), r.program, append([]string{"render", r.in, "--to", r.out}, r.args...)...)
	cmd.Stderr = &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("render: %v\n%s", err, errs.String())
	}
}

// exposed returns the rendered Services as a cloud and an API server complete them: with an address of the load
// balancer, and with node ports.
func (r *renderer) exposed(t *testing.T) (all []*unstructured.Unstructured) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(r.out, "objects/*/service-*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		o := &unstructured.Unstructured{}
		if data, err := os.ReadFile(file); err != nil || yaml.Unmarshal(data, &o.Object) != nil {
			t.Fatalf("read %s: %v", file, err)
		}
		if kind, _, _ := unstructured.NestedString(o.Object, "spec", "type"); kind == string(corev1.ServiceTypeLoadBalancer) {
			o.Object["status"] = map[string]any{
				"loadBalancer": map[string]any{"ingress": []any{map[string]any{"ip": r.address()}}},
			}
		}
		ports, _, _ := unstructured.NestedSlice(o.Object, "spec", "ports")
		for i := range ports {
			ports[i].(map[string]any)["nodePort"] = int64(30_000 + i)
		}
		if err := unstructured.SetNestedSlice(o.Object, ports, "spec", "ports"); err != nil {
			t.Fatal(err)
		}
		all = append(all, o)
	}
	return all
}

func (*renderer) address() string { return server{}.address() }

func (r *renderer) status(_ context.Context, o *unstructured.Unstructured) ([]byte, error) {
	data, err := os.ReadFile(r.path("statuses", o, strings.ToLower(o.GetKind())+"-"))
	if errors.Is(err, fs.ErrNotExist) {
		return yaml.Marshal(o.Object) // a kind without a status of the operator
	}
	return data, err
}

func (r *renderer) config(_ context.Context, gateway *unstructured.Unstructured) (c config.Config, err error) {
	data, err := os.ReadFile(r.path("configs", gateway, ""))
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	return c, errors.Join(err, yaml.Unmarshal(data, &c))
}

func (r *renderer) path(part string, o *unstructured.Unstructured, prefix string) string {
	return filepath.Join(r.out, part, o.GetNamespace(), prefix+o.GetName()+".yaml")
}

func (r *renderer) made(_ context.Context, gateway *unstructured.Unstructured) (all []client.Object, err error) {
	return madeIn(r.out, gateway)
}
