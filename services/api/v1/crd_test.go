package v1

import (
	"encoding"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const crdDir = "../../../kustomize/base/crds"

// property is the part of the schema of a CRD that these tests use.
type property struct {
	Type        string
	Description string
	Default     any
	Properties  map[string]property
	Items       *property
}

// at returns the property at a path of field names, through lists.
func (s property) at(t *testing.T, path string) property {
	t.Helper()
	for _, name := range strings.Split(path, ".") {
		if s.Items != nil {
			s = *s.Items
		}
		next, ok := s.Properties[name]
		if !ok {
			t.Fatalf("schema has no %s on the way to %s", name, path)
		}
		s = next
	}
	return s
}

func readSchema(t *testing.T, plural string) property {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(crdDir, GroupName+"_"+plural+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var crd struct {
		Spec struct {
			Versions []struct {
				Name   string
				Schema struct{ OpenAPIV3Schema property }
			}
		}
	}
	if err := yaml.Unmarshal(data, &crd); err != nil {
		t.Fatal(err)
	}
	for _, v := range crd.Spec.Versions {
		if v.Name == GroupVersion.Version {
			return v.Schema.OpenAPIV3Schema
		}
	}
	t.Fatalf("CRD of %s has no version %s", plural, GroupVersion.Version)
	return property{}
}

// G-10: the schema of each kind has every field of its Go type.
func TestCRDHasEveryField(t *testing.T) {
	for plural, kind := range map[string]any{
		"gatewayconfigs": GatewayConfig{},
		"dataplanes":     Dataplane{},
		"staticservices": StaticService{},
		"revocations":    Revocation{},
		"udproutes":      UDPRoute{},
	} {
		t.Run(plural, func(t *testing.T) {
			crd := readSchema(t, plural)
			of := reflect.TypeOf(kind)
			for _, part := range []string{"Spec", "Status"} {
				field, _ := of.FieldByName(part)
				compareFields(t, strings.ToLower(part), field.Type, crd.at(t, strings.ToLower(part)))
			}
		})
	}
}

// compareFields compares the JSON fields of a Go type with the properties of its schema.
func compareFields(t *testing.T, path string, of reflect.Type, s property) {
	t.Helper()
	for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice {
		if of.Kind() == reflect.Slice && s.Items != nil {
			s = *s.Items
		}
		of = of.Elem()
	}
	if of.Kind() != reflect.Struct || marshalsItself(of) {
		return
	}
	fields := jsonFields(of)
	if got, want := slices.Sorted(maps.Keys(s.Properties)), slices.Sorted(maps.Keys(fields)); !slices.Equal(got, want) {
		t.Errorf("%s: the schema has %v, the Go type %v", path, got, want)
		return
	}
	for name, fieldType := range fields {
		if s.Properties[name].Description == "" {
			t.Errorf("%s.%s has no description", path, name)
		}
		compareFields(t, path+"."+name, fieldType, s.Properties[name])
	}
}

func jsonFields(of reflect.Type) map[string]reflect.Type {
	fields := map[string]reflect.Type{}
	for f := range of.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" && (f.Anonymous || strings.Contains(options, "inline")) {
			maps.Copy(fields, jsonFields(f.Type))
			continue
		}
		fields[name] = f.Type
	}
	return fields
}

func marshalsItself(of reflect.Type) bool {
	p := reflect.PointerTo(of)
	return p.Implements(reflect.TypeFor[json.Marshaler]()) || p.Implements(reflect.TypeFor[encoding.TextMarshaler]())
}

func TestDefaultsOfCRDAndOfGoAgree(t *testing.T) {
	for _, c := range []struct {
		plural, path string
		constant     any
	}{
		{"gatewayconfigs", "spec.dataplane", DefaultDataplane},
		{"gatewayconfigs", "spec.realm", DefaultRealm},
		{"gatewayconfigs", "spec.authType", string(DefaultAuthType)},
		{"dataplanes", "spec.dataplaneResource", string(DefaultDataplaneResource)},
		{"dataplanes", "spec.terminationGracePeriodSeconds", float64(DefaultTerminationGracePeriodSeconds)},
		{"dataplanes", "spec.offloadEngine", string(DefaultOffloadEngine)},
		{"dataplanes", "spec.autoscaling.minReplicas", float64(DefaultMinReplicas)},
		{"dataplanes", "spec.autoscaling.allocationsPerReplica", float64(DefaultAllocationsPerReplica)},
		{"dataplanes", "spec.autoscaling.trigger", string(DefaultScalingTrigger)},
		{"dataplanes", "spec.autoscaling.prometheus.authenticationRef.kind", DefaultTriggerAuthentication},
		{"udproutes", "spec.rules.backendRefs.group", ""},
		{"udproutes", "spec.rules.backendRefs.kind", string(KindService)},
	} {
		if got := readSchema(t, c.plural).at(t, c.path).Default; got != c.constant {
			t.Errorf("%s %s: the CRD fills in %v, the Go constant is %v", c.plural, c.path, got, c.constant)
		}
	}
}

func TestDefaultDeniedBackendsAreInTheCRD(t *testing.T) {
	got, err := json.Marshal(readSchema(t, "gatewayconfigs").at(t, "spec.deniedBackends").Default)
	if err != nil {
		t.Fatal(err)
	}
	want, err := json.Marshal(DefaultDeniedBackends())
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("the CRD fills in %s, Go %s", got, want)
	}
}

// An empty list differs from a missing one.
func TestEmptyDeniedBackendsAreWritten(t *testing.T) {
	for want, list := range map[string][]DeniedBackend{`{}`: nil, `{"deniedBackends":[]}`: {}} {
		if got, err := json.Marshal(GatewayConfigSpec{DeniedBackends: list}); err != nil || string(got) != want {
			t.Errorf("written %s, %v, want %s", got, err, want)
		}
	}
}

// These fields have no default in the CRD, so that an object shows whether they were set. Their descriptions state the
// meaning of unset.
func TestDescriptionsStateTheMeaningOfUnset(t *testing.T) {
	for path, meaning := range map[string]string{
		"spec.logLevel":     DefaultLogLevel,
		"spec.authLifetime": "86400",
	} {
		field := readSchema(t, "gatewayconfigs").at(t, path)
		if field.Default != nil || !strings.Contains(field.Description, meaning) {
			t.Errorf("%s: default %v, description %q must say %s", path, field.Default, field.Description, meaning)
		}
	}
}

func TestSecretValuesHaveNoTypeInTheSchema(t *testing.T) {
	for _, path := range []string{"spec.userName", "spec.password", "spec.sharedSecret"} {
		if s := readSchema(t, "gatewayconfigs").at(t, path); s.Type != "" {
			t.Errorf("%s has type %q: it is a string or an object", path, s.Type)
		}
	}
}

func TestKustomizationListsEveryCRD(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(crdDir, "kustomization.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var kustomization struct{ Resources []string }
	if err := yaml.UnmarshalStrict(data, &struct {
		APIVersion, Kind string
		Resources        *[]string
	}{Resources: &kustomization.Resources}); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(crdDir, GroupName+"_*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range files {
		files[i] = filepath.Base(files[i])
	}
	if !slices.Equal(kustomization.Resources, files) {
		t.Errorf("kustomization.yaml lists %v, the folder has %v", kustomization.Resources, files)
	}
}
