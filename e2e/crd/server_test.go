// Package crd tests the CRDs, and objects of their kinds, with the libraries of the API server, and compares the file
// provider with an API server.
//
// # Files
//
//	admit_test.go         objects and verdicts
//	generate_test.go      generated objects
//	differential_test.go  comparison of a folder with an API server
package crd

import (
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	crdvalidation "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"
)

const (
	dir = "../../kustomize/base/crds"
	// embedded has all CRDs by which the file provider validates: copies of our CRDs, and the CRDs of the Gateway API.
	embedded = "../../services/operator/internal/crd/crds"
)

// kind defaults, prunes and validates objects as the API server does between a request and etcd.
type kind struct {
	structural *schema.Structural
	schema     validation.SchemaValidator
	rules      *cel.Validator
}

// admit defaults, prunes and validates an object.
func (k kind) admit(t *testing.T, object map[string]any) field.ErrorList {
	t.Helper()
	defaulting.Default(object, k.structural)
	pruning.Prune(object, k.structural, true)
	errs := validation.ValidateCustomResource(nil, object, k.schema)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, k.structural, object)...)
	if len(errs) > 0 {
		return errs // CEL rules expect an object that fits the schema
	}
	errs, _ = k.rules.Validate(t.Context(), nil, k.structural, object, nil, celconfig.RuntimeCELCostBudget)
	return errs
}

// ownCRDs returns the CRDs of STUNner.
func ownCRDs(t *testing.T) []*apiextensions.CustomResourceDefinition {
	t.Helper()
	crds := readCRDs(t, filepath.Join(dir, "stunner.l7mp.io_*.yaml"))
	if len(crds) != 5 {
		t.Fatalf("found %d CRDs in %s, want 5", len(crds), dir)
	}
	return crds
}

// readCRDs reads CRDs as the API server does when they are created: defaulted, validated, in the internal version.
func readCRDs(t *testing.T, pattern string) []*apiextensions.CustomResourceDefinition {
	t.Helper()
	scheme := runtime.NewScheme()
	install.Install(scheme)
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder(
		apiextensions.SchemeGroupVersion,
	)

	files, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	var crds []*apiextensions.CustomResourceDefinition
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		object, err := runtime.Decode(decoder, data)
		if err != nil {
			t.Fatalf("decode %s: %v", file, err)
		}
		crd := object.(*apiextensions.CustomResourceDefinition)
		crd.Status.StoredVersions = []string{"v1"} // set by the API server
		crds = append(crds, crd)
	}
	return crds
}

// readKinds returns the kinds of the CRDs of STUNner and of the Gateway API, in version v1.
func readKinds(t *testing.T) map[string]kind {
	t.Helper()
	return kindsOf(t, append(ownCRDs(t), readCRDs(t, filepath.Join(embedded, gatewayAPI+"_*.yaml"))...), "v1")
}

const gatewayAPI = "gateway.networking.k8s.io"

// rowKind returns the kind of a CRD as in the admission table: the UDPRoute of the Gateway API has its group.
func rowKind(crd *apiextensions.CustomResourceDefinition) string {
	if crd.Spec.Group == gatewayAPI && crd.Spec.Names.Kind == "UDPRoute" {
		return crd.Spec.Names.Kind + "." + crd.Spec.Group
	}
	return crd.Spec.Names.Kind
}

// kindsOf returns the kinds of CRDs in a version.
func kindsOf(t *testing.T, crds []*apiextensions.CustomResourceDefinition, version string) map[string]kind {
	t.Helper()
	kinds := map[string]kind{}
	for _, crd := range crds {
		validates, err := apiextensions.GetSchemaForVersion(crd, version)
		if err != nil {
			t.Fatal(err)
		}
		structural, err := schema.NewStructural(validates.OpenAPIV3Schema)
		if err != nil {
			t.Fatal(err)
		}
		schemaValidator, _, err := validation.NewSchemaValidator(validates.OpenAPIV3Schema)
		if err != nil {
			t.Fatal(err)
		}
		kinds[rowKind(crd)] = kind{
			structural, schemaValidator, cel.NewValidator(structural, true, celconfig.PerCallLimit),
		}
	}
	return kinds
}

// TestAPIServerTakesTheCRDs compiles every rule and estimates its cost, as the API server does when a CRD is created.
func TestAPIServerTakesTheCRDs(t *testing.T) {
	for _, crd := range ownCRDs(t) {
		t.Run(crd.Name, func(t *testing.T) {
			if errs := crdvalidation.ValidateCustomResourceDefinition(t.Context(), crd); len(errs) > 0 {
				t.Error(errs.ToAggregate())
			}
		})
	}
}

