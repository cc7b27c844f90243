package largest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/openapi"
)

// node is a schema of OpenAPI v3 as the API server serves it.
type node struct {
	Ref        string           `json:"$ref"`
	AllOf      []*node          `json:"allOf"`
	OneOf      []*node          `json:"oneOf"`
	Type       string           `json:"type"`
	Format     string           `json:"format"`
	Items      *node            `json:"items"`
	Properties map[string]*node `json:"properties"`
	// Additional is the schema of the values of a map.
	Additional *node    `json:"additionalProperties"`
	Required   []string `json:"required"`
	Enum       []any    `json:"enum"`
	Default    any      `json:"default"`
	Minimum    *float64 `json:"minimum"`
	MaxItems   *int     `json:"maxItems"`
	MaxLength  *int     `json:"maxLength"`
	MaxEntries *int     `json:"maxProperties"`
	IntOrText  bool     `json:"x-kubernetes-int-or-string"`
	// Unknown means that the object may have any fields.
	Unknown bool `json:"x-kubernetes-preserve-unknown-fields"`
	Kinds   []struct {
		Group, Version, Kind string
	} `json:"x-kubernetes-group-version-kind"`

	all  map[string]*node // the schemas that $ref names
	name string           // the name by which $ref refers to this node
}

// schemas are the schemas that an API server serves.
type schemas struct {
	paths  map[string]openapi.GroupVersion
	loaded map[string]map[string]*node
}

// of returns the schema of a kind.
func (s *schemas) of(kind schema.GroupVersionKind) (*node, error) {
	path := "apis/" + kind.GroupVersion().String()
	if kind.Group == "" {
		path = "api/" + kind.Version
	}
	all, loaded := s.loaded[path]
	if !loaded {
		group, served := s.paths[path]
		if !served {
			return nil, fmt.Errorf("read the schema of %s: the API server does not serve %s", kind.Kind, path)
		}
		text, err := group.Schema("application/json")
		if err != nil {
			return nil, fmt.Errorf("read the schema of %s: %w", kind.Kind, err)
		}
		var document struct {
			Components struct{ Schemas map[string]*node }
		}
		if err := json.Unmarshal(text, &document); err != nil {
			return nil, fmt.Errorf("read the schema of %s: %w", kind.Kind, err)
		}
		all = document.Components.Schemas
		for name, n := range all {
			n.name = name
			n.share(all)
		}
		s.loaded[path] = all
	}
	for _, n := range all {
		for _, k := range n.Kinds {
			if k.Group == kind.Group && k.Version == kind.Version && k.Kind == kind.Kind {
				return n, nil
			}
		}
	}
	return nil, fmt.Errorf("read the schema of %s: %s has none", kind.Kind, path)
}

// share sets, in a schema and its parts, the schemas that $ref names.
func (n *node) share(all map[string]*node) {
	if n == nil || n.all != nil {
		return
	}
	n.all = all
	for _, part := range slices.Concat(n.AllOf, n.OneOf, slices.Collect(maps.Values(n.Properties)), []*node{n.Items, n.Additional}) {
		part.share(all)
	}
}

// UnmarshalJSON also accepts the schemas true and false of additionalProperties.
func (n *node) UnmarshalJSON(text []byte) error {
	if string(text) == "true" || string(text) == "false" {
		return nil
	}
	type plain node
	return json.Unmarshal(text, (*plain)(n))
}

// resolve follows $ref.
func (n *node) resolve() *node {
	for {
		switch {
		case n.Ref != "":
			n = n.all[n.Ref[strings.LastIndex(n.Ref, "/")+1:]]
		case n.Type == "" && len(n.AllOf) == 1:
			n = n.AllOf[0]
		default:
			return n
		}
	}
}

// form is how a value grows.
type form int

const (
	notGrowing form = iota
	list
	dictionary
	text
)

func (f form) String() string { return [...]string{"value", "list", "map", "string"}[f] }

// form returns how the values of a resolved schema grow. A quantity, a value of number or string, and a value of any
// type count as strings.
func (n *node) form() form {
	switch {
	case n.Type == "array":
		return list
	case n.Type == "object" && (n.Additional != nil || n.Unknown && n.Properties == nil):
		return dictionary
	case len(n.Enum) > 0 || n.Format == "date-time":
		return notGrowing
	case n.Type == "string" || n.IntOrText || n.Type == "" && (len(n.OneOf) > 0 || n.Unknown):
		return text
	}
	return notGrowing
}

// Steps of a path other than the name of a field.
const (
	element  = "[]"  // the first element of a list
	elements = "[*]" // all elements
)

// entry returns the step to an entry of a map.
func entry(key string) string { return "{" + key + "}" }

// key returns the key of a step to an entry of a map.
func key(step string) (string, bool) {
	return strings.TrimSuffix(strings.TrimPrefix(step, "{"), "}"), strings.HasPrefix(step, "{")
}

// path is the path of a value in an object.
type path []string

func (p path) String() string {
	var b strings.Builder
	for _, step := range p {
		if step != element && step != elements && step[0] != '{' && b.Len() > 0 {
			b.WriteByte('.')
		}
		b.WriteString(step)
	}
	return b.String()
}

func (p path) to(step string) path { return append(slices.Clip(p), step) }

// field is a list, map or string in objects of a kind.
type field struct {
	path
	form form
	// definition names the field by the nearest schema with a name, because fields in several places may have one
	// definition.
	definition string
	// most is the limit of the schema; 0 if it has none.
	most int
}

// ofStatus reports whether the field is in the status of an object, which is written by a request of its own.
func (f field) ofStatus() bool { return f.path[0] == "status" }

func (f field) String() string { return fmt.Sprintf("%s %s", f.form, f.path) }

