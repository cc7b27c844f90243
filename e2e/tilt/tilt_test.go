// Package tilt tests the development environment without Tilt and without a container engine. The Tiltfile runs in the
// Starlark interpreter that Tilt uses, with functions that record their calls, and everything that it names must exist.
package tilt

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.starlark.net/starlark"
	"go.starlark.net/syntax"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// functions are the functions available to the Tiltfile with their parameters in order, as in
// https://docs.tilt.dev/api.html for Tilt 0.36.
var functions = map[string]string{
	"decode_yaml_stream": "yaml",
	"docker_build": "ref context build_args dockerfile dockerfile_contents live_update match_in_env_vars ignore only entrypoint target ssh network " +
		"secret extra_tag container_args cache_from pull platform extra_hosts",
	"k8s_context": "",
	"k8s_kind":    "kind api_version image_json_path image_object_json_path pod_readiness",
	"k8s_resource": "workload new_name port_forwards extra_pod_selectors trigger_mode resource_deps objects auto_init pod_readiness links labels " +
		"discovery_strategy",
	"k8s_yaml":  "yaml allow_duplicates",
	"kustomize": "pathToDir kustomize_bin flags",
	"link":      "url name",
	"local":     "command quiet command_bat echo_off env dir stdin",
	"local_resource": "name cmd deps trigger_mode resource_deps ignore auto_init serve_cmd cmd_bat serve_cmd_bat allow_parallel links labels env " +
		"serve_env readiness_probe dir serve_dir",
	"port_forward":     "local_port container_port name link_path host",
	"run":              "cmd trigger echo_off",
	"sync":             "local_path remote_path",
	"update_settings":  "max_parallel_updates k8s_upsert_timeout_secs suppress_unused_image_warnings k8s_server_side_apply",
	"version_settings": "check_updates constraint",
}

// call is a recorded call of a Tilt function. By default it is also the function's return value.
type call struct {
	starlark.Value
	function string
	args     map[string]any
}

func (c *call) String() string { return fmt.Sprintf("%s(%v)", c.function, c.args) }

// text, list and calls return an argument, or an empty value if it was not given.
func (c *call) text(name string) string { s, _ := c.args[name].(string); return s }

func (c *call) list(name string) (all []string) {
	switch v := c.args[name].(type) {
	case string:
		return []string{v}
	case []any:
		for _, one := range v {
			if s, ok := one.(string); ok {
				all = append(all, s)
			}
		}
	}
	return all
}

func (c *call) calls(name string) (all []*call) {
	list, _ := c.args[name].([]any)
	for _, one := range list {
		if c, ok := one.(*call); ok {
			all = append(all, c)
		}
	}
	return all
}

// desk holds the recorded calls of the Tiltfile.
type desk struct {
	root    string
	objects []unstructured.Unstructured
	calls   []*call
}

// open runs the Tiltfile for a cluster with Prometheus and Grafana.
func open(t *testing.T) *desk {
	t.Helper()
	root := harnesstest.Root(t)
	d := &desk{root: root}
	environment := starlark.StringDict{"TRIGGER_MODE_MANUAL": starlark.String("manual")}
	for name := range functions {
		environment[name] = starlark.NewBuiltin(name, d.record)
	}
	options := &syntax.FileOptions{TopLevelControl: true, GlobalReassign: true}
	if _, err := starlark.ExecFileOptions(
		options, &starlark.Thread{Name: "Tiltfile"}, filepath.Join(root, "Tiltfile"), nil, environment,
	); err != nil {
		t.Fatal(err)
	}
	return d
}

