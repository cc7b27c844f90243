package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const repository = "github.com/stunner-gateway/stunner/"

// event is one line of `go test -json`; see `go doc test2json`.
type event struct {
	Action     string
	Package    string
	ImportPath string // of a package that fails to build
	Test       string
	Output     string
	Elapsed    float64
}

// test identifies a test of a package; an empty name is the package itself.
type test struct{ pkg, name string }

// count is the number of tests of a suite by result. For a test with subtests the subtests are counted.
type count struct{ passed, failed, skipped, required int }

func (c count) missing() int { return max(0, c.required-c.passed-c.failed-c.skipped) }

type tally struct {
	out     io.Writer
	suites  map[string]count
	parents map[test]bool
	output  map[test]string // of running tests
	passed  map[string]int  // by package, for the progress line
	counted map[string]bool // packages that fail because of a fuzz target, which is counted itself
	failed  []string        // failed tests with their messages
}

func newTally(out io.Writer) *tally {
	return &tally{
		out:     out,
		suites:  map[string]count{},
		parents: map[test]bool{},
		output:  map[test]string{},
		passed:  map[string]int{},
		counted: map[string]bool{},
	}
}

// read processes the stream until its end. A line that is not an event, such as an error of the go command, is printed.
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
	if executions.MatchString(output) {
		t.endFuzz(action, id, output)
		return
	}
	if action != "pass" {
		fmt.Fprint(t.out, output)
		t.complain(id, output)
	}
	// A parent that fails without a failed subtest fails its package, which is counted.
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

// complaint matches the lines of a test or a panic in an output that also contains logs of programs.
var complaint = regexp.MustCompile(`(?m)^(\s+\w+_test\.go:\d+: |panic: |WARNING: DATA RACE).*`)

// complain stores the messages of a failure for the summary, because its output may be thousands of lines above.
func (t *tally) complain(id test, output string) {
	const most, longest = 10, 500
	lines := complaint.FindAllString(output, most)
	for i, l := range lines {
		l = strings.TrimSpace(l)
		lines[i] = "    " + l[:min(longest, len(l))] + "\n"
	}
	if len(lines) > 0 {
		t.failed = append(t.failed, strings.TrimPrefix(id.pkg, repository)+" "+id.name+"\n"+strings.Join(lines, ""))
	}
}

// fuzz is the suite of targets that ran with -fuzz, not only with their seeds.
const fuzz = "fuzz"

var (
	executions = regexp.MustCompile(`(?m)^fuzz: elapsed: .*execs: (\d+)`)
	// deadline matches the only message of a target without a finding: at the end of -fuzztime the go command may
	// report its own deadline as a failure (go.dev/issue/75804, fixed in Go 1.27). A finding has another message.
	deadline = regexp.MustCompile(`(?m)^--- FAIL: .*\n\s*context deadline exceeded\n\z`)
)

// endFuzz counts a fuzz target as one test, which passes if it has run executions without a finding.
func (t *tally) endFuzz(action string, id test, output string) {
	all := executions.FindAllStringSubmatch(output, -1)
	tried, err := strconv.Atoi(all[len(all)-1][1])
	t.counted[id.pkg] = action == "fail"
	if deadline.MatchString(output) {
		action = "pass"
	}
	c, mark := t.suites[fuzz], ""
	if action == "pass" && err == nil && tried > 0 {
		c.passed++
	} else {
		fmt.Fprint(t.out, output)
		c.failed++
		mark = "  FAILED"
	}
	t.suites[fuzz] = c
	fmt.Fprintf(
		t.out, "fuzz  %-60s %8d executions%s\n", strings.TrimPrefix(id.pkg, repository)+" "+id.name, tried, mark,
	)
}

// endPackage prints the remaining output of a failed package: after a panic or a timeout its tests do not end.
func (t *tally) endPackage(e event) {
	left := slices.SortedFunc(maps.Keys(t.output), func(a, b test) int { return strings.Compare(a.name, b.name) })
	for _, id := range left {
		if id.pkg != e.Package {
			continue
		}
		if e.Action == "fail" {
			fmt.Fprint(t.out, t.output[id])
			t.complain(id, t.output[id])
		}
		delete(t.output, id)
	}
	name := strings.TrimPrefix(e.Package, repository)
	switch {
	case t.counted[e.Package]:
		delete(t.counted, e.Package)
	case e.Action == "fail":
		t.failPackage(suite(e.Package))
		fmt.Fprintf(t.out, "FAIL  %-45s %6.1fs\n", name, e.Elapsed)
	case t.passed[e.Package] > 0:
		fmt.Fprintf(t.out, "ok    %-45s %6.1fs  %4d passed\n", name, e.Elapsed, t.passed[e.Package])
	}
}

// failPackage counts a failed package without failed tests, for example one that does not compile.
func (t *tally) failPackage(suite string) {
	c := t.suites[suite]
	c.failed = max(c.failed, 1)
	t.suites[suite] = c
}

// summary prints a line for each suite and a total, and reports whether all tests passed. Each required suite must have
// run a test, or N tests if it is written SUITE=N.
func (t *tally) summary(required []string) bool {
	for _, r := range required {
		name, number, _ := strings.Cut(r, "=")
		c := t.suites[name]
		n, _ := strconv.Atoi(number)
		c.required = max(n, 1)
		t.suites[name] = c
	}
	var total count
	fmt.Fprintln(t.out)
	for _, name := range slices.Sorted(maps.Keys(t.suites)) {
		c := t.suites[name]
		fmt.Fprintf(t.out, "%-20s %5d passed%s\n", name, c.passed, c.trouble())
		total.passed += c.passed
		total.failed += c.failed + c.skipped + c.missing()
	}
	for _, f := range t.failed {
		fmt.Fprint(t.out, "\nFAIL ", f)
	}
	fmt.Fprintf(t.out, "\n%d passed, %d failed\n", total.passed, total.failed)
	return total.failed == 0
}

func (c count) trouble() string {
	var s string
	if n := c.missing(); n > 0 {
		s = fmt.Sprintf("  FAILED: %d of %d ran", c.required-n, c.required)
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
