// Package testnet runs a test in a network namespace of its own, in which the test may add and remove addresses.
package testnet

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// inside is the environment variable of the child process that Isolated starts. Its value is the name of the test.
const inside = "STUNNERD_TESTNET"

// Isolated runs the test again in a child process with a network namespace of its own, in which the loopback interface
// is up. It reports whether the current process is that child. A test calls it first, and returns if the result is
// false: the result of the child is then the result of the test.
func Isolated(t *testing.T) bool {
	t.Helper()
	if os.Getenv(inside) == t.Name() {
		IP(t, "link set lo up")
		return true
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.CommandContext(t.Context(), program, "-test.run", "^"+t.Name()+"$", "-test.v", "-test.count=1")
	child.Env = append(os.Environ(), inside+"="+t.Name())
	child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if uid := os.Getuid(); uid != 0 { // a user namespace gives the child the right to a network namespace
		child.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		child.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
		child.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	out, err := child.CombinedOutput()
	t.Logf("in a network of its own:\n%s", out)
	if err != nil {
		t.Fatal(err)
	}
	return false
}

// IP runs the command ip of iproute2. The arguments are separated by spaces.
func IP(t *testing.T, arguments string) {
	t.Helper()
	if _, err := exec.LookPath("ip"); err != nil {
		t.Fatalf("%v: install iproute2", err)
	}
	if out, err := exec.Command("ip", strings.Fields(arguments)...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v: %s", arguments, err, out)
	}
}
