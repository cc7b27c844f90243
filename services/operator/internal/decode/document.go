package decode

import (
	"cmp"
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
	"k8s.io/apimachinery/pkg/util/validation/field"
	strictjson "sigs.k8s.io/json"

	"github.com/stunner-gateway/stunner/services/api/finding"
	stunnerv1 "github.com/stunner-gateway/stunner/services/api/v1"
	"github.com/stunner-gateway/stunner/services/operator/internal/crd"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// document is a document while it is decoded.
type document struct {
	root     *value
	line     int // line of the first field
	gvk      schema.GroupVersionKind
	schema   *crd.Schema // of the version of the document; nil for a kind without CRD
	findings []remark
}

// decodeDocument decodes a YAML document. base is the number of lines in the file before the parsed text.
func (d *decoder) decodeDocument(n *yaml.Node, base int) {
	if n.Kind == yaml.DocumentNode {
		n = n.Content[0]
	}
	if n.ShortTag() == "!!null" {
		return
	}
	b := &builder{base: base}
	root, err := b.build(n, nil, 0, 0)
	if f := (remark{}); errors.As(err, &f) {
		_, remedy := finding.Split(f)
		metadata := child(n, "metadata")
		d.problems = append(d.problems, Problem{
			File: d.file, Line: f.line, Severity: Error, Message: f.Error(), Remedy: remedy, Kind: child(n, "kind").Value,
			Namespace: child(metadata, "namespace").Value, Name: child(metadata, "name").Value,
		})
		return
	}
	if root.textAt("kind") == "List" && root.textAt("apiVersion") == "v1" && root.get("items") != nil {
		d.decodeList(root.get("items").items, b.findings())
		return
	}
	d.decodeObject(&document{root: root, line: root.line, findings: b.findings()})
}

// child returns the value of a key in a YAML mapping, or an empty node.
func child(n *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(n.Content) && n.Kind == yaml.MappingNode; i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return &yaml.Node{}
}

// decodeList decodes the items of an object of kind List in v1, the format in which kubectl get prints several objects.
func (d *decoder) decodeList(items []*value, findings []remark) {
	if !d.addProblems(&document{root: &value{}, findings: findings}) {
		return
	}
	for _, item := range items {
		item.parent = nil
		d.decodeObject(&document{root: item, line: item.line})
	}
}

// decodeObject decodes one object and reports its findings. It drops the object if a finding is an error.
func (d *decoder) decodeObject(doc *document) {
	if doc.isKustomization() {
		doc.add(Info, "", finding.Errorf("use stunnerctl lint, or build it with kubectl kustomize", "a Kustomization is not built here, and the other files are read as they are"))
		d.addProblems(doc)
		return
	}
	o := doc.decode()
	if d.addProblems(doc) && o != nil {
		d.objects = append(d.objects, Located{Object: o, File: d.file, Line: doc.line})
	}
}

// isKustomization reports whether the document is a Kustomization, which is no object.
func (doc *document) isKustomization() bool {
	return strings.HasPrefix(doc.root.textAt("apiVersion"), "kustomize.config.k8s.io/") &&
		doc.root.textAt("metadata", "name") == ""
}

// addProblems adds the findings about a document to the problems of the file. It returns true if no finding is an
// error.
func (d *decoder) addProblems(doc *document) bool {
	valid := true
	sort.SliceStable(doc.findings, func(i, j int) bool { return doc.findings[i].line < doc.findings[j].line })
	for _, f := range doc.findings {
		valid = valid && f.severity != Error
		_, remedy := finding.Split(f)
		d.problems = append(d.problems, Problem{
			File: d.file, Line: f.line, Severity: f.severity, Field: f.field, Message: f.Error(), Remedy: remedy,
			Kind: doc.root.textAt("kind"), Namespace: doc.namespace(), Name: doc.root.textAt("metadata", "name"),
			Unquoted: f.unquoted,
		})
	}
	return valid
}

// namespace returns the namespace of the object, or the default namespace if it is not set. It returns "" for a
// cluster-scoped kind, and the namespace as it is written for a kind that is not decoded.
func (doc *document) namespace() string {
	namespace := doc.root.textAt("metadata", "namespace")
	switch k, _, known := decodedAs(doc.gvk); {
	case known && k.cluster:
		return ""
	case known && namespace == "":
		return defaultNamespace
	}
	return namespace
}

// add adds a finding about the field at a path. The line of the finding is the line of the field, or of its nearest
// parent that exists. The number of findings is limited, because searching the line of each finding visits the whole
// document.
func (doc *document) add(severity Severity, path string, found error) {
	if len(doc.findings) < maxFindings || !doc.hasErrors() {
		doc.note(severity, doc.root.find(path), path, found)
	}
}

// note adds a finding about a value in the document. The first error is added even if remarks have reached the limit of
// findings.
func (doc *document) note(severity Severity, v *value, path string, found error) {
	if len(doc.findings) < maxFindings || severity == Error && !doc.hasErrors() {
		doc.findings = append(doc.findings, remark{line: v.line, field: path, severity: severity, error: found})
	}
}

// noteUnquoted adds a remark about a number or boolean that is read as a string.
func (doc *document) noteUnquoted(v *value) {
	if len(doc.findings) < maxFindings {
		doc.findings = append(doc.findings, remark{line: v.line, field: v.path(), severity: Info, unquoted: v.plain,
			error: finding.Errorf("put quotes around it, the API server wants them", "is read as a string")})
	}
}

// decode returns the object in the document, or nil. The object is valid if no finding is an error.
func (doc *document) decode() resource.Object {
	if !doc.identify() {
		return nil
	}
	k, gvk, known := decodedAs(doc.gvk)
	versions := versionsOf(doc.gvk.GroupKind())
	switch {
	case len(versions) > 0 && !slices.Contains(versions, doc.gvk.GroupVersion().String()):
		doc.add(Error, "apiVersion", finding.Errorf(fmt.Sprintf("use %s", strings.Join(versions, " or ")), "%s of kind %s is not served", doc.gvk.GroupVersion(), doc.gvk.Kind))
		return nil
	case !known && doc.gvk.Group == stunnerv1.GroupName:
		doc.add(Error, "kind", finding.Errorf("use GatewayConfig, Dataplane, StaticService, Revocation or UDPRoute", "%s has no kind %s", doc.gvk.Group, doc.gvk.Kind))
		return nil
	case !known:
		return doc.passThrough()
	}
	doc.schema = crd.Find(doc.gvk)
	doc.gvk = gvk
	doc.convertToStrings()
	o := doc.decodeTyped(k)
	if o == nil || doc.hasErrors() {
		return nil
	}
	doc.setDefaultsAndValidate(o, k)
	return o
}

// hasErrors reports whether a finding is an error.
func (doc *document) hasErrors() bool {
	return slices.ContainsFunc(doc.findings, func(f remark) bool { return f.severity == Error })
}

// identify reads apiVersion and kind of the document. If apiVersion, kind or the name of the object is missing, it adds
// a finding and returns false.
func (doc *document) identify() bool {
	if doc.root.shape != isMap {
		doc.add(Error, "", fmt.Errorf("fragment: document is %s, an object is a mapping with apiVersion, kind and metadata", doc.root.shape))
		return false
	}
	fragment := false
	for _, field := range []string{"apiVersion", "kind", "metadata.name"} {
		if doc.root.textAt(strings.Split(field, ".")...) == "" {
			doc.add(Error, field, fmt.Errorf("fragment without %s: an object needs apiVersion, kind and metadata.name as strings", field))
			fragment = true
		}
	}
	if fragment {
		return false
	}
	gv, err := schema.ParseGroupVersion(doc.root.textAt("apiVersion"))
	if err != nil {
		doc.add(Error, "apiVersion", errors.New("must be GROUP/VERSION or v1"))
		return false
	}
	doc.gvk = gv.WithKind(doc.root.textAt("kind"))
	return true
}

// notRead is the end of the remark about an object whose kind the operator does not use.
const notRead = "is not read here: passed through as it is"

// IsNotRead reports whether a problem is the remark about an object whose kind the operator does not use.
func (p Problem) IsNotRead() bool {
	return p.Severity == Info && p.Field == "kind" && strings.HasSuffix(p.Message, notRead)
}

// passThrough returns an object whose kind the operator does not use. The object is not changed.
func (doc *document) passThrough() resource.Object {
	var content map[string]any
	data := doc.root.appendJSON(nil, anyOrder)
	if err := strictjson.UnmarshalCaseSensitivePreserveInts(data, &content); err != nil {
		doc.add(Error, "", fmt.Errorf("cannot be passed through: %s", err))
		return nil
	}
	doc.add(Info, "kind", fmt.Errorf("%s of %s "+notRead, doc.gvk.Kind, doc.gvk.GroupVersion()))
	return &unstructured.Unstructured{Object: content}
}

// convertToStrings converts numbers and booleans in annotations, labels and stringData to strings, and adds a remark.
// An API server would reject such values.
func (doc *document) convertToStrings() {
	metadata := doc.root.get("metadata")
	for _, parent := range []*value{metadata.get("annotations"), metadata.get("labels"), doc.root.get("stringData")} {
		if parent == nil {
			continue
		}
		for _, v := range parent.items {
			if v.shape == isBool || v.shape == isNumber {
				v.shape, v.text = isText, v.source
				doc.noteUnquoted(v)
			}
		}
	}
	if doc.gvk == core("Secret") {
		doc.foldStringData()
	}
}

// foldStringData moves the entries of a Secret's stringData into its data, as the API server does.
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
		encoded := base64.StdEncoding.EncodeToString([]byte(v.text))
		data.put(plain.keys[i], &value{shape: isText, text: encoded, line: v.line, order: v.order})
	}
	plain.removed = true
}

