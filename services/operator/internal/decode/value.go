package decode

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/stunner-gateway/stunner/services/api/finding"
)

// shape is the JSON type of a value. Its text is the name of the type in messages.
type shape string

const (
	isNull   shape = "nothing"
	isBool   shape = "true or false"
	isNumber shape = "a number"
	isText   shape = "a string"
	isList   shape = "a list"
	isMap    shape = "a mapping"
)

// value is a node of a document in the JSON data model, with its line. Aliases and merge keys are resolved.
type value struct {
	shape   shape
	text    string   // of a scalar: the JSON literal, or the string without quotes
	source  string   // of a scalar: the spelling in the file
	keys    []string // of a mapping: one per item
	members map[string]*value
	items   []*value
	line    int
	plain   *Span // of a scalar without quotes, tag, anchor or alias: its place in the file
	parent  *value
	index   int  // position in the parent
	order   int  // position in the document: parents come before children
	removed bool // removed from the document
}

// builder converts the YAML nodes of a document to values, within the limits for a document.
type builder struct {
	base       int // number of lines in the file before the parsed text
	values     int
	bytes      int
	duplicates []duplicateKey
}

// duplicateKey is a key that occurs twice in a YAML mapping. It becomes a finding when the whole document is built,
// because the path of the key is not known before.
type duplicateKey struct {
	in          *value
	key         string
	line, first int
}

// findings returns a finding for each duplicate key.
func (b *builder) findings() (all []remark) {
	for _, d := range b.duplicates {
		all = append(all, remark{line: d.line, field: join(d.in.path(), d.key), severity: Error,
			error: finding.Errorf("remove one", "is set twice, first at line %d", d.first)})
	}
	return all
}

// remark is an error in a document, or a remark about it, with the line and the field.
type remark struct {
	error    // the text, which may contain a remedy
	line     int
	field    string
	severity Severity
	unquoted *Span
}

// Unwrap returns the text, so that its remedy is found. A remark is an error, so that the builder can return it for a
// document that it cannot convert.
func (r remark) Unwrap() error { return r.error }

func (b *builder) fail(n *yaml.Node, found error) error {
	return remark{error: found, line: b.base + n.Line, severity: Error}
}

// tooBig returns the error for a document that exceeds the limits of values or bytes.
func (b *builder) tooBig(n *yaml.Node) error {
	return b.fail(n, finding.Errorf("split it, or write it with fewer aliases",
		"document is too big or too deep here, its aliases expanded"))
}

func (b *builder) build(n *yaml.Node, parent *value, index, depth int) (*value, error) {
	b.values++
	b.bytes += len(n.Value)
	if b.values > maxValues || b.bytes > maxTextBytes || depth > maxDepth {
		return nil, b.tooBig(n)
	}
	if n.Kind == yaml.AliasNode {
		v, err := b.build(n.Alias, parent, index, depth+1)
		if v != nil {
			v.plain = nil
		}
		return v, err
	}
	v := &value{line: b.base + n.Line, parent: parent, index: index, order: b.values}
	switch n.Kind {
	case yaml.MappingNode:
		v.shape = isMap
		return v, b.mapping(v, n, depth)
	case yaml.SequenceNode:
		v.shape = isList
		for i, item := range n.Content {
			child, err := b.build(item, v, i, depth+1)
			if err != nil {
				return nil, err
			}
			v.items = append(v.items, child)
		}
		return v, nil
	}
	return v, b.scalar(v, n)
}

// mapping adds the members of the YAML mapping n to v. Members of n itself take precedence over members of its merge
// keys (<<).
func (b *builder) mapping(v *value, n *yaml.Node, depth int) error {
	if depth > maxDepth {
		return b.tooBig(n)
	}
	var merges []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, item := n.Content[i], n.Content[i+1]
		if key.Kind == yaml.AliasNode {
			key = key.Alias
		}
		switch {
		case key.Kind != yaml.ScalarNode:
			return b.fail(key, errors.New("the key of a mapping must be a string"))
		case key.ShortTag() == "!!merge":
			merges = append(merges, item)
			continue
		}
		if err := b.member(v, key, item, depth); err != nil {
			return err
		}
	}
	for _, m := range merges {
		if err := b.merge(v, m, depth+1); err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) merge(v *value, n *yaml.Node, depth int) error {
	b.values++
	if depth > maxDepth || b.values > maxValues {
		return b.tooBig(n)
	}
	switch n.Kind {
	case yaml.AliasNode:
		return b.merge(v, n.Alias, depth+1)
	case yaml.SequenceNode:
		for _, item := range n.Content {
			if err := b.merge(v, item, depth+1); err != nil {
				return err
			}
		}
		return nil
	case yaml.MappingNode:
		shadow := &value{shape: isMap}
		if err := b.mapping(shadow, n, depth); err != nil {
			return err
		}
		for i, key := range shadow.keys {
			if v.get(key) == nil {
				b.adopt(v, key, shadow.items[i])
			}
		}
		return nil
	}
	return b.fail(n, errors.New("<< needs a mapping or an alias of one"))
}

