package manifests

import (
	"cmp"
	"slices"
	"strings"

	"github.com/stunner-gateway/stunner/services/operator/render"
)

// Version is the version of the JSON output of lint. docs/lint.schema.json is its JSON schema.
const Version = "v1"

// Severity is how serious a finding is.
type Severity string

// The severities. An error is about a part that would not be in force. A warning is about an outdated or unsafe
// setting, and a remark about input that has no effect or that cannot be checked.
const (
	Error   Severity = "error"
	Warning Severity = "warning"
	Remark  Severity = "remark"
)

// Severities are all severities, the most serious first.
var Severities = []Severity{Error, Warning, Remark}

// AtLeast reports whether a severity is at least as serious as the given severity.
func (s Severity) AtLeast(other Severity) bool {
	return slices.Index(Severities, s) <= slices.Index(Severities, other)
}

// Finding is a problem of manifests, with its place and its remedy.
type Finding struct {
	Severity Severity `json:"severity"`
	File     string   `json:"file"`
	Line     int      `json:"line"`
	// Object is "KIND NAMESPACE/NAME"; empty for a text that is not an object.
	Object string `json:"object,omitempty"`
	// Field is the path of a field of Object; empty for the object as a whole.
	Field   string `json:"field,omitempty"`
	Problem string `json:"problem"`
	Remedy  string `json:"remedy,omitempty"`
	// Quotable is set if lint --fix can apply the remedy, which is to add quotes.
	Quotable *render.Span `json:"-"`
	// NotRead means that the finding only reports an object of a kind that STUNner does not read.
	NotRead bool `json:"-"`
}

// Findings returns the findings of the files, the most serious first, and within a severity by file and line.
func Findings(problems []render.Problem) []Finding {
	findings := make([]Finding, 0, len(problems))
	for _, p := range problems {
		findings = append(findings, finding(p))
	}
	Sort(findings)
	return findings
}

// Sort orders findings, the most serious first, and within a severity by file and line.
func Sort(findings []Finding) {
	slices.SortStableFunc(findings, func(a, b Finding) int {
		return cmp.Or(
			cmp.Compare(slices.Index(Severities, a.Severity), slices.Index(Severities, b.Severity)),
			cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line),
		)
	})
}

var severities = map[render.Severity]Severity{render.Error: Error, render.Warning: Warning, render.Info: Remark}

func finding(p render.Problem) Finding {
	f := Finding{
		Severity: severities[p.Severity], File: p.File, Line: p.Line, Field: p.Field, Quotable: p.Unquoted,
		NotRead: p.IsNotRead(),
		Object:  strings.TrimSpace(p.Kind + " " + strings.TrimPrefix(p.Namespace+"/"+p.Name, "/")),
	}
	f.Problem, f.Remedy = p.Cause(), p.Remedy
	switch {
	case f.Remedy != "" || f.Severity != Error:
	case f.Problem == "Required value":
		f.Problem, f.Remedy = "is missing", "set it"
	default:
		f.Remedy = "correct " + cmp.Or(f.Field, "the document")
	}
	return f
}
