package access

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// maxDepth is the maximum nesting of a policy file.
const maxDepth = 16

// maxProblems is the maximum number of errors of a policy file that are reported.
const maxProblems = 20

// problems collects the errors of a policy file, each with file, line and field.
type problems struct {
	file string
	errs []error
	more int
}

func (p *problems) add(line int, field, format string, args ...any) {
	if len(p.errs) == maxProblems {
		p.more++
		return
	}
	at := fmt.Sprintf("%s:%d: ", p.file, line)
	if field != "" {
		at += field + ": "
	}
	p.errs = append(p.errs, fmt.Errorf(at+format, args...))
}

func (p *problems) join() error {
	if p.more > 0 {
		return errors.Join(append(p.errs, fmt.Errorf("%s: and %d more", p.file, p.more))...)
	}
	return errors.Join(p.errs...)
}

// decoder decodes one YAML document into structs with tags "json", strictly: an unknown or repeated field, an alias and
// a value of another type are errors.
type decoder struct {
	*problems
	lines map[string]int // of the fields that are present, by path
}

// decode decodes a document. The value contains what could be decoded, also if there are errors.
func (d *decoder) decode(raw []byte, into any) {
	reader := yaml.NewDecoder(bytes.NewReader(raw))
	var node yaml.Node
	if err := reader.Decode(&node); errors.Is(err, io.EOF) {
		d.add(1, "", "is empty")
		return
	} else if err != nil {
		d.syntax(err)
		return
	}
	d.value(node.Content[0], reflect.ValueOf(into).Elem(), "", 0)
	var second yaml.Node
	if err := reader.Decode(&second); err == nil {
		d.add(second.Line, "", "has more than one YAML document: write one")
	} else if !errors.Is(err, io.EOF) {
		d.syntax(err)
	}
}

// syntax adds an error of the YAML parser, which has the form "yaml: line N: TEXT".
func (d *decoder) syntax(err error) {
	text, line := strings.TrimPrefix(err.Error(), "yaml: "), 1
	if rest, ok := strings.CutPrefix(text, "line "); ok {
		number, after, _ := strings.Cut(rest, ": ")
		if n, err := strconv.Atoi(number); err == nil {
			line, text = n, after
		}
	}
	d.add(line, "", "is not YAML: %s", text)
}

func (d *decoder) value(n *yaml.Node, v reflect.Value, path string, depth int) {
	d.lines[path] = n.Line
	switch {
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		d.add(n.Line, path, "has a YAML anchor or alias: write the value itself")
		return
	case depth > maxDepth:
		d.add(n.Line, path, "is nested more than %d levels deep", maxDepth)
		return
	}
	switch v.Interface().(type) {
	case time.Time:
		at, err := time.Parse(time.RFC3339, n.Value)
		if n.Kind != yaml.ScalarNode || err != nil {
			d.add(n.Line, path, "must be a time such as 2031-01-01T00:00:00Z")
			return
		}
		v.Set(reflect.ValueOf(at))
		return
	case oneOf:
		v.Set(reflect.ValueOf(oneOf(d.oneOf(n, path))))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.value(n, v.Elem(), path, depth)
	case reflect.Struct:
		d.fields(n, path, func(name string, value *yaml.Node, at string) {
			field, ok := fieldNamed(v, name)
			if !ok {
				d.add(value.Line, at, "is unknown: use %s", strings.Join(names(v.Type()), ", "))
				return
			}
			d.value(value, field, at, depth+1)
		})
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		d.fields(n, path, func(name string, value *yaml.Node, at string) {
			item := reflect.New(v.Type().Elem()).Elem()
			d.value(value, item, at, depth+1)
			v.SetMapIndex(reflect.ValueOf(name), item)
		})
	case reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			d.add(n.Line, path, "must be a list")
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
		for i, item := range n.Content {
			d.value(item, v.Index(i), fmt.Sprintf("%s[%d]", path, i), depth+1)
		}
	default:
		d.scalar(n, v, path)
	}
}

