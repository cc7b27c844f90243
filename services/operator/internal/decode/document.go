package decode

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sort"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	strictjson "sigs.k8s.io/json"

	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// document is one document on its way from values to an object.
type document struct {
	root     *value
	line     int // of its first field
	gvk      schema.GroupVersionKind
	version  string // in which it was written
	findings []finding
}

// document turns one YAML document into an object; base is the number of lines before the text that was parsed.
func (d *decoder) document(n *yaml.Node, base int) {
	if n.Kind == yaml.DocumentNode {
		n = n.Content[0]
	}
	if n.ShortTag() == "!!null" {
		return
	}
	b := &builder{base: base}
	root, err := b.build(n, nil, 0, 0)
	if f := (finding{}); errors.As(err, &f) {
		metadata := child(n, "metadata")
		d.problems = append(d.problems, Problem{File: d.file, Line: f.line, Severity: Error, Kind: child(n, "kind").Value,
			Namespace: child(metadata, "namespace").Value, Name: child(metadata, "name").Value, Message: f.message})
		return
	}
	if root.textAt("kind") == "List" && root.textAt("apiVersion") == "v1" && root.get("items") != nil {
		d.list(root.get("items").items, b.findings())
		return
	}
	d.object(&document{root: root, line: root.line, findings: b.findings()})
}

// child returns a member of a YAML mapping, an empty node when there is none.
func child(n *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(n.Content) && n.Kind == yaml.MappingNode; i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return &yaml.Node{}
}

// list decodes the items of what kubectl get prints for several objects.
func (d *decoder) list(items []*value, findings []finding) {
	if !d.report(&document{root: &value{}, findings: findings}) {
		return
	}
	for _, item := range items {
		item.parent = nil
		d.object(&document{root: item, line: item.line})
	}
}

// object decodes one object, reports what is to be said about it, and keeps it unless that includes an error.
func (d *decoder) object(doc *document) {
	o := doc.decode()
	if d.report(doc) && o != nil {
		d.objects = append(d.objects, Located{Object: o, File: d.file, Line: doc.line})
	}
}

// report passes the findings on and tells whether the document is in force.
func (d *decoder) report(doc *document) bool {
	inForce := true
	sort.SliceStable(doc.findings, func(i, j int) bool { return doc.findings[i].line < doc.findings[j].line })
	for _, f := range doc.findings {
		inForce = inForce && f.severity != Error
		d.problems = append(d.problems, Problem{File: d.file, Line: f.line, Severity: f.severity, Kind: doc.root.textAt("kind"),
			Namespace: doc.namespace(), Name: doc.root.textAt("metadata", "name"), Field: f.field, Message: f.message})
	}
	return inForce
}

// namespace is the namespace that the object has, absent or not.
func (doc *document) namespace() string {
	namespace := doc.root.textAt("metadata", "namespace")
	switch k, _, known := readAs(doc.gvk); {
	case known && k.cluster:
		return ""
	case known && namespace == "":
		return defaultNamespace
	}
	return namespace
}

// add notes a finding at a field path, at the line of that field or of the nearest one above it. Looking for that costs a walk over the
// document, and so a document that is wrong all over is not told everything.
func (doc *document) add(severity Severity, path, format string, args ...any) {
	if len(doc.findings) < maxFindings || !doc.broken() {
		doc.note(severity, doc.root.find(path), path, fmt.Sprintf(format, args...))
	}
}

// note notes a finding at a value. However many remarks there are, an error is not lost among them.
func (doc *document) note(severity Severity, v *value, path, message string) {
	if len(doc.findings) < maxFindings || severity == Error && !doc.broken() {
		doc.findings = append(doc.findings, finding{line: v.line, field: path, severity: severity, message: message})
	}
}