// put adds a member to a mapping, or replaces it.
func (v *value) put(key string, item *value) {
	if old := v.get(key); old != nil {
		item.parent, item.index = v, old.index
		v.members[key], v.items[old.index] = item, item
		return
	}
	(&builder{}).adopt(v, key, item)
}

// anyOrder is larger than the order of any value, so that appendJSON writes all values.
const anyOrder = maxValues + 1

// decodeTyped applies the schema of the CRD, if the kind has one, and decodes the document into its Go type. Each value
// of a wrong type and each unknown field becomes a finding.
func (doc *document) decodeTyped(k kind) resource.Object {
	data := doc.root.appendJSON(nil, anyOrder)
	if doc.schema != nil {
		data = doc.admit(data)
	}
	if doc.schema != nil && doc.hasErrors() {
		return nil
	}
	for range doc.maxTypeErrors() {
		o := k.new()
		strict, err := strictjson.UnmarshalStrict(data, o, strictjson.DisallowUnknownFields)
		if err == nil {
			for _, s := range strict {
				doc.unknownField(strings.TrimSuffix(strings.TrimPrefix(s.Error(), `unknown field "`), `"`))
			}
			return o
		}
		wrong := doc.firstTypeError(k)
		doc.note(Error, wrong, wrong.path(), wrongType(wrong, err))
		if wrong.parent == nil {
			return nil
		}
		wrong.removed = true
		data = doc.root.appendJSON(nil, anyOrder)
	}
	return nil
}