// record records a call and returns its result.
func (d *desk) record(
	_ *starlark.Thread, fn *starlark.Builtin, args starlark.Tuple, kwargs []starlark.Tuple,
) (starlark.Value, error) {
	known := strings.Fields(functions[fn.Name()])
	c := &call{Value: starlark.None, function: fn.Name(), args: map[string]any{}}
	for i, v := range args {
		if i >= len(known) {
			return nil, fmt.Errorf("%s takes %d arguments", fn.Name(), len(known))
		}
		c.args[known[i]] = plain(v)
	}
	for _, pair := range kwargs {
		name := string(pair[0].(starlark.String))
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("%s has no argument %s", fn.Name(), name)
		}
		c.args[name] = plain(pair[1])
	}
	d.calls = append(d.calls, c)
	switch fn.Name() {
	case "kustomize":
		return d.render(c.text("pathToDir"))
	case "decode_yaml_stream":
		return shown(c.text("yaml"))
	case "local":
		return starlark.String("monitoring found 9090\n"), nil
	case "k8s_context":
		return starlark.String("kind-kind"), nil
	}
	return c, nil
}

func plain(v starlark.Value) any {
	switch v := v.(type) {
	case starlark.String:
		return string(v)
	case starlark.Int:
		n, _ := v.Int64()
		return n
	case *starlark.List:
		all := []any{}
		for one := range v.Elements() {
			all = append(all, plain(one))
		}
		return all
	case *starlark.Dict:
		all := map[string]any{}
		for _, item := range v.Items() {
			all[string(item[0].(starlark.String))] = plain(item[1])
		}
		return all
	}
	return v
}

// render renders a kustomization and stores its objects.
func (d *desk) render(folder string) (starlark.Value, error) {
	m, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(
		filesys.MakeFsOnDisk(), filepath.Join(d.root, folder),
	)
	if err != nil {
		return nil, err
	}
	text, err := m.AsYaml()
	if err != nil {
		return nil, err
	}
	d.objects, err = parse(string(text))
	return starlark.String(text), err
}

// parse decodes a stream of objects.
func parse(text string) (all []unstructured.Unstructured, err error) {
	for _, document := range strings.Split("\n"+text, "\n---") {
		var o unstructured.Unstructured
		data, err := yaml.YAMLToJSONStrict([]byte(document))
		if err == nil {
			err = o.UnmarshalJSON(data)
		}
		if err != nil {
			return nil, err
		}
		all = append(all, o)
	}
	return all, nil
}

// shown returns kinds and names of objects, which is all that the Tiltfile reads.
func shown(text string) (starlark.Value, error) {
	objects, err := parse(text)
	all := starlark.NewList(nil)
	for _, o := range objects {
		metadata, object := starlark.NewDict(1), starlark.NewDict(2)
		_ = metadata.SetKey(starlark.String("name"), starlark.String(o.GetName())) // a new object is not frozen
		_ = object.SetKey(starlark.String("kind"), starlark.String(o.GetKind()))
		_ = object.SetKey(starlark.String("metadata"), metadata)
		_ = all.Append(object)
	}
	return all, err
}

func (d *desk) all(function string) (all []*call) {
	for _, c := range d.calls {
		if c.function == function {
			all = append(all, c)
		}
	}
	return all
}

// binary returns the program that a resource compiles, or "".
func binary(c *call) string {
	cmd := c.list("cmd")
	if i := slices.Index(cmd, "-o"); i >= 0 && i+1 < len(cmd) {
		return cmd[i+1]
	}
	return ""
}

