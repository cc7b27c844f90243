// Package yamlfile reads YAML files of the service, and decodes them strictly. Its errors name file, line and field.
package yamlfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// maxDepth is the maximum nesting of a file.
const maxDepth = 16

// maxName is the maximum length of the name of a field, and of a claim, in bytes. Each element of a list has a path with
// the names around it.
const maxName = 255

// maxText is the maximum length in bytes of the text of an error, which may repeat a part of the file.
const maxText = 1_000

// maxProblems is the maximum number of errors of a file that are reported.
const maxProblems = 20

// File is a decoded file, and the errors that were found in it.
type File struct {
	name  string
	lines map[string]int // of the fields that are present, by path
	errs  []error
	more  int
}

// ReadFile returns the content of a file of at most the given size in bytes.
func ReadFile(path string, most int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	raw, err := io.ReadAll(io.LimitReader(file, most+1))
	if err == nil && int64(len(raw)) > most {
		err = fmt.Errorf("%s is larger than %d bytes", path, most)
	}
	return raw, err
}

// Changes decides which content of a file that is read repeatedly is to be used. While a program writes the file in
// place, a read may return only a part of the file, and a part of a policy may permit more than the complete policy. A
// new content is used when two consecutive reads have returned it.
type Changes struct{ used, seen []byte }

// New reports whether raw, which was just read, is to be used: it was read twice, and it is not the content in use.
func (c *Changes) New(raw []byte) bool {
	twice := c.seen != nil && bytes.Equal(raw, c.seen)
	c.seen = raw
	return twice && (c.used == nil || !bytes.Equal(raw, c.used))
}

// Use records that raw is now the content in use.
func (c *Changes) Use(raw []byte) { c.used, c.seen = raw, raw }

// Lose records that the file could not be read. The next content is then used even if it has not changed.
func (c *Changes) Lose() { c.used, c.seen = nil, nil }

// OneOf are the allowed values of a claim: a text, a number, a boolean, or a list of these.
type OneOf []any

// Decode decodes a file with one YAML document of at most limit bytes into a struct with tags "json", strictly: an
// unknown or repeated field, an alias and a value of another type are errors. The struct contains what could be decoded,
// also if there are errors.
func Decode(name string, raw []byte, limit int, into any) *File {
	f := &File{name: name, lines: map[string]int{}}
	if len(raw) > limit {
		f.add(1, "", "is larger than %d bytes", limit)
		return f
	}
	f.decode(raw, into)
	return f
}

// OK reports whether there is no error.
func (f *File) OK() bool { return f.errs == nil }

// Err returns the errors.
func (f *File) Err() error {
	if f.more > 0 {
		return errors.Join(append(f.errs, fmt.Errorf("%s: and %d more", f.name, f.more))...)
	}
	return errors.Join(f.errs...)
}

// Wrong adds an error about a field. path is the path of the field, such as issuers[0].audience.
func (f *File) Wrong(path, format string, args ...any) { f.add(f.line(path), path, format, args...) }

func (f *File) add(line int, field, format string, args ...any) {
	if len(f.errs) == maxProblems {
		f.more++
		return
	}
	at := fmt.Sprintf("%s:%d: ", f.name, line)
	if field != "" {
		at += field + ": "
	}
	err := fmt.Errorf(at+format, args...)
	if text := err.Error(); len(text) > maxText {
		err = errors.New(strings.ToValidUTF8(text[:maxText], "") + "…")
	}
	f.errs = append(f.errs, err)
}

func (f *File) decode(raw []byte, into any) {
	reader := yaml.NewDecoder(bytes.NewReader(raw))
	var node yaml.Node
	if err := reader.Decode(&node); errors.Is(err, io.EOF) {
		f.add(1, "", "is empty")
		return
	} else if err != nil {
		f.syntax(err)
		return
	}
	f.value(node.Content[0], reflect.ValueOf(into).Elem(), "", 0)
	var second yaml.Node
	if err := reader.Decode(&second); err == nil {
		f.add(second.Line, "", "has more than one YAML document: write one")
	} else if !errors.Is(err, io.EOF) {
		f.syntax(err)
	}
}

// syntax adds an error of the YAML parser, which has the form "yaml: line N: TEXT".
func (f *File) syntax(err error) {
	text, line := strings.TrimPrefix(err.Error(), "yaml: "), 1
	if rest, ok := strings.CutPrefix(text, "line "); ok {
		number, after, _ := strings.Cut(rest, ": ")
		if n, err := strconv.Atoi(number); err == nil {
			line, text = n, after
		}
	}
	f.add(line, "", "is not YAML: %s", text)
}