// member adds one member to the mapping v. If a key occurs twice, the last value is used, as in an API server.
func (b *builder) member(v *value, key, item *yaml.Node, depth int) error {
	child, err := b.build(item, v, 0, depth+1)
	if err != nil {
		return err
	}
	b.bytes += len(key.Value)
	child.line = b.base + key.Line // a list or mapping may begin a line below its key
	if first := v.get(key.Value); first != nil {
		b.duplicates = append(b.duplicates,
			duplicateKey{in: v, key: key.Value, line: b.base + key.Line, first: first.line})
		v.put(key.Value, child)
		return nil
	}
	b.adopt(v, key.Value, child)
	return nil
}

func (b *builder) adopt(v *value, key string, child *value) {
	child.parent, child.index = v, len(v.items)
	if v.members == nil {
		v.members = make(map[string]*value)
	}
	v.members[key] = child
	v.keys, v.items = append(v.keys, key), append(v.items, child)
}

// scalar converts a YAML scalar to a JSON value. Package yaml determines the type, with numbers of YAML 1.1 such as
// 0777 in octal. A timestamp becomes a string, because JSON has no timestamps. Infinity and NaN are refused.
func (b *builder) scalar(v *value, n *yaml.Node) error {
	v.source = n.Value
	if n.Style == 0 && n.Anchor == "" {
		v.plain = &Span{Line: b.base + n.Line, Column: n.Column, Length: utf8.RuneCountInString(n.Value)}
	}
	switch tag := n.ShortTag(); tag {
	case "!!null":
		v.shape, v.text = isNull, "null"
	case "!!str", "!!timestamp", "!!binary", "!!merge":
		v.shape, v.text = isText, n.Value
	case "!!bool", "!!int", "!!float":
		var decoded any
		if err := n.Decode(&decoded); err != nil {
			return b.fail(n, finding.Errorf("remove the tag", "value does not fit its tag"))
		}
		literal, err := json.Marshal(decoded)
		if err != nil {
			return b.fail(n, fmt.Errorf("%s is no number that can be used here", n.Value))
		}
		v.shape, v.text = isNumber, string(literal)
		if tag == "!!bool" {
			v.shape = isBool
		}
	default:
		return b.fail(n, finding.Errorf("remove it, or put quotes around the value", "tag is not known"))
	}
	return nil
}

// get returns a member of a mapping, or nil.
func (v *value) get(key string) *value {
	if v == nil || v.shape != isMap {
		return nil
	}
	return v.members[key]
}

// textAt returns the string at a path of keys, or "" if there is no string.
func (v *value) textAt(path ...string) string {
	for _, key := range path {
		v = v.get(key)
	}
	if v == nil || v.shape != isText {
		return ""
	}
	return v.text
}

// path returns the path of the value in the document in the format of the API server, for example
// spec.listeners[0].port.
func (v *value) path() string {
	if v == nil || v.parent == nil {
		return ""
	}
	above := v.parent.path()
	if v.parent.shape == isList {
		return above + "[" + strconv.Itoa(v.index) + "]"
	}
	return join(above, v.parent.keys[v.index])
}

func join(path, key string) string {
	return strings.TrimPrefix(path+"."+key, ".")
}

// find returns the value at a field path. If there is none, it returns the nearest parent that exists.
func (v *value) find(path string) *value {
	best := v
	v.walk(func(w *value) {
		p := w.path()
		above := strings.HasPrefix(path, p) && len(p) < len(path) && strings.ContainsRune(".[", rune(path[len(p)]))
		if p == path || above && len(p) > len(best.path()) {
			best = w
		}
	})
	return best
}

// walk calls visit for v and all its descendants, parents first. It skips values that were removed from the document.
func (v *value) walk(visit func(*value)) {
	if v.removed {
		return
	}
	visit(v)
	for _, item := range v.items {
		item.walk(visit)
	}
}

// appendJSON appends v as JSON. It writes null for removed values, and for values whose order is `before` or higher.
func (v *value) appendJSON(out []byte, before int) []byte {
	if v.removed || v.order >= before {
		return append(out, "null"...)
	}
	switch v.shape {
	case isText:
		return appendString(out, v.text)
	case isList:
		out = append(out, '[')
		for i, item := range v.items {
			if i > 0 {
				out = append(out, ',')
			}
			out = item.appendJSON(out, before)
		}
		return append(out, ']')
	case isMap:
		out = append(out, '{')
		for i, item := range v.items {
			if i > 0 {
				out = append(out, ',')
			}
			out = append(appendString(out, v.keys[i]), ':')
			out = item.appendJSON(out, before)
		}
		return append(out, '}')
	}
	return append(out, v.text...)
}

func appendString(out []byte, s string) []byte {
	quoted, _ := json.Marshal(s) // a string always has a JSON form
	return append(out, quoted...)
}
