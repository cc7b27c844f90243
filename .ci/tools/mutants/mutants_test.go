package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// subjects are the packages of which each must have a mutant.
var subjects = []string{
	stunnerd + "gate", stunnerd + "session", stunnerd + "forward", stunnerd + "journal", stunnerd + "listener",
	stunnerd + "cluster", stunnerd + "relay", stunnerd + "nonce", stunnerd + "limit", stunnerd + "meter",
	stunnerd + "server", stunnerd + "follower",
	operator + "translate", operator + "share", operator + "condition", operator + "kube",
	api + "discovery", api + "config", api + "credential",
	auth + "access", auth + "gateway", auth + "rest",
	stunnerctl + "diagnose", "dashboards",
}

// TestTable checks that the texts of the table are in the files, so that a change of a rule updates its mutant.
func TestTable(t *testing.T) {
	rules := map[string]bool{}
	for _, m := range table {
		if _, err := m.changed("../../.."); err != nil {
			t.Error(err)
		}
		if rules[m.rule] {
			t.Errorf("two mutants break %q", m.rule)
		}
		rules[m.rule] = true
	}
	for _, s := range subjects {
		if !slices.ContainsFunc(table, func(m mutant) bool { return m.pkg == s }) {
			t.Errorf("no mutant of %s", s)
		}
	}
}

// repository writes a module with a rule and tests, and returns its folder.
func repository(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module example.org/rules\n\ngo 1.26\n",
		"rule.go": `package rules

func adult(age int) bool { return age >= 18 }

func twice(n int) int { return n + n }
`,
		"rule_test.go": `package rules

import "testing"

func TestAdult(t *testing.T) {
	t.Run("of 17 years", func(t *testing.T) {
		if adult(17) {
			t.Error("is adult")
		}
	})
	t.Run("of 18 years", func(t *testing.T) {
		if !adult(18) {
			t.Error("is no adult")
		}
	})
}

func TestNothing(t *testing.T) { twice(1) }

func TestBroken(t *testing.T) { t.Error("always") }

func TestSkipped(t *testing.T) { t.Skip() }

func TestEndless(t *testing.T) {
	if twice(1) != 2 {
		select {}
	}
}

func TestPanics(t *testing.T) { _ = [3]int{}[twice(1)] }
`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestOutdatedEntries checks that an entry whose text does not occur exactly once is an error, before any test runs.
func TestOutdatedEntries(t *testing.T) {
	root := repository(t)
	for name, c := range map[string]struct{ before, after, want string }{
		"the text is missing":      {">= 19", ">= 17", `"the text is missing": its text occurs 0 times in rule.go`},
		"the text is there thrice": {"int", "uint", `"the text is there thrice": its text occurs 3 times in rule.go`},
		"nothing changes":          {">= 18", ">= 18", `"nothing changes" changes nothing`},
	} {
		var out bytes.Buffer
		r := runner{root: root, work: t.TempDir(), timeout: time.Minute, out: &out}
		m := mutant{rule: name, file: "rule.go", before: c.before, after: c.after, pkg: ".", test: "TestAdult"}
		if err := r.all(t.Context(), []mutant{m}, 1); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %q", err, c.want)
		}
		if out.Len() > 0 {
			t.Errorf("tests ran:\n%s", &out)
		}
	}
}

func TestRunner(t *testing.T) {
	const of17 = "TestAdult/of_17_years"
	cases := []struct {
		rule, before, after, test string
		// want are the result and a part of the explanation.
		want, why string
	}{
		{"a test fails", ">= 18", ">= 17", of17, killed, ""},
		{"a test panics", "n + n", "n + 4", "TestPanics", killed, ""},
		{"another subtest fails", ">= 18", "> 18", of17, lives, of17 + " passes although"},
		{"no test fails", "n + n", "n * 2", "TestNothing", lives, "TestNothing passes although"},
		{"the code does not compile", ">= 18", ">= eighteen", of17, broken, "undefined: eighteen"},
		{"the test has another name", ">= 18", ">= 17", "TestAdults", broken, "no test of this name runs"},
		{"the subtest has another name", ">= 18", ">= 17", "TestAdult/of_16_years", broken, "no test of this name runs"},
		{"the test fails anyway", ">= 18", ">= 17", "TestBroken", broken, "without the change, TestBroken must pass"},
		{"the test is skipped", ">= 18", ">= 17", "TestSkipped", broken, "its result is skip"},
		{"the test does not end", "n + n", "n + 4", "TestEndless", broken, "the tests do not end"},
	}
	root := repository(t)
	text, err := os.ReadFile(filepath.Join(root, "rule.go"))
	if err != nil {
		t.Fatal(err)
	}
	var mutants []mutant
	for _, c := range cases {
		mutants = append(mutants, mutant{
			rule: c.rule, file: "rule.go", before: c.before, after: c.after, pkg: ".", test: c.test,
		})
	}
	var out bytes.Buffer
	r := runner{root: root, work: t.TempDir(), timeout: 10 * time.Second, out: &out}
	if err := r.all(t.Context(), mutants, 2); err == nil {
		t.Error("no error, although mutants live")
	}
	// A line starts with the result and ends with the rule. The explanation follows.
	for _, c := range cases {
		at := strings.Index(out.String(), " "+c.rule+"\n")
		if at < 0 {
			t.Fatalf("no line for %q:\n%s", c.rule, &out)
		}
		line := out.String()[strings.LastIndex(out.String()[:at], "\n")+1:]
		if !strings.HasPrefix(line, c.want) || !strings.Contains(line, c.why) {
			t.Errorf("%s: want %s and %q:\n%s", c.rule, c.want, c.why, line)
		}
	}
	if want := "2 killed, 2 live, 6 errors\n"; !strings.Contains(out.String(), want) {
		t.Errorf("no summary %q:\n%s", want, &out)
	}
	if after, err := os.ReadFile(filepath.Join(root, "rule.go")); err != nil || !bytes.Equal(after, text) {
		t.Errorf("the file in the repository has changed: %v", err)
	}

	out.Reset()
	if err := r.all(t.Context(), mutants[:2], 2); err != nil {
		t.Errorf("all mutants are killed, but: %v\n%s", err, &out)
	}
}

func TestNoMutantIsAnError(t *testing.T) {
	if err := run(t.Context(), t.TempDir(), "^no such rule$", 1); err == nil {
		t.Error("no error although no mutant matches")
	}
}
