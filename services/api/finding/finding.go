// Package finding defines findings: problems of objects, with their remedies. The operator makes them and shows them in
// conditions, in files and in its inspection API; stunnerctl shows the findings of the operator and its own.
package finding

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Severity is how serious a finding is.
type Severity string

// The severities. Calls fail because of an error, and may fail because of a warning. An info is not a problem.
const (
	Error   Severity = "error"
	Warning Severity = "warning"
	Info    Severity = "info"
)

// Finding is a problem of an object.
type Finding struct {
	Severity Severity `json:"severity"`
	// Object is "KIND NAMESPACE/NAME", "KIND NAME" for an object without a namespace, or FILE:LINE of a document.
	Object string `json:"object"`
	// Field is the path of the field of Object that the problem is about. It is empty for the whole object.
	Field string `json:"field,omitempty"`
	// DependsOn is another object, in the form of Object. It does not exist, or does not permit the reference in Field.
	DependsOn string `json:"dependsOn,omitempty"`
	Problem   string `json:"problem"`
	Remedy    string `json:"remedy,omitempty"`
	// Since is the time since which the problem exists. It is zero if that is unknown.
	Since time.Time `json:"since,omitzero"`
	// Evidence is the source of the finding, such as the condition of an object.
	Evidence string `json:"evidence,omitempty"`
}

// problemError is an error that contains a remedy.
type problemError struct{ problem, remedy string }

// Errorf returns an error with a remedy. Its text is "PROBLEM: REMEDY".
func Errorf(remedy, format string, args ...any) error {
	return &problemError{problem: fmt.Sprintf(format, args...), remedy: remedy}
}

func (e *problemError) Error() string { return e.problem + ": " + e.remedy }

// Split returns the text of an error without the remedy, and the remedy. The remedy is empty if neither the error nor
// an error that it wraps at the end of its text was made by Errorf.
func Split(err error) (problem, remedy string) {
	text := err.Error()
	if e := (*problemError)(nil); errors.As(err, &e) {
		if problem, ok := strings.CutSuffix(text, ": "+e.remedy); ok {
			return problem, e.remedy
		}
	}
	return text, ""
}
