package main

import (
	"errors"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"
)

const list = `
- area: Errors
  requirements:
  - {id: S-01, says: one holds, source: RFC 8489 §6, priority: P0}
  - {id: T-A1, says: another holds, priority: P1}
`

// tree is a repository with that list, in which a test carries the first id and a check of the prober the second. Files
// are added or replaced.
func tree(list string, files map[string]string) fstest.MapFS {
	all := map[string]string{
		listFile:             list,
		".ci/mk/test.mk":     "lint: vet ## Look\n",
		"services/a_test.go": "package a\n\n// S-01: one holds.\nfunc TestOne(t *testing.T) {}\n",
		checkFolder + "/b.go": "package probe\n\nvar all = []Check{{ID: \"T-A1 first\", Says: \"S-09\"}, {ID: \"T-A1 \" + text}, " +
			"{ID: \"S-09 slow\", Pace: Long}}\n",
	}
	for name, text := range files {
		all[name] = text
	}
	tree := fstest.MapFS{}
	for name, text := range all {
		tree[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return tree
}

// look returns the page and what is wrong.
func look(t *testing.T, tree fs.FS) (string, error) {
	t.Helper()
	areas, err := readList(tree)
	if err != nil {
		return "", err
	}
	claims, stray, err := readClaims(tree)
	if err != nil {
		return "", err
	}
	return string(page(areas, claims)), errors.Join(append(stray, contradictions(tree, areas, claims)...)...)
}

// TestPage: the page names tests and checks with their files, what is shown in part, and what has no test.
func TestPage(t *testing.T) {
	got, err := look(t, tree(list+`
- area: Rest
  requirements:
  - {id: S-02, says: a third holds, priority: P2, with: [S-01], by: [make lint], part: half of it}
  - {id: S-03, says: a fourth | holds, priority: P2, open: nobody has looked}
  - {id: S-04, says: a fifth holds, priority: P2, not offered: nobody wants it}
  - {id: S-05, says: a golden case holds, priority: P2}
`, map[string]string{
		"services/testdata/a_case.txtar": "Why it is so.\nS-05: it holds.\n\n-- in/case.yaml --\nS-77: of no interest\n",
		"services/method_test.go":        "package a\n\n// S-02, S-05: a story holds.\n// It is long.\nfunc (s site) story() {}\n",
	}))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"6 requirements: 3 shown, 1 shown in part, 1 open, 1 not offered.\n",
		"| S-01 | P0 | one holds | RFC 8489 §6 | [services `TestOne`](../services/a_test.go) |\n",
		"| T-A1 | P1 | another holds | own rule | [turnprobe](../" + checkFolder + "/b.go) `T-A1 first`, `T-A1` |\n",
		"| [services `story`](../services/method_test.go)<br>`make lint`<br>the tests of S-01<br>*in part:* half of it |\n",
		"## Without a test\n\n| id | | requirement | why |\n| --- | --- | --- | --- |\n| S-03 | P2 | a fourth \\| holds | open: nobody has looked |\n| S-04 |",
		"[services/testdata `a_case`](../services/testdata/a_case.txtar)",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the page lacks %q:\n%s", want, got)
		}
	}
}

// TestContradictions: what the list and the tests do not agree on is an error that says what to do.
func TestContradictions(t *testing.T) {
	entry := func(fields string) string {
		return list + "  - {id: S-02, says: it holds, priority: P0" + fields + "}\n"
	}
	carrying := func(comment string) map[string]string {
		return map[string]string{"services/c_test.go": "package a\n\n" + comment + "\nfunc TestC(t *testing.T) {}\n"}
	}
	for name, c := range map[string]struct {
		list  string
		files map[string]string
		want  string
	}{
		"nothing":                 {list, nil, ""},
		"neither test nor reason": {entry(""), nil, "S-02: has neither a test nor a reason"},
		"open and shown": {
			entry(", open: not yet"), carrying("// S-02: it holds."), "S-02: is open, and a test shows it",
		},
		"not offered and shown": {
			entry(", not offered: ever"), carrying("// S-02: it holds."), "S-02: is not offered, and a test shows it",
		},
		"open and not offered": {
			entry(", open: not yet, not offered: ever"), nil, "S-02: is open and not offered",
		},
		"part of nothing": {
			entry(", open: not yet, part: half"), nil, "S-02: is shown in part, and there is no test",
		},
		"unknown id": {
			list, carrying("// S-02: it holds."), "S-02 in services/c_test.go is not in the list",
		},
		"unknown id of a check": {list, map[string]string{checkFolder + "/c.go": `package probe; var c = Check{ID: "S-02 quick"}`}, "S-02 in " + checkFolder + "/c.go is not in the list"},
		"a check nobody makes":  {entry(""), map[string]string{checkFolder + "/c.go": `package probe; var c = Check{ID: "S-02 slow", Pace: Long}`}, "S-02: has neither"},
		"id without a sentence": {list, carrying("// S-01"), `services/c_test.go: no test carries "S-01"`},
		"id with something else": {
			list, carrying("// S-01 and more: it holds."), `no test carries "S-01 and more: it holds."`,
		},
		"id with its section": {entry(""), carrying("// S-02, RFC 1 §2: it holds."), ""},
		"id inside a function": {
			list, carrying("func helper() {\n\t// S-01: it holds.\n}"), `no test carries "S-01: it holds."`,
		},
		"id that a test ends with": {entry(""), carrying("// It holds (S-02)."), "S-02: has neither"},
		"entry twice": {
			list + "  - {id: S-01, says: it holds, priority: P0}\n", nil, "S-01 is in the list twice",
		},
		"no id": {
			list + "  - {id: one, says: it holds, priority: P0, open: not yet}\n", nil, "one: is no id",
		},
		"no sentence": {
			list + "  - {id: S-02, priority: P0, open: not yet}\n", nil, "S-02: has no sentence",
		},
		"no priority": {
			list + "  - {id: S-02, says: it holds, open: not yet}\n", nil, "S-02: has no priority",
		},
		"misspelt key": {entry(", opne: not yet"), nil, "field opne not found"},
		"target that is not there": {
			entry(", by: [make vet]"), nil, `S-02: is shown by "make vet", which is not there`,
		},
		"file that is not there": {
			entry(", by: [.ci/look]"), nil, `S-02: is shown by ".ci/look", which is not there`,
		},
		"with one that has no test": {entry(", with: [S-03]"), nil, "S-02: is shown with S-03, which no test carries"},
		"with itself": {
			entry(", with: [S-02]"), carrying("// S-02: it holds."), "S-02: is shown with S-02",
		},
		"a test that is not Go": {list, carrying("func"), "read tests: services/c_test.go"},
		"a folder that is left out": {
			list, map[string]string{"bin/c_test.go": "package a\n\n// S-02: it holds.\nfunc TestC() {}\n"}, "",
		},
		"a line of its own goes by":  {entry(", open: not yet"), carrying("// The rule S-02: it holds."), ""},
		"a target and a file as one": {entry(", by: [make lint, .ci/mk/test.mk]"), nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			switch _, err := look(t, tree(c.list, c.files)); {
			case c.want == "" && err != nil:
				t.Errorf("wrong: %v", err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}
