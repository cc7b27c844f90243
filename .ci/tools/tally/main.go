// Tally reads what `go test -json` writes and counts the tests that passed, suite by suite. It shows the output of tests that failed
// and of no others.
//
//	go test -json ./... | tally SUITE[=N]...
//
// A suite is named by the first two elements of a package's path below the repository: services/auth, e2e/browser. The suite fuzz is
// what ran under -fuzz. Every suite that is named as an argument must have run a test, or N of them. A skipped test is a failure,
// because it proves nothing.
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
