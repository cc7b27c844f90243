package largest

import (
	"encoding/json"
	"slices"
	"testing"
)

// document is a kind with a field of each form, nested in each other.
const document = `{
  "Thing": {"type": "object", "properties": {
    "status": {"type": "object", "properties": {"text": {"type": "string"}}},
    "spec": {"allOf": [{"$ref": "#/components/schemas/Spec"}]}}},
  "Spec": {"type": "object", "properties": {
    "mode": {"type": "string", "enum": ["A", "B"]}, "replicas": {"type": "integer"},
    "amount": {"oneOf": [{"type": "string"}, {"type": "number"}]}, "any": {"x-kubernetes-preserve-unknown-fields": true},
    "secret": {"type": "object", "additionalProperties": {"type": "string", "format": "byte"}},
    "parts": {"type": "array", "maxItems": 64, "items": {"type": "object", "required": ["name", "port"], "properties": {
      "name": {"type": "string", "maxLength": 63}, "port": {"type": "integer"}, "labels": {"type": "object", "additionalProperties": {"type": "string"}},
      "self": {"$ref": "#/components/schemas/Spec"}}}}}}}`

func thing(t *testing.T) *node {
	t.Helper()
	all := map[string]*node{}
	if err := json.Unmarshal([]byte(document), &all); err != nil {
		t.Fatal(err)
	}
	for name, n := range all {
		n.name = name
		n.share(all)
	}
	return all["Thing"]
}

// TestFields: the fields of a kind are its lists, maps and strings at any depth, with the entries of the base object.
func TestFields(t *testing.T) {
	base := map[string]any{"spec": map[string]any{"secret": map[string]any{"tls.crt": "YQ=="}}}
	var found []string
	for _, f := range thing(t).fields(base) {
		found = append(found, f.String())
	}
	want := []string{
		"string spec.amount", "string spec.any", "list spec.parts", "map spec.parts[].labels", "string spec.parts[].labels{k0}",
		"string spec.parts[].name", "map spec.secret", "string spec.secret{tls.crt}", "string status.text",
	}
	if !slices.Equal(found, want) {
		t.Errorf("fields %q, want %q", found, want)
	}
}

// TestFieldsGrowToAnySize: a field of any form and depth grows to any size, by each growth that applies to it, and the
// rest of the base object stays.
func TestFieldsGrowToAnySize(t *testing.T) {
	n := thing(t)
	base := map[string]any{"kind": "Thing", "spec": map[string]any{
		"parts":  []any{map[string]any{"name": "first", "port": float64(7), "labels": map[string]any{"k0": "v"}}},
		"secret": map[string]any{"tls.crt": "YWJj"},
	}}
	before := string(bytesOf(base))
	for _, f := range n.fields(base) {
		for _, y := range growths[f.form] {
			small, large := n.grown(base, f, y, 10), n.grown(base, f, y, 1000)
			if small == nil || large == nil {
				if y.name != "repeated base value" && f.form != list {
					t.Errorf("%s: %s does not apply", f, y.name)
				}
				continue
			}
			if least := 990; len(bytesOf(large))-len(bytesOf(small)) < least {
				t.Errorf("%s, %s: %d bytes with size 1000, %d with size 10", f, y.name, len(bytesOf(large)), len(bytesOf(small)))
			}
			if large["kind"] != "Thing" {
				t.Errorf("%s, %s: the object has lost its kind", f, y.name)
			}
			size := 0
			switch grown := at(large, f.path).(type) {
			case []any:
				size = len(grown)
			case map[string]any:
				size = len(grown)
			case string:
				size = 1000 // the length was compared above
			}
			if size != 1000 {
				t.Errorf("%s, %s: %d elements", f, y.name, size)
			}
		}
	}
	if now := string(bytesOf(base)); now != before {
		t.Errorf("the base object has changed to %s", now)
	}
}

// TestSmallest: required fields have valid values, including fields with times.
func TestSmallest(t *testing.T) {
	condition := &node{Type: "object", Required: []string{"type", "at"}, Properties: map[string]*node{
		"type": {Type: "string"}, "at": {Type: "string", Format: "date-time"}, "message": {Type: "string"},
	}}
	if got, want := string(bytesOf(condition.smallest(families[0], 3).(map[string]any))), `{"at":"2030-01-01T00:00:00Z","type":"x3"}`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestAllElements: a field grows in all elements of a list, and names of elements stay unique.
func TestAllElements(t *testing.T) {
	n := thing(t)
	base := map[string]any{"spec": map[string]any{"parts": []any{map[string]any{"name": "first", "port": float64(7)}}}}
	var parts, names field
	for _, f := range n.fields(base) {
		switch f.String() {
		case "list spec.parts":
			parts = f
		case "string spec.parts[].name":
			names = f
		}
	}
	names.path = slices.Clone(names.path)
	names.path[2] = elements
	other := growths[list][1]
	c := &candidate{
		node: n, base: base, fields: []field{parts, names},
		size: []int{64, 63}, growth: []growth{other, growths[text][1]},
	}
	seen := map[string]bool{}
	for _, part := range at(c.object(), path{"spec", "parts"}).([]any) {
		name := part.(map[string]any)["name"].(string)
		if len(name) != 63 {
			t.Errorf("name %q has %d bytes, want 63", name, len(name))
		}
		seen[name] = true
	}
	if len(seen) != 64 {
		t.Errorf("%d different names, want 64", len(seen))
	}
}
