package decode

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// Without the limits, decoding the first of these files would not end in practice.
func TestDecodeBoundsTheCostOfAFile(t *testing.T) {
	bomb := "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c < 'n'; c++ {
		bomb += fmt.Sprintf(
			"%c: &%c [%s]\n", c, c, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*%c,", c-1), 10), ","),
		)
	}
	merges := "a: &a {k0: v, k1: v}\n"
	for c := 'b'; c < 'n'; c++ {
		merges += fmt.Sprintf(
			"%c: &%c {<<: [%s]}\n", c, c, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*%c,", c-1), 10), ","),
		)
	}
	head := "apiVersion: example.org/v1\nkind: Bomb\nmetadata: {name: b}\n"
	for _, c := range []struct{ name, yaml, want string }{
		{"aliases of aliases", head + bomb, "too big or too deep"},
		{"merges of merges", head + merges, "too big or too deep"},
		{"an alias of itself", head + "a: &a [*a]\n", "too big or too deep"},
		{"a merge of itself", head + "a: &a {<<: *a}\n", "too big or too deep"},
		{"nesting", head + "a: " + strings.Repeat("[", 3000) + strings.Repeat("]", 3000) + "\n", "too big or too deep"},
		{"long text, often", head + "a: &a " + strings.Repeat("x", 1<<20) + "\nb: [" + strings.Repeat(
			"*a,", 20,
		) + "]\n", "too big or too deep"},
		{"many keys", head + "a:\n" + numbered("  k%d: 1\n", 105_000), "too big or too deep"},
		{"wrong values all over", "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: e}\nendpoints:\n" + numbered("- %d\n", 20_000), "is a number, must be a mapping"},
		{"a file over the limit", head + strings.Repeat("#", 4<<20), "at most 4194304 are read"},
	} {
		t.Run(c.name, func(t *testing.T) {
			objects, problems := File("f.yaml", []byte(c.yaml))
			if len(objects) != 0 || len(problems) != 1 || !strings.Contains(problems[0].Message, c.want) {
				t.Errorf("got %d objects and %v, want one problem with %q", len(objects), problems, c.want)
			}
		})
	}
}

func numbered(format string, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

func TestDecodeLosesNoErrorAmongRemarks(t *testing.T) {
	text := "apiVersion: v1\nkind: Service\nmetadata:\n  name: s\n  annotations:\n" + numbered(
		"    a%d: 1\n", 500,
	) + "spec:\n  nonsense: x\n"
	objects, problems := File("f.yaml", []byte(text))
	if last := problems[len(problems)-1]; len(objects) != 0 || last.Severity != Error || last.Line != 507 {
		t.Errorf("got %d objects and, last of %d problems, %s", len(objects), len(problems), last)
	}
}

// three has three valid documents.
var three = []string{
	"apiVersion: v1\nkind: Service\nmetadata:\n  name: one\nspec:\n  ports:\n  - port: 7001\n    protocol: UDP\n",
	"apiVersion: stunner.l7mp.io/v1\nkind: StaticService\nmetadata:\n  name: two\nspec:\n  prefixes:\n  - 198.51.100.0/24\n",
	"apiVersion: v1\nkind: Secret\nmetadata:\n  name: three\nstringData:\n  text: |\n    several\n    lines\n",
}

func TestDecodeSkipsOnlyTheInvalidDocument(t *testing.T) {
	damage := map[string]func(string) string{
		"cut short":     func(s string) string { return s[:len(s)*2/3] },
		"cut in a word": func(s string) string { return s[:strings.Index(s, "kind")+2] },
		"indented": func(s string) string {
			return strings.Replace(
				s, "metadata:\n", "metadata:\n      x: y\n", 1,
			)
		},
		"open quote":        func(s string) string { return strings.Replace(s, "name: ", "name: \"", 1) },
		"open single quote": func(s string) string { return strings.Replace(s, "name: ", "name: '", 1) },
		"open bracket":      func(s string) string { return strings.Replace(s, "metadata:", "metadata: [", 1) },
		"open brace":        func(s string) string { return "{" + s },
		"block scalar":      func(s string) string { return "x: |\n" + s },
		"anchor":            func(s string) string { return "&a\n" + s + "y: *b\n" },
		"tabs":              func(s string) string { return strings.ReplaceAll(s, "  ", "\t") },
		"control character": func(s string) string { return s + "x: \x01\n" },
		"no UTF-8":          func(s string) string { return s + "x: \xc3\x28\n" },
		"comment only":      func(string) string { return "# gone\n" },
	}
	for name, spoil := range damage {
		for broken := range three {
			t.Run(fmt.Sprintf("%s in %d", name, broken), func(t *testing.T) {
				docs := append([]string{}, three...)
				docs[broken] = spoil(docs[broken])
				objects, problems := File("f.yaml", []byte(strings.Join(docs, "\n---\n")))
				found := map[string]bool{}
				for _, o := range objects {
					found[o.GetName()] = true
				}
				for i, want := range []string{"one", "two", "three"} {
					if i != broken && !found[want] {
						t.Errorf("document %q is lost: %v", want, problems)
					}
				}
			})
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, doc := range three {
		f.Add([]byte(doc))
	}
	f.Add([]byte(strings.Join(three, "---\n")))
	f.Add([]byte("\uFEFF%YAML 1.2\n---\na: &a [*a]\n...\n--- |\n x\n---\n{\"kind\": \"List\"}\n"))
	f.Add([]byte(
		"apiVersion: v1\nkind: List\nitems:\n- &x {apiVersion: v1, kind: Node, metadata: {name: a}}\n- *x\n- 7\n",
	))
	f.Add([]byte(
		"apiVersion: v1\nkind: Secret\nmetadata: {name: a, labels: {<<: {b: 1}, ? [c] : d}}\nstringData: 7\ndata: []\n",
	))
	f.Add([]byte(
		gatewayWith("    port: .inf\n    protocol: !!int x\n    tls: {mode: Terminate, certificateRefs: [{}]}\n"),
	))
	f.Fuzz(func(t *testing.T, data []byte) {
		objects, problems := File("f.yaml", data)
		lines := bytes.Count(data, []byte("\n")) + bytes.Count(data, []byte("\r")) + 1
		for _, o := range objects {
			if o.GetName() == "" || o.Line < 1 || o.GetObjectKind().GroupVersionKind().Kind == "" {
				t.Errorf("object without name, kind or line: %+v", o)
			}
		}
		for _, p := range problems {
			if p.Message == "" || p.File == "" || p.Line < 1 ||
				(p.Line > lines && !bytes.ContainsAny(data, "\u0085\u2028\u2029")) {
				t.Errorf("problem without place or words: %+v", p)
			}
		}
		again, same := File("f.yaml", data)
		if !reflect.DeepEqual(objects, again) || !reflect.DeepEqual(problems, same) {
			t.Error("a second reading differs")
		}
	})
}
