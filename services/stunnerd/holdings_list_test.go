package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// module is the prefix of the import paths of the checked packages. own is the prefix of all packages of the
// repository.
const (
	own    = "github.com/stunner-gateway/stunner/"
	module = own + "services/stunnerd"
)

// helper reports whether a package is only used in tests.
func helper(path string) bool {
	name := path[strings.LastIndexByte(path, '/')+1:]
	return strings.HasPrefix(name, "test") || strings.HasSuffix(name, "test")
}

// opaque are types of other modules that store memory for their input. Pointers to them count too.
var opaque = map[string]bool{
	"container/list.List": true, "container/ring.Ring": true, "bytes.Buffer": true, "strings.Builder": true,
	"bufio.Reader": true, "bufio.Writer": true, "bufio.Scanner": true, "sync.Map": true, "sync.Pool": true,
	"crypto/tls.Conn": true,
}

// holder is a struct field or a package variable that can hold any number of values, or of bytes.
type holder struct {
	name string // package.Type.field, or package.variable
	at   string // file:line
	why  string // the first write whose size the check does not know
}

// source is the type-checked source of the dataplane.
type source struct {
	fset     *token.FileSet
	packages map[string]*types.Package // by the last element of the import path
	files    []*ast.File
	info     types.Info
	names    map[types.Object]string // the names of the candidates
	writes   map[types.Object]string // the first write of unknown size
}

// load type-checks the packages of the module below a folder. Other packages are imported from their export data.
func load(dir string) (*source, error) {
	cmd := exec.Command("go", "list", "-deps", "-export", "-json=ImportPath,Dir,GoFiles,Export,ImportMap", "./...")
	cmd.Dir = dir
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list packages: %w: %s", err, stderr.String())
	}
	p := &source{
		fset: token.NewFileSet(), packages: map[string]*types.Package{},
		info: types.Info{
			Types: map[ast.Expr]types.TypeAndValue{}, Defs: map[*ast.Ident]types.Object{},
			Uses: map[*ast.Ident]types.Object{}, Selections: map[*ast.SelectorExpr]*types.Selection{},
		},
		names: map[types.Object]string{}, writes: map[types.Object]string{},
	}
	exports, checked := map[string]string{}, map[string]*types.Package{}
	others := importer.ForCompiler(p.fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var pkg struct {
			ImportPath, Dir, Export string
			GoFiles                 []string
			ImportMap               map[string]string
		}
		if err := dec.Decode(&pkg); errors.Is(err, io.EOF) {
			return p, nil
		} else if err != nil {
			return nil, err
		}
		exports[pkg.ImportPath] = pkg.Export
		if !strings.HasPrefix(pkg.ImportPath, module) || helper(pkg.ImportPath) {
			continue
		}
		var files []*ast.File
		for _, name := range pkg.GoFiles {
			file, err := parser.ParseFile(p.fset, filepath.Join(pkg.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				return nil, err
			}
			files = append(files, file)
		}
		// A dependency is listed before the packages that import it, so an object has one identity in all of them.
		config := types.Config{Importer: importerFunc(func(path string) (*types.Package, error) {
			if own := checked[path]; own != nil {
				return own, nil
			}
			if mapped := pkg.ImportMap[path]; mapped != "" {
				path = mapped
			}
			return others.Import(path)
		})}
		typed, err := config.Check(pkg.ImportPath, p.fset, files, &p.info)
		if err != nil {
			return nil, err
		}
		checked[pkg.ImportPath] = typed
		for _, of := range append(typed.Imports(), typed) {
			if strings.HasPrefix(of.Path(), own) {
				p.packages[of.Name()] = of
			}
		}
		p.files = append(p.files, files...)
	}
}

type importerFunc func(string) (*types.Package, error)

func (f importerFunc) Import(path string) (*types.Package, error) { return f(path) }

// holders returns the fields and variables whose size the source does not fix.
func (p *source) holders() (all []holder) {
	for _, file := range p.files {
		p.declare(file)
	}
	for _, file := range p.files {
		p.read(file)
	}
	for o, why := range p.writes {
		at := p.fset.Position(o.Pos())
		all = append(all, holder{p.names[o], fmt.Sprintf("%s:%d", filepath.Base(at.Filename), at.Line), why})
	}
	slices.SortFunc(all, func(a, b holder) int { return strings.Compare(a.name, b.name) })
	return all
}

