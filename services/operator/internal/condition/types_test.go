package condition

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"

	api "github.com/stunner-gateway/stunner/services/api/finding"
)

// Merge does not remove a condition whose type is missing in the table of package finding. Each type is in the
// reference.
func TestEveryTypeIsInTheTables(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/reference/conditions.md")
	if err != nil {
		t.Fatal(err)
	}
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
		for _, spec := range block.Specs {
			value := spec.(*ast.ValueSpec)
			name := value.Names[0].Name // a condition type of the Gateway API has this name as its value
			if literal, ok := value.Values[0].(*ast.BasicLit); ok {
				name = strings.Trim(literal.Value, `"`)
			}
			if named++; !api.IsCondition(name) {
				t.Errorf("the table has no condition type %s", name)
			}
			if !strings.Contains(string(page), "`"+name+"`") {
				t.Errorf("docs/reference/conditions.md has no condition type %s", name)
			}
		}
	}
	if named == 0 {
		t.Error("condition.go has no condition types")
	}
}