// admit returns the JSON of the object with the defaults of its CRD. Unknown fields and violations of the CRD become
// findings.
func (doc *document) admit(data []byte) []byte {
	var object map[string]any
	if err := strictjson.UnmarshalCaseSensitivePreserveInts(data, &object); err != nil {
		doc.add(Error, "", fmt.Errorf("cannot be read: %s", err))
		return nil
	}
	paths, errs := doc.schema.Admit(object)
	for _, path := range paths {
		doc.add(Error, path, errUnknown)
	}
	doc.addFieldErrors(errs)
	data, err := json.Marshal(object)
	if err != nil {
		doc.add(Error, "", fmt.Errorf("cannot be read: %s", err))
	}
	return data
}

// addFieldErrors adds a finding for each validation error. It omits the values of the fields, because they may be
// secret.
func (doc *document) addFieldErrors(errs field.ErrorList) {
	for _, e := range errs[:min(len(errs), maxFindings)] {
		e.BadValue = field.OmitValueType{}
		found := errors.New(e.ErrorBody())
		if name := crd.WantedType(e); name != "" {
			got := doc.root.find(e.Field).shape
			found = fmt.Errorf("is %s, must be %s", got, wanted(name, got))
		}
		doc.add(Error, e.Field, found)
	}
}

// maxTypeErrors returns the maximum number of values with a wrong type that are reported for a document. It is limited
// because finding each of these values decodes the document about 20 times.
func (doc *document) maxTypeErrors() int {
	n := 0
	doc.root.walk(func(*value) { n++ })
	if n > 5_000 {
		return 1
	}
	return 16
}

