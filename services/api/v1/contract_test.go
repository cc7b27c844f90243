package v1

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

func newScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	if err := AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	return s
}

// G-10: an object of every kind with every documented field is decoded and encoded without loss.
func TestContractKinds(t *testing.T) {
	for _, kind := range []string{"GatewayConfig", "Dataplane", "StaticService", "UDPRoute"} {
		t.Run(kind, func(t *testing.T) {
			data, err := os.ReadFile(filepath.Join("testdata", strings.ToLower(kind)+".yaml"))
			if err != nil {
				t.Fatal(err)
			}
			object, err := newScheme(t).New(GroupVersion.WithKind(kind))
			if err != nil {
				t.Fatal(err)
			}
			if err := yaml.UnmarshalStrict(data, object); err != nil {
				t.Fatal(err)
			}
			requireEveryField(t, "spec", reflect.ValueOf(object).Elem().FieldByName("Spec"))

			var want, got map[string]any
			if err := yaml.Unmarshal(data, &want); err != nil {
				t.Fatal(err)
			}
			back, err := json.Marshal(object)
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(back, &got); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got["spec"], want["spec"]) {
				t.Errorf("spec was\n%v\nand came back as\n%v", want["spec"], got["spec"])
			}
		})
	}
}

// requireEveryField checks that the sample contains every field of the types of this package.
func requireEveryField(t *testing.T, path string, v reflect.Value) {
	t.Helper()
	for v.Kind() == reflect.Pointer || v.Kind() == reflect.Slice {
		if v.Kind() == reflect.Slice {
			v = v.Index(v.Len() - 1)
			continue
		}
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct || v.Type().PkgPath() != reflect.TypeFor[GatewayConfig]().PkgPath() ||
		marshalsItself(v.Type()) {
		return
	}
	for f, value := range v.Fields() {
		if value.IsZero() {
			t.Errorf("the sample leaves out %s.%s", path, f.Name)
			continue
		}
		requireEveryField(t, path+"."+f.Name, value)
	}
}

func TestContractGroupVersion(t *testing.T) {
	if got := GroupVersion.String(); got != "stunner.l7mp.io/v1" {
		t.Errorf("group and version are %s", got)
	}
	s := newScheme(t)
	for _, kind := range []string{"GatewayConfig", "Dataplane", "StaticService", "UDPRoute"} {
		for _, k := range []string{kind, kind + "List"} {
			if !s.Recognizes(GroupVersion.WithKind(k)) {
				t.Errorf("the scheme does not know %s", k)
			}
		}
	}
}
