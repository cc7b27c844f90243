// Package crd sets the defaults of objects and validates objects, according to the CustomResourceDefinitions of STUNner
// and of the standard channel of the Gateway API. It uses the same libraries as an API server. The files in the folder
// crds are copies that `make gen` makes.
//
// The rules are the markers in services/api/v1.
package crd

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	runtimeschema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/version"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"
)

//go:embed crds
var files embed.FS

// Schema is the schema of one version of a kind.
type Schema struct {
	structural *schema.Structural
	values     validation.SchemaValidator
	rules      *cel.Validator // rules of x-kubernetes-validations
}

// schemas caches the compiled schema of each GroupVersionKind, because compiling a schema takes longer than validating
// an object. A value is a function that compiles the schema on its first call.
var schemas sync.Map

// Find returns the schema of a kind in one API version, or nil if no CRD contains it.
func Find(gvk runtimeschema.GroupVersionKind) *Schema {
	once, _ := schemas.LoadOrStore(gvk, sync.OnceValue(func() *Schema {
		s, err := compile(gvk)
		if err != nil {
			panic(fmt.Sprintf("embedded CRD of %s: %v", gvk, err))
		}
		return s
	}))
	return once.(func() *Schema)()
}

// Served returns the API versions in which the CRD of a kind is served, the newest first. It returns none if there is
// no CRD of the kind.
func Served(gk runtimeschema.GroupKind) (versions []string) {
	once, _ := served.LoadOrStore(gk, sync.OnceValue(func() []string {
		definition, err := read(gk)
		if err != nil {
			panic(fmt.Sprintf("embedded CRD of %s: %v", gk, err))
		}
		for _, v := range definition.Spec.Versions {
			if v.Served {
				versions = append(versions, v.Name)
			}
		}
		slices.SortFunc(versions, func(a, b string) int { return version.CompareKubeAwareVersionStrings(b, a) })
		return versions
	}))
	return slices.Clone(once.(func() []string)())
}

// served caches the result of Served, because a CRD is large.
var served sync.Map

// read returns the CRD of a kind, or an empty one if there is none.
func read(gk runtimeschema.GroupKind) (definition apiextensionsv1.CustomResourceDefinition, err error) {
	plural := strings.ToLower(gk.Kind) + "s"
	if strings.HasSuffix(gk.Kind, "s") {
		plural = strings.ToLower(gk.Kind) + "es"
	}
	data, err := files.ReadFile("crds/" + gk.Group + "_" + plural + ".yaml")
	if errors.Is(err, fs.ErrNotExist) {
		return definition, nil
	}
	return definition, errors.Join(err, yaml.Unmarshal(data, &definition))
}

func compile(gvk runtimeschema.GroupVersionKind) (*Schema, error) {
	crd, err := read(gvk.GroupKind())
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(crd.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool {
		return v.Name == gvk.Version
	})
	if i < 0 {
		return nil, nil
	}
	var internal apiextensions.CustomResourceValidation
	public := crd.Spec.Versions[i].Schema
	err = apiextensionsv1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(
		public, &internal, nil,
	)
	if err != nil {
		return nil, err
	}
	props := internal.OpenAPIV3Schema
	structural, err := schema.NewStructural(props)
	if err != nil {
		return nil, err
	}
	values, _, err := validation.NewSchemaValidator(props)
	if err != nil {
		return nil, err
	}
	rules := cel.NewValidator(structural, true, celconfig.PerCallLimit)
	return &Schema{structural: structural, values: values, rules: rules}, nil
}

// Admit processes an object as an API server does on create: it prunes unknown fields, sets defaults, and validates the
// object. It returns the paths of the unknown fields, which an API server rejects under strict field validation, and
// the validation errors. The errors contain no values of fields, because they may be secret. The status is only pruned,
// because an API server ignores it on create.
func (s *Schema) Admit(object map[string]any) (unknown []string, errs field.ErrorList) {
	track := schema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true}
	unknown = pruning.PruneWithOptions(object, s.structural, true, track)
	defaulting.PruneNonNullableNullsWithoutDefaults(object, s.structural)
	status, hasStatus := object["status"]
	delete(object, "status")
	defaulting.Default(object, s.structural)
	delete(object, "status")
	errs = s.validate(object)
	if hasStatus {
		object["status"] = status
	}
	for _, e := range errs {
		redact(e)
	}
	slices.SortFunc(errs, func(a, b *field.Error) int { // the validators iterate over maps, in random order
		return cmp.Or(cmp.Compare(a.Field, b.Field), cmp.Compare(a.Detail, b.Detail))
	})
	return unknown, errs
}

