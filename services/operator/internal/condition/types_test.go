package condition

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"slices"
	"testing"
)

// Merge does not remove a condition whose type is missing in the table of types.
func TestEveryTypeIsInTheTable(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "condition.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var named int
	for _, d := range file.Decls {
		block, ok := d.(*ast.GenDecl)
		if !ok || block.Tok != token.CONST || block.Doc.Text() != "Condition types.\n" {
			continue
		}
		named += len(block.Specs)
	}
	if named == 0 || named != len(types) {
		t.Errorf("condition.go has %d condition types, and the table %d: %v", named, len(types), slices.Sorted(maps.Keys(types)))
	}
}
