// Package testroot is for tests that need root.
package testroot

import (
	"fmt"
	"os"
	"testing"
)

// Need ends the test unless root runs it. Without root the test fails, because a skipped test would count as passed;
// with -short it is skipped. The argument what names the parts of the test that need root, as a plural noun.
func Need(t testing.TB, what string) {
	t.Helper()
	skip, err := missing(os.Geteuid(), testing.Short(), what)
	if err != nil {
		t.Fatal(err)
	}
	if skip != "" {
		t.Skip(skip)
	}
}

// missing returns why a user cannot run a test: as the reason to skip it with -short, or as an error.
func missing(user int, short bool, what string) (skip string, err error) {
	switch {
	case user == 0:
		return "", nil
	case short:
		return what + " need root", nil
	}
	return "", fmt.Errorf("%s need root: run the test as root (sudo -E env PATH=\"$PATH\" go test …), "+
		"or skip it with -short", what)
}
