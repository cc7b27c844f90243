package deptest

import (
	"strings"
	"testing"
)

const self = own + "services/api/deptest"

func TestBrokenRulesAreFound(t *testing.T) {
	g, err := load(self)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		rule Rule
		want string
	}{
		"an import":       {Rule{Package: self, Forbidden: []string{"os/exec"}}, self + " -> os/exec"},
		"an import below": {Rule{Package: self, Forbidden: []string{"encoding/..."}}, self + " -> encoding/json"},
		"a call": {
			Rule{Package: self, Calls: []string{"os/exec.Command"}}, "forbidden call of os/exec.Command: ",
		},
		"nothing of fmt's": {Rule{Package: self, Forbidden: []string{"os", "reflect"}}, ""},
		"a method":         {Rule{Package: self, Calls: []string{".Output"}}, "forbidden call of .Output: "},
		"nothing, other names": {
			Rule{Package: self, Forbidden: []string{"encoding", "encoding/js"}, Calls: []string{"time.Now"}}, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := c.rule.broken(g)
			if err != nil {
				t.Fatal(err)
			}
			text := strings.Join(got, "\n")
			if c.want == "" && text != "" || !strings.Contains(text, c.want) {
				t.Errorf("found %q, want %q", text, c.want)
			}
		})
	}
}

func TestImportsAreFollowedThroughOtherPackages(t *testing.T) {
	g := graph{
		own + "a":     {ImportPath: own + "a", Imports: []string{"x.example/b"}},
		"x.example/b": {ImportPath: "x.example/b", Imports: []string{"x.example/c", "os"}},
		"x.example/c": {ImportPath: "x.example/c"},
		"os":          {ImportPath: "os", Standard: true},
	}
	got, err := Rule{Package: own + "a", Forbidden: []string{"x.example/c", "os"}}.broken(g)
	if err != nil {
		t.Fatal(err)
	}
	if want := "forbidden import: " + own + "a -> x.example/b -> x.example/c"; len(got) != 1 || got[0] != want {
		t.Errorf("found %q, want %q", got, want)
	}
}