// fields calls a function for each field of a mapping.
func (d *decoder) fields(n *yaml.Node, path string, each func(name string, value *yaml.Node, at string)) {
	if n.Kind != yaml.MappingNode {
		d.add(n.Line, path, "must be an object")
		return
	}
	seen := map[string]bool{}
	for i := 0; i < len(n.Content); i += 2 {
		key := n.Content[i]
		at := strings.TrimPrefix(path+"."+key.Value, ".")
		switch {
		case key.Kind != yaml.ScalarNode || key.Tag != "!!str" || key.Anchor != "":
			d.add(key.Line, path, "has a field whose name is no text")
		case seen[key.Value]:
			d.add(key.Line, at, "is there more than once")
		default:
			seen[key.Value] = true
			each(key.Value, n.Content[i+1], at)
		}
	}
}

func (d *decoder) scalar(n *yaml.Node, v reflect.Value, path string) {
	var err error
	switch v.Kind() {
	case reflect.String:
		if n.Kind != yaml.ScalarNode || n.Tag != "!!str" {
			err = errors.New("must be a text: put it into quotation marks")
		} else {
			v.SetString(n.Value)
		}
	case reflect.Bool:
		var b bool
		if n.Tag != "!!bool" || n.Decode(&b) != nil {
			err = errors.New("must be true or false")
		}
		v.SetBool(b)
	case reflect.Int64:
		var number int64
		if n.Tag != "!!int" || n.Decode(&number) != nil {
			err = errors.New("must be an integer")
		}
		v.SetInt(number)
	case reflect.Float64:
		var number float64
		if n.Tag != "!!int" && n.Tag != "!!float" || n.Decode(&number) != nil {
			err = errors.New("must be a number")
		}
		v.SetFloat(number)
	default:
		panic("the policy file has a field of type " + v.Type().String()) // a programming error
	}
	if err != nil {
		d.add(n.Line, path, "%w", err)
	}
}

// oneOf are the allowed values of a claim: a text, a number, a boolean, or a list of these.
type oneOf []any

func (d *decoder) oneOf(n *yaml.Node, path string) (values []any) {
	if n.Kind == yaml.SequenceNode {
		for i, item := range n.Content {
			if item.Kind == yaml.SequenceNode {
				d.add(item.Line, path, "must be a text, a number, a boolean or a list of these")
				return nil
			}
			values = append(values, d.oneOf(item, fmt.Sprintf("%s[%d]", path, i))...)
		}
		if len(values) == 0 {
			d.add(n.Line, path, "is an empty list, which no claim matches: name a value")
		}
		return values
	}
	var value any
	switch {
	case n.Kind != yaml.ScalarNode || n.Anchor != "" || n.Decode(&value) != nil:
	case n.Tag == "!!str":
		return []any{n.Value}
	case n.Tag == "!!bool":
		return []any{value}
	case n.Tag == "!!int" || n.Tag == "!!float":
		var number float64
		if n.Decode(&number) == nil {
			return []any{number}
		}
	}
	d.add(n.Line, path, "must be a text, a number, a boolean or a list of these")
	return nil
}

// fieldNamed returns the field of a struct, or of an embedded one, with a tag "json".
func fieldNamed(v reflect.Value, name string) (reflect.Value, bool) {
	for i := range v.NumField() {
		field := v.Type().Field(i)
		if field.Anonymous {
			if found, ok := fieldNamed(v.Field(i), name); ok {
				return found, true
			}
		} else if field.Tag.Get("json") == name {
			return v.Field(i), true
		}
	}
	return reflect.Value{}, false
}

// names returns the fields of a struct, sorted.
func names(t reflect.Type) (all []string) {
	for i := range t.NumField() {
		if field := t.Field(i); field.Anonymous {
			all = append(all, names(field.Type)...)
		} else {
			all = append(all, field.Tag.Get("json"))
		}
	}
	slices.Sort(all)
	return all
}

// line returns the line of a field, or of the nearest object around it.
func (d *decoder) line(path string) int {
	for path != "" {
		if line, ok := d.lines[path]; ok {
			return line
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	return max(1, d.lines[""])
}
