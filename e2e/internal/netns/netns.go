// Package netns runs a test in a network namespace of its own, with public-looking addresses, a small port range if
// needed, and no foreign traffic.
package netns

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// inside is the environment variable that marks the child process in the new namespace. Its value is the name of the
// test.
const inside = "E2E_NETNS"

// Isolated runs the calling test again in a child process with a new network namespace, and reports whether this
// process is the child. A test calls it first and returns if the result is false; the child's result is then the test's
// result. All addresses of 198.18.0.0/15, which is reserved for benchmarks (RFC 2544 §C.2.2), are local to the child.
// The child runs the subtests that -run selects, with the flags of the suite.
func Isolated(t *testing.T) bool {
	t.Helper()
	if os.Getenv(inside) == t.Name() {
		Run(t, "ip link set lo up")
		Run(t, "ip address add 198.18.0.1/15 dev lo")
		return true
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args := append(
		[]string{"-test.run", selected(t.Name(), flag.Lookup("test.run").Value.String()), "-test.v", "-test.count=1"},
		ownFlags(flag.CommandLine)...,
	)
	child := exec.CommandContext(t.Context(), program, args...)
	child.Env = append(os.Environ(), inside+"="+t.Name())
	child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	out, err := child.CombinedOutput()
	t.Logf("in the network namespace:\n%s", out)
	if err != nil {
		t.Fatal(err)
	}
	return false
}

// ownFlags returns the flags that are set and that package testing does not define.
func ownFlags(set *flag.FlagSet) (args []string) {
	set.Visit(func(f *flag.Flag) {
		if !strings.HasPrefix(f.Name, "test.") {
			args = append(args, "-"+f.Name+"="+f.Value.String())
		}
	})
	return args
}

// selected returns a -run pattern that selects one test and those of its subtests that the given pattern selects.
func selected(test, pattern string) string {
	whole := "^" + test + "$"
	var parts []string
	for _, alternative := range strings.Split(pattern, "|") {
		top, subtests, some := strings.Cut(alternative, "/")
		if found, err := regexp.MatchString(top, test); err != nil || !found {
			continue
		}
		if !some {
			return whole
		}
		parts = append(parts, whole+"/"+subtests)
	}
	if len(parts) == 0 {
		return whole
	}
	return strings.Join(parts, "|")
}

// Run runs a command in the network namespace of the calling thread and returns its output. An error ends the test.
func Run(t *testing.T, command string) string {
	t.Helper()
	out, err := Exec(command)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Exec runs a command in the network namespace of the calling thread and returns its output.
func Exec(command string) (string, error) {
	words := strings.Fields(command)
	out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", command, err, out)
	}
	return string(out), nil
}