// declare records the fields and variables of a file that can hold any number of values.
func (p *source) declare(file *ast.File) {
	pkg := file.Name.Name
	for _, decl := range file.Decls {
		general, ok := decl.(*ast.GenDecl)
		if !ok {
			if f := decl.(*ast.FuncDecl); f.Body != nil {
				p.fields(pkg+"."+f.Name.Name, f.Body) // types inside functions
			}
			continue
		}
		for _, spec := range general.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				p.fields(pkg+"."+spec.Name.Name, spec.Type)
			case *ast.ValueSpec:
				for _, name := range spec.Names {
					p.candidate(pkg+"."+name.Name, p.info.Defs[name])
					p.fields(pkg+"."+name.Name, spec)
				}
			}
		}
	}
}

// fields records the fields of the struct types in a node.
func (p *source) fields(prefix string, node ast.Node) {
	ast.Inspect(node, func(n ast.Node) bool {
		structure, ok := n.(*ast.StructType)
		if !ok {
			return true
		}
		for _, field := range structure.Fields.List {
			for _, name := range field.Names {
				p.candidate(prefix+"."+name.Name, p.info.Defs[name])
			}
			if len(field.Names) == 0 {
				for id, o := range p.info.Defs {
					if v, ok := o.(*types.Var); ok && v.Embedded() && id.Pos() >= field.Pos() && id.End() <= field.End() {
						p.candidate(prefix+"."+v.Name(), v)
					}
				}
			}
		}
		return true
	})
}

// candidate records an object if its type can hold any number of values. A container of another module and a linked
// list are recorded without a write, because they are meant to grow.
func (p *source) candidate(name string, o types.Object) {
	v, ok := o.(*types.Var)
	if !ok || p.names[v] != "" {
		return
	}
	switch kind := grows(v.Type()); {
	case linked(name, v):
		p.writes[v] = "a linked list"
	case kind == "":
		return
	case kind != "slice" && kind != "chan" && kind != "map":
		p.writes[v] = kind
	}
	p.names[v] = name
}

// linked reports whether a variable is a field that points to its own struct type: a linked list without a container.
func linked(name string, v *types.Var) bool {
	pointer, ok := v.Type().(*types.Pointer)
	if !ok || !v.IsField() {
		return false
	}
	named, ok := pointer.Elem().(*types.Named)
	return ok && strings.HasPrefix(name, named.Obj().Pkg().Name()+"."+named.Obj().Name()+".")
}

// grows returns the kind of a container type, also inside an array, a pointer or a type parameter of package atomic. It
// returns "" for all other types; structs of the module have fields of their own.
func grows(t types.Type) string {
	switch t := types.Unalias(t).(type) {
	case *types.Named:
		name := types.TypeString(t.Origin(), nil)
		name, _, _ = strings.Cut(name, "[")
		switch {
		case opaque[name], strings.HasPrefix(name, "github.com/pion/dtls") && strings.HasSuffix(name, ".Conn"):
			return name
		case strings.HasPrefix(name, "sync/atomic.") && t.TypeArgs().Len() > 0:
			return grows(t.TypeArgs().At(0))
		}
		return grows(t.Underlying())
	case *types.Map:
		return "map"
	case *types.Slice:
		return "slice"
	case *types.Chan:
		return "chan"
	case *types.Array:
		return grows(t.Elem())
	case *types.Pointer:
		return grows(t.Elem())
	}
	return ""
}

// read records the writes of a file.
func (p *source) read(file *ast.File) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for i, left := range n.Lhs {
				if len(n.Rhs) != len(n.Lhs) {
					p.write(left, nil)
				} else {
					p.write(left, n.Rhs[i])
				}
			}
		case *ast.IncDecStmt:
			p.write(n.X, nil)
		case *ast.RangeStmt:
			p.write(n.Key, nil)
			p.write(n.Value, nil)
		case *ast.ValueSpec:
			for i, name := range n.Names {
				switch {
				case len(n.Values) == len(n.Names):
					p.write(name, n.Values[i])
				case len(n.Values) > 0:
					p.write(name, nil)
				}
			}
		case *ast.UnaryExpr:
			if n.Op == token.AND {
				p.write(n.X, nil) // other code may write through the pointer
			}
		case *ast.CallExpr:
			// Store, Swap and CompareAndSwap of atomic values.
			if f, ok := n.Fun.(*ast.SelectorExpr); ok && len(n.Args) > 0 && slices.Contains([]string{"Store", "Swap", "CompareAndSwap"}, f.Sel.Name) {
				p.write(f.X, n.Args[len(n.Args)-1])
			}
		case *ast.CompositeLit:
			p.literal(n)
		}
		return true
	})
}

