// Package output prints the results of commands: as a table, or as JSON, YAML or a JSONPath expression of the same
// value. Texts that processes of a cluster wrote never reach a terminal with control characters.
//
// # Files
//
//	output.go  formats, control characters
//	table.go   tables, colours, width
//	units.go   ages and sizes
package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf16"

	"golang.org/x/term"
	kubejson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/yaml"
)

// Formats of the flag -o.
const (
	FormatTable    = "table"
	FormatWide     = "wide"
	FormatJSON     = "json"
	FormatYAML     = "yaml"
	formatJSONPath = "jsonpath="
	// formatSummary is the name of the table in the existing system.
	formatSummary = "summary"
)

// Formats lists the values of the flag -o for help texts.
const Formats = "table, wide, json, yaml or jsonpath=TEMPLATE"

// Printer prints to one writer in one format.
type Printer struct {
	// Out is the writer, usually the standard output.
	Out io.Writer
	// Color is set if the states in tables are coloured.
	Color bool
	// Width is the number of columns of the terminal; 0 means that lines may have any length.
	Width int
	// NoHeaders leaves the headers of tables out.
	NoHeaders bool

	format string
	path   *jsonpath.JSONPath
}

// New returns a printer. An empty format is FormatTable. States are coloured if out is a terminal, unless noColor or
// the environment (NO_COLOR, TERM=dumb) forbids it.
func New(out io.Writer, format string, noColor bool) (*Printer, error) {
	p := &Printer{Out: out, format: format}
	switch template, isPath := strings.CutPrefix(format, formatJSONPath); {
	case format == "" || format == formatSummary:
		p.format = FormatTable
	case isPath:
		p.path = jsonpath.New("out").AllowMissingKeys(true)
		if err := p.path.Parse(template); err != nil {
			return nil, fmt.Errorf("-o %s: %w: use a template as in kubectl, such as {.items[*].pod}", format, err)
		}
	case format != FormatTable && format != FormatWide && format != FormatJSON && format != FormatYAML:
		return nil, fmt.Errorf("-o %s: use %s", format, Formats)
	}
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.Color = !noColor && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
		if width, _, err := term.GetSize(int(f.Fd())); err == nil {
			p.Width = width
		}
	}
	return p, nil
}

// IsTable reports whether the printer prints tables.
func (p *Printer) IsTable() bool { return p.format == FormatTable || p.format == FormatWide }

// IsWide reports whether tables have all columns.
func (p *Printer) IsWide() bool { return p.format == FormatWide }

// Value prints a value in a format other than a table; in table format it prints YAML.
func (p *Printer) Value(value any) error {
	var data bytes.Buffer
	encoder := json.NewEncoder(&data)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(value); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	switch {
	case p.path != nil:
		var tree any
		if err := kubejson.Unmarshal(data.Bytes(), &tree); err != nil {
			return fmt.Errorf("print: %w", err)
		}
		var text bytes.Buffer
		if err := p.path.Execute(&text, tree); err != nil {
			return fmt.Errorf("-o jsonpath: %w", err)
		}
		return p.Text(text.String() + "\n")
	case p.format == FormatJSON:
		return p.Text(data.String())
	}
	// The parser of YAML reads JSON, but no surrogates and no control characters.
	text, err := yaml.JSONToYAML([]byte(clean(data.String(), allowedInText, yamlEscape)))
	if err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return p.Text(string(text))
}

// Text prints a text of any number of lines, without its control characters.
func (p *Printer) Text(text string) error {
	_, err := io.WriteString(p.Out, CleanText(text))
	return err
}

// Clean returns a text on one line. Characters that a terminal does not show as they are, for example those of escape
// sequences and of bidirectional text, become escape sequences of JSON.
func Clean(text string) string { return clean(text, "", jsonEscape) }

// CleanText is Clean for a text of several lines.
func CleanText(text string) string { return clean(text, allowedInText, jsonEscape) }

const allowedInText = "\n\t"

func clean(text, allowed string, escape func(rune) string) string {
	isBad := func(r rune) bool { return !unicode.IsPrint(r) && !strings.ContainsRune(allowed, r) }
	if strings.IndexFunc(text, isBad) < 0 {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if isBad(r) {
			b.WriteString(escape(r))
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

func jsonEscape(r rune) string {
	if high, low := utf16.EncodeRune(r); high != unicode.ReplacementChar {
		return fmt.Sprintf(`\u%04x\u%04x`, high, low)
	}
	return fmt.Sprintf(`\u%04x`, r)
}

func yamlEscape(r rune) string { return fmt.Sprintf(`\U%08x`, r) }
