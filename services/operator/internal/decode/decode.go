// Package decode reads the Kubernetes objects in a YAML file. It parses the documents, sets defaults and validates as
// an API server does, with the CRDs of package crd. An invalid document becomes a Problem, which contains line and
// field.
//
// # Files
//
//	decode.go document.go  files and documents, lines and problems
//	place.go               the line of a field
//	kind.go                the kinds
//	value.go               values
//	syntax.go              lines of syntax errors
//	native.go              defaults and rules of kinds that have no CRD
package decode

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stunner-gateway/stunner/services/api/finding"
	"github.com/stunner-gateway/stunner/services/operator/internal/resource"
)

// Limits for one input file. They limit the cost of decoding a malicious file. Files written by users stay far below.
const (
	maxFileBytes = 4 << 20
	maxValues    = 100_000 // values of one document, aliases expanded
	maxTextBytes = 8 << 20 // text of one document, aliases expanded
	maxDepth     = 100
	maxFindings  = 64 // findings that are reported for one document
)

// Severity is the effect of a Problem on its document.
type Severity string

const (
	// Info is a remark without effect.
	Info Severity = "Info"
	// Warning means that the document is used, and that something is outdated or unsafe. Only package lint has it.
	Warning Severity = "Warning"
	// Error means that the document is invalid and not used.
	Error Severity = "Error"
)

// Located is a decoded object with the name of its file and the line at which its document begins.
type Located struct {
	resource.Object
	File string
	Line int
}

// Problem is an error in a document of a file, or a remark about it. It contains no values of the document, because
// they may be secret.
type Problem struct {
	File      string   `json:"file"`
	Line      int      `json:"line"`
	Severity  Severity `json:"severity"`
	Kind      string   `json:"kind,omitempty"`
	Namespace string   `json:"namespace,omitempty"`
	Name      string   `json:"name,omitempty"`
	Field     string   `json:"field,omitempty"`
	Message   string   `json:"message"`
	// Remedy is the end of Message; empty if Message has none.
	Remedy string `json:"-"`
	// Unquoted is the place of a scalar that must be in quotes. It is nil for any other problem. It is also nil if
	// quotes would change other values too.
	Unquoted *Span `json:"-"`
}

// Span is a part of a line. Line and Column start at 1; Column and Length count characters.
type Span struct{ Line, Column, Length int }

// String returns the problem in one line: FILE:LINE: KIND NAMESPACE/NAME: FIELD: MESSAGE.
func (p Problem) String() string {
	return joined(fmt.Sprintf("%s:%d", p.File, p.Line), p.object(), p.Field, p.Message)
}

// Cause returns the message without the remedy.
func (p Problem) Cause() string {
	if p.Remedy == "" {
		return p.Message
	}
	return strings.TrimRight(strings.TrimSuffix(p.Message, p.Remedy), ":; ")
}

// Finding returns the problem as a finding. Its object is FILE:LINE.
func (p Problem) Finding() finding.Finding {
	return finding.Finding{
		Severity: severities[p.Severity], Object: fmt.Sprintf("%s:%d", p.File, p.Line), Field: p.Field,
		Problem: joined(p.object(), p.Cause()), Remedy: p.Remedy,
	}
}

var severities = map[Severity]finding.Severity{Error: finding.Error, Warning: finding.Warning, Info: finding.Info}

func (p Problem) object() string {
	return strings.TrimSpace(p.Kind + " " + strings.TrimPrefix(p.Namespace+"/"+p.Name, "/"))
}

// joined joins the parts that are not empty.
func joined(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), ": ")
}

// File decodes the documents of a YAML file. An invalid document becomes a Problem and does not affect the other
// documents, because the file is split at its document markers before it is parsed. The result depends only on the
// arguments.
func File(name string, data []byte) (objects []Located, problems []Problem) {
	if len(data) > maxFileBytes {
		return nil, []Problem{{File: name, Line: 1, Severity: Error,
			Message: fmt.Sprintf("file has %d bytes, at most %d are read: split it", len(data), maxFileBytes), Remedy: "split it"}}
	}
	d := &decoder{file: name}
	for _, p := range split(data) {
		d.decodePiece(p)
	}
	objects, duplicates := Unique(d.objects)
	return objects, append(d.problems, duplicates...)
}

// Unique returns objects without duplicates: of several objects with the same kind, namespace and name, only the first
// one is kept, and each further one becomes a Problem. Objects of different API versions are not duplicates, because
// the translation decides which one of several UDPRoutes with the same name is used.
func Unique(objects []Located) (kept []Located, problems []Problem) {
	type identity struct {
		gvk schema.GroupVersionKind
		key types.NamespacedName
	}
	first := make(map[identity]Located, len(objects))
	for _, o := range objects {
		gvk := o.GetObjectKind().GroupVersionKind()
		id := identity{gvk, resource.KeyOf(o)}
		if other, duplicate := first[id]; duplicate {
			problems = append(problems, Problem{File: o.File, Line: o.Line, Severity: Error,
				Kind: gvk.Kind, Namespace: o.GetNamespace(), Name: o.GetName(), Field: "metadata.name",
				Message: fmt.Sprintf("is written twice: %s:%d is in force and %s:%d is not; remove or rename one",
					other.File, other.Line, o.File, o.Line)})
			continue
		}
		first[id] = o
		kept = append(kept, o)
	}
	return kept, problems
}

