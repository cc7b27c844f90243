package rest

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strconv"
	"time"

	"github.com/stunner-gateway/stunner/services/auth/internal/access"
)

// Limits of a request in bytes. telemetry.Serve limits headers, times and connections.
const (
	maxURL  = 8 << 10
	maxBody = 64 << 10
)

// write sends the failure as the answer to r.
func (f *failure) write(w http.ResponseWriter, r *http.Request) {
	callOf(r.Context()).outcome.failure = f
	p := Problem{
		Type:     "about:blank",
		Title:    http.StatusText(f.Status),
		Status:   f.Status,
		Detail:   f.Text,
		Instance: r.URL.EscapedPath(),
		Reason:   string(f.Reason),
	}
	if len(f.errors) > 0 {
		p.Errors = &f.errors
	}
	if challenge := f.challenge(); challenge != "" {
		w.Header().Set("WWW-Authenticate", challenge)
	}
	temporary := f.Status == http.StatusServiceUnavailable || f.Status == http.StatusTooManyRequests
	if temporary && w.Header().Get("Retry-After") == "" {
		w.Header().Set("Retry-After", strconv.Itoa(int(retryAfter/time.Second)))
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(f.Status)
	_ = json.NewEncoder(w).Encode(p) // fails only if the client has disconnected
}

// failureFor returns the failure to send for an error of the generated code or of a handler. It returns nil for an
// internal error, which the client gets as 500 without details.
func failureFor(err error) *failure {
	var (
		known    *failure
		refused  *access.Refusal
		missing  *RequiredParamError
		format   *InvalidParamFormatError
		mistyped *json.UnmarshalTypeError
		syntax   *json.SyntaxError
	)
	switch {
	case errors.As(err, &known):
		return known
	case errors.As(err, &refused):
		return fail(refused.Reason)
	case errors.As(err, &missing):
		return refuse(parameterMissing, missing.ParamName, "is missing")
	case errors.As(err, &format):
		return refuse(parameterInvalid, format.ParamName, cmp.Or(expected[format.ParamName], "cannot be read"))
	case errors.As(err, &mistyped):
		return refuse(parameterInvalid, cmp.Or(mistyped.Field, "body"), expectedType(mistyped))
	case errors.As(err, &syntax):
		return refuse(bodyUnreadable, "body", fmt.Sprintf("is not JSON from byte %d on", syntax.Offset))
	}
	return nil
}

const notTTL = "must be an integer of at least 1"

// expected maps each query parameter that is not a string to the error text for an invalid value.
var expected = map[string]string{
	"ttl":  notTTL,
	"dtls": "must be true or false",
	"from": notTime, "to": notTime, "limit": notLimit,
}

const notTime = "must be a time such as 2030-01-02T15:04:05Z"

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
