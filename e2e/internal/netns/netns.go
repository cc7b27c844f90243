// Package netns gives a test a network of its own: addresses that look like the internet's, few ports, and nobody else's packets.
package netns

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// inside marks the process that is in the new network; its value is the test that it runs.
const inside = "E2E_NETNS"

// Isolated runs the test once more, in a child process with a network namespace of its own, and reports whether this is that child. A test
// begins with it and returns when it is not: what the child found is then the test's result. Every address of 198.18.0.0/15, which is set
// aside for such experiments (RFC 2544 §C.2.2), is an address of the child.
func Isolated(t *testing.T) bool {
	t.Helper()
	if os.Getenv(inside) == t.Name() {
		for _, command := range []string{"link set lo up", "address add 198.18.0.1/15 dev lo"} {
			if out, err := exec.Command("ip", strings.Fields(command)...).CombinedOutput(); err != nil {
				t.Fatalf("ip %s: %v: %s", command, err, out)
			}
		}
		return true
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.CommandContext(t.Context(), program, "-test.run", "^"+t.Name()+"$", "-test.v", "-test.count=1")
	child.Env = append(os.Environ(), inside+"="+t.Name())
	child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	out, err := child.CombinedOutput()
	t.Logf("in a network of its own:\n%s", out)
	if err != nil {
		t.Fatal(err)
	}
	return false
}
