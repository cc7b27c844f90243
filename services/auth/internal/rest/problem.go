package rest

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
)

// Limits of a request in bytes. telemetry.Serve limits headers, times and connections.
const (
	maxURL  = 8 << 10
	maxBody = 64 << 10
)

// failure is an error that is sent to the client as a problem (RFC 9457). Its detail and messages never repeat text of
// the request. Its parameter names may be names of query parameters of the request.
type failure struct {
	status int
	detail string
	errors []ParameterError
}

func (f *failure) Error() string {
	parts := []string{f.detail}
	for _, e := range f.errors {
		parts = append(parts, e.Parameter+": "+e.Message)
	}
	return strings.Join(parts, " ")
}

// refuse returns a failure with a status, about one parameter.
func refuse(status int, parameter, message string) *failure {
	return &failure{status: status, detail: details[status],
		errors: []ParameterError{{Parameter: parameter, Message: message}}}
}

// bad returns a failure with status 400, about one parameter.
func bad(parameter, format string, args ...any) *failure {
	return refuse(http.StatusBadRequest, parameter, fmt.Sprintf(format, args...))
}

func fail(status int) *failure { return &failure{status: status, detail: details[status]} }

// details are the detail texts of problems, by status.
var details = map[int]string{
	http.StatusBadRequest:            "A parameter is invalid.",
	http.StatusUnauthorized:          "This service needs a valid bearer token.",
	http.StatusForbidden:             "The caller is not allowed to make this request.",
	http.StatusNotFound:              "There is no such gateway.",
	http.StatusMethodNotAllowed:      "The path does not support the method.",
	http.StatusRequestEntityTooLarge: fmt.Sprintf("The body is larger than %d bytes.", maxBody),
	http.StatusRequestURITooLong:     fmt.Sprintf("The URL is longer than %d bytes.", maxURL),
	http.StatusUnsupportedMediaType:  "The body must be application/json.",
	http.StatusTooManyRequests:       "Too many requests. The header Retry-After contains the seconds to wait.",
	http.StatusInternalServerError:   "Internal error. The log of the service contains it.",
	http.StatusServiceUnavailable:    "The service has not received a gateway config yet.",
}

// reason returns the detail and the messages, without the names of parameters.
func (f *failure) reason() string {
	parts := []string{f.detail}
	for _, e := range f.errors {
		parts = append(parts, e.Message)
	}
	return strings.Join(parts, " ")
}

// write sends the failure as the answer to r.
func (f *failure) write(w http.ResponseWriter, r *http.Request) {
	if o := outcomeOf(r.Context()); o != nil {
		o.failure = f
	}
	p := Problem{
		Type:     "about:blank",
		Title:    http.StatusText(f.status),
		Status:   f.status,
		Detail:   f.detail,
		Instance: r.URL.EscapedPath(),
	}
	if len(f.errors) > 0 {
		p.Errors = &f.errors
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(f.status)
	_ = json.NewEncoder(w).Encode(p) // fails only if the client has disconnected
}

// failureFor returns the failure to send for an error of the generated code or of a handler. It returns nil for an
// internal error, which the client gets as 500 without details.
func failureFor(err error) *failure {
	var (
		known    *failure
		missing  *RequiredParamError
		format   *InvalidParamFormatError
		mistyped *json.UnmarshalTypeError
		syntax   *json.SyntaxError
	)
	switch {
	case errors.As(err, &known):
		return known
	case errors.As(err, &missing):
		return refuse(http.StatusBadRequest, missing.ParamName, "is missing")
	case errors.As(err, &format):
		return refuse(http.StatusBadRequest, format.ParamName, cmp.Or(expected[format.ParamName], "cannot be read"))
	case errors.As(err, &mistyped):
		return refuse(http.StatusBadRequest, cmp.Or(mistyped.Field, "body"), expectedType(mistyped))
	case errors.As(err, &syntax):
		return refuse(http.StatusBadRequest, "body", fmt.Sprintf("is not JSON from byte %d on", syntax.Offset))
	}
	return nil
}

const notTTL = "must be an integer of at least 1"

// expected maps each query parameter that is not a string to the error text for an invalid value.
var expected = map[string]string{
	"ttl":  notTTL,
	"dtls": "must be true or false",
}

// jsonTypes maps kinds of Go values to the names of JSON types.
var jsonTypes = map[reflect.Kind]string{
	reflect.Bool:   "a boolean",
	reflect.String: "a string",
	reflect.Slice:  "an array",
	reflect.Struct: "an object",
}

func expectedType(e *json.UnmarshalTypeError) string {
	if e.Field == "ttl" {
		return notTTL
	}
	return "must be " + cmp.Or(jsonTypes[e.Type.Kind()], "of another type")
}
