package config

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode"

	strict "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
	goyaml "sigs.k8s.io/yaml/goyaml.v2"
)

// MaxDocument is the maximum size of a document in bytes.
const MaxDocument = 4 << 20

// MaxUnknown is the maximum number of unknown fields that Parse returns. The JSON decoder stops recording at this
// number.
const MaxUnknown = 100

// supported are the versions that Parse accepts. v1alpha1 differs from v1 in fields that have no effect any more.
var supported = []string{Version, "v1alpha1"}

// document is the JSON form of a Config, where it differs from the Go form.
type document struct {
	Version   string             `json:"version"`
	Admin     adminDocument      `json:"admin"`
	Auth      authDocument       `json:"auth"`
	Listeners []listenerDocument `json:"listeners"`
	Clusters  []Cluster          `json:"clusters"`
}

type adminDocument struct {
	Admin
	// LogLevelAlias is another spelling of loglevel, which some documentation uses.
	LogLevelAlias   string        `json:"logLevel"`
	UserQuota       number[int]   `json:"user_quota"`
	SourceQuota     number[int]   `json:"source_quota"`
	SessionByteRate number[int64] `json:"session_byte_rate"`
	UserByteRate    number[int64] `json:"user_byte_rate"`
}

type authDocument struct {
	Auth
	Lifetime          number[int32]  `json:"lifetime"`
	SessionGrace      number[int32]  `json:"session_grace"`
	CredentialOverlap *number[int32] `json:"credential_overlap"`
}

type listenerDocument struct {
	Listener
	// Port is a pointer to distinguish a missing port, which has a default, from a port 0, which is an error.
	Port       *number[int] `json:"port"`
	PublicPort number[int]  `json:"public_port"`
	// Addresses are relay addresses of several families, as the existing system writes them. The first address is used
	// if there is no Address. The process finds its other addresses itself.
	Addresses []string `json:"addresses"`
	// The relay port range of v1alpha1 is ignored: the kernel chooses relay ports.
	MinRelayPort json.RawMessage `json:"min_relay_port"`
	MaxRelayPort json.RawMessage `json:"max_relay_port"`
}

// Parse parses a config from JSON or YAML, replaces aliases by canonical spellings and sets defaults. It does not
// validate. unknown lists the paths of fields that this release does not define, at most MaxUnknown. Such fields are
// not an error, because other releases may send them.
//
// A placeholder in the place of a number is an error. A placeholder in a credential is literal. See ParseWith.
func Parse(data []byte) (c Config, unknown []string, err error) { return ParseWith(data, nil) }

// ParseWith is Parse for a document that was written for one process, such as a file. It replaces placeholders in the
// place of numbers by the results of lookup, as Expand does for texts, and the credentials $STUNNER_USERNAME,
// $STUNNER_PASSWORD and $STUNNER_SHARED_SECRET. If the variable STUNNER_PUBLIC_ADDR or STUNNER_PUBLIC_PORT is not set,
// a listener with its placeholder has no public address or port.
func ParseWith(data []byte, lookup func(name string) string) (c Config, unknown []string, err error) {
	text, err := toJSON(data)
	if err != nil {
		return Config{}, nil, fmt.Errorf("parse config: %w", err)
	}
	var d document
	unknown, err = decode(text, &d)
	if err != nil || !slices.Contains(supported, d.Version) {
		err = cmp.Or(checkVersion(text), err) // the types of another version may differ
	}
	if err != nil {
		return Config{}, nil, fmt.Errorf("parse config: %w", err)
	}
	if c, err = d.config(lookup); err != nil {
		return Config{}, nil, fmt.Errorf("parse config: %w", err)
	}
	c.Default()
	return c, unknown, nil
}

