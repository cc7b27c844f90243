// Package charts tests the Helm charts and the kustomizations. They are rendered with the libraries of Helm and
// kustomize, and sent to a real API server.
//
// # Files
//
//	rows_test.go      a row for each value
//	values_test.go    rejected values
//	equal_test.go     comparison with kustomize
//	existing_test.go  values of the existing chart
package charts

import (
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/stunner-gateway/stunner/e2e/internal/cluster"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// The charts.
const (
	app  = "charts/stunner"
	crds = "charts/stunner-crds"
)

// home is the namespace of the documented installation.
const home = "stunner-system"

var control *cluster.Cluster

func TestMain(m *testing.M) { os.Exit(cluster.Main(m, &control)) }

type object = unstructured.Unstructured

// release is a chart with values, as `helm install stunner CHART -f FILES --set SET` installs it.
type release struct {
	chart     string
	files     []string // in addition to values.yaml
	set       string   // YAML
	namespace string   // default: home
	upgraded  bool     // render as an upgrade, with lookups in the cluster
	live      bool     // render with lookups in the cluster
}

// loaded is a chart with its compiled schema. To load and compile them takes longer than to render the chart.
type loaded struct {
	*chart.Chart
	schema *jsonschema.Schema
}

var charts = map[string]func() (loaded, error){
	app:  sync.OnceValues(func() (loaded, error) { return read(app) }),
	crds: sync.OnceValues(func() (loaded, error) { return read(crds) }),
}

func read(folder string) (l loaded, err error) {
	root, err := harness.Root()
	if err != nil {
		return l, err
	}
	if l.Chart, err = loader.Load(filepath.Join(root, folder)); err == nil {
		l.schema, err = jsonschema.NewCompiler().Compile(filepath.Join(root, folder, "values.schema.json"))
	}
	return l, err
}

func load(t *testing.T, folder string) loaded {
	t.Helper()
	c, err := charts[folder]()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// values returns the values of the files, overridden by set.
func (r release) values(t *testing.T) map[string]any {
	t.Helper()
	all := map[string]any{}
	texts := []string{r.set}
	for _, f := range r.files {
		texts = append([]string{harnesstest.Read(t, filepath.Join(r.chart, f))}, texts...)
	}
	for _, text := range slices.Backward(texts) {
		var values map[string]any
		if err := yaml.UnmarshalStrict([]byte(text), &values); err != nil {
			t.Fatal(err)
		}
		all = util.CoalesceTables(all, values)
	}
	return all
}

// templates renders the chart to one text per template.
func (r release) templates(t *testing.T) (map[string]string, error) {
	t.Helper()
	l := load(t, r.chart)
	c := *l.Chart
	if r.upgraded {
		metadata := *c.Metadata
		metadata.Version, metadata.AppVersion = "99.0.0", "99.0.0"
		c.Metadata = &metadata
	}
	options := common.ReleaseOptions{
		Name: "stunner", Namespace: r.namespace, Revision: 1, IsInstall: !r.upgraded, IsUpgrade: r.upgraded,
	}
	if r.namespace == "" {
		options.Namespace = home
	}
	// Helm compiles the schema at each validation, so values are validated here and Helm skips the validation.
	values, err := util.ToRenderValuesWithSchemaValidation(&c, r.values(t), options, nil, true)
	if err == nil {
		err = l.schema.Validate(values["Values"].(common.Values).AsMap())
	}
	if err != nil {
		return nil, err
	}
	if r.upgraded || r.live {
		return engine.RenderWithClient(&c, values, control.Admin.Config)
	}
	return engine.Render(&c, values)
}

// notes returns the output of `helm install`.
func (r release) notes(t *testing.T) string {
	t.Helper()
	files, err := r.templates(t)
	if err != nil {
		t.Fatal(err)
	}
	return files["stunner/templates/NOTES.txt"]
}

// hook is the annotation of objects that Helm creates separately from the release.
const hook = "helm.sh/hook"

// objects renders the chart and decodes the installed objects.
func (r release) objects(t *testing.T) []object {
	t.Helper()
	return slices.DeleteFunc(r.all(t), func(o object) bool { return o.GetAnnotations()[hook] != "" })
}

// all returns the objects of a release, including the objects of hooks.
func (r release) all(t *testing.T) (all []object) {
	t.Helper()
	files, err := r.templates(t)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if path.Ext(name) == ".yaml" {
			all = append(all, parse(t, files[name])...)
		}
	}
	return all
}

func kustomize(t *testing.T, folder string) []object {
	t.Helper()
	m, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(
		filesys.MakeFsOnDisk(), filepath.Join(harnesstest.Root(t), folder),
	)
	if err != nil {
		t.Fatal(err)
	}
	text, err := m.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return parse(t, string(text))
}

// parse decodes a stream of objects. Duplicate keys are an error, because only some versions of Helm accept them.
func parse(t *testing.T, text string) (all []object) {
	t.Helper()
	for _, document := range strings.Split("\n"+text, "\n---") {
		var o object
		if err := yaml.UnmarshalStrict([]byte(document), &o.Object); err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		if len(o.Object) > 0 {
			all = append(all, o)
		}
	}
	return all
}

// name returns Kind/name or Kind/namespace/name.
func name(o object) string { return path.Join(o.GetKind(), o.GetNamespace(), o.GetName()) }

func byName(t *testing.T, objects []object) map[string]object {
	t.Helper()
	all := map[string]object{}
	for _, o := range objects {
		if _, twice := all[name(o)]; twice {
			t.Fatalf("%s exists twice", name(o))
		}
		all[name(o)] = o
	}
	return all
}
