// Package report prints the results of a diagnosis as text.
package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/diagnose"
)

// Style is how a report is printed.
type Style struct {
	// Width is the number of columns; 0 means DefaultWidth.
	Width int
	// Color selects the colours of a terminal.
	Color bool
	// ASCII makes marks use only ASCII characters.
	ASCII bool
	// Steps prints the steps of every Gateway, and not only one line for each Gateway.
	Steps bool
}

// Widths of a report. Longer lines are hard to read.
const (
	DefaultWidth = 80
	maxWidth     = 100
	minWidth     = 40
)

// UTF8 reports whether the locale of the environment uses UTF-8.
func UTF8(getenv func(string) string) bool {
	locale := strings.ToLower(cmp.Or(getenv("LC_ALL"), getenv("LC_CTYPE"), getenv("LANG")))
	return strings.Contains(locale, "utf-8") || strings.Contains(locale, "utf8")
}

// Colours, as parameters of the escape sequence SGR.
const (
	bold   = "1"
	faint  = "2"
	red    = "31"
	green  = "32"
	yellow = "33"
)

// mark is how a state is shown.
type mark struct{ text, ascii, color string }

var marks = map[diagnose.State]mark{
	diagnose.OK:      {"✓", "ok", green},
	diagnose.Noted:   {"✓", "ok", green},
	diagnose.Warned:  {"!", "!", yellow},
	diagnose.Failed:  {"✗", "x", red},
	diagnose.Skipped: {"·", "-", faint},
}

var severities = map[diagnose.Severity]string{
	diagnose.Error: red, diagnose.Warning: yellow, diagnose.Info: faint,
}

// printer prints to a buffer.
type printer struct {
	Style
	strings.Builder
}

// Print prints reports: the steps, and then all findings.
func Print(w io.Writer, reports []diagnose.Report, style Style) error {
	p := &printer{Style: style}
	p.Width = max(min(cmp.Or(p.Width, DefaultWidth), maxWidth), minWidth)
	for i, r := range reports {
		if style.Steps || i == 0 || len(reports) == 1 {
			if i > 0 {
				p.WriteString("\n")
			}
			p.steps(r)
			continue
		}
		if i == 1 {
			p.WriteString("\n" + p.in(bold, "Gateways") + "\n")
		}
		p.summary(r)
	}
	findings := diagnose.All(reports)
	for _, f := range findings {
		p.finding(f)
	}
	p.WriteString("\n" + p.verdict(reports, findings) + "\n")
	text := p.String()
	if p.ASCII {
		text = strings.ReplaceAll(text, "…", "...")
	}
	_, err := io.WriteString(w, text)
	return err
}

func (p *printer) in(color, text string) string {
	if !p.Color || text == "" || color == "" {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

func (p *printer) mark(s diagnose.State) string {
	m := marks[s]
	text, width := m.text, 1
	if p.ASCII {
		text, width = m.ascii, 2
	}
	return p.in(m.color, text) + strings.Repeat(" ", width-utf8.RuneCountInString(text))
}

// nameWidth is the width of the names of stages.
const nameWidth = 12

func (p *printer) steps(r diagnose.Report) {
	if r.Subject != "" {
		p.WriteString(p.in(bold, r.Subject) + "\n")
	}
	var skipped []string
	for _, step := range r.Steps {
		if step.State == diagnose.Skipped && step.Fact == "" {
			skipped = append(skipped, step.Stage)
			continue
		}
		p.line(step.State, step.Stage, step.Fact, "")
	}
	if len(skipped) > 0 {
		p.line(diagnose.Skipped, "not checked", strings.Join(skipped, ", "), faint)
	}
}

// line prints a mark, a name and a text, which continues on further lines.
func (p *printer) line(s diagnose.State, name, text, color string) {
	start := fmt.Sprintf(" %s %s", p.mark(s), p.in(color, fmt.Sprintf("%-*s", nameWidth, name)))
	indent := 3 + nameWidth
	if p.ASCII {
		indent++
	}
	for i, part := range wrap(text, p.Width-indent-1) {
		if i > 0 {
			start = strings.Repeat(" ", indent)
		}
		p.WriteString(strings.TrimRight(start+" "+p.in(color, part), " ") + "\n")
	}
}

// summary prints one line for a Gateway.
func (p *printer) summary(r diagnose.Report) {
	state, facts := diagnose.OK, []string{}
	for _, step := range r.Steps {
		if slices.Index(order, step.State) > slices.Index(order, state) {
			state = step.State
		}
		if slices.Contains([]string{"pods", "config"}, step.Stage) && step.Fact != "" {
			facts = append(facts, step.Fact)
		}
		if step.State == diagnose.Failed {
			facts = append(facts, step.Stage+" failed")
		}
	}
	name := strings.TrimPrefix(r.Subject, "Gateway ")
	fmt.Fprintf(p, " %s %s\n", p.mark(state), clip(fmt.Sprintf("%-24s %s", name, strings.Join(facts, "; ")), p.Width-4))
}

// order is the order of states by severity.
var order = []diagnose.State{diagnose.Skipped, diagnose.OK, diagnose.Noted, diagnose.Warned, diagnose.Failed}

func (p *printer) finding(f diagnose.Finding) {
	fmt.Fprintf(
		p,
		"\n%s  %s\n",
		p.in(severities[f.Severity]+";1", strings.ToUpper(string(f.Severity))),
		p.in(bold, f.Object),
	)
	for _, row := range []struct{ name, text string }{
		{"Field", f.Field}, {"Problem", f.Problem}, {"Remedy", f.Remedy}, {"Run", f.Command},
	} {
		if row.text == "" {
			continue
		}
		lines := wrap(row.text, p.Width-12)
		if row.name == "Run" {
			lines = []string{row.text} // not wrapped, so that it can be copied
		}
		for i, line := range lines {
			name := row.name
			if i > 0 {
				name = ""
			}
			fmt.Fprintf(p, "  %s %s\n", p.in(faint, fmt.Sprintf("%-8s", name)), line)
		}
	}
}

// verdict is the last line of a report.
func (p *printer) verdict(reports []diagnose.Report, findings []diagnose.Finding) string {
	numbers := map[diagnose.Severity]int{}
	for _, f := range findings {
		numbers[f.Severity]++
	}
	if numbers[diagnose.Error]+numbers[diagnose.Warning] == 0 {
		if slices.ContainsFunc(reports, incomplete) {
			return p.in(yellow, "No problem found in what was checked.")
		}
		return p.in(green, "No problem found.")
	}
	var parts []string
	for _, s := range []diagnose.Severity{diagnose.Error, diagnose.Warning, diagnose.Info} {
		if n := numbers[s]; n == 1 {
			parts = append(parts, "1 "+string(s))
		} else if n > 1 {
			parts = append(parts, fmt.Sprintf("%d %ss", n, s))
		}
	}
	return strings.Join(parts, ", ")
}

// incomplete reports whether a stage was not checked.
func incomplete(r diagnose.Report) bool {
	return slices.ContainsFunc(r.Steps, func(s diagnose.Step) bool { return s.State == diagnose.Skipped })
}

// wrap breaks a text at spaces into lines of at most width characters. A longer word has a line of its own.
func wrap(text string, width int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			lines, line = append(lines, line), ""
		}
		line = strings.TrimSpace(line + " " + word)
	}
	return append(lines, line)
}

// clip shortens a text to a number of characters.
func clip(text string, width int) string {
	runes := []rune(strings.TrimSpace(text))
	if len(runes) <= width {
		return string(runes)
	}
	return string(runes[:width-3]) + "..."
}
