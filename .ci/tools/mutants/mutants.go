package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// mutant is a change that breaks a rule, and the test that shows it.
type mutant struct {
	// rule is a sentence that the change makes false. It is unique in the table.
	rule string
	// file is the changed file, relative to the root of the repository.
	file string
	// before occurs exactly once in the file, and after replaces it.
	before, after string
	// pkg is the folder of the package of the test, relative to the root.
	pkg string
	// test is the full name of the test that must fail, as go test prints it: TestName, or TestName/name_of_subtest.
	test string
}

// changed returns the text of the file with the change.
func (m mutant) changed(root string) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(root, m.file))
	if err != nil {
		return nil, fmt.Errorf("mutant %q: %w", m.rule, err)
	}
	switch n := bytes.Count(text, []byte(m.before)); {
	case m.before == m.after:
		return nil, fmt.Errorf("mutant %q changes nothing: before and after are the same", m.rule)
	case n != 1:
		return nil, fmt.Errorf("mutant %q: its text occurs %d times in %s, and must occur once: %q",
			m.rule, n, m.file, m.before)
	}
	return bytes.Replace(text, []byte(m.before), []byte(m.after), 1), nil
}

// runner runs tests in a repository.
type runner struct {
	root string
	// work is a folder for changed files.
	work string
	// flags are the GOFLAGS of the user.
	flags string
	// timeout is the time limit of the tests of one run, without compilation.
	timeout time.Duration
	out     io.Writer
}

// all runs the mutants, some at a time, and prints a line for each. It returns an error if one is not killed.
func (r *runner) all(ctx context.Context, mutants []mutant, jobs int) error {
	begun := time.Now()
	if len(mutants) == 0 {
		return errors.New("no mutant matches -run")
	}
	// All texts are checked first, so that an outdated table fails within a second.
	var errs []error
	for _, m := range mutants {
		_, err := m.changed(r.root)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	unfit, err := r.unfit(ctx, mutants)
	if err != nil {
		return err
	}

	var printing sync.Mutex
	count := map[string]int{}
	turns := make(chan struct{}, max(jobs, 1))
	var running sync.WaitGroup
	for i, m := range mutants {
		turns <- struct{}{}
		running.Go(func() {
			defer func() { <-turns }()
			start := time.Now()
			result, err := broken, unfit[id{m.pkg, m.test}]
			if err == nil {
				result, err = r.one(ctx, filepath.Join(r.work, strconv.Itoa(i)), m)
			}
			printing.Lock()
			defer printing.Unlock()
			count[result]++
			fmt.Fprintf(r.out, "%-6s %5.1fs  %-36s %s\n", result, time.Since(start).Seconds(), m.pkg, m.rule)
			if err != nil {
				fmt.Fprintf(r.out, "  %s\n", strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "\n  "))
			}
		})
	}
	running.Wait()
	fmt.Fprintf(r.out, "\n%d mutants in %s: %d killed, %d live, %d errors\n",
		len(mutants), time.Since(begun).Round(time.Second), count[killed], count[lives], count[broken])
	if count[killed] != len(mutants) {
		return errors.New("not all mutants were killed: a mutant that lives needs a test, and an error a better entry in the table")
	}
	return nil
}

// id identifies a test.
type id struct{ pkg, test string }

// unfit runs the tests of the mutants without a change, and returns an error for each that does not pass: a test that
// fails anyway would kill any mutant.
func (r *runner) unfit(ctx context.Context, mutants []mutant) (map[id]error, error) {
	var packages []string
	for _, m := range mutants {
		packages = append(packages, m.pkg)
	}
	slices.Sort(packages)
	errs := map[id]error{}
	for _, pkg := range slices.Compact(packages) {
		start := time.Now()
		var tests, patterns []string
		for _, m := range mutants {
			if m.pkg == pkg {
				tests, patterns = append(tests, m.test), append(patterns, pattern(m.test))
			}
		}
		got, err := r.test(ctx, "", pkg, strings.Join(patterns, "|"))
		if err != nil {
			return nil, err
		}
		for _, name := range tests {
			if got.ends[name] != "pass" {
				errs[id{pkg, name}] = fmt.Errorf("without the change, %s must pass, but %s", name, got.describe(name))
			}
		}
		fmt.Fprintf(r.out, "%-6s %5.1fs  %-36s without a change\n", "tested", time.Since(start).Seconds(), pkg)
	}
	return errs, nil
}

