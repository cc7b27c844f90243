package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/diagnose"
	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/manifests"
)

// severityColors are the colours of the findings of manifests.
var severityColors = map[manifests.Severity]string{
	manifests.Error: red, manifests.Warning: yellow, manifests.Remark: faint,
}

// PrintFindings prints the findings of manifests, and their number. Objects of kinds that STUNner does not read are
// counted in one line.
func PrintFindings(w io.Writer, findings []manifests.Finding, style Style) error {
	p := &printer{Style: style}
	p.Width = max(min(cmp.Or(p.Width, DefaultWidth), maxWidth), minWidth)
	numbers, notRead := map[manifests.Severity]int{}, map[string]int{}
	for _, f := range findings {
		if f.NotRead {
			kind, _, _ := strings.Cut(f.Object, " ")
			notRead[kind]++
			continue
		}
		numbers[f.Severity]++
		p.manifest(f)
	}
	if len(notRead) > 0 {
		p.notRead(notRead)
	}
	var parts []string
	for _, s := range manifests.Severities {
		if n := numbers[s]; n == 1 {
			parts = append(parts, "1 "+string(s))
		} else if n > 1 {
			parts = append(parts, fmt.Sprintf("%d %ss", n, s))
		}
	}
	verdict := strings.Join(parts, ", ")
	switch {
	case len(parts) == 0:
		verdict = p.in(green, "No problem found.")
	case numbers[manifests.Error] == 0:
		verdict = p.in(green, "Everything would be in force") + ": " + verdict
	default:
		verdict = p.in(red, "Not everything would be in force") + ": " + verdict
	}
	p.WriteString(verdict + "\n")
	_, err := io.WriteString(w, p.String())
	return err
}

// manifest prints a finding: severity, place and object, and below them the problem.
func (p *printer) manifest(f manifests.Finding) {
	fmt.Fprintf(p, "%s  %s  %s\n", p.in(severityColors[f.Severity]+";1", fmt.Sprintf("%-7s", strings.ToUpper(string(f.Severity)))),
		p.in(bold, fmt.Sprintf("%s:%d", diagnose.Clean(f.File), f.Line)), diagnose.Clean(f.Object))
	for _, row := range []struct{ name, text string }{{"Field", f.Field}, {"Problem", f.Problem}, {"Remedy", f.Remedy}} {
		if row.text == "" {
			continue
		}
		name := row.name
		for _, line := range wrap(diagnose.Clean(row.text), p.Width-12) {
			fmt.Fprintf(p, "  %s %s\n", p.in(faint, fmt.Sprintf("%-8s", name)), line)
			name = ""
		}
	}
	p.WriteString("\n")
}

// notRead prints how many objects of kinds that STUNner does not read there are.
func (p *printer) notRead(kinds map[string]int) {
	sum, names := 0, []string{}
	for kind, n := range kinds {
		sum += n
		names = append(names, kind)
	}
	slices.Sort(names)
	objects := "1 object"
	if sum > 1 {
		objects = fmt.Sprintf("%d objects", sum)
	}
	for _, line := range wrap(objects+" of kinds that STUNner does not read: "+strings.Join(names, ", "), p.Width) {
		p.WriteString(p.in(faint, line) + "\n")
	}
	p.WriteString("\n")
}
