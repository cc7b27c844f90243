// Command values writes values.schema.json and the table of values in README.md of charts. The sources are the comments
// of values.yaml, in the notation of helm-docs:
//
//	# -- (TYPE) Description of the value.
//	# @enum: WORDS
//	# @pattern: EXPRESSION, for a list of strings of each
//	# @minimum: NUMBER
//
// TYPE is required if the default does not determine it: map (of strings), object (of anything), scalar (a string or an
// integer), strings, integers, objects (lists of these), or a type of Kubernetes, such as Affinity or []Volume, with
// which unknown fields are rejected.
//
// helm-docs writes only the table, and the schema needs the same comments parsed. Generators of schemas, such as
// helm-schema, refer to Kubernetes types by the URL of a schema. This program uses the Go types of the pinned module
// and the specs of our CRDs, so that unknown fields are rejected at every depth without a network.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

func main() {
	for _, folder := range os.Args[1:] {
		if err := write(folder); err != nil {
			fmt.Fprintf(os.Stderr, "values: %s: %v\n", folder, err)
			os.Exit(1)
		}
	}
}

func write(folder string) error {
	text, err := os.ReadFile(filepath.Join(folder, "values.yaml"))
	if err != nil {
		return err
	}
	values, err := parse(text)
	if err != nil {
		return err
	}
	charts, err := subcharts(folder, "")
	if err != nil {
		return err
	}
	schema, err := schemaOf(values, charts)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(folder, "values.schema.json"), schema, 0o644); err != nil {
		return err
	}
	readme := filepath.Join(folder, "README.md")
	page, err := os.ReadFile(readme)
	if err != nil {
		return err
	}
	if page, err = withTable(page, values); err != nil {
		return err
	}
	return os.WriteFile(readme, page, 0o644)
}

// value is a leaf of values.yaml, or an object without a fixed structure.
type value struct {
	path    []string
	meaning string
	kind    string
	rules   map[string]string
	dflt    any
}

// parse returns the values of values.yaml in order. A value without a description is an error.
func parse(text []byte) (values []value, err error) {
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return nil, err
	}
	return collect(document.Content[0], nil)
}

func collect(m *yaml.Node, path []string) (values []value, err error) {
	for i := 0; i < len(m.Content); i += 2 {
		key, node := m.Content[i], m.Content[i+1]
		v := value{path: append(path[:len(path):len(path)], key.Value)}
		if err := v.read(key.HeadComment, node); err != nil {
			return nil, err
		}
		if v.meaning != "" {
			values = append(values, v)
			continue
		}
		if node.Kind != yaml.MappingNode || len(node.Content) == 0 {
			return nil, fmt.Errorf("value %s: has no comment that starts with \"--\"", strings.Join(v.path, "."))
		}
		below, err := collect(node, v.path)
		if err != nil {
			return nil, err
		}
		values = append(values, below...)
	}
	return values, nil
}

var (
	comment = regexp.MustCompile(`(?s)(?:^|\n)# -- (?:\(((?:\[\])?\w+)\) )?(.*)`)
	rule    = regexp.MustCompile(`(?m)^# @(\w+): (.*)\n?`)
)

// read parses the comment of a value. Only its last paragraph is used: earlier ones describe a group of values.
func (v *value) read(text string, node *yaml.Node) error {
	v.rules = map[string]string{}
	paragraphs := strings.Split(text, "\n\n")
	text = paragraphs[len(paragraphs)-1]
	for _, match := range rule.FindAllStringSubmatch(text, -1) {
		v.rules[match[1]] = match[2]
	}
	match := comment.FindStringSubmatch(rule.ReplaceAllString(text, ""))
	if match == nil {
		return nil
	}
	v.kind, v.meaning = match[1], strings.Join(strings.Fields(strings.ReplaceAll(match[2], "\n#", " ")), " ")
	if v.kind == "" {
		v.kind = scalars[node.Tag]
	}
	if v.kind == "" {
		return fmt.Errorf(
			"value %s: set its type in the comment: (%s)", strings.Join(v.path, "."),
			"map|object|scalar|strings|integers|objects|TYPE|[]TYPE",
		)
	}
	return node.Decode(&v.dflt)
}

var scalars = map[string]string{"!!str": "string", "!!int": "integer", "!!bool": "boolean"}

type object = map[string]any

