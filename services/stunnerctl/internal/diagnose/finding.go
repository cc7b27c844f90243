// Package diagnose finds the cause of a Gateway that does not work.
//
// It is pure: a Snapshot contains the objects of a cluster or a folder, the answers of the operator and of the running
// pods, and the clocks. The rules are a table in the order in which a call passes the parts of a Gateway, from the
// public address to the peer. The operator serves the findings behind its conditions, and their texts are used
// unchanged. A rule has a separate text only for a problem that the operator cannot detect.
//
// # Files
//
//	rules.go        the tables of stages
//	stage*.go       the rules of one stage, or of a group
//	stagenetwork.go the NetworkPolicies of the pods and of their backends
//	stagerights.go  missing rights
//	clock.go        the clocks, and the rules on them
//	events.go       events of objects, and patterns of their texts
//	gateway.go      a Gateway with its objects and answers
//	finding.go      findings, their severities and order
//	conditions.go   conditions of the operator as findings
//	snapshot.go     the input, which package collect reads
//	probe.go        the part of the input that package probe reads
//	testdata        one fixture a fault; with a real API server: e2e/diagnose
package diagnose

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/stunner-gateway/stunner/services/api/finding"
)

// Severity is how serious a finding is.
type Severity = finding.Severity

// The severities. Calls fail because of an error, and may fail because of a warning. An info is not a problem.
const (
	Error   = finding.Error
	Warning = finding.Warning
	Info    = finding.Info
)

// rank is the order of severities in a report.
func rank(s Severity) int { return slices.Index([]Severity{Error, Warning, Info}, s) }

// Finding is the result of a rule: a problem, and its remedy.
type Finding struct {
	Severity Severity `json:"severity"`
	// Stage is the name of the stage whose rule found it.
	Stage string `json:"stage"`
	// Object is "KIND NAMESPACE/NAME".
	Object string `json:"object"`
	// Field is the path of a field of Object, or of a condition in its status.
	Field   string `json:"field,omitempty"`
	Problem string `json:"problem"`
	Remedy  string `json:"remedy"`
	// Command is a command line that shows details, or empty.
	Command string `json:"command,omitempty"`
}

// Wrong reports whether a finding is a problem, which excludes infos.
func (f Finding) Wrong() bool { return f.Severity != Info }

// cleaned returns a finding without control characters. Its texts may contain names, events and errors that other users
// or clients wrote. With a file provider there is no cluster, so that commands of kubectl are left out.
func (s *Snapshot) cleaned(f Finding) Finding {
	if s.Folder && strings.HasPrefix(f.Command, "kubectl ") {
		f.Command = ""
	}
	if pod, ok := strings.CutPrefix(f.Object, "Pod "); ok && s.Folder {
		f.Object = "dataplane " + pod
	}
	for _, text := range []*string{&f.Object, &f.Field, &f.Problem, &f.Remedy, &f.Command} {
		*text = Clean(s.inTermsOfProvider(*text))
	}
	return f
}

// escape is an escape sequence of a terminal (ECMA-48, CSI).
var escape = regexp.MustCompile(`\x1b\[[0-?]*[ -/]*[@-~]`)

// Clean returns a text of an object or a pod on one line: every run of white space is one space, and escape sequences
// of terminals and characters that are not printable, such as those that change the text direction, are removed.
func Clean(text string) string {
	text = escape.ReplaceAllString(text, "")
	text = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return -1
		}
		return r
	}, text)
	return strings.Join(strings.Fields(text), " ")
}

// sorted orders findings by severity, and within a severity by the order of the rules. It removes duplicates.
func sorted(findings []Finding) []Finding {
	slices.SortStableFunc(findings, func(a, b Finding) int { return cmp.Compare(rank(a.Severity), rank(b.Severity)) })
	seen := map[Finding]bool{}
	return slices.DeleteFunc(findings, func(f Finding) bool {
		f.Stage = ""
		again := seen[f]
		seen[f] = true
		return again
	})
}