// decode returns the object, or nil when there is none; whether it is in force depends on the findings.
func (doc *document) decode() resource.Object {
	if !doc.identify() {
		return nil
	}
	k, gvk, known := readAs(doc.gvk)
	versions := versionsOf(doc.gvk.GroupKind())
	switch {
	case !known && len(versions) > 0:
		doc.add(Error, "apiVersion", "%s of kind %s is not known: use %s", doc.gvk.GroupVersion(), doc.gvk.Kind, strings.Join(versions, " or "))
		return nil
	case !known && doc.gvk.Group == stunnerv1.GroupName:
		doc.add(Error, "kind", "%s has no kind %s: use GatewayConfig, Dataplane, StaticService or UDPRoute", doc.gvk.Group, doc.gvk.Kind)
		return nil
	case !known:
		return doc.passThrough()
	}
	doc.version, doc.gvk = doc.gvk.Version, gvk
	doc.tolerate(k)
	o := doc.typed(k)
	if o == nil || doc.broken() {
		return nil
	}
	doc.complete(o, k)
	return o
}

// broken tells whether an error keeps the document out of force already.
func (doc *document) broken() bool {
	return slices.ContainsFunc(doc.findings, func(f finding) bool { return f.severity == Error })
}

// identify reads kind and name. What lacks them is a fragment out of a text, not an object.
func (doc *document) identify() bool {
	if doc.root.shape != isMap {
		doc.add(Error, "", "fragment: document is %s, an object is a mapping with apiVersion, kind and metadata", doc.root.shape)
		return false
	}
	for _, field := range []string{"apiVersion", "kind", "metadata.name"} {
		if doc.root.textAt(strings.Split(field, ".")...) == "" {
			doc.add(Error, field, "fragment without %s: an object needs apiVersion, kind and metadata.name as strings", field)
		}
	}
	if doc.broken() {
		return false
	}
	gv, err := schema.ParseGroupVersion(doc.root.textAt("apiVersion"))
	if err != nil {
		doc.add(Error, "apiVersion", "must be GROUP/VERSION or v1")
		return false
	}
	doc.gvk = gv.WithKind(doc.root.textAt("kind"))
	return true
}

// passThrough keeps an object of a kind that nobody here reads, as it is.
func (doc *document) passThrough() resource.Object {
	var content map[string]any
	if err := strictjson.UnmarshalCaseSensitivePreserveInts(doc.root.appendJSON(nil, everything), &content); err != nil {
		doc.add(Error, "", "cannot be passed through: %s", err)
		return nil
	}
	doc.add(Info, "kind", "%s of %s is not read here: passed through as it is", doc.gvk.Kind, doc.gvk.GroupVersion())
	return &unstructured.Unstructured{Object: content}
}

// tolerate mends what people write and the API server does not take: annotations, labels and stringData that are not strings.
func (doc *document) tolerate(k kind) {
	metadata := doc.root.get("metadata")
	for _, parent := range []*value{metadata.get("annotations"), metadata.get("labels"), doc.root.get("stringData")} {
		if parent == nil {
			continue
		}
		for _, v := range parent.items {
			if v.shape == isBool || v.shape == isNumber {
				v.shape, v.text = isText, v.source
				doc.note(Info, v, v.path(), "is read as a string: put quotes around it, the API server wants them")
			}
		}
	}
	if k.texts {
		doc.foldStringData()
	}
}

// foldStringData moves the plain texts of a Secret into its data, as the API server does.
func (doc *document) foldStringData() {
	plain := doc.root.get("stringData")
	if plain == nil || plain.shape != isMap {
		return
	}
	data := doc.root.get("data")
	if data == nil || data.shape == isNull {
		plain.parent = doc.root
		data = &value{shape: isMap, line: plain.line, order: plain.order}
		doc.root.put("data", data)
	}
	for i, v := range plain.items {
		if v.shape == isNull {
			v.shape, v.text = isText, ""
		}
		if v.shape != isText || data.shape != isMap {
			return
		}
		data.put(plain.keys[i], &value{shape: isText, text: base64.StdEncoding.EncodeToString([]byte(v.text)), line: v.line, order: v.order})
	}
	plain.gone = true
}

// put sets a member.
func (v *value) put(key string, item *value) {
	if old := v.get(key); old != nil {
		item.parent, item.index = v, old.index
		v.members[key], v.items[old.index] = item, item
		return
	}
	(&builder{}).adopt(v, key, item)
}