// decoder collects the objects and problems of one file.
type decoder struct {
	file     string
	objects  []Located
	problems []Problem
}

// piece is the text between two document markers of a YAML file; line is the number of its first line.
type piece struct {
	text []byte
	line int
}

// marker matches the start marker or the end marker of a document. YAML 1.2 §9.1.2 forbids both at the start of a line
// in every kind of scalar, so splitting there is correct even after a syntax error.
var marker = regexp.MustCompile(`^(---|\.\.\.)(\s|$)`)

// preamble matches a line that may precede the start marker of a YAML document: a blank line, a comment, a directive,
// or a byte order mark.
var preamble = regexp.MustCompile(`^(\s*(#.*)?|%.*|\x{FEFF})\s*$`)

// yamlVersion matches a YAML directive for version 1.x. Such a directive is turned into a comment, because the parser
// rejects version 1.2 although it can parse such documents.
var yamlVersion = regexp.MustCompile(`(?m)^%YAML 1\.`)

// split splits a file at its document markers. Comments and directives before a start marker stay with its document
// only at the beginning of the file and after an end marker; otherwise they stay with the document above.
func split(data []byte) []piece {
	var pieces []piece
	start, line, startLine, bare := 0, 1, 1, true
	cut := func(end, nextLine int) {
		if end > start {
			pieces = append(pieces, piece{text: data[start:end], line: startLine})
		}
		start, startLine = end, nextLine
	}
	for at := 0; at < len(data); line++ {
		end := at + bytes.IndexByte(data[at:], '\n') + 1
		if end == at {
			end = len(data)
		}
		text := bytes.TrimPrefix(data[at:end], []byte("\uFEFF"))
		switch {
		case marker.Match(text) && text[0] == '.':
			cut(at, line+1)
			start, bare = end, true
		case marker.Match(text):
			if !bare {
				cut(at, line)
			}
			bare = false
		case !preamble.Match(text):
			bare = false
		}
		at = end
	}
	cut(len(data), line)
	return pieces
}

// decodePiece decodes the text between two document markers. The parser may find several documents in the text, because
// it accepts more characters as line breaks than split does, for example U+2028.
func (d *decoder) decodePiece(p piece) {
	if !utf8.Valid(p.text) {
		d.problems = append(d.problems,
			Problem{File: d.file, Line: p.line, Severity: Error, Message: "document is not UTF-8 text: convert it", Remedy: "convert it"})
		return
	}
	text := yamlVersion.ReplaceAll(bytes.TrimPrefix(p.text, []byte("\uFEFF")), []byte("#YAML 1."))
	nodes, err := parse(text)
	for _, n := range nodes {
		d.decodeDocument(n, p.line-1)
	}
	if err != nil {
		guess := identify(text)
		guess.File, guess.Line, guess.Severity = d.file, p.line-1+syntaxLine(text, err), Error
		guess.Remedy = "correct the indentation, colons or quotes around this line"
		guess.Message = fmt.Sprintf("document is not YAML: %s: %s", reason(err), guess.Remedy)
		d.problems = append(d.problems, guess)
	}
}

// parse returns the YAML documents before the first syntax error of a text, and that error.
func parse(text []byte) (nodes []*yaml.Node, err error) {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var n yaml.Node
		if err := decoder.Decode(&n); err != nil {
			if errors.Is(err, io.EOF) {
				return nodes, nil
			}
			return nodes, err
		}
		nodes = append(nodes, &n)
	}
}

var (
	atLine    = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)
	noAnchor  = regexp.MustCompile(`^unknown anchor '.*' referenced$`)
	kindLine  = regexp.MustCompile(`(?m)^kind:[ \t]*["']?([A-Za-z0-9]+)`)
	inMeta    = regexp.MustCompile(`(?m)^metadata:[ \t]*(?:\r?\n((?:[ \t]+.*\r?\n?|[ \t]*\r?\n)+)|(\{.*))`)
	nameLine  = regexp.MustCompile(`(?m)(?:^[ \t]+|[{,][ \t]*)name:[ \t]*["']?([-a-z0-9.]+)`)
	spaceLine = regexp.MustCompile(`(?m)(?:^[ \t]+|[{,][ \t]*)namespace:[ \t]*["']?([-a-z0-9]+)`)
)

// reason returns the message of a parser error without its line number, which is relative to the parsed text. It also
// omits the name of an alias: a password that begins with * looks like an alias.
func reason(err error) string {
	return noAnchor.ReplaceAllString(atLine.ReplaceAllString(err.Error(), ""), "alias without anchor")
}

// identify guesses kind, namespace and name from a text that cannot be parsed, so that its Problem can name the object.
func identify(text []byte) (p Problem) {
	first := func(r *regexp.Regexp, in []byte) string {
		if m := r.FindSubmatch(in); m != nil {
			return string(m[1])
		}
		return ""
	}
	p.Kind = first(kindLine, text)
	if meta := inMeta.FindSubmatch(text); meta != nil {
		text := slices.Concat(meta[1], meta[2])
		p.Name, p.Namespace = first(nameLine, text), first(spaceLine, text)
	}
	return p
}
