package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/telemetry"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
)

// families are the families of reasons with their metrics and their sections in docs/reference/reasons.md.
var families = map[meter.Family]struct {
	section string
	metrics []string
}{
	meter.Clients:  {"clients", []string{telemetry.Refused, telemetry.Dropped}},
	meter.Frames:   {"frames", []string{telemetry.ForwardRefused}},
	meter.Restored: {"restored sessions", []string{telemetry.SessionsDropped}},
	meter.HTTP:     {"http requests", []string{telemetry.HTTPRefused}},
	meter.Stored:   {"journal", []string{telemetry.JournalRefused}},
	meter.Configs:  {"configs", []string{telemetry.ConfigRejected}},
}

// TestEveryReasonIsDocumented compares the reasons and their texts with the tables in docs/reference/reasons.md, in
// both directions. Package meter has the tests of the log lines.
func TestEveryReasonIsDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference/reasons.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{} // from "SECTION reason" to the meaning
	for family, f := range families {
		_, section, found := strings.Cut(string(page), "## Reasons: "+f.section+"\n")
		section, _, _ = strings.Cut(section, "\n#")
		for _, metric := range f.metrics {
			if !strings.Contains(section, "`"+metric+"`") {
				t.Errorf("family %d: section %q (found: %t) does not name %s", family, f.section, found, metric)
			}
		}
		for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\| (.*) \\| (.+) \\|$").FindAllStringSubmatch(section, -1) {
			rows[f.section+" "+row[1]] = row[2]
		}
	}
	for _, r := range meter.All() {
		key := families[r.Family()].section + " " + r.String()
		if meaning, ok := rows[key]; !ok || meaning != r.Text() {
			t.Errorf("docs/reference/reasons.md has %q for %q, the text is %q", meaning, key, r.Text())
		}
		delete(rows, key)
	}
	for key := range rows {
		t.Errorf("docs/reference/reasons.md has a row for %q, which is no reason", key)
	}
}

// notRefusals are the functions that close or ignore external input without a reason, and why they need no reason.
var notRefusals = map[string]string{
	"listener.connections.Close":    "ends the listener, and its clients with it",
	"listener.connections.begin":    "the listener is being closed",
	"listener.connections.accepted": "connect counts the reason",
	"listener.connection.serve":     "closes a connection whose reason is counted or that the client has ended",
	"listener.connection.run":       "counts a panic",
	"listener.connection.send":      "the association has failed: its reader counts why",
	"listener.acceptOne":            "accept logs the error of the kernel",
	"listener.udpPort.addReader":    "is no connection of a client",
	"listener.probeUDP":             "is no connection of a client",
}

// closes are the expressions that close the connection of a client.
var closes = regexp.MustCompile(`^(\w+\.)*(raw|conn|stream)\.Close$`)

// TestEveryPlaceThatRefusesHasAReason finds places in the source that refuse a request, or close a connection, without
// a reason, and reasons for which nothing is refused.
func TestEveryPlaceThatRefusesHasAReason(t *testing.T) {
	used, excused := map[string]bool{}, map[string]bool{}
	files, err := filepath.Glob("internal/*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		pkg := filepath.Base(filepath.Dir(path))
		if strings.HasSuffix(path, "_test.go") || pkg == "meter" {
			continue
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			inspectPlaces(t, set, pkg, d, used, excused)
		}
	}
	for name := range notRefusals {
		if !excused[name] {
			t.Errorf("%s is excused and closes nothing", name)
		}
	}
	constants := reasonConstants(t)
	for name := range constants {
		if !used[name] {
			t.Errorf("nothing is refused with the reason %s", name)
		}
	}
	if len(constants) != len(meter.All()) {
		t.Errorf("%d constants for %d reasons", len(constants), len(meter.All()))
	}
}

// inspectPlaces checks the refusals and drops in one declaration, and records the reasons that they use.
func inspectPlaces(t *testing.T, set *token.FileSet, pkg string, d ast.Decl, used, excused map[string]bool) {
	t.Helper()
	name, closing, counted := nameOf(pkg, d), token.NoPos, false
	ast.Inspect(d, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && x.Name == "meter" {
				used[n.Sel.Name] = true
			}
		case *ast.CompositeLit:
			if x, ok := n.Type.(*ast.Ident); ok && pkg == "gate" && x.Name == "refusal" && !hasKey(n, "reason") {
				t.Errorf("%s refuses a request without a reason", set.Position(n.Pos()))
			}
		case *ast.CallExpr:
			called := exprOf(n.Fun)
			_, method, _ := strings.Cut(called, ".")
			switch {
			case pkg == "listener" && closes.MatchString(called):
				closing = n.Pos()
			case strings.HasSuffix("."+method, ".drop"), strings.HasSuffix(method, "DropNote"):
				counted = true
			case strings.HasSuffix(method, "eter.Drop"), strings.HasSuffix(called, "eter().Drop"), strings.HasSuffix(method, "eter.Refuse"):
				if pkg != "follower" { // package follower logs the error of the config itself
					t.Errorf("%s counts without a log line: use DropNote, RefuseNote or Decline", set.Position(n.Pos()))
				}
			}
		}
		return true
	})
	if closing == token.NoPos {
		return
	}
	_, ok := notRefusals[name]
	excused[name] = ok
	if !ok && !counted {
		t.Errorf("%s: %s closes a connection without a reason", set.Position(closing), name)
	}
}

// nameOf returns PACKAGE.TYPE.METHOD of a declaration.
func nameOf(pkg string, d ast.Decl) string {
	f, ok := d.(*ast.FuncDecl)
	if !ok {
		return pkg
	}
	if f.Recv == nil {
		return pkg + "." + f.Name.Name
	}
	return pkg + "." + strings.TrimPrefix(exprOf(f.Recv.List[0].Type), "*") + "." + f.Name.Name
}

// exprOf returns the text of a selector, such as c.listener.drop.
func exprOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.StarExpr:
		return "*" + exprOf(e.X)
	case *ast.SelectorExpr:
		return exprOf(e.X) + "." + e.Sel.Name
	case *ast.CallExpr:
		return exprOf(e.Fun) + "()"
	}
	return fmt.Sprintf("%T", e)
}

func hasKey(c *ast.CompositeLit, key string) bool {
	for _, e := range c.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok && exprOf(kv.Key) == key {
			return true
		}
	}
	return false
}

// reasonConstants returns the names of the constants of the reasons.
func reasonConstants(t *testing.T) map[string]bool {
	t.Helper()
	source, err := os.ReadFile("internal/meter/reason.go")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, match := range regexp.MustCompile(`(?m)^\t(\w+): +"\w+",$`).FindAllStringSubmatch(string(source), -1) {
		names[match[1]] = true
	}
	return names
}
