// Package netns gives a test a network of its own: addresses that look like the internet's, few ports, and nobody else's packets.
package netns

import (
	"flag"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// inside marks the process that is in the new network; its value is the test that it runs.
const inside = "E2E_NETNS"

// Isolated runs the test once more, in a child process with a network namespace of its own, and reports whether this is that child. A test
// begins with it and returns when it is not: what the child found is then the test's result. Every address of 198.18.0.0/15, which is set
// aside for such experiments (RFC 2544 §C.2.2), is an address of the child. The child runs the subtests that -run selects.
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
	child := exec.CommandContext(t.Context(), program, "-test.run", selected(t.Name(), flag.Lookup("test.run").Value.String()), "-test.v", "-test.count=1")
	child.Env = append(os.Environ(), inside+"="+t.Name())
	child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	out, err := child.CombinedOutput()
	t.Logf("in a network of its own:\n%s", out)
	if err != nil {
		t.Fatal(err)
	}
	return false
}

// selected returns a pattern for -run that selects one test, and of its subtests those that the given pattern selects.
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

// Run runs a command in the network of the calling thread, and returns what it printed. An error ends the test.
func Run(t *testing.T, command string) string {
	t.Helper()
	words := strings.Fields(command)
	out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
	return string(out)
}
