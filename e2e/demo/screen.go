package main

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// screen prints the progress for the user: one line per step, then the verdict.
type screen struct {
	out    io.Writer
	colour bool
}

// newScreen returns a screen that uses colours on a terminal, unless NO_COLOR is set (no-color.org).
func newScreen(out *os.File, getenv func(string) string) *screen {
	info, err := out.Stat()
	terminal := err == nil && info.Mode()&os.ModeCharDevice != 0
	return &screen{out: out, colour: terminal && getenv("NO_COLOR") == "" && getenv("TERM") != "dumb"}
}

// style is a set of ANSI attributes.
type style string

const (
	bold  style = "1"
	dim   style = "2"
	red   style = "31"
	green style = "32"
	cyan  style = "36"
)

func (s *screen) paint(text string, as style) string {
	if !s.colour || text == "" {
		return text
	}
	return "\x1b[" + string(as) + "m" + text + "\x1b[0m"
}

const column = 14 // width of the first word of a line

func pad(label string) string { return fmt.Sprintf("%-*s", column, label) }

func (s *screen) title(name, explanation string) {
	fmt.Fprintf(s.out, "\n%s — %s\n\n", s.paint(name, bold), explanation)
}

// success prints a completed step with its result.
func (s *screen) success(step, result string) {
	fmt.Fprintf(s.out, "  %s %s %s\n", s.paint("✓", green), pad(step), result)
}

// failure prints a failed step with its cause, a hint and the last lines of the log.
func (s *screen) failure(step string, cause error, hint string, tail []string) {
	fmt.Fprintf(s.out, "  %s %s %s\n", s.paint("✗", red), pad(step), indent(cause.Error()))
	for _, line := range tail {
		fmt.Fprintf(s.out, "    %s\n", s.paint("│ "+line, dim))
	}
	if hint != "" {
		fmt.Fprintf(s.out, "    %s\n", s.paint("→ "+hint, cyan))
	}
}

// note prints an additional line.
func (s *screen) note(label, text string) {
	fmt.Fprintln(s.out, strings.TrimRight("    "+s.paint(pad(label), dim)+" "+text, " "))
}

// result prints a line of the verdict.
func (s *screen) result(label, text string, as style) {
	fmt.Fprintf(s.out, "%s %s\n", s.paint(pad(label), bold), s.paint(text, as))
}

func (s *screen) gap() { fmt.Fprintln(s.out) }

// indent aligns the further lines of a text with the first line.
func indent(text string) string {
	return strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n"+strings.Repeat(" ", column+5))
}