// config converts the JSON form, of any supported version, to the Go form.
func (d document) config(lookup func(name string) string) (Config, error) {
	in := &placeholders{lookup: lookup}
	c := Config{Version: Version, Admin: d.Admin.config(in), Auth: d.Auth.config(in), Clusters: d.Clusters}
	for i, l := range d.Listeners {
		in.dropUnset(&l)
		if len(l.Addresses) > 0 {
			first, _, _ := strings.Cut(l.Addresses[0], ",")
			l.Listener.Address = cmp.Or(l.Listener.Address, strings.TrimSpace(first))
		}
		l.Listener.Port = DefaultPort
		if l.Port != nil {
			l.Listener.Port = resolve(in, index("listeners", i, "port"), *l.Port)
		}
		l.Listener.PublicPort = resolve(in, index("listeners", i, "public_port"), l.PublicPort)
		c.Listeners = append(c.Listeners, l.Listener)
	}
	return c, errors.Join(in.errs...)
}

func (d adminDocument) config(in *placeholders) Admin {
	a := d.Admin
	a.LogLevel = cmp.Or(a.LogLevel, d.LogLevelAlias)
	a.UserQuota = resolve(in, "admin.user_quota", d.UserQuota)
	a.SourceQuota = resolve(in, "admin.source_quota", d.SourceQuota)
	a.SessionByteRate = resolve(in, "admin.session_byte_rate", d.SessionByteRate)
	a.UserByteRate = resolve(in, "admin.user_byte_rate", d.UserByteRate)
	return a
}

func (d authDocument) config(in *placeholders) Auth {
	a := d.Auth
	a.Credentials = in.credentials(a)
	a.Lifetime = resolve(in, "auth.lifetime", d.Lifetime)
	a.SessionGrace = resolve(in, "auth.session_grace", d.SessionGrace)
	if d.CredentialOverlap != nil {
		a.CredentialOverlap = new(resolve(in, "auth.credential_overlap", *d.CredentialOverlap))
	}
	return a
}

// toJSON converts a document in JSON or YAML to one JSON value.
func toJSON(data []byte) ([]byte, error) {
	switch {
	case len(data) > MaxDocument:
		return nil, fmt.Errorf("document of %d bytes is too large: the limit is %d", len(data), MaxDocument)
	case len(bytes.TrimSpace(data)) == 0:
		return nil, errors.New("document is empty")
	case json.Valid(data):
		return data, nil
	case documents(data) > 1:
		return nil, errors.New("more than one YAML document: a config is one document")
	case Explodes(data, MaxDocument):
		return nil, fmt.Errorf("yaml: more than %d bytes with its aliases filled in: write them out, or leave them out",
			MaxDocument)
	}
	text, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, yamlError(err)
	}
	if string(text) == "null" {
		return nil, errors.New("document is empty")
	}
	return text, nil
}

// Explodes reports whether YAML has more than a number of bytes after its aliases are expanded. The YAML parser bounds
// the number of aliases but not the size of the expanded document: 1 MB can expand to 500 MB.
func Explodes(data []byte, bytesAtMost int) bool {
	var content any
	if bytes.IndexByte(data, '*') < 0 || goyaml.Unmarshal(data, &content) != nil {
		return false // without aliases the size does not change, and the parser rejects invalid YAML
	}
	return remaining(content, bytesAtMost) < 0
}

// remaining subtracts the size in bytes of YAML content with expanded aliases from left. It stops early when the result
// is negative.
func remaining(content any, left int) int {
	left -= len(",")
	switch c := content.(type) {
	case string:
		left -= len(c)
	case []any:
		for i := 0; i < len(c) && left >= 0; i++ {
			left = remaining(c[i], left)
		}
	case map[any]any:
		for key, value := range c {
			if left < 0 {
				break
			}
			left = remaining(value, remaining(key, left))
		}
	}
	return left
}

// documents counts the YAML documents in data that have content. The YAML parser would ignore all but the first.
func documents(data []byte) (n int) {
	open := false
	for line := range strings.Lines(string(data)) {
		line = strings.TrimRight(line, " \t\r\n")
		marker, rest, _ := strings.Cut(line, " ")
		if marker == "---" || marker == "..." {
			open, line = false, rest
		}
		content := strings.TrimLeft(line, " \t")
		if !open && content != "" && content[0] != '#' && content[0] != '%' {
			open = true
			n++
		}
	}
	return n
}

