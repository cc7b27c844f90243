// Command mutants shows that tests protect the rules of the product: it breaks one rule after the other, and runs the
// test that must then fail.
//
//	mutants [-run REGEXP] ROOT
//
// A mutant is a change of one file that breaks one rule; table.go lists all mutants. The go command reads the changed
// file in place of the original by its flag -overlay, so that the working tree never changes. The flag is in GOFLAGS,
// which also reaches the programs that a test of e2e builds.
//
// A mutant is killed if its test fails. A test that fails without the mutant too, does not run, or does not end, and a
// mutant that does not compile, prove nothing and are errors of the table. The exit code is 1 after an error, and if a
// mutant lives.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"
)

func main() {
	only := flag.String("run", ".", "run the mutants whose rule or package matches this regular expression")
	jobs := flag.Int("jobs", runtime.NumCPU(), "number of mutants at a time")
	flag.Parse()
	// The go command that an interrupt ends removes its temporary files.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, flag.Arg(0), *only, *jobs); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, root, only string, jobs int) error {
	match, err := regexp.Compile(only)
	if err != nil {
		return fmt.Errorf("read -run: %w", err)
	}
	root, err = filepath.Abs(root)
	if err != nil {
		return fmt.Errorf("find the root of the repository: %w", err)
	}
	chosen := slices.DeleteFunc(slices.Clone(table), func(m mutant) bool {
		return !match.MatchString(m.rule) && !match.MatchString(m.pkg)
	})
	flags, err := exec.CommandContext(ctx, "go", "env", "GOFLAGS").Output()
	if err != nil {
		return fmt.Errorf("read GOFLAGS: %w", err)
	}
	work, err := os.MkdirTemp("", "stunner-mutants-")
	if err != nil {
		return fmt.Errorf("make a folder for the changed files: %w", err)
	}
	defer os.RemoveAll(work)
	r := runner{
		root: root, work: work, flags: strings.TrimSpace(string(flags)), timeout: 2 * time.Minute, out: os.Stdout,
	}
	return r.all(ctx, chosen, jobs)
}