// fromServer are the fields that the API server sets, or resets when an object is created.
var fromServer = map[string]bool{
	"apiVersion": true, "kind": true, "metadata.name": true, "metadata.namespace": true,
	"metadata.managedFields": true, "metadata.creationTimestamp": true, "metadata.deletionTimestamp": true,
	"metadata.resourceVersion": true, "metadata.selfLink": true, "metadata.uid": true, "metadata.generateName": true,
}

// fields returns all lists, maps and strings in objects of a kind. Maps have the entries of the base object, or one
// entry with an arbitrary key.
func (n *node) fields(base any) (all []field) {
	n.walk(base, nil, "", nil, func(f field) { all = append(all, f) })
	return all
}

func (n *node) walk(base any, at path, name string, within []*node, found func(field)) {
	n = n.resolve()
	if fromServer[at.String()] || slices.Contains(within, n) { // of a recursive schema, only the first level
		return
	}
	within = append(slices.Clip(within), n)
	f := field{path: at, form: n.form(), definition: name}
	for _, most := range []*int{n.MaxItems, n.MaxLength, n.MaxEntries} {
		if most != nil {
			f.most = *most
		}
	}
	if f.form != notGrowing {
		found(f)
	}
	switch f.form {
	case list:
		var first any
		if elements, _ := base.([]any); len(elements) > 0 {
			first = elements[0]
		}
		n.Items.walk(first, at.to(element), name+element, within, found)
		return
	case dictionary:
		entries, _ := base.(map[string]any)
		keys := slices.Sorted(maps.Keys(entries))
		if len(keys) == 0 {
			keys = []string{anyKey}
		}
		for _, k := range keys {
			n.value().walk(entries[k], at.to(entry(k)), name+entry(k), within, found)
		}
		return
	}
	object, _ := base.(map[string]any)
	for _, property := range slices.Sorted(maps.Keys(n.Properties)) {
		n.Properties[property].walk(object[property], at.to(property), cmp.Or(n.name, name)+"."+property, within, found)
	}
}

// anyKey is the key of an entry in a map without required keys.
const anyKey = "k0"

// value returns the schema of the values of a map. Values of any type are strings.
func (n *node) value() *node {
	if n.Additional == nil || n.Additional.Type == "" && n.Additional.Ref == "" && n.Additional.AllOf == nil && n.Additional.OneOf == nil {
		return &node{Type: "string"}
	}
	return n.Additional
}

// with returns the value with another value at a path. Missing values on the path are created with their smallest size.
func (n *node) with(value any, at path, words words, leaf func(n *node, value any, w words) any) any {
	n = n.resolve()
	if len(at) == 0 {
		return leaf(n, value, words)
	}
	step, rest := at[0], at[1:]
	if step == element || step == elements {
		old, _ := value.([]any)
		if len(old) == 0 {
			old = []any{n.Items.smallest(words, 0)}
		}
		old = slices.Clone(old)
		for i := range old {
			if i == 0 || step == elements {
				old[i] = n.Items.with(old[i], rest, words.from(i), leaf)
			}
		}
		return old
	}
	old, _ := value.(map[string]any)
	if old == nil {
		old, _ = n.smallest(words, 0).(map[string]any)
	}
	if old = maps.Clone(old); old == nil {
		old = map[string]any{}
	}
	if k, is := key(step); is {
		old[k] = n.value().with(old[k], rest, words, leaf)
	} else {
		old[step] = n.Properties[step].with(old[step], rest, words, leaf)
	}
	return old
}

// at returns the value at a path, or nil.
func at(value any, p path) any {
	for _, step := range p {
		switch v := value.(type) {
		case []any:
			if len(v) == 0 {
				return nil
			}
			value = v[0]
		case map[string]any:
			if k, is := key(step); is {
				step = k
			}
			value = v[step]
		default:
			return nil
		}
	}
	return value
}

// words is a family of numbered strings that the API server may accept in a field.
type words struct {
	name  string
	word  func(i int) string
	first int
}

func (w words) from(i int) words { w.first = i; return w }

func (w words) at(i int) string { return w.word(w.first + i) }

// families are the families of words, the most common first.
var families = []words{
	{name: "names", word: func(i int) string { return fmt.Sprintf("x%d", i) }},
	{name: "addresses", word: func(i int) string { return fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255) }},
	{name: "prefixes", word: func(i int) string { return fmt.Sprintf("10.%d.%d.%d/32", i>>16, i>>8&255, i&255) }},
	{name: "qualified names", word: func(i int) string { return fmt.Sprintf("example.net/x%d", i) }},
	{name: "file paths", word: func(i int) string { return fmt.Sprintf("/x%d", i) }},
	numbers,
}

var numbers = words{name: "numbers", word: func(i int) string { return fmt.Sprint(i + 1) }}

// smallest returns a value with nothing but its required fields.
func (n *node) smallest(w words, i int) any {
	n = n.resolve()
	switch {
	case n.Default != nil && n.Type != "object" && n.Default != "":
		return n.Default
	case len(n.Enum) > 0:
		return n.Enum[0]
	case n.Type == "array":
		return []any{n.Items.smallest(w, i)}
	case n.Type == "integer" || n.Type == "number":
		if n.Minimum != nil {
			return int(*n.Minimum) + i
		}
		return i + 1
	case n.Type == "boolean":
		return false
	case n.Format == "date-time":
		return "2030-01-01T00:00:00Z"
	case n.form() == dictionary:
		return map[string]any{}
	case n.form() == text:
		return w.at(i)
	}
	object := map[string]any{}
	for _, name := range n.Required {
		if property := n.Properties[name]; property != nil {
			object[name] = property.smallest(w, i)
		}
	}
	return object
}
