// Package deptest checks the dependencies of packages, so that the layers of the repository are kept.
//
// Imports are followed transitively. Packages of the standard library are checked only if a package of this repository
// imports them. For example, package fmt imports os, so a pure package may import fmt but not os.
package deptest

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// own is the prefix of the import paths of this repository.
const own = "github.com/stunner-gateway/stunner/"

// Rule forbids dependencies of a package.
type Rule struct {
	// Package is an import path.
	Package string
	// Forbidden lists import paths. A path that ends in "/..." includes all packages below it.
	Forbidden []string
	// Calls lists functions that the package itself must not call, such as "time.Now", and methods of any type, such as
	// ".WriteTo".
	Calls []string
	// Why is the reason in the message about a violation.
	Why string
}

// Check fails t for every violation. The message contains the chain of imports to the forbidden package.
func Check(t *testing.T, rules []Rule) {
	t.Helper()
	for _, rule := range rules {
		g, err := load(rule.Package)
		if err != nil {
			t.Errorf("list %s: %v", rule.Package, err)
			continue
		}
		broken, err := rule.broken(g)
		if err != nil {
			t.Errorf("read %s: %v", rule.Package, err)
		}
		for _, b := range broken {
			t.Errorf("%s\n\twhy not: %s", b, rule.Why)
		}
	}
}

// node is a package in the output of go list.
type node struct {
	ImportPath string
	Dir        string
	GoFiles    []string
	Imports    []string
	ImportMap  map[string]string
	Standard   bool
}

type graph map[string]node

// load returns the dependencies of a package. It runs the go command, which evaluates build tags, workspaces and
// replacements.
func load(pkg string) (graph, error) {
	cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Dir,GoFiles,Imports,ImportMap,Standard", pkg)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, stderr.String())
	}
	g := graph{}
	dec := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var n node
		err := dec.Decode(&n)
		if err == io.EOF {
			return g, nil
		}
		if err != nil {
			return nil, err
		}
		g[n.ImportPath] = n
	}
}

// broken returns the violations of the rule.
func (r Rule) broken(g graph) (all []string, err error) {
	from := g.reach(r.Package)
	for _, pkg := range slices.Sorted(maps.Keys(from)) {
		if pkg != r.Package && matches(r.Forbidden, pkg) {
			all = append(all, "forbidden import: "+way(from, pkg))
		}
	}
	if len(r.Calls) == 0 {
		return all, nil
	}
	n := g[r.Package]
	for _, name := range n.GoFiles {
		used, err := calls(filepath.Join(n.Dir, name), r.Calls)
		if err != nil {
			return nil, err
		}
		all = append(all, used...)
	}
	return all, nil
}

// reach maps every transitive import of pkg to a package that imports it. It does not follow imports of the standard
// library.
func (g graph) reach(pkg string) map[string]string {
	from := map[string]string{pkg: ""}
	for queue := []string{pkg}; len(queue) > 0; queue = queue[1:] {
		n := g[queue[0]]
		for _, name := range n.Imports {
			name = resolve(n, name)
			if _, seen := from[name]; seen || g[name].Standard && !strings.HasPrefix(n.ImportPath, own) {
				continue
			}
			from[name] = n.ImportPath
			if !g[name].Standard {
				queue = append(queue, name)
			}
		}
	}
	return from
}

func resolve(n node, name string) string {
	if mapped, ok := n.ImportMap[name]; ok {
		return mapped
	}
	return name
}

func matches(patterns []string, pkg string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		root, below := strings.CutSuffix(pattern, "/...")
		return pkg == root || below && strings.HasPrefix(pkg, root+"/")
	})
}

// way returns the chain of imports to pkg.
func way(from map[string]string, pkg string) string {
	text := pkg
	for p := from[pkg]; p != ""; p = from[p] {
		text = p + " -> " + text
	}
	return text
}

// calls returns the positions in a file at which one of the functions is used.
func calls(file string, functions []string) (all []string, err error) {
	fset := token.NewFileSet()
	tree, err := parser.ParseFile(fset, file, nil, 0)
	if err != nil {
		return nil, err
	}
	imported := map[string]string{}
	for _, spec := range tree.Imports {
		full, _ := strconv.Unquote(spec.Path.Value)
		name := path.Base(full)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		imported[name] = full
	}
	ast.Inspect(tree, func(n ast.Node) bool {
		selector, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		name := "." + selector.Sel.Name
		if x, ok := selector.X.(*ast.Ident); ok {
			name = imported[x.Name] + name
		}
		if slices.Contains(functions, name) {
			all = append(all, fmt.Sprintf("forbidden call of %s: %s", name, fset.Position(n.Pos())))
		}
		return true
	})
	return all, nil
}