// literal records the fields of a struct literal.
func (p *source) literal(n *ast.CompositeLit) {
	t := p.info.Types[n].Type
	if pointer, ok := t.Underlying().(*types.Pointer); ok {
		t = pointer.Elem()
	}
	structure, ok := t.Underlying().(*types.Struct)
	if !ok {
		return
	}
	for i, element := range n.Elts {
		if pair, ok := element.(*ast.KeyValueExpr); ok {
			p.write(pair.Key, pair.Value)
		} else {
			p.record(structure.Field(i), element)
		}
	}
}

// write records an assignment. value is nil if it is not known.
func (p *source) write(to, value ast.Expr) {
	switch to := to.(type) {
	case *ast.Ident:
		o := p.info.Defs[to]
		if o == nil {
			o = p.info.Uses[to]
		}
		p.record(o, value)
	case *ast.SelectorExpr:
		if s := p.info.Selections[to]; s != nil {
			p.record(s.Obj(), value)
		} else {
			p.record(p.info.Uses[to.Sel], value)
		}
	case *ast.ParenExpr:
		p.write(to.X, value)
	case *ast.StarExpr:
		p.write(to.X, value)
	case *ast.IndexExpr:
		// An element of a map, or of a slice of slices. An element of a slice of anything else changes no size.
		t := p.info.Types[to.X].Type
		if t == nil {
			return
		}
		if _, isMap := t.Underlying().(*types.Map); isMap {
			p.write(to.X, nil)
		} else if element := p.info.Types[to].Type; element != nil && grows(element) != "" {
			p.write(to.X, value)
		}
	}
}

// record stores in writes the first write to a variable or field of names, unless the source code fixes the size of the
// written value.
func (p *source) record(o types.Object, value ast.Expr) {
	if v, ok := o.(*types.Var); ok {
		o = v.Origin()
	}
	if p.names[o] == "" || p.writes[o] != "" || value != nil && p.fixed(value) {
		return
	}
	at := o.Pos()
	text := "its address, or an element"
	if value != nil {
		at, text = value.Pos(), types.ExprString(value)
	}
	position := p.fset.Position(at)
	p.writes[o] = fmt.Sprintf("%s:%d: %.60s", filepath.Base(position.Filename), position.Line, text)
}

// fixed reports whether the source determines the size of a value: nil, a literal that is a table, make with a
// constant, or a part of an existing value.
func (p *source) fixed(e ast.Expr) bool {
	tv := p.info.Types[e]
	if tv.IsNil() || tv.Value != nil {
		return true
	}
	switch e := e.(type) {
	case *ast.ParenExpr:
		return p.fixed(e.X)
	case *ast.UnaryExpr:
		return e.Op == token.AND && p.fixed(e.X)
	case *ast.CompositeLit:
		_, isMap := tv.Type.Underlying().(*types.Map)
		return !isMap || len(e.Elts) > 0 // an empty map literal grows later
	case *ast.SliceExpr:
		return p.fixed(e.X) || p.candidateOf(e.X)
	case *ast.CallExpr:
		name, _ := e.Fun.(*ast.Ident)
		builtin, _ := p.info.Uses[name].(*types.Builtin)
		if p.info.Types[e.Fun].IsType() { // a conversion
			return p.fixed(e.Args[0])
		}
		if builtin == nil || builtin.Name() != "make" && builtin.Name() != "new" {
			return false
		}
		if builtin.Name() == "new" {
			return true
		}
		if _, isMap := tv.Type.Underlying().(*types.Map); isMap {
			return false
		}
		return !slices.ContainsFunc(e.Args[1:], func(size ast.Expr) bool {
			v := p.info.Types[size].Value
			return v == nil || v.Kind() != constant.Int
		})
	}
	return false
}

// candidateOf reports whether the size of the value of an expression is recorded elsewhere: the expression is an array,
// or a field or variable that is itself a candidate.
func (p *source) candidateOf(e ast.Expr) bool {
	t := p.info.Types[e].Type.Underlying()
	if pointer, ok := t.(*types.Pointer); ok {
		t = pointer.Elem().Underlying()
	}
	if _, array := t.(*types.Array); array {
		return true
	}
	switch e := e.(type) {
	case *ast.Ident:
		return p.names[p.info.Uses[e]] != ""
	case *ast.SelectorExpr:
		if s := p.info.Selections[e]; s != nil {
			return p.names[s.Obj()] != ""
		}
	}
	return false
}