// validate runs the checks that the API server runs when it creates a custom resource, in the same order.
func (s *Schema) validate(object map[string]any) field.ErrorList {
	errs := validation.ValidateCustomResource(nil, object, s.values)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, s.structural, object)...)
	if slices.ContainsFunc(errs, blocksRules) {
		return errs
	}
	broken, _ := s.rules.Validate(context.Background(), nil, nil, object, nil, celconfig.RuntimeCELCostBudget)
	for _, e := range broken {
		errs = append(errs, s.errorsPerItem(object, e)...)
	}
	return errs
}

// blocksRules reports whether an API server skips the CEL rules of an object with this validation error.
func blocksRules(e *field.Error) bool {
	switch e.Type {
	case field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany,
		field.ErrorTypeTypeInvalid:
		return true
	}
	return false
}

// errorsPerItem makes the validation error of a list rule such as `self.all(item, …)` more precise, because its path is
// the path of the whole list. Each item is checked as the only item of the list. The error is replaced by one error for
// each item that violates the rule in this way. If there is no such item, the error stays unchanged.
func (s *Schema) errorsPerItem(object map[string]any, e *field.Error) (errs field.ErrorList) {
	rules, items := s.listAt(object, e.Field)
	for i, item := range items {
		alone, _ := rules.Validate(context.Background(), field.NewPath(e.Field), nil, []any{item}, nil,
			celconfig.RuntimeCELCostBudget)
		if slices.ContainsFunc(alone, func(a *field.Error) bool { return a.Field == e.Field && a.Detail == e.Detail }) {
			located := *e
			located.Field = fmt.Sprintf("%s[%d]", e.Field, i)
			errs = append(errs, &located)
		}
	}
	if len(errs) == 0 {
		return field.ErrorList{e}
	}
	return errs
}

// listAt returns the list at a path in an object, and the CEL rules of its schema. It returns nil if there is no list,
// or if the path has keys that are not in the schema.
func (s *Schema) listAt(object map[string]any, path string) (*cel.Validator, []any) {
	rules, value := s.rules, any(object)
	for _, step := range strings.FieldsFunc(path, func(r rune) bool { return strings.ContainsRune(".[]", r) }) {
		switch v := value.(type) {
		case map[string]any:
			property, ok := rules.Properties[step]
			if !ok {
				return nil, nil
			}
			rules, value = &property, v[step]
		case []any:
			i, err := strconv.Atoi(step)
			if err != nil || i >= len(v) || rules.Items == nil {
				return nil, nil
			}
			rules, value = rules.Items, v[i]
		}
	}
	items, _ := value.([]any)
	return rules, items
}

// wrongTypeMessage matches the message of kube-openapi about a value of a wrong type, up to the name of the expected
// type. If a string format is expected, the message continues with the value, which must not be shown.
var wrongTypeMessage = regexp.MustCompile(`^(?:.*? in body )?must be of type ([a-z0-9,-]+)`)

// pathMessage matches those messages of kube-openapi that contain the path of the field. Such errors do not have the
// path in Field.
var pathMessage = regexp.MustCompile(`^"([^"]*)" (must validate .*)$|^Checked value (must be .*) in (\S+)$`)

// redact removes the value of the field from an error, including copies of the value in its message.
func redact(e *field.Error) {
	if m := pathMessage.FindStringSubmatch(e.Detail); m != nil {
		e.Field, e.Detail = m[1]+m[4], m[2]+m[3]
	}
	e.BadValue = field.OmitValueType{}
	e.Detail = strings.TrimPrefix(e.Detail, e.Field+" in body ")
	if _, rule, cut := strings.Cut(e.Detail, " evaluating rule: "); cut {
		e.Detail = "cannot evaluate rule: " + rule
	}
	if name := WantedType(e); name != "" {
		e.Detail = "must be of type " + name
	}
}

// WantedType returns the JSON Schema type that the value of a field must have, or "" if the error is not about a wrong
// type.
func WantedType(e *field.Error) string {
	if m := wrongTypeMessage.FindStringSubmatch(e.Detail); e.Type == field.ErrorTypeTypeInvalid && m != nil {
		return m[1]
	}
	return ""
}