// All watched folders, build contexts and commands exist in the repository.
func TestPaths(t *testing.T) {
	d := open(t)
	targets, count := d.targets(t), 0
	exists := func(c *call, path string) {
		count++
		if _, err := os.Stat(filepath.Join(d.root, path)); err != nil {
			t.Errorf("%s: %v", c, err)
		}
	}
	for _, c := range d.all("kustomize") {
		exists(c, c.text("pathToDir"))
	}
	for _, c := range d.all("docker_build") {
		exists(c, c.text("dockerfile"))
	}
	for _, c := range d.all("local_resource") {
		for _, path := range c.list("deps") {
			exists(c, path)
		}
		words := strings.Fields(strings.Join(append(c.list("cmd"), c.list("serve_cmd")...), " "))
		for i, word := range words {
			switch {
			case strings.HasPrefix(word, "./"):
				exists(c, word)
			case word == "make" && (i+1 == len(words) || !slices.Contains(targets, words[i+1])):
				t.Errorf("%s: unknown make target; targets are %v", c, targets)
			}
		}
		if len(words) == 0 {
			t.Errorf("%s runs nothing", c)
		} else if _, err := exec.LookPath(words[0]); err != nil && words[0] != "kubectl" {
			t.Errorf("%s: %v", c, err)
		}
	}
	if count < 10 || len(targets) < 10 {
		t.Errorf("%d paths and %d targets of make found", count, len(targets))
	}
}

// targets returns the documented make targets.
func (d *desk) targets(t *testing.T) (all []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(d.root, ".ci/mk/*.mk"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		for _, match := range regexp.MustCompile(`(?m)^([a-z0-9-]+):`).FindAllStringSubmatch(read(t, file), -1) {
			all = append(all, match[1])
		}
	}
	return all
}

// A resource refers to a deployed workload or objects, depends on existing resources, and forwards existing container
// ports.
func TestResources(t *testing.T) {
	d := open(t)
	names, taken := map[string]bool{}, map[string]string{}
	for _, c := range d.all("local_resource") {
		names[c.text("name")] = true
	}
	for _, c := range d.all("k8s_resource") {
		name := c.text("new_name")
		if workload := c.text("workload"); workload != "" {
			d.workload(t, c)
			if name == "" {
				name = workload
			}
		}
		names[name] = true
		for _, selector := range c.list("objects") {
			o := d.object(t, c, selector)
			if before := taken[o]; before != "" {
				t.Errorf("%s: %s is already in %s", c, selector, before)
			}
			taken[o] = name
		}
	}
	for _, c := range append(d.all("k8s_resource"), d.all("local_resource")...) {
		for _, dep := range c.list("resource_deps") {
			if !names[dep] {
				t.Errorf("%s: unknown resource %q", c, dep)
			}
		}
		if len(c.list("labels")) != 1 {
			t.Errorf("%s: in groups %q, want one", c, c.list("labels"))
		}
	}
	if len(names) < 10 {
		t.Errorf("resources: %v", names)
	}
}

// object returns the only object that matches NAME:KIND:NAMESPACE.
func (d *desk) object(t *testing.T, c *call, selector string) (found string) {
	t.Helper()
	parts := append(strings.Split(selector, ":"), "", "")
	for _, o := range d.objects {
		if o.GetName() == parts[0] && (parts[1] == "" || strings.EqualFold(o.GetKind(), parts[1])) &&
			(parts[2] == "" || o.GetNamespace() == parts[2]) {
			if found != "" {
				t.Errorf("%s: %s matches more than one object", c, selector)
			}
			found = o.GetKind() + "/" + o.GetNamespace() + "/" + o.GetName()
		}
	}
	if found == "" {
		t.Errorf("%s: %s is not deployed", c, selector)
	}
	return found
}

// workload checks the forwarded ports of a Deployment. The ports of a dataplane come from the operator and the Gateway.
func (d *desk) workload(t *testing.T, c *call) {
	t.Helper()
	for _, o := range d.objects {
		kind := o.GetKind()
		if o.GetName() != c.text("workload") || (kind != "Deployment" && !d.declared(kind)) {
			continue
		}
		ports := []int64{3478, 8080, 8086}
		if kind == "Deployment" {
			ports = nil
			for _, p := range list(container(t, o), "ports") {
				ports = append(ports, p.(map[string]any)["containerPort"].(int64))
			}
		}
		for _, f := range c.calls("port_forwards") {
			if port, _ := f.args["container_port"].(int64); !slices.Contains(ports, port) {
				t.Errorf("%s: container ports are %v", f, ports)
			}
		}
		return
	}
	t.Errorf("%s: no such workload is deployed", c)
}

