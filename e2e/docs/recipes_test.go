package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// maxAgents is the limit of AGENTS.md in bytes: a page that is read before every change must be short.
const maxAgents = 8192

// TestRecipes: the files, folders, names and targets of make that the recipes contain exist.
func TestRecipes(t *testing.T) {
	root := harnesstest.Root(t)
	text := harnesstest.Read(t, "AGENTS.md")
	if len(text) > maxAgents {
		t.Errorf("AGENTS.md has %d bytes: shorten it to %d, and move details to docs/contribute/changes.md", len(text), maxAgents)
	}
	for page, least := range map[string]int{
		"AGENTS.md": 15, "docs/contribute/changes.md": 12, "docs/contribute/rare-changes.md": 20,
	} {
		found := recipes(harnesstest.Read(t, page))
		if len(found) < least {
			t.Errorf("%s has %d recipes, want at least %d", page, len(found), least)
		}
		for _, recipe := range found {
			for _, problem := range problems(root, recipe) {
				first, _, _ := strings.Cut(recipe, "\n")
				t.Errorf("%s: %s: %s", page, first, problem)
			}
		}
		for _, command := range quoted.FindAllStringSubmatch(harnesstest.Read(t, page), -1) {
			for _, problem := range commandProblems(root, command[1]) {
				t.Errorf("%s: %s", page, problem)
			}
		}
	}
}

// TestRecipeProblems: a recipe that does not match the repository is reported.
func TestRecipeProblems(t *testing.T) {
	root := harnesstest.Root(t)
	for recipe, want := range map[string]string{
		"`stunnerd/gate/admit.go` `admission`":                   "",
		"`services/stunnerd/internal/gate/admit.go`, `refuseIf`": "",
		"`api/config/{config,default}.go` `authTypes`, `Config`": "",
		"`stunnerd/gate`: `serve.go` `handlers`":                 "",
		"`docs/runbooks/NAME.md`; `make gen`":                    "",
		"`openapi/auth.yaml` `openapi`":                          "",
		"`go test -count=1 ./e2e/NAME -run TestNAME`":            "",
		"`stunnerd/gate/admitted.go`":                            "stunnerd/gate/admitted.go does not exist",
		"`api/config/{config,missing}.go`":                       "api/config/missing.go does not exist",
		"`stunnerd/gates`":                                       "stunnerd/gates does not exist",
		"`docs/runbook/NAME.md`":                                 "docs/runbook/NAME.md does not exist",
		"`stunnerd/gate`, `missing.go`":                          "missing.go does not exist beside stunnerd/gate",
		"`stunnerd/gate/admit.go` `handlers`":                    "stunnerd/gate/admit.go does not have handlers",
		"`stunnerd/gate/admit.go` `Method`":                      "stunnerd/gate/admit.go does not have Method",
		"`stunnerd/gate` `noSuchName`":                           "stunnerd/gate does not have noSuchName",
		"`openapi/auth.yaml` `openapis`":                         "openapi/auth.yaml does not have openapis",
		"`README.md`, `stunnerd/gate`: `admit.go`":               "",
		"`admission`":             "admission follows no path",
		"`make everything`":       "there is no target everything",
		"`e2e/cluster`":           "e2e/cluster has two meanings: write the whole path",
		"`go test ./e2e/nothing`": "e2e/nothing does not exist",
	} {
		got := strings.Join(problems(root, recipe), "\n")
		if got != want {
			t.Errorf("%s\ngot  %q\nwant %q", recipe, got, want)
		}
	}
}