// everything is an order after that of every value.
const everything = maxValues + 1

// typed decodes strictly into the Go type of a kind. Each value of a wrong type and each unknown field is a finding of its own.
func (doc *document) typed(k kind) resource.Object {
	for range doc.patience() {
		o := k.new()
		data := doc.root.appendJSON(nil, everything)
		strict, err := strictjson.UnmarshalStrict(data, o, strictjson.DisallowUnknownFields)
		if err == nil {
			for _, s := range strict {
				doc.unknownField(s.Error())
			}
			return o
		}
		culprit := doc.culprit(k)
		doc.note(Error, culprit, culprit.path(), wrongType(culprit, err))
		if culprit.parent == nil {
			return nil
		}
		culprit.gone = true
	}
	return nil
}

// patience is how many values of a wrong type are named. Each costs some twenty readings of the document.
func (doc *document) patience() int {
	n := 0
	doc.root.walk(func(*value) { n++ })
	if n > 5_000 {
		return 1
	}
	return 16
}

// culprit finds the first value that a strict decoder does not take: documents that end before it decode, documents that reach it do not.
func (doc *document) culprit(k kind) *value {
	var all []*value
	doc.root.walk(func(v *value) { all = append(all, v) })
	sort.SliceStable(all, func(i, j int) bool { return all[i].order < all[j].order })
	n := sort.Search(len(all), func(i int) bool {
		_, err := strictjson.UnmarshalStrict(doc.root.appendJSON(nil, all[i].order+1), k.new())
		return err != nil
	})
	if n == len(all) {
		return doc.root
	}
	return all[n]
}

// unknownField takes over a finding of the strict decoder: unknown field "spec.listener".
func (doc *document) unknownField(message string) {
	path := strings.TrimSuffix(strings.TrimPrefix(message, `unknown field "`), `"`)
	if doc.version == retiredVersion && doc.gvk.Kind == "GatewayConfig" && slices.Contains(retired, path) {
		doc.add(Info, path, "has no effect: remove it")
		return
	}
	doc.add(Error, path, "is not known: remove it or mend its spelling")
}

// wrongType says what a value is and what it must be. It repeats no value: it may be a secret.
func wrongType(v *value, err error) string {
	var mismatch *json.UnmarshalTypeError
	var corrupt base64.CorruptInputError
	switch {
	case errors.As(err, &mismatch):
		return fmt.Sprintf("is %s, must be %s", v.shape, wanted(mismatch.Type, v.shape))
	case errors.As(err, &corrupt):
		return "is not base64: encode it, or write it under stringData"
	}
	return "cannot be read: " + err.Error()
}

// wanted describes a Go type to somebody who writes YAML.
func wanted(t reflect.Type, got shape) string {
	switch t.Kind() {
	case reflect.String:
		if got == isNumber || got == isBool {
			return "a string: put quotes around it"
		}
		return "a string"
	case reflect.Bool:
		return "true or false, without quotes"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return fmt.Sprintf("a whole number of at most %d bits, without quotes", t.Bits())
	case reflect.Slice, reflect.Array:
		return "a list: begin each item with a dash"
	}
	return "a mapping"
}

// complete sets type and namespace, fills in defaults and checks what an API server would check.
func (doc *document) complete(o resource.Object, k kind) {
	o.GetObjectKind().SetGroupVersionKind(doc.gvk)
	switch {
	case k.cluster && o.GetNamespace() != "":
		doc.add(Info, "metadata.namespace", "%s has no namespace: ignored", doc.gvk.Kind)
		o.SetNamespace("")
	case !k.cluster && o.GetNamespace() == "":
		o.SetNamespace(defaultNamespace)
	}
	if k.fill != nil {
		k.fill(o)
	}
	found := checkMeta(o, k)
	if k.check != nil {
		found = append(found, k.check(o)...)
	}
	for _, e := range found {
		doc.add(Error, e.Field, "%s", e.ErrorBody())
	}
}