// declared reports whether the Tiltfile has declared a kind as containing images.
func (d *desk) declared(kind string) bool {
	return slices.ContainsFunc(
		d.all("k8s_kind"), func(c *call) bool { return c.text("kind") == kind && len(c.list("image_json_path")) > 0 },
	)
}

// Live update copies the compiled program to its path in the image, and the container permits the write.
func TestLiveUpdate(t *testing.T) {
	d := open(t)
	dockerfile := read(t, filepath.Join(d.root, ".ci/tilt/Dockerfile"))
	for _, c := range d.all("docker_build") {
		program, from := c.args["build_args"].(map[string]any)["SERVICE"].(string), ""
		steps := c.calls("live_update")
		if len(steps) != 2 || steps[0].function != "sync" || steps[1].function != "run" {
			t.Fatalf("%s: want sync, then run", c)
		}
		for _, r := range d.all("local_resource") {
			if out := binary(r); out != "" && out == filepath.Join(c.text("context"), program) {
				from = out
				d.watches(t, r)
			}
		}
		if from == "" || steps[0].text("local_path") != from || !slices.Equal(c.list("only"), []string{program}) {
			t.Errorf("%s: %s/%s is compiled to %q", c, c.text("context"), program, from)
		}
		in := steps[0].text("remote_path")
		if !strings.Contains(
			strings.ReplaceAll(dockerfile, "$SERVICE", program), "\nCOPY --chown=65532:65532 "+program+" "+in+"\n",
		) {
			t.Errorf("%s: %s is not the program's path in the Dockerfile", c, in)
		}
		d.lets(t, c)
	}
	if n := len(d.all("docker_build")); n != 4 {
		t.Errorf("%d images, want three services and the echo", n)
	}
}

// watches checks that a resource watches all folders of a program's packages.
func (d *desk) watches(t *testing.T, c *call) {
	t.Helper()
	cmd := c.list("cmd")
	const module = "github.com/stunner-gateway/stunner/"
	list := exec.Command("go", "list", "-deps", "-f", "{{.ImportPath}}", cmd[len(cmd)-1])
	list.Dir = d.root
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Fields(string(out)) {
		folder, ours := strings.CutPrefix(line, module)
		if ours && !slices.ContainsFunc(
			c.list("deps"), func(dep string) bool { return folder == dep || strings.HasPrefix(folder, dep+"/") },
		) {
			t.Errorf("%s does not watch %s", c, folder)
		}
	}
}

// lets checks that containers of the image are writable, and run the program by its name.
func (d *desk) lets(t *testing.T, c *call) {
	t.Helper()
	for _, o := range d.objects {
		var holder map[string]any
		switch spec, _, _ := unstructured.NestedMap(o.Object, "spec"); {
		case o.GetKind() == "Deployment":
			holder = container(t, o)
			if holder["command"] != nil {
				t.Errorf("%s overrides the command", o.GetName())
			}
		case o.GetKind() == "Dataplane" && d.declared("Dataplane"):
			holder = map[string]any{"image": spec["image"], "securityContext": spec["containerSecurityContext"]}
		default:
			continue
		}
		if image, _, _ := strings.Cut(holder["image"].(string), ":"); image != c.text("ref") {
			continue
		}
		if holder["securityContext"].(map[string]any)["readOnlyRootFilesystem"] == true {
			t.Errorf("%s is not writable", o.GetName())
		}
		return
	}
	t.Errorf("%s: no deployed container has the image", c)
}

func container(t *testing.T, o unstructured.Unstructured) map[string]any {
	t.Helper()
	all, _, err := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
	if err != nil || len(all) != 1 {
		t.Fatalf("%s has %d containers: %v", o.GetName(), len(all), err)
	}
	return all[0].(map[string]any)
}

func list(o map[string]any, name string) []any { all, _ := o[name].([]any); return all }

func read(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
