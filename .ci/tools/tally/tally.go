package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

const repository = "github.com/stunner-gateway/stunner/"

// event is one line of `go test -json`; see `go doc test2json`.
type event struct {
	Action     string
	Package    string
	ImportPath string // of a package that is being built
	Test       string
	Output     string
	Elapsed    float64
}

// test names a test of a package; a name of "" is the package itself.
type test struct{ pkg, name string }

// count is how many tests of a suite ended how. Tests that have subtests are counted by these.
type count struct{ passed, failed, skipped int }

type tally struct {
	out     io.Writer
	suites  map[string]count
	parents map[test]bool
	output  map[test]string // of tests that have not ended
	passed  map[string]int  // by package, for the progress line
}

func newTally(out io.Writer) *tally {
	return &tally{
		out:     out,
		suites:  map[string]count{},
		parents: map[test]bool{},
		output:  map[test]string{},
		passed:  map[string]int{},
	}
}

// read counts until the stream ends. A line that is no event, such as a complaint of the go command, is shown.
func (t *tally) read(in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		var e event
		if json.Unmarshal([]byte(line), &e) == nil {
			t.add(e)
		} else {
			fmt.Fprint(t.out, line)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read test events: %w", err)
		}
	}
}

func (t *tally) add(e event) {
	id := test{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		fmt.Fprint(t.out, e.Output)
	case "output":
		t.output[id] += e.Output
	case "run":
		t.adopt(id)
	case "pass", "fail", "skip":
		if e.Test == "" {
			t.endPackage(e)
			return
		}
		t.endTest(e.Action, id)
	}
}

// adopt marks the tests above a subtest as parents.
func (t *tally) adopt(id test) {
	for i, r := range id.name {
		if r == '/' {
			t.parents[test{id.pkg, id.name[:i]}] = true
		}
	}
}

func (t *tally) endTest(action string, id test) {
	output := t.output[id]
	delete(t.output, id)
	if action != "pass" {
		fmt.Fprint(t.out, output)
	}
	// A parent that fails by itself, not by a subtest, fails its package, which is counted then.
	if t.parents[id] {
		return
	}
	c := t.suites[suite(id.pkg)]
	switch action {
	case "pass":
		c.passed++
		t.passed[id.pkg]++
	case "fail":
		c.failed++
	case "skip":
		c.skipped++
	}
	t.suites[suite(id.pkg)] = c
}

// endPackage shows what is left of a package that failed: a panic or a timeout ends no test.
func (t *tally) endPackage(e event) {
	left := slices.SortedFunc(maps.Keys(t.output), func(a, b test) int { return strings.Compare(a.name, b.name) })
	for _, id := range left {
		if id.pkg != e.Package {
			continue
		}
		if e.Action == "fail" {
			fmt.Fprint(t.out, t.output[id])
		}
		delete(t.output, id)
	}
	name := strings.TrimPrefix(e.Package, repository)
	switch {
	case e.Action == "fail":
		t.failPackage(suite(e.Package))
		fmt.Fprintf(t.out, "FAIL  %-45s %6.1fs\n", name, e.Elapsed)
	case t.passed[e.Package] > 0:
		fmt.Fprintf(t.out, "ok    %-45s %6.1fs  %4d passed\n", name, e.Elapsed, t.passed[e.Package])
	}
}

// failPackage makes a package that failed count even when none of its tests did: it may not compile.
func (t *tally) failPackage(suite string) {
	c := t.suites[suite]
	c.failed = max(c.failed, 1)
	t.suites[suite] = c
}

// summary prints a line for each suite and one for all, and reports whether everything is well.
func (t *tally) summary(required []string) bool {
	for _, name := range required {
		if _, ran := t.suites[name]; !ran {
			t.suites[name] = count{}
		}
	}
	var total count
	fmt.Fprintln(t.out)
	for _, name := range slices.Sorted(maps.Keys(t.suites)) {
		c := t.suites[name]
		fmt.Fprintf(t.out, "%-20s %5d passed%s\n", name, c.passed, c.trouble())
		if c == (count{}) {
			c.failed = 1
		}
		total.passed += c.passed
		total.failed += c.failed + c.skipped
	}
	fmt.Fprintf(t.out, "\n%d passed, %d failed\n", total.passed, total.failed)
	return total.failed == 0
}

func (c count) trouble() string {
	var s string
	if c == (count{}) {
		return "  FAILED: no test ran"
	}
	if c.failed > 0 {
		s += fmt.Sprintf("  %d FAILED", c.failed)
	}
	if c.skipped > 0 {
		s += fmt.Sprintf("  %d SKIPPED, which counts as failed", c.skipped)
	}
	return s
}

// suite is the first two elements of the path of a package below the repository.
func suite(pkg string) string {
	elements := strings.SplitN(strings.TrimPrefix(pkg, repository), "/", 3)
	return strings.Join(elements[:min(2, len(elements))], "/")
}
