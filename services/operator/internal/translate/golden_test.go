package translate_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/stunner-gateway/stunner/services/operator/internal/decode"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

var update = flag.Bool("update", false, "rewrite the want/ files of the golden cases")

// TestTranslate runs the cases in testdata. The name of a case is a sentence, its comment is the reason. A case is a
// txtar archive.
//
// A case has only the want/ files of its subject. property_test.go checks the properties of all cases.
func TestTranslate(t *testing.T) {
	for _, file := range caseFiles(t) {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			c := load(t, file)
			checkHygiene(t, c)
			got := c.render(t)
			for i, f := range c.archive.Files {
				want, about := strings.CutPrefix(f.Name, "want/")
				if !about {
					continue
				}
				text, known := got[want]
				if !known {
					t.Fatalf("%s: there is no such result", f.Name)
				}
				if *update {
					c.archive.Files[i].Data = text
				} else if diff := cmp.Diff(string(f.Data), string(text)); diff != "" {
					t.Errorf("%s differs (-want +got):\n%s", f.Name, diff)
				}
			}
			if *update {
				if err := os.WriteFile(file, txtar.Format(c.archive), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// testCase is a decoded archive.
type testCase struct {
	archive *txtar.Archive
	objects []resource.Object
	options translate.Options
	host    *resource.Host
	bundle  string
	keda    resource.Scaling
}

var now = metav1.NewTime(time.Date(2031, 5, 4, 3, 2, 1, 0, time.UTC))

func caseFiles(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases in testdata: %v", err)
	}
	return files
}

func load(t testing.TB, file string) *testCase {
	t.Helper()
	archive, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	c := &testCase{archive: archive, options: translate.DefaultOptions()}
	c.options.Now = now
	c.options.Image = "registry.example.net/media/relay:3.1.4"
	c.options.DiscoveryAddress = "http://discovery.stunner-system.svc:13478"
	c.options.ScalerAddress = "discovery.stunner-system.svc:13480"
	var without []string
	for _, f := range archive.Files {
		switch dir, _ := filepath.Split(f.Name); {
		case dir == "in/":
			c.objects = append(c.objects, decodeChecked(t, f.Name, f.Data)...)
		case dir == "unchecked/":
			c.objects = append(c.objects, decodeUnchecked(t, f.Name, f.Data)...)
		case f.Name == "without":
			without = strings.Split(strings.TrimSpace(string(f.Data)), "\n")
		case f.Name == "options.yaml":
			mustUnmarshal(t, f.Data, &c.options)
		case f.Name == "bundle.pem":
			c.bundle = string(f.Data)
		case f.Name == "without-keda":
			c.keda.Missing = true
		case f.Name == "host.yaml":
			c.host = readHost(t, f.Data)
		case dir == "want/":
		default:
			t.Fatalf("%s: unknown part %s", file, f.Name)
		}
	}
	c.objects = append(c.objects, c.missingOf(base(t), without)...)
	return c
}

func base(t testing.TB) []resource.Object {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "base.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return decodeChecked(t, "base.yaml", data)
}

// missingOf returns the base objects that the case neither contains nor excludes.
func (c *testCase) missingOf(base []resource.Object, without []string) []resource.Object {
	return slices.DeleteFunc(base, func(o resource.Object) bool {
		return slices.Contains(without, identity(o)) || slices.ContainsFunc(c.objects, func(own resource.Object) bool {
			return identity(own) == identity(o)
		})
	})
}

func identity(o resource.Object) string {
	name := strings.TrimPrefix(o.GetNamespace()+"/"+o.GetName(), "/")
	return o.GetObjectKind().GroupVersionKind().Kind + " " + name
}

func decodeChecked(t testing.TB, name string, data []byte) []resource.Object {
	t.Helper()
	located, problems := decode.File(name, data)
	for _, p := range problems {
		if p.Severity == decode.Error {
			t.Fatalf("%s", p)
		}
	}
	var objects []resource.Object
	for _, l := range located {
		objects = append(objects, l.Object)
	}
	return objects
}

// decodeUnchecked reads objects without defaults or validation.
func decodeUnchecked(t testing.TB, name string, data []byte) []resource.Object {
	t.Helper()
	var objects []resource.Object
	for _, document := range bytes.Split(data, []byte("\n---\n")) {
		var meta metav1.TypeMeta
		if err := yaml.Unmarshal(document, &meta); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		o := blank(t, meta)
		mustUnmarshal(t, document, o)
		objects = append(objects, o)
	}
	return objects
}

func mustUnmarshal(t testing.TB, data []byte, into any) {
	t.Helper()
	if err := yaml.UnmarshalStrict(data, into); err != nil {
		t.Fatal(err)
	}
}

// readHost reads ports as GATEWAY/LISTENER: PORT and admin ports as GATEWAY: {metrics, health}, all in namespace turn.
func readHost(t testing.TB, data []byte) *resource.Host {
	t.Helper()
	var text struct {
		Address string                         `json:"address"`
		Ports   map[string]int                 `json:"ports"`
		Admin   map[string]resource.AdminPorts `json:"admin"`
	}
	mustUnmarshal(t, data, &text)
	h := &resource.Host{
		Addresses: strings.Split(text.Address, ","), Ports: map[resource.ListenerKey]int{},
		Admin: map[types.NamespacedName]resource.AdminPorts{},
	}
	for name, port := range text.Ports {
		gateway, listener, _ := strings.Cut(name, "/")
		h.Ports[resource.ListenerKey{Namespace: "turn", Gateway: gateway, Listener: listener}] = port
	}
	for gateway, ports := range text.Admin {
		h.Admin[types.NamespacedName{Namespace: "turn", Name: gateway}] = ports
	}
	return h
}

func (c *testCase) view() *resource.View { return c.viewOf(c.objects) }

func (c *testCase) viewOf(objects []resource.Object) *resource.View {
	v := resource.NewView(objects)
	v.Put(&resource.Trust{Bundle: c.bundle})
	v.Put(c.keda.DeepCopyObject().(*resource.Scaling))
	if c.host != nil {
		v = v.WithHost(*c.host)
	}
	return v
}
