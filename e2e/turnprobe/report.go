package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/stunner-gateway/stunner/e2e/turnprobe/internal/probe"
)

// signs show the verdicts.
var signs = map[probe.Verdict]string{probe.Pass: "✔", probe.Fail: "✘", probe.Skipped: "–", probe.NotApplicable: "·"}

// writeTable prints a line for each check, the reason of a failure below it, and the totals.
func writeTable(w io.Writer, target probe.Target, results []probe.Result) error {
	ids, sections := 0, 0
	for _, r := range results {
		ids, sections = max(ids, utf8.RuneCountInString(r.ID)), max(sections, utf8.RuneCountInString(r.RFC))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s over %s\n\n", target.Server, target.Transport)
	for _, r := range results {
		fmt.Fprintf(&b, "%s %s  %s  %s\n", signs[r.Verdict], padded(r.ID, ids), padded(r.RFC, sections), r.Says)
		if r.Reason != "" {
			fmt.Fprintf(&b, "  %s  %s  └ %s: %s\n", padded("", ids), padded("", sections), r.Verdict, r.Reason)
		}
	}
	fmt.Fprintf(&b, "\n%s\n", summary(results))
	_, err := io.WriteString(w, b.String())
	return err
}

// summary returns the number of checks of each verdict.
func summary(results []probe.Result) string {
	var parts []string
	count := probe.Count(results)
	for _, v := range probe.Verdicts {
		parts = append(parts, fmt.Sprintf("%d %s", count[v], v))
	}
	return fmt.Sprintf("%d checks: %s", len(results), strings.Join(parts, ", "))
}

// padded pads a string to a width in characters.
func padded(s string, width int) string {
	return s + strings.Repeat(" ", width-utf8.RuneCountInString(s))
}

// report is the JSON form of a run.
type report struct {
	Server    string                `json:"server"`
	Transport probe.Transport       `json:"transport"`
	Counts    map[probe.Verdict]int `json:"counts"`
	Checks    []checked             `json:"checks"`
}

type checked struct {
	ID      string        `json:"id"`
	RFC     string        `json:"rfc"`
	Says    string        `json:"says"`
	Verdict probe.Verdict `json:"verdict"`
	Reason  string        `json:"reason,omitempty"`
	Seconds float64       `json:"seconds"`
}

func writeJSON(w io.Writer, target probe.Target, results []probe.Result) error {
	out := report{Server: target.Server.String(), Transport: target.Transport, Counts: probe.Count(results)}
	for _, r := range results {
		out.Checks = append(
			out.Checks, checked{r.ID, r.RFC, r.Says, r.Verdict, r.Reason, r.Took.Round(time.Microsecond).Seconds()},
		)
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(out)
}