// harmlessErrors are the prefixes of YAML errors that contain only positions and syntax. Other errors quote values,
// which may be secrets, and are replaced.
var harmlessErrors = []string{
	"line ", "unmarshal errors:", "document contains excessive aliasing", "control characters", "invalid leading",
	"invalid Unicode",
	"found ", "did not find ", "exceeded ",
}

func yamlError(err error) error {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	if !slices.ContainsFunc(harmlessErrors, func(beginning string) bool { return strings.HasPrefix(text, beginning) }) {
		return errors.New("yaml: cannot be read as an object with text keys: check anchors, tags and keys")
	}
	return errors.New("yaml: " + strings.Join(strings.Fields(cut(text)), " "))
}

// cut truncates a text from a document for messages.
func cut(text string) string {
	const most = 200
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// checkVersion returns an error if the version of a document is not supported. It decodes only the version, because the
// types of other fields may differ in another version.
func checkVersion(text []byte) error {
	var head struct {
		Version string `json:"version"`
	}
	if err := strict.UnmarshalCaseSensitivePreserveInts(text, &head); err != nil {
		return typeError(err)
	}
	if slices.Contains(supported, head.Version) {
		return nil
	}
	remedy := "use " + strings.Join(supported, " or ")
	if head.Version == "" {
		return &FieldError{Field: "version", Problem: "is missing", Remedy: remedy}
	}
	return &FieldError{Field: "version", Value: cut(head.Version), Problem: "is not supported", Remedy: remedy}
}

// decode decodes text and returns the paths of unknown fields. A duplicate field is an error.
func decode(text []byte, d *document) (unknown []string, err error) {
	strange, err := strict.UnmarshalStrict(text, d)
	if err == nil && len(strange) >= MaxUnknown { // the decoder stops at this number, possibly before a duplicate field
		strange, err = decodeEach(text)
	}
	if err != nil {
		return nil, typeError(err)
	}
	var all []error
	for _, e := range strange {
		if strings.HasPrefix(e.Error(), "duplicate ") {
			all = append(all, &FieldError{Field: cut(fieldPath(e)), Problem: "is set twice", Remedy: "keep one"})
			continue
		}
		unknown = append(unknown, cut(fieldPath(e)))
	}
	var f findings
	if !f.atMost("listeners", len(d.Listeners), maxListeners) || !f.atMost("clusters", len(d.Clusters), maxClusters) {
		return nil, errors.Join(f.errs...) // return before the more expensive checks
	}
	return unknown, errors.Join(all...)
}

// decodeEach returns the first unknown fields and the first duplicate fields of a document. It decodes the document
// once for each, because one decoding stops recording at MaxUnknown errors of both kinds.
func decodeEach(text []byte) (strange []error, err error) {
	for _, option := range []strict.StrictOption{strict.DisallowUnknownFields, strict.DisallowDuplicateFields} {
		found, err := strict.UnmarshalStrict(text, &document{}, option)
		if err != nil {
			return nil, err
		}
		strange = append(strange, found...)
	}
	return strange, nil
}

func fieldPath(err error) string {
	var f strict.FieldError
	if errors.As(err, &f) {
		return f.FieldPath()
	}
	return err.Error()
}

// typeError replaces the type errors of the JSON decoder, which contain Go types, by errors about JSON types.
func typeError(err error) error {
	var t *json.UnmarshalTypeError
	if !errors.As(err, &t) {
		return err
	}
	got, _, _ := strings.Cut(t.Value, " ") // t.Value may be "number 1.5"
	// The path contains the type names of embedded structs, which begin with a capital, unlike the names of fields.
	names := slices.DeleteFunc(strings.Split(t.Field, "."), func(name string) bool {
		return name == "" || unicode.IsUpper(rune(name[0]))
	})
	field := cmp.Or(strings.Join(names, "."), "document")
	return &FieldError{Field: field, Problem: "cannot be read from a JSON " + got, Remedy: "write " + wanted(t.Type)}
}

func wanted(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Int, reflect.Int32:
		return "a whole number"
	case reflect.String:
		return "a text, in quotes"
	case reflect.Slice:
		return "a list"
	default:
		return "an object"
	}
}
