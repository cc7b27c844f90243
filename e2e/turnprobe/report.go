package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/stunner-gateway/stunner/e2e/turnprobe/internal/probe"
)

// look is how a verdict is printed: a sign, and a colour for terminals.
type look struct{ sign, colour string }

var looks = map[probe.Verdict]look{
	probe.Pass:          {"✔", "\x1b[32m"},
	probe.Fail:          {"✘", "\x1b[31m"},
	probe.Skipped:       {"–", "\x1b[33m"},
	probe.NotApplicable: {"·", faint},
}

const (
	plain = "\x1b[0m"
	faint = "\x1b[2m"
)

// writeTable prints a line for each check, the reason of a failure below it, and the totals.
func writeTable(w io.Writer, target probe.Target, results []probe.Result) error {
	p := &painter{w: w, colours: isTerminal(w) && os.Getenv("NO_COLOR") == ""}
	ids, sections := 0, 0
	for _, r := range results {
		ids, sections = max(ids, utf8.RuneCountInString(r.ID)), max(sections, utf8.RuneCountInString(r.RFC))
	}
	p.printf("%s over %s\n\n", target.Server, target.Transport)
	for _, r := range results {
		l := looks[r.Verdict]
		p.paint(l.colour, "%s", l.sign)
		p.printf(" %s  ", padded(r.ID, ids))
		p.paint(faint, "%s", padded(r.RFC, sections))
		p.printf("  %s\n", r.Says)
		if r.Reason != "" {
			p.printf("  %s  %s  └ ", padded("", ids), padded("", sections))
			p.paint(l.colour, "%s: %s", r.Verdict, r.Reason)
			p.printf("\n")
		}
	}
	count := probe.Count(results)
	p.printf("\n%d checks: ", len(results))
	for i, v := range probe.Verdicts {
		p.printf("%s", strings.Repeat(", ", min(i, 1)))
		p.paint(looks[v].colour, "%d %s", count[v], v)
	}
	p.printf("\n")
	return p.err
}

// padded pads a string to a width in characters.
func padded(s string, width int) string {
	return s + strings.Repeat(" ", width-utf8.RuneCountInString(s))
}

// painter prints with or without colours, and records the first error.
type painter struct {
	w       io.Writer
	colours bool
	err     error
}

func (p *painter) printf(format string, args ...any) {
	_, err := fmt.Fprintf(p.w, format, args...)
	p.err = cmp.Or(p.err, err)
}

func (p *painter) paint(colour, format string, args ...any) {
	if p.colours {
		format = colour + format + plain
	}
	p.printf(format, args...)
}

// isTerminal reports whether the output is a terminal.
func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
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

// progress prints the number of finished checks on a terminal.
type progress struct {
	w     io.Writer
	shown bool
	n     int
}

func progressOn(w io.Writer) *progress { return &progress{w: w, shown: isTerminal(w)} }

func (p *progress) done(probe.Result) {
	if p.n++; p.shown {
		fmt.Fprintf(p.w, "\r%d checks done", p.n)
	}
}

func (p *progress) clear() {
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
