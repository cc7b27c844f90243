// Package netns runs a test, or all tests of a package, in a network namespace of its own, with addresses that are not
// private, a small port range if needed, and no traffic of other programs.
package netns

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// inside is the environment variable that marks the child process in the new namespace. Its value is the name of the
// test, or whole.
const inside, whole = "E2E_NETNS", "all tests"

// Setting is a file below /proc/sys that all network namespaces share, and the value that the tests need.
type Setting struct{ File, Value string }

// UsualSendBuffers limits send buffers to the default of Linux. With larger buffers, a server would pass a test that it
// fails on most machines.
var UsualSendBuffers = Setting{"/proc/sys/net/core/wmem_max", "212992"}

// Main runs all tests of a package in a network namespace, as Isolated does with one test, and returns the exit code.
// The argument run is the method Run of testing.M. The parent process holds the settings, because a child in another
// namespace cannot.
func Main(run func() int, settings ...Setting) int {
	switch os.Getenv(inside) {
	case whole:
		if err := configure(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return run()
	case "":
	default: // this process runs one test that called Isolated
		return run()
	}
	if err := runChild(settings); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// runChild runs this program with its arguments in a new network namespace.
func runChild(settings []Setting) (err error) {
	for _, s := range settings {
		release, holdErr := s.hold(os.TempDir())
		if holdErr != nil {
			return fmt.Errorf("%w: run the tests as root", holdErr)
		}
		defer func() { err = errors.Join(err, release()) }()
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	child := inNamespace(exec.Command(program, os.Args[1:]...), whole)
	child.Stdin, child.Stdout, child.Stderr = os.Stdin, os.Stdout, os.Stderr
	return child.Run()
}

// hold gives a setting its value until release is called. Processes that run at the same time share the setting. The
// first process writes the value, and stores the previous value in a file of the folder. The last process restores the
// previous value, also after another process was killed. release returns an error if another program has changed the
// setting meanwhile.
func (s Setting) hold(dir string) (release func() error, err error) {
	name := filepath.Join(dir, "stunner-"+filepath.Base(s.File))
	kept, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("hold %s: %w", s.File, err)
	}
	// alone calls f, and tells it whether no other process holds the setting. A lock serializes the calls of all
	// processes.
	alone := func(f func(alone bool) error) error {
		gate, err := os.OpenFile(name+".lock", os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return err
		}
		defer gate.Close()
		if err := syscall.Flock(int(gate.Fd()), syscall.LOCK_EX); err != nil {
			return err
		}
		err = f(syscall.Flock(int(kept.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil)
		return errors.Join(err, syscall.Flock(int(kept.Fd()), syscall.LOCK_SH))
	}
	err = alone(func(alone bool) error {
		if !alone {
			return nil
		}
		if info, err := kept.Stat(); err != nil || info.Size() == 0 {
			before, readErr := os.ReadFile(s.File)
			_, writeErr := kept.Write(before)
			if err := errors.Join(err, readErr, writeErr); err != nil {
				return err
			}
		}
		return os.WriteFile(s.File, []byte(s.Value), 0)
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("hold %s: %w", s.File, err), kept.Close())
	}
	return func() error {
		defer kept.Close()
		return alone(func(alone bool) error {
			now, err := os.ReadFile(s.File)
			if err == nil && strings.TrimSpace(string(now)) != s.Value {
				err = fmt.Errorf("the tests are not valid: %s was changed while they ran", s.File)
			}
			if !alone {
				return err
			}
			before, readErr := os.ReadFile(name)
			if readErr == nil {
				readErr = os.WriteFile(s.File, before, 0)
			}
			return errors.Join(err, readErr, kept.Truncate(0))
		})
	}, nil
}

// inNamespace makes a command run in a new network namespace.
func inNamespace(c *exec.Cmd, name string) *exec.Cmd {
	c.Env = append(os.Environ(), inside+"="+name)
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	return c
}

// configure makes the loopback interface and its addresses.
func configure() error {
	for _, command := range []string{"ip link set lo up", "ip address add 198.18.0.1/15 dev lo"} {
		if _, err := Exec(command); err != nil {
			return err
		}
	}
	return nil
}

// Isolated runs the calling test again in a child process with a new network namespace, and reports whether this
// process is the child. A test calls it first and returns if the result is false; the child's result is then the test's
// result. All addresses of 198.18.0.0/15, which is reserved for benchmarks (RFC 2544 §C.2.2), are local to the child.
// The child runs the subtests that -run selects, with the flags of the suite.
func Isolated(t *testing.T) bool {
	t.Helper()
	if os.Getenv(inside) == t.Name() {
		if err := configure(); err != nil {
			t.Fatal(err)
		}
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
	out, err := inNamespace(exec.CommandContext(t.Context(), program, args...), t.Name()).CombinedOutput()
	t.Logf("in the network namespace:\n%s", out)
	if err != nil {
		t.Fatal(err)
	}
	return false
}

// ownFlags returns the flags that are set and do not belong to package testing.
func ownFlags(set *flag.FlagSet) (args []string) {
	set.Visit(func(f *flag.Flag) {
		if !strings.HasPrefix(f.Name, "test.") {
			args = append(args, "-"+f.Name+"="+f.Value.String())
		}
	})
	return args
}

// selected returns a -run pattern that selects one test, and the subtests of it that the given pattern selects.
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