// The results of a mutant.
const (
	killed = "killed"
	lives  = "LIVES"
	broken = "ERROR"
)

// one runs the test of a mutant. It writes files whose paths start with prefix. The error says why the result is not
// killed.
func (r *runner) one(ctx context.Context, prefix string, m mutant) (string, error) {
	text, err := m.changed(r.root)
	if err != nil {
		return broken, err
	}
	changed, overlay := prefix+".go", prefix+".json"
	replace, err := json.Marshal(map[string]map[string]string{
		"Replace": {filepath.Join(r.root, m.file): changed},
	})
	if err == nil {
		err = errors.Join(os.WriteFile(changed, text, 0o600), os.WriteFile(overlay, replace, 0o600))
	}
	if err != nil {
		return broken, fmt.Errorf("write the changed file: %w", err)
	}

	got, err := r.test(ctx, overlay, m.pkg, pattern(m.test))
	switch end := got.ends[m.test]; {
	case err != nil:
		return broken, err
	case end == "pass":
		return lives, fmt.Errorf("%s passes although %s has %q in place of %q", m.test, m.file, m.after, m.before)
	case end == "fail" && !got.timedOut:
		return killed, nil
	default:
		return broken, fmt.Errorf("with the change, %s must fail, but %s", m.test, got.describe(m.test))
	}
}

// pattern returns the pattern of go test -run that matches a test and no other.
func pattern(test string) string {
	elements := strings.Split(test, "/")
	for i, e := range elements {
		elements[i] = "^" + regexp.QuoteMeta(e) + "$"
	}
	return strings.Join(elements, "/")
}

// results are the results of a run of go test.
type results struct {
	// ends are pass, fail or skip for each test that has run.
	ends map[string]string
	// uncompiled is the output of the compiler, if a package does not compile.
	uncompiled string
	timedOut   bool
	output     string
}

// describe explains why a test did not end as it must.
func (r results) describe(test string) string {
	const most = 4000
	output := r.output[max(0, len(r.output)-most):]
	switch {
	case r.uncompiled != "":
		return "the code does not compile:\n" + r.uncompiled
	case r.timedOut:
		return "the tests do not end:\n" + output
	case r.ends[test] == "":
		return "no test of this name runs:\n" + output
	}
	return "its result is " + r.ends[test] + ":\n" + output
}

// test runs the tests of a package that match a pattern of go test -run. The error is that of a go command that could
// not be started.
func (r *runner) test(ctx context.Context, overlay, pkg, pattern string) (results, error) {
	got := results{ends: map[string]string{}}
	cmd := exec.CommandContext(ctx, "go", "test", "-json", "-vet=off", "-count=1",
		"-timeout="+r.timeout.String(), "-run="+pattern, "./"+pkg)
	// The tests are processes of their own and end with the go command.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = 10 * time.Second
	cmd.Dir = r.root
	// make starts this tool outside of the workspace, in which the modules are tested.
	cmd.Env = append(os.Environ(), "GOWORK=")
	if overlay != "" {
		cmd.Env = append(cmd.Env, "GOFLAGS="+r.flags+" -overlay="+overlay)
	}
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		return got, fmt.Errorf("run %s: %w", cmd, errors.Join(err, ctx.Err()))
	}
	for line := range bytes.Lines(out) {
		got.add(line)
	}
	return got, nil
}

// add adds a line of go test -json; see `go doc test2json`.
func (r *results) add(line []byte) {
	var e struct{ Action, Test, Output string }
	if json.Unmarshal(line, &e) != nil {
		r.output += string(line) // a message of the go command
		return
	}
	switch e.Action {
	case "build-output":
		r.uncompiled += e.Output
	case "output":
		r.output += e.Output
		r.timedOut = r.timedOut || strings.HasPrefix(e.Output, "panic: test timed out")
	case "pass", "fail", "skip":
		if e.Test != "" {
			r.ends[e.Test] = e.Action
		}
	}
}
