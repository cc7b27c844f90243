package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// claim is a test, or a function that a test calls, that says of itself that it shows a requirement.
type claim struct{ name, path string }

const (
	id = `(?:T-A|[A-Z]-)[0-9]{1,2}`
	// checkFolder holds the checks of the prober, whose ids begin with the requirement. TestStunnerd in e2e/turnprobe
	// makes them.
	checkFolder = "e2e/turnprobe/internal/probe"
)

var (
	// startsWithID is a line that begins with an id, whatever follows.
	startsWithID = regexp.MustCompile(`^` + id + `\b`)
	// carriesID is a line by which a test carries ids: "T-07: why", "T-07, T-10: why", or "T-07, RFC 8656 §5: why".
	carriesID = regexp.MustCompile(`^(` + id + `(?:, ` + id + `)*)(?:, RFC [^:]*)?: \S`)
)

// readClaims returns the tests of each id. What looks like an id and is carried by no test is an error.
func readClaims(tree fs.FS) (claims map[string][]claim, stray []error, err error) {
	c := collector{claims: map[string][]claim{}}
	err = fs.WalkDir(tree, ".", func(file string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			if slices.Contains([]string{".git", ".cache", "bin", "node_modules"}, entry.Name()) {
				return fs.SkipDir
			}
			return nil
		case !strings.HasSuffix(file, "_test.go") && !strings.HasSuffix(file, ".txtar") &&
			path.Dir(file) != checkFolder:
			return nil
		}
		text, err := fs.ReadFile(tree, file)
		if err != nil {
			return err
		}
		return c.read(file, text)
	})
	return c.claims, c.stray, err
}

// collector gathers claims file by file.
type collector struct {
	claims map[string][]claim
	stray  []error
}

func (c *collector) read(file string, text []byte) error {
	if strings.HasSuffix(file, ".txtar") {
		c.archive(file, string(text))
		return nil
	}
	tree, err := parser.ParseFile(token.NewFileSet(), file, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return fmt.Errorf("read tests: %w", err)
	}
	if path.Dir(file) == checkFolder {
		ast.Inspect(tree, func(n ast.Node) bool {
			if check, ok := n.(*ast.CompositeLit); ok {
				c.check(file, check)
			}
			return true
		})
		return nil
	}
	docs := map[*ast.CommentGroup]string{}
	for _, decl := range tree.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok && f.Doc != nil {
			docs[f.Doc] = f.Name.Name
		}
	}
	for _, group := range tree.Comments {
		for _, comment := range group.List {
			c.line(docs[group], file, strings.TrimSpace(strings.TrimPrefix(comment.Text, "//")))
		}
	}
	return nil
}

// archive reads the comment of a test case that is an archive: a golden case, or a scenario, whose comments begin with
// "# ".
func (c *collector) archive(file, text string) {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "-- ") {
			return
		}
		c.line(strings.TrimSuffix(path.Base(file), ".txtar"), file, strings.TrimSpace(strings.TrimPrefix(line, "# ")))
	}
}

// line reads a line of the comment of a test, or of something else where the name is empty.
func (c *collector) line(name, file, line string) {
	if !startsWithID.MatchString(line) {
		return
	}
	match := carriesID.FindStringSubmatch(line)
	if match == nil || name == "" {
		c.stray = append(
			c.stray,
			fmt.Errorf(
				"%s: no test carries %q: write \"ID: sentence\" into the comment of a function of the test, and begin no other line with an id",
				file, line,
			),
		)
		return
	}
	for id := range strings.SplitSeq(match[1], ", ") {
		c.claims[id] = append(c.claims[id], claim{name, file})
	}
}

// check reads a check of the prober. One that is made only when somebody asks for it shows nothing.
func (c *collector) check(file string, literal *ast.CompositeLit) {
	var name, pace string
	for _, element := range literal.Elts {
		field, ok := element.(*ast.KeyValueExpr)
		if !ok {
			continue
		}
		switch key, _ := field.Key.(*ast.Ident); {
		case key == nil:
		case key.Name == "ID":
			name = leading(field.Value)
		case key.Name == "Pace":
			if value, ok := field.Value.(*ast.Ident); ok {
				pace = value.Name
			}
		}
	}
	if id := startsWithID.FindString(name); id != "" && pace != "Long" {
		c.claims[id] = append(c.claims[id], claim{name, file})
	}
}

// leading is the text that a string expression begins with.
func leading(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BinaryExpr:
		return leading(e.X)
	case *ast.BasicLit:
		text, _ := strconv.Unquote(e.Value)
		return text
	}
	return ""
}