// shapes are the JSON schemas of the types by name.
var shapes = map[string]object{
	"string":   {"type": "string"},
	"integer":  {"type": "integer"},
	"boolean":  {"type": "boolean"},
	"scalar":   {"type": []string{"string", "integer"}},
	"map":      {"type": "object", "additionalProperties": object{"type": "string"}},
	"object":   {"type": "object"},
	"strings":  {"type": "array", "items": object{"type": "string"}},
	"integers": {"type": "array", "items": object{"type": "integer"}},
	"objects":  {"type": "array", "items": object{"type": "object"}},
}

// subcharts returns the paths of the values of the charts in a chart, such as "crds/".
func subcharts(folder, path string) (all []string, err error) {
	text, err := os.ReadFile(filepath.Join(folder, "Chart.yaml"))
	if err != nil {
		return nil, err
	}
	var chart struct{ Dependencies []struct{ Name string } }
	if err := yaml.Unmarshal(text, &chart); err != nil {
		return nil, err
	}
	for _, d := range chart.Dependencies {
		below := path + d.Name + "/"
		deeper, err := subcharts(filepath.Join(folder, "charts", d.Name), below)
		if err != nil {
			return nil, err
		}
		all = append(append(all, below), deeper...)
	}
	return all, nil
}

// schemaOf returns the JSON schema of the values, which rejects others. Only global may have others, because it is
// shared with parent charts. Helm adds it to the values of the charts in a chart.
func schemaOf(values []value, charts []string) ([]byte, error) {
	root, defs := closed(), definitions{}
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	global := closed()
	delete(global, "additionalProperties")
	root["properties"].(object)["global"] = global
	for _, v := range values {
		at, path := root, ""
		for _, name := range v.path[:len(v.path)-1] {
			properties := at["properties"].(object)
			path += name + "/"
			if properties[name] == nil {
				properties[name] = closed()
				if slices.Contains(charts, path) {
					properties[name].(object)["properties"].(object)["global"] = object{"type": "object"}
				}
			}
			at = properties[name].(object)
		}
		leaf, err := v.schema(defs)
		if err != nil {
			return nil, err
		}
		at["properties"].(object)[v.path[len(v.path)-1]] = leaf
	}
	if len(defs) > 0 {
		root["$defs"] = defs
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(root)
	return out.Bytes(), err
}

func closed() object {
	return object{"type": "object", "additionalProperties": false, "properties": object{}}
}

func (v value) schema(defs definitions) (object, error) {
	leaf, err := defs.shape(v.kind)
	if err != nil {
		return nil, fmt.Errorf("value %s: %w", strings.Join(v.path, "."), err)
	}
	leaf["description"] = v.meaning
	for name, text := range v.rules {
		switch name {
		case "enum":
			leaf["enum"] = strings.Fields(text)
		case "pattern":
			if v.kind == "strings" { // pattern of each item
				leaf["items"] = object{"type": "string", "pattern": text}
				continue
			}
			leaf["pattern"] = text
		case "minimum":
			n, err := strconv.Atoi(text)
			if err != nil {
				return nil, fmt.Errorf("value %s: minimum: %w", strings.Join(v.path, "."), err)
			}
			leaf["minimum"] = n
		default:
			return nil, fmt.Errorf("value %s: unknown rule @%s", strings.Join(v.path, "."), name)
		}
	}
	return leaf, nil
}

// The table is between these lines.
const (
	tableBegin = "<!-- values: made by `make gen` -->\n"
	tableEnd   = "<!-- end of values -->\n"
)

func withTable(page []byte, values []value) ([]byte, error) {
	before, rest, begun := bytes.Cut(page, []byte(tableBegin))
	_, after, ended := bytes.Cut(rest, []byte(tableEnd))
	if !begun || !ended {
		return nil, fmt.Errorf("README.md: the lines %q and %q around the table are missing", tableBegin, tableEnd)
	}
	var out bytes.Buffer
	out.Write(before)
	out.WriteString(tableBegin + "| value | default | meaning |\n| --- | --- | --- |\n")
	for _, v := range values {
		fmt.Fprintf(
			&out, "| `%s` | %s | %s |\n", strings.Join(v.path, "."), shown(v.dflt),
			strings.ReplaceAll(v.meaning, "|", `\|`),
		)
	}
	out.WriteString(tableEnd)
	out.Write(after)
	return out.Bytes(), nil
}

// shown returns a default for the table; empty and long defaults are omitted.
func shown(v any) string {
	text, err := json.Marshal(v)
	switch {
	case err != nil || string(text) == `""`:
		return ""
	case len(text) > 60:
		return "see `values.yaml`"
	}
	return "`" + string(bytes.Trim(text, `"`)) + "`"
}