// TestPackageMaps: every Go file that the doc comment of a package names exists.
func TestPackageMaps(t *testing.T) {
	root := harnesstest.Root(t)
	packages, named := 0, 0
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if slices.Contains([]string{".git", "bin", "node_modules", "testdata"}, entry.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(path) != ".go" {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			return err
		}
		if file.Doc == nil {
			return nil
		}
		packages++
		for _, name := range goFile.FindAllString(file.Doc.Text(), -1) {
			named++
			if !exists(filepath.Join(filepath.Dir(path), name)) && !exists(filepath.Join(root, name)) {
				relative, _ := filepath.Rel(root, path)
				t.Errorf("%s: the comment of the package names %s, which does not exist", relative, name)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if packages < 100 || named < 300 {
		t.Errorf("found %d comments of packages that name %d files: want at least 100 and 300", packages, named)
	}
}

// goFile matches the name of a Go file in a comment, with its path and with * if it has them.
var goFile = regexp.MustCompile(`[\w./*-]*[\w*]\.go\b`)

var (
	// recipePattern matches a list item with a bold heading and its indented lines, or a row of the table of folders.
	recipePattern = regexp.MustCompile("(?m)^(?:\\* \\*\\*.*\n(?: +.*\n)*|\\| `[^ `]+`.*\n)")
	heading       = regexp.MustCompile(`^\* \*\*.*?\*\*`)
	quoted        = regexp.MustCompile("`([^`\n]+)`")
	fileName      = regexp.MustCompile(`^[\w.{},*-]+\.(go|js|md|tpl|ya?ml)$`)
	target        = regexp.MustCompile(`(?m)^([a-z0-9-]+):.*## `)
)

func recipes(page string) []string { return recipePattern.FindAllString(page, -1) }

// problems compares a recipe with the repository. In backticks, a recipe has: paths; names of files in the folder of
// the previous path; names that the previous path declares; commands; and texts with a space and flags, which are not
// checked.
func problems(root, recipe string) (found []string) {
	var at recipePath
	for _, m := range quoted.FindAllStringSubmatch(heading.ReplaceAllString(recipe, ""), -1) {
		text := m[1]
		switch {
		case strings.Contains(text, " ") || strings.HasPrefix(text, "-"):
			found = append(found, commandProblems(root, text)...)
		case strings.Contains(text, "/") || exists(filepath.Join(root, text)):
			at = recipePath{name: text}
			for _, name := range alternatives(text) {
				path, problem := resolve(root, name)
				if problem != "" {
					found = append(found, problem)
				}
				at.paths = append(at.paths, path...)
			}
		case fileName.MatchString(text):
			beside := recipePath{name: text}
			for _, name := range alternatives(text) {
				paths := at.beside(name)
				if len(paths) == 0 {
					found = append(found, fmt.Sprintf("%s does not exist beside %s", name, at.name))
				}
				beside.paths = append(beside.paths, paths...)
			}
			at = beside
		case at.name == "":
			found = append(found, text+" follows no path")
		case !at.declares(text):
			found = append(found, fmt.Sprintf("%s does not have %s", at.name, text))
		}
	}
	return found
}

// commandProblems checks the target of a make command and the folders of a go command.
func commandProblems(root, command string) (found []string) {
	words := strings.Fields(command)
	if len(words) < 2 {
		return nil
	}
	switch words[0] {
	case "make":
		if words[1] != "NAME" && !slices.Contains(targets(root), words[1]) {
			found = append(found, "there is no target "+words[1])
		}
	case "go":
		for _, word := range words[1:] {
			if name, local := strings.CutPrefix(word, "./"); local && !exists(pattern(root, name)) {
				found = append(found, name+" does not exist")
			}
		}
	}
	return found
}

// targets returns the public targets of make.
func targets(root string) (all []string) {
	files, _ := filepath.Glob(filepath.Join(root, ".ci/mk/*.mk"))
	for _, file := range append(files, filepath.Join(root, "Makefile")) {
		data, _ := os.ReadFile(file)
		for _, m := range target.FindAllStringSubmatch(string(data), -1) {
			all = append(all, m[1])
		}
	}
	return all
}

// recipePath is a path of a recipe, with the files and folders that it means.
type recipePath struct {
	name  string
	paths []string
}

// beside returns the files in the folders of the path that match a name.
func (p recipePath) beside(name string) (found []string) {
	for _, path := range p.paths {
		folder := path
		if info, err := os.Stat(path); err == nil && !info.IsDir() {
			folder = filepath.Dir(path)
		}
		found = append(found, glob(pattern(folder, name))...)
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// declares reports whether a file of the path has a name: a Go file declares it or has a string with it, and another
// file contains it.
func (p recipePath) declares(name string) bool {
	for _, path := range p.paths {
		files := []string{path}
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			files = glob(filepath.Join(path, "*"))
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				continue // subfolders are not searched
			}
			if filepath.Ext(file) == ".go" && slices.Contains(declared(file, data), name) ||
				filepath.Ext(file) != ".go" && regexp.MustCompile(`\b`+regexp.QuoteMeta(name)+`\b`).Match(data) {
				return true
			}
		}
	}
	return false
}

// declared returns the names of the functions, types, constants, variables and fields of a Go file, and its strings.
func declared(name string, source []byte) (all []string) {
	file, err := parser.ParseFile(token.NewFileSet(), name, source, parser.SkipObjectResolution)
	if err != nil {
		return nil
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			all = append(all, n.Name.Name)
		case *ast.TypeSpec:
			all = append(all, n.Name.Name)
		case *ast.ValueSpec:
			for _, id := range n.Names {
				all = append(all, id.Name)
			}
		case *ast.StructType:
			for _, field := range n.Fields.List {
				for _, id := range field.Names {
					all = append(all, id.Name)
				}
			}
		case *ast.BasicLit:
			if text, err := strconv.Unquote(n.Value); err == nil {
				all = append(all, text)
			}
		}
		return true
	})
	return all
}

// resolve returns the files and folders of a path, from the root of the repository. A path may omit services/ at its
// start and internal/ behind the name of its module.
func resolve(root, name string) (paths []string, problem string) {
	module, rest, _ := strings.Cut(name, "/")
	for _, full := range []string{
		name, "services/" + name, module + "/internal/" + rest, "services/" + module + "/internal/" + rest,
	} {
		if found := glob(pattern(root, full)); len(found) > 0 && (rest != "" || full == name) {
			if paths != nil {
				return paths, name + " has two meanings: write the whole path"
			}
			paths = found
		}
	}
	if paths == nil {
		return nil, name + " does not exist"
	}
	return paths, ""
}

// alternatives returns the names that a name with a list in braces means: a/{b,c}.go is a/b.go and a/c.go.
func alternatives(name string) (all []string) {
	before, rest, found := strings.Cut(name, "{")
	list, after, closed := strings.Cut(rest, "}")
	if !found || !closed {
		return []string{name}
	}
	for word := range strings.SplitSeq(list, ",") {
		all = append(all, before+word+after)
	}
	return all
}

// pattern returns the pattern of a path in which NAME stands for any name.
func pattern(folder, name string) string {
	return filepath.Join(folder, strings.ReplaceAll(name, "NAME", "*"))
}

func glob(pattern string) []string {
	found, err := filepath.Glob(pattern)
	if err != nil {
		return nil
	}
	return found
}

func exists(pattern string) bool { return len(glob(pattern)) > 0 }