func (f *File) value(n *yaml.Node, v reflect.Value, path string, depth int) {
	f.lines[path] = n.Line
	switch {
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		f.add(n.Line, path, "has a YAML anchor or alias: write the value itself")
		return
	case depth > maxDepth:
		f.add(n.Line, path, "is nested more than %d levels deep", maxDepth)
		return
	}
	switch v.Interface().(type) {
	case time.Time:
		at, err := time.Parse(time.RFC3339, n.Value)
		if n.Kind != yaml.ScalarNode || err != nil {
			f.add(n.Line, path, "must be a time such as 2031-01-01T00:00:00Z")
			return
		}
		v.Set(reflect.ValueOf(at))
		return
	case OneOf:
		v.Set(reflect.ValueOf(OneOf(f.oneOf(n, path))))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		f.value(n, v.Elem(), path, depth)
	case reflect.Struct:
		f.fields(n, path, func(name string, value *yaml.Node, at string) {
			field, ok := fieldNamed(v, name)
			if !ok {
				f.add(value.Line, at, "is unknown: use %s", strings.Join(Fields(v.Type()), ", "))
				return
			}
			f.value(value, field, at, depth+1)
		})
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		f.fields(n, path, func(name string, value *yaml.Node, at string) {
			item := reflect.New(v.Type().Elem()).Elem()
			f.value(value, item, at, depth+1)
			v.SetMapIndex(reflect.ValueOf(name), item)
		})
	case reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			f.add(n.Line, path, "must be a list")
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
		for i, item := range n.Content {
			f.value(item, v.Index(i), fmt.Sprintf("%s[%d]", path, i), depth+1)
		}
	default:
		f.scalar(n, v, path)
	}
}

// fields calls a function for each field of a mapping.
func (f *File) fields(n *yaml.Node, path string, each func(name string, value *yaml.Node, at string)) {
	if n.Kind != yaml.MappingNode {
		f.add(n.Line, path, "must be an object")
		return
	}
	seen := map[string]bool{}
	for i := 0; i < len(n.Content); i += 2 {
		key := n.Content[i]
		if len(key.Value) > maxName {
			f.add(key.Line, path, "has a field whose name is longer than %d bytes", maxName)
			continue
		}
		at := strings.TrimPrefix(path+"."+key.Value, ".")
		switch {
		case key.Kind != yaml.ScalarNode || key.Tag != "!!str" || key.Anchor != "":
			f.add(key.Line, path, "has a field whose name is no text")
		case seen[key.Value]:
			f.add(key.Line, at, "is there more than once")
		default:
			seen[key.Value] = true
			each(key.Value, n.Content[i+1], at)
		}
	}
}

func (f *File) scalar(n *yaml.Node, v reflect.Value, path string) {
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
		panic("the file has a field of type " + v.Type().String()) // a programming error
	}
	if err != nil {
		f.add(n.Line, path, "%w", err)
	}
}

func (f *File) oneOf(n *yaml.Node, path string) (values []any) {
	if n.Kind == yaml.SequenceNode {
		for i, item := range n.Content {
			if item.Kind == yaml.SequenceNode {
				f.add(item.Line, path, "must be a text, a number, a boolean or a list of these")
				return nil
			}
			values = append(values, f.oneOf(item, fmt.Sprintf("%s[%d]", path, i))...)
		}
		if len(values) == 0 {
			f.add(n.Line, path, "is an empty list, which no claim matches: name a value")
		}
		return values
	}
	var is bool
	switch {
	case n.Kind != yaml.ScalarNode || n.Anchor != "":
	case n.Tag == "!!str":
		return []any{n.Value}
	case n.Tag == "!!bool":
		if n.Decode(&is) == nil {
			return []any{is}
		}
	case n.Tag == "!!int" || n.Tag == "!!float":
		var number float64
		if n.Decode(&number) == nil {
			return []any{number}
		}
	}
	f.add(n.Line, path, "must be a text, a number, a boolean or a list of these")
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

// Fields returns the names of the fields of a struct type that Decode knows, sorted.
func Fields(t reflect.Type) (all []string) {
	for i := range t.NumField() {
		if field := t.Field(i); field.Anonymous {
			all = append(all, Fields(field.Type)...)
		} else {
			all = append(all, field.Tag.Get("json"))
		}
	}
	slices.Sort(all)
	return all
}

// line returns the line of a field, or of the nearest object around it.
func (f *File) line(path string) int {
	for path != "" {
		if line, ok := f.lines[path]; ok {
			return line
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	return max(1, f.lines[""])
}
