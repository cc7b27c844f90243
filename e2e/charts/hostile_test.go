package charts

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// hostile are texts that have another meaning than a string in YAML.
var hostile = []string{`a: b # c "`, "- x", "x\ny: z", "1e3", "{{ fail }}", "yes"}

// unused are the values that appear in no object of a release, with the reason.
var unused = map[string]string{
	"/stunnerGatewayOperator/customerKey":    "accepted and ignored",
	"/fullnameOverride":                      "a part of names",
	"/nameOverride":                          "fullnameOverride takes precedence",
	"/logging/operator/level":                "stunnerGatewayOperator.log.level takes precedence",
	"/logging/operator/format":               "stunnerGatewayOperator.log.format takes precedence",
	"/logging/authService/format":            "stunnerAuthService.log.format takes precedence",
	"/stunnerGatewayOperator/dataplane/mode": "one value only",
}

// Each text of the values is either refused by the schema, with its name, or appears unchanged in the objects and
// changes nothing else.
func TestValues_OfEveryNameArriveUnchanged(t *testing.T) {
	var root map[string]any
	if err := json.Unmarshal([]byte(harnesstest.Read(t, app+"/values.schema.json")), &root); err != nil {
		t.Fatal(err)
	}
	leaves, refused, arrived := 0, 0, 0
	for path, set := range texts("", root) {
		leaves++
		base := "nothing set"
		render := func(text string) (string, []string, error) {
			r := combinations[base]
			r.chart = app
			values := merge(r.values(t), set(text).(map[string]any))
			encoded, err := yaml.Marshal(values)
			if err != nil {
				t.Fatal(err)
			}
			files, err := (release{chart: app, set: string(encoded)}).templates(t)
			if err != nil {
				return "", nil, err
			}
			var found []string
			var shape []any
			for _, name := range slices.Sorted(maps.Keys(files)) {
				if !strings.HasSuffix(name, ".yaml") {
					continue
				}
				for document := range strings.SplitSeq(files[name], "\n---\n") {
					var o any
					if err := yaml.UnmarshalStrict([]byte(document), &o); err != nil {
						return "", nil, fmt.Errorf("%s is no YAML: %w", name, err)
					}
					shape = append(shape, shapeOf(o, text, &found))
				}
			}
			return fmt.Sprint(shape), found, nil
		}
		var want string
		var places []string
		var err error
		for _, base = range []string{"all switched on", "rows of other charts", "some namespaces"} {
			if want, places, err = render("plain"); len(places) > 0 { // the base values use the value
				break
			}
		}
		for _, text := range hostile {
			got, found, hostileErr := render(text)
			switch {
			case hostileErr != nil:
				refused++
				dotted := strings.ReplaceAll(strings.TrimPrefix(path, "/"), "/", ".")
				if !strings.Contains(hostileErr.Error(), path) && !strings.Contains(hostileErr.Error(), dotted) {
					t.Errorf("%s: %q: the error does not name the value: %v", path, text, hostileErr)
				}
			case err != nil:
				t.Errorf("%s: %q is accepted, and plain is not: %v", path, text, err)
			case got != want:
				t.Errorf("%s: %q changes the objects", path, text)
			case len(found) == 0 && unused[path] == "":
				t.Errorf("%s: %q does not arrive", path, text)
			case len(found) != len(places):
				t.Errorf("%s: %q arrives at %q, plain at %q", path, text, found, places)
			default:
				arrived++
			}
		}
	}
	t.Logf("%d texts: %d refused, %d unchanged", leaves, refused, arrived)
	if leaves < 100 || refused == 0 || arrived == 0 {
		t.Error("the schema was not read")
	}
}

// texts returns the values of a schema that are texts, lists of texts or maps of texts, by path. Each is a function
// that returns the values of the chart with a given text at the path.
func texts(path string, at map[string]any) map[string]func(text string) any {
	all := map[string]func(string) any{}
	properties, _ := at["properties"].(map[string]any)
	items, _ := at["items"].(map[string]any)
	more, _ := at["additionalProperties"].(map[string]any)
	required, _ := at["required"].([]any)
	isText := func(of map[string]any) bool { return of["type"] == "string" && of["enum"] == nil }
	switch {
	case isText(at):
		all[path] = func(text string) any { return text }
	case isText(items):
		all[path] = func(text string) any { return []any{text} }
	case isText(more):
		all[path] = func(text string) any { return map[string]any{"example.net/key": text} }
	}
	for name, below := range properties {
		for path, set := range texts(path+"/"+name, below.(map[string]any)) {
			all[path] = func(text string) any {
				values := map[string]any{}
				for _, other := range required {
					values[other.(string)] = exampleOf(properties[other.(string)].(map[string]any))
				}
				values[name] = set(text)
				return values
			}
		}
	}
	return all
}

// exampleOf returns a value of a schema.
func exampleOf(of map[string]any) any {
	switch words, _ := of["enum"].([]any); {
	case len(words) > 0:
		return words[0]
	case of["type"] == "integer":
		return 1
	}
	return "http://example.net"
}

// shapeOf returns fields in which text is replaced, plain or in a CEL expression. It adds the strings that contain text
// to found.
func shapeOf(fields any, text string, found *[]string) any {
	switch fields := fields.(type) {
	case map[string]any:
		shape := map[string]any{}
		for name, field := range fields {
			shape[name] = shapeOf(field, text, found)
		}
		return shape
	case []any:
		shape := make([]any, len(fields))
		for i, field := range fields {
			shape[i] = shapeOf(field, text, found)
		}
		return shape
	case string:
		inExpression, _ := json.Marshal(text) // strings of CEL and JSON are escaped in the same way
		replaced := strings.NewReplacer(text, "TEXT", string(inExpression[1:len(inExpression)-1]), "TEXT").Replace(fields)
		if replaced != fields {
			*found = append(*found, fields)
		}
		return replaced
	}
	return fields
}
