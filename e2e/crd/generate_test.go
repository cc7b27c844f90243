package crd

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/runtime"
)

// generator mutates valid objects, guided by their schemas.
type generator struct{ *rand.Rand }

// words are strings for fields. Many are valid for some field; they are written as JSON, so that YAML reads them as
// strings.
var words = []string{
	"a", "media", "eth0", "turn-edge", "app.kubernetes.io/name", "stunner.l7mp.io", "gateway.networking.k8s.io",
	"stunner.l7mp.io/gateway-operator", "apps", "v1",
	"192.0.2.1", "192.0.2.0/24", "10.0.0.0/33", "2001:db8::/32", "2001:db8::1", "::ffff:192.0.2.1",
	"::ffff:192.0.2.0/120", "192.0.2.1:<1-2>", "fe80::1%eth0",
	"http://p:9090", "https://ada:larkspur@p", "ftp://p", "5s", "30m", "-5s", "1h30m", "100m", "1Gi", "two", "/tmp",
	"IfNotPresent", "IPv4", "IPv6", "TCP", "UDP",
	"TURN-UDP", "TURN UDP!", "turn.example.net", "*.example.net", "..bad..", "Not.Good", "a b", "Ünïcode", "a\nb",
	`a"b`, `a\b`, "", "0", "true", "-",
	strings.Repeat("x", 64), strings.Repeat("x", 300), "2030-01-02T03:04:05Z",
}

// generated returns objects that are made from the valid rows of the admission table by one to three mutations.
func generated(t *testing.T, crds []*apiextensions.CustomResourceDefinition, n int, seed uint64) (all []specimen) {
	t.Helper()
	g := generator{rand.New(rand.NewPCG(seed, 0))}
	var valid []admission
	kinds := map[string]bool{}
	for _, row := range admissions {
		if row.want == "" {
			valid = append(valid, row)
			kinds[row.kind] = true
		}
	}
	if len(kinds) != len(crds) {
		t.Fatalf("valid rows for %v, want one for each of %d kinds", slices.Sorted(maps.Keys(kinds)), len(crds))
	}
	byKind := slices.Sorted(maps.Keys(kinds))
	for i := range n {
		kind := byKind[i%len(byKind)] // not by row: most rows are of two kinds
		rows := slices.DeleteFunc(slices.Clone(valid), func(row admission) bool { return row.kind != kind })
		crd := crdOf(crds, kind)
		version := g.version(crd)
		schema, err := apiextensions.GetSchemaForVersion(crd, version)
		if err != nil {
			t.Fatal(err)
		}
		object := map[string]any{"spec": parse(t, kind, rows[g.IntN(len(rows))].spec)["spec"]}
		for range 1 + g.IntN(3) {
			g.mutate(object, schema.OpenAPIV3Schema)
		}
		s := newSpecimen(crd, version, len(admissions)+i, object)
		if g.IntN(50) == 0 {
			s.body = duplicateField(s.body, object)
		}
		all = append(all, s)
	}
	return all
}

// version returns v1, or, more rarely, another version that is served.
func (g generator) version(crd *apiextensions.CustomResourceDefinition) string {
	v := crd.Spec.Versions[g.IntN(len(crd.Spec.Versions))]
	if !v.Served || g.IntN(3) > 0 {
		return "v1"
	}
	return v.Name
}

// duplicateField writes a field of the spec twice.
func duplicateField(body []byte, object map[string]any) []byte {
	spec, _ := object["spec"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(spec)) {
		return bytes.Replace(body, []byte(`"spec":{`), fmt.Appendf(nil, `"spec":{%q:null,`, name), 1)
	}
	return body
}

// place is a value in an object, and its schema if it has one.
type place struct {
	schema *apiextensions.JSONSchemaProps
	value  any
	set    func(any)
	remove func()
}

// places returns the values below a value.
func places(value any, schema *apiextensions.JSONSchemaProps, set func(any)) (all []place) {
	switch v := value.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			p := place{
				schema: propertyOf(schema, name), value: v[name], set: func(n any) { v[name] = n },
				remove: func() { delete(v, name) },
			}
			all = append(append(all, p), places(p.value, p.schema, p.set)...)
		}
	case []any:
		for i := range v {
			p := place{
				schema: itemsOf(schema), value: v[i], set: func(n any) { v[i] = n },
				remove: func() { set(slices.Delete(slices.Clone(v), i, i+1)) },
			}
			all = append(append(all, p), places(p.value, p.schema, p.set)...)
		}
	}
	return all
}

func propertyOf(schema *apiextensions.JSONSchemaProps, name string) *apiextensions.JSONSchemaProps {
	if schema == nil {
		return nil
	}
	if p, ok := schema.Properties[name]; ok {
		return &p
	}
	if schema.AdditionalProperties != nil {
		return schema.AdditionalProperties.Schema
	}
	return nil
}

func itemsOf(schema *apiextensions.JSONSchemaProps) *apiextensions.JSONSchemaProps {
	if schema == nil || schema.Items == nil {
		return nil
	}
	return schema.Items.Schema
}