// retired has the fields of v1alpha1 without effect.
var retired = map[string][]string{
	"GatewayConfig": {"stunnerConfig", "metricsEndpoint", "healthCheckEndpoint", "minPort", "maxPort"},
}

// G-10: v1 is stored, and v1alpha1 has the same schema except for retired fields.
func TestContractVersions(t *testing.T) {
	for _, crd := range ownCRDs(t) {
		t.Run(crd.Name, func(t *testing.T) {
			var served []string
			for _, v := range crd.Spec.Versions {
				if v.Served {
					served = append(served, v.Name)
				}
				if v.Storage != (v.Name == "v1") {
					t.Errorf("version %s: stored is %t", v.Name, v.Storage)
				}
				s, err := apiextensions.GetSubresourcesForVersion(crd, v.Name)
				if err != nil || s == nil || s.Status == nil {
					t.Errorf("version %s has no status subresource: %v", v.Name, err)
				}
			}
			want := []string{"v1", "v1alpha1"}
			if slices.Contains([]string{"UDPRoute", "Revocation"}, crd.Spec.Names.Kind) { // the existing system has no such kind
				want = want[:1]
			}
			if !slices.Equal(served, want) {
				t.Fatalf("versions %v are served, want %v", served, want)
			}
			alpha := specSchema(t, crd, want[len(want)-1])
			for _, name := range retired[crd.Spec.Names.Kind] {
				if !strings.Contains(alpha.Properties[name].Description, "no effect") {
					t.Errorf("v1alpha1 does not take %s, or does not say that it has no effect", name)
				}
				delete(alpha.Properties, name)
			}
			if !reflect.DeepEqual(specSchema(t, crd, "v1"), alpha) {
				t.Error("the versions differ in spec: objects would lose fields when they are converted")
			}
		})
	}
}

// specSchema returns the schema of spec without its description.
func specSchema(
	t *testing.T, crd *apiextensions.CustomResourceDefinition, version string,
) apiextensions.JSONSchemaProps {
	t.Helper()
	v, err := apiextensions.GetSchemaForVersion(crd, version)
	if err != nil {
		t.Fatal(err)
	}
	spec := v.OpenAPIV3Schema.Properties["spec"]
	spec.Description = ""
	return spec
}

func TestNames(t *testing.T) {
	type names struct{ short, scope string }
	want := map[string]names{
		"GatewayConfig": {"gwconf", "Namespaced"},
		"Dataplane":     {"dps", "Cluster"},
		"StaticService": {"ssvc", "Namespaced"},
		"Revocation":    {"revoke", "Namespaced"},
		"UDPRoute":      {"", "Namespaced"},
	}
	got := map[string]names{}
	for _, crd := range ownCRDs(t) {
		n := names{scope: string(crd.Spec.Scope)}
		if len(crd.Spec.Names.ShortNames) == 1 {
			n.short = crd.Spec.Names.ShortNames[0]
		}
		got[crd.Spec.Names.Kind] = n
		if len(crd.Spec.Names.Categories) != 1 || crd.Spec.Names.Categories[0] != "stunner" {
			t.Errorf("%s is in categories %v, want stunner", crd.Name, crd.Spec.Names.Categories)
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("names and scopes are %v, want %v", got, want)
	}
}

// parse returns an object of a kind with a spec in YAML.
func parse(t *testing.T, kind, spec string) map[string]any {
	t.Helper()
	object := map[string]any{
		"apiVersion": "stunner.l7mp.io/v1",
		"kind":       kind,
		"metadata":   map[string]any{"name": "sample"},
	}
	var fields map[string]any
	if err := yaml.Unmarshal([]byte(spec), &fields); err != nil {
		t.Fatalf("sample of %s: %v\n%s", kind, err, spec)
	}
	object["spec"] = fields
	// The validators expect int64 for whole numbers, as the API server decodes them.
	return runtime.DeepCopyJSON(wholeNumbers(object).(map[string]any))
}

// wholeNumbers turns numbers without a fraction into int64.
func wholeNumbers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = wholeNumbers(v[k])
		}
	case []any:
		for i := range v {
			v[i] = wholeNumbers(v[i])
		}
	case float64:
		if whole := int64(v); float64(whole) == v {
			return whole
		}
	}
	return v
}
