package rest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"reflect"
	"slices"
	"strings"

	strict "sigs.k8s.io/json"
)

// form describes the body of the requests to a path: its fields, the fields of its gateways, and the fields of its
// scope, if it has a scope.
type form struct {
	fields, gateways, scope []string
	// newBody returns a pointer to an empty body.
	newBody func() any
}

// forms are the bodies whose fields are checked, by path.
var forms = map[string]form{
	createPath: {
		fieldsOf(reflect.TypeFor[IceServersRequest]()), fieldsOf(reflect.TypeFor[GatewayRef]()),
		fieldsOf(reflect.TypeFor[CredentialScope]()), func() any { return new(IceServersRequest) },
	},
	revocationsPath: {
		fieldsOf(reflect.TypeFor[RevocationRequest]()), fieldsOf(reflect.TypeFor[GatewayName]()),
		nil, func() any { return new(RevocationRequest) },
	},
}

func fieldsOf(t reflect.Type) (names []string) {
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// checkFields refuses a body with a field that is repeated, that openapi/auth.yaml does not define, or
// that is null. The generated binding would ignore the case of names, unknown fields and null, so that a request with a
// mistyped name would get the credentials of all gateways. A body that cannot be parsed is not refused here: the
// binding reports the error.
func (fm form) checkFields(body []byte) *failure {
	if len(body) == 0 {
		return nil
	}
	if f := fm.checkNull(body); f != nil {
		return f
	}
	found, err := strict.UnmarshalStrict(body, fm.newBody(), strict.DisallowDuplicateFields, strict.DisallowUnknownFields)
	if err != nil {
		return nil
	}
	for _, each := range found {
		var field strict.FieldError
		if !errors.As(each, &field) {
			continue
		}
		if strings.HasPrefix(field.Error(), "duplicate field") {
			return refuse(parameterRepeated, field.FieldPath(), doubled)
		}
		return fm.unknownField(field.FieldPath())
	}
	return nil
}

// null is the value null of JSON.
var null = []byte("null")

// checkNull refuses a field that is null. A client that does not set a value must leave the field out, because null may
// result from a failed computation.
func (fm form) checkNull(body []byte) *failure {
	const message = "is null: leave it out"
	var all map[string]json.RawMessage
	if json.Unmarshal(body, &all) != nil {
		return nil
	}
	if all == nil {
		return bad("body", "is null: leave it out, or send an object")
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if bytes.Equal(all[name], null) {
			if !slices.Contains(fm.fields, name) {
				return fm.unknownField(name)
			}
			return bad(name, message)
		}
	}
	var scope map[string]json.RawMessage
	if json.Unmarshal(all["scope"], &scope) == nil {
		for _, name := range slices.Sorted(maps.Keys(scope)) {
			if bytes.Equal(scope[name], null) && slices.Contains(fm.scope, name) {
				return bad("scope."+name, message)
			}
		}
	}
	var gateways []map[string]json.RawMessage
	if json.Unmarshal(all["gateways"], &gateways) != nil {
		return nil
	}
	for i, one := range gateways {
		at := fmt.Sprintf("gateways[%d]", i)
		if one == nil {
			return bad(at, "must be an object")
		}
		for _, name := range slices.Sorted(maps.Keys(one)) {
			if bytes.Equal(one[name], null) && slices.Contains(fm.gateways, name) {
				return bad(at+"."+name, message)
			}
		}
	}
	return nil
}

func (fm form) unknownField(path string) *failure {
	known, name := fm.fields, path
	switch at, inner, ok := strings.Cut(path, "."); {
	case ok && strings.HasPrefix(at, "gateways["):
		known, name = fm.gateways, inner
	case ok && at == "scope" && fm.scope != nil:
		known, name = fm.scope, inner
	}
	return refuse(parameterUnknown, path, unknown(name, known))
}

// bodyFields returns the fields in the body of the requests to a path; nil if its parameters are in the query.
func bodyFields(path string) []string {
	switch {
	case forms[path].fields != nil:
		return forms[path].fields
	case strings.HasPrefix(path, cloudflarePath):
		return fieldsOf(reflect.TypeFor[CloudflareRequest]())
	case strings.HasPrefix(path, twilioPath):
		return fieldsOf(reflect.TypeFor[TwilioRequest]())
	}
	return nil
}

// unknownParameter refuses a query with parameters, for a path that has none.
func unknownParameter(query url.Values, fields []string) *failure {
	for _, name := range slices.Sorted(maps.Keys(query)) {
		return refuse(parameterUnknown, name,
			"is unknown: the path has no query parameters. The body has the fields "+strings.Join(fields, ", "))
	}
	return nil
}

// unknown returns the message about an unknown name. It contains a similar known name, and all known names.
func unknown(name string, known []string) string {
	all := strings.Join(known, ", ")
	known = slices.SortedStableFunc(slices.Values(known), func(a, b string) int {
		return distance(name, a) - distance(name, b)
	})
	for _, field := range known {
		if len(name) > 2 && strings.HasPrefix(field, strings.ToLower(name)) || distance(name, field) <= 1+len(field)/4 {
			return fmt.Sprintf("is unknown: did you mean %s? The fields are %s", field, all)
		}
	}
	return "is unknown: the fields are " + all
}

// distance is the number of characters to insert, delete or replace to make b from a, regardless of case (Levenshtein).
// If a is longer than maxShown bytes, the result is an upper bound.
func distance(a, b string) int {
	if len(a) > maxShown {
		return len(a)
	}
	a, b = strings.ToLower(a), strings.ToLower(b)
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, diagonal+1, row[j]+1)
		}
	}
	return row[len(b)]
}