// mutate changes one random value of an object.
func (g generator) mutate(object map[string]any, schema *apiextensions.JSONSchemaProps) {
	all := places(object, schema, nil)
	if len(all) == 0 {
		return
	}
	p := all[g.IntN(len(all))]
	switch n := g.IntN(20); {
	case n < 1:
		p.set(g.junk())
	case n < 3:
		p.remove()
	case n < 8 && p.schema != nil:
		p.set(g.value(p.schema, 0))
	default:
		g.change(p)
	}
}

// change changes a value without changing its type.
func (g generator) change(p place) {
	switch v := p.value.(type) {
	case map[string]any:
		g.addField(v, p.schema)
	case []any:
		g.changeList(v, p)
	case string:
		p.set(g.text(p.schema))
	case int64:
		p.set(g.number(p.schema))
	case bool:
		p.set(!v)
	default:
		p.set(g.junk())
	}
}

// addField adds an absent field of the schema, or, more rarely, an unknown field.
func (g generator) addField(v map[string]any, schema *apiextensions.JSONSchemaProps) {
	var absent []string
	if schema != nil {
		for name := range schema.Properties {
			if _, present := v[name]; !present {
				absent = append(absent, name)
			}
		}
	}
	slices.Sort(absent)
	switch {
	case g.IntN(12) == 0:
		v["colour"] = g.junk()
	case len(absent) > 0:
		name := absent[g.IntN(len(absent))]
		v[name] = g.value(propertyOf(schema, name), 0)
	case schema != nil && schema.AdditionalProperties != nil:
		v[g.text(nil)] = g.value(schema.AdditionalProperties.Schema, 0)
	}
}

// changeList adds an item, repeats an item once or many times, or empties the list.
func (g generator) changeList(v []any, p place) {
	switch n := g.IntN(10); {
	case n == 0:
		p.set([]any{})
	case n == 1 && len(v) > 0:
		for range 2 + g.IntN(70) {
			v = append(v, runtime.DeepCopyJSONValue(v[0]))
		}
		p.set(v)
	case n < 4 && len(v) > 0:
		p.set(append(v, runtime.DeepCopyJSONValue(v[g.IntN(len(v))])))
	default:
		p.set(append(v, g.value(itemsOf(p.schema), 0)))
	}
}

// junk returns a value of any type.
func (g generator) junk() any {
	return []any{
		nil, true, "text", int64(7), 1.5, []any{}, []any{"a"}, map[string]any{}, map[string]any{"a": "b"},
	}[g.IntN(9)]
}

// value returns a value for a schema. More often than not it is valid.
func (g generator) value(s *apiextensions.JSONSchemaProps, depth int) any {
	switch {
	case s == nil:
		return g.junk()
	case len(s.Enum) > 0 && g.IntN(10) > 0:
		return runtime.DeepCopyJSONValue(s.Enum[g.IntN(len(s.Enum))])
	case s.XIntOrString && g.IntN(2) == 0, s.Type == "integer", s.Type == "number":
		return g.number(s)
	case s.XIntOrString, s.Type == "string":
		return g.text(s)
	case s.Type == "boolean":
		return g.IntN(2) == 0
	case s.Type == "array":
		list := []any{}
		for range g.IntN(3) {
			list = append(list, g.value(itemsOf(s), depth+1))
		}
		return list
	}
	object := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		if slices.Contains(s.Required, name) || depth < 4 && g.IntN(2+len(s.Properties)/2) == 0 {
			object[name] = g.value(propertyOf(s, name), depth+1)
		}
	}
	if s.AdditionalProperties != nil {
		for range g.IntN(3) {
			object[g.text(nil)] = g.value(s.AdditionalProperties.Schema, depth+1)
		}
	}
	return object
}

// number returns a number inside, at or outside the bounds of a schema.
func (g generator) number(s *apiextensions.JSONSchemaProps) any {
	low, high := 0.0, 100.0
	if s != nil && s.Minimum != nil {
		low = *s.Minimum
	}
	if s != nil && s.Maximum != nil {
		high = *s.Maximum
	}
	if g.IntN(3) > 0 && high >= low {
		return int64(low) + g.Int64N(int64(high-low)+1)
	}
	edges := []any{int64(low), int64(high), int64(low) - 1, int64(high) + 1, int64(0), int64(65536), 1.5}
	if s == nil || s.Format != "int32" || s.Maximum != nil { // API servers before 1.36 do not enforce the format int32
		edges = append(edges, int64(99_999_999_999), int64(math.MaxInt64))
	}
	return edges[g.IntN(len(edges))]
}

// text returns a word. More often than not it fits pattern and length of a schema.
func (g generator) text(s *apiextensions.JSONSchemaProps) string {
	if s == nil || g.IntN(4) == 0 {
		return words[g.IntN(len(words))]
	}
	fit := slices.DeleteFunc(slices.Clone(words), func(w string) bool {
		return s.MaxLength != nil && int64(len(w)) > *s.MaxLength || s.MinLength != nil &&
			int64(len(w)) < *s.MinLength ||
			s.Pattern != "" && !regexp.MustCompile(s.Pattern).MatchString(w)
	})
	if len(fit) == 0 {
		fit = words
	}
	return fit[g.IntN(len(fit))]
}
