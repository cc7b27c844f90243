package inspect

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Error is an error answer of the API.
type Error struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// Error implements error.
func (e *Error) Error() string { return e.Message }

func errorf(code int, format string, args ...any) *Error {
	return &Error{code, fmt.Sprintf(format, args...)}
}

// Unauthenticated returns the error for a caller whose token is missing or not valid.
func Unauthenticated(format string, args ...any) *Error {
	return errorf(http.StatusUnauthorized, format, args...)
}

// Forbidden returns the error for a caller without the required right.
func Forbidden(format string, args ...any) *Error {
	return errorf(http.StatusForbidden, format, args...)
}

// localParameter is the parameter of requests between replicas.
const localParameter = "local"

const (
	// maxQuery is the maximum length of a query in bytes.
	maxQuery = 2 << 10
	// maxSessionID is the maximum length of the id of a session in bytes.
	maxSessionID = 128
)

// checkRequest checks the names and parameters of a request, which become part of a SubjectAccessReview and of requests
// to pods. Pods check the values of parameters themselves, because parameters depend on the release.
func checkRequest(r *http.Request) error {
	if namespace := r.PathValue("namespace"); namespace != "" {
		if wrong := validation.IsDNS1123Label(namespace); len(wrong) > 0 {
			return errorf(http.StatusBadRequest, "namespace: %s", wrong[0])
		}
		if wrong := validation.IsDNS1123Subdomain(r.PathValue("name")); len(wrong) > 0 {
			return errorf(http.StatusBadRequest, "name of the Gateway: %s", wrong[0])
		}
	}
	if id := r.PathValue("id"); len(id) > maxSessionID || !printable(id) {
		return errorf(http.StatusBadRequest, "id of the session: use at most %d printable characters", maxSessionID)
	}
	if len(r.URL.RawQuery) > maxQuery {
		return errorf(http.StatusBadRequest, "query: has %d bytes: use at most %d", len(r.URL.RawQuery), maxQuery)
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return errorf(http.StatusBadRequest, "query: %v", err)
	}
	for name, values := range query {
		for _, text := range append(values, name) {
			if !printable(text) {
				return errorf(http.StatusBadRequest, "query parameter %+q: contains characters that are not printable", name)
			}
		}
	}
	return nil
}

func printable(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })
}
