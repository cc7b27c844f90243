// Command tally reads the output of `go test -json` and counts passed tests by suite. It prints the output of failed
// tests only.
//
//	go test -json ./... | tally SUITE[=N]...
//
// A suite is the first two elements of a package path below the repository: services/auth, e2e/browser. The suite fuzz
// contains the targets that ran with -fuzz. Every suite in the arguments must have run a test, or N tests. A skipped
// test is a failure, because it proves nothing.
//
// gotestsum prints failures and counts in the same way, but it counts all packages together, takes a skipped test for a
// success, cannot require that a suite has run, and fails a fuzz target for the deadline of go.dev/issue/75804. A
// program that reads its JSON file for these rules would be as long as this one.
package main

import (
	"fmt"
	"os"
)

func main() {
	t := newTally(os.Stdout)
	if err := t.read(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "tally:", err)
		os.Exit(1)
	}
	if !t.summary(os.Args[1:]) {
		os.Exit(1)
	}
}