// firstTypeError returns the first value in the document that does not fit the Go type. It searches by bisection: the
// document without this value and all later values can be decoded, the document with this value cannot.
func (doc *document) firstTypeError(k kind) *value {
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

// errUnknown is the message about an unknown field.
var errUnknown = finding.Errorf("remove it or correct its spelling", "is not known")

// unknownField adds a finding about a field that the Go type does not have. If the schema of the CRD contains the
// field, it belongs to an older version of the kind and no longer has an effect.
func (doc *document) unknownField(path string) {
	if doc.schema != nil && !strings.HasPrefix(path, "metadata.") {
		doc.add(Info, path, finding.Errorf(cmp.Or(replacements[path], "remove it"), "has no effect"))
		return
	}
	doc.add(Error, path, errUnknown)
}

// replacements are the remedies for fields of older versions that another field has replaced.
var replacements = map[string]string{
	"spec.minPort":             "remove it, and set spec.relayPortRange of the Dataplane",
	"spec.maxPort":             "remove it, and set spec.relayPortRange of the Dataplane",
	"spec.metricsEndpoint":     "remove it, and set spec.enableMetricsEndpoint of the Dataplane",
	"spec.healthCheckEndpoint": "remove it; spec.disableHealthCheck of the Dataplane turns probes off",
}

// wrongType describes a value that does not fit its Go type. It does not quote the value, because it may be secret.
func wrongType(v *value, err error) error {
	var mismatch *json.UnmarshalTypeError
	var corrupt base64.CorruptInputError
	switch {
	case errors.As(err, &mismatch) && v.shape == isNumber && jsonType(mismatch.Type) == "integer":
		return fmt.Errorf("is a number, must be a whole number of at most %d bits", mismatch.Type.Bits())
	case errors.As(err, &mismatch):
		return fmt.Errorf("is %s, must be %s", v.shape, wanted(jsonType(mismatch.Type), v.shape))
	case errors.As(err, &corrupt):
		return finding.Errorf("encode it, or write it under stringData", "is not base64")
	}
	return fmt.Errorf("cannot be read: %w", err)
}

// jsonType returns the JSON Schema type that corresponds to a Go type.
func jsonType(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "boolean"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "integer"
	case reflect.Slice, reflect.Array:
		return "array"
	}
	return "object"
}

// wanted describes a JSON Schema type in terms of YAML.
func wanted(name string, got shape) string {
	switch name {
	case "string":
		if got == isNumber || got == isBool {
			return "a string: put quotes around it"
		}
		return "a string"
	case "boolean":
		return "true or false, without quotes"
	case "integer":
		return "a whole number, without quotes"
	case "array":
		return "a list: begin each item with a dash"
	case "object":
		return "a mapping"
	}
	return "of type " + name
}

// setDefaultsAndValidate sets the type and the namespace of an object, and the defaults that no CRD contains. It then
// checks the rules that no CRD contains.
func (doc *document) setDefaultsAndValidate(o resource.Object, k kind) {
	o.GetObjectKind().SetGroupVersionKind(doc.gvk)
	switch {
	case k.cluster && o.GetNamespace() != "":
		doc.add(Info, "metadata.namespace", fmt.Errorf("%s has no namespace: ignored", doc.gvk.Kind))
		o.SetNamespace("")
	case !k.cluster && o.GetNamespace() == "":
		o.SetNamespace(defaultNamespace)
	}
	setDefaults(o)
	doc.addFieldErrors(validate(o, k))
}
