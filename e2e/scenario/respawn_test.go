package scenario

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
)

func free(s *stage, _ *testscript.TestScript, _ []string) error {
	s.stack.Free = true
	return nil
}

// respawn acts as a supervisor: it kills the dataplane and starts it again with the same program, arguments and
// environment.
func respawn(s *stage, ts *testscript.TestScript, args []string) error {
	pid, err := s.dataplane()
	if err != nil {
		return err
	}
	c, err := commandOf(pid)
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill dataplane: %w", err)
	}
	c.Name, c.Logs = args[0], s.stack.Logs()
	p, err := bed.Start(c)
	if err != nil {
		return err
	}
	s.extra[args[0]] = p
	ts.Setenv("PID", strconv.Itoa(p.PID()))
	return nil
}

var pidPattern = regexp.MustCompile(`process running, pid (\d+)`)

// dataplane returns the PID of the Gateway's dataplane from the operator's status.
func (s *stage) dataplane() (pid int, err error) {
	status, err := os.ReadFile(filepath.Join(s.stack.Output(), "status.txt"))
	if err != nil {
		return 0, fmt.Errorf("find dataplane: %w", err)
	}
	match := pidPattern.FindSubmatch(status)
	if match == nil {
		return 0, errors.New("find dataplane: the status contains no PID")
	}
	return strconv.Atoi(string(match[1]))
}

// commandOf reads the command line and environment of a process from /proc.
func commandOf(pid int) (c bed.Command, err error) {
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	if c.Path, err = os.Readlink(filepath.Join(proc, "exe")); err != nil {
		return c, fmt.Errorf("read command of dataplane: %w", err)
	}
	args, err := list(filepath.Join(proc, "cmdline"))
	if err != nil || len(args) == 0 {
		return c, fmt.Errorf("read command of dataplane: %w", err)
	}
	env, err := list(filepath.Join(proc, "environ"))
	if err != nil {
		return c, fmt.Errorf("read command of dataplane: %w", err)
	}
	c.Args = args[1:]
	for _, entry := range env {
		if strings.HasPrefix(entry, "STUNNER_") {
			c.Env = append(c.Env, entry)
		}
	}
	return c, nil
}

// list reads a file of NUL-terminated strings.
func list(path string) ([]string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return strings.FieldsFunc(string(data), func(r rune) bool { return r == 0 }), nil
}

// killOrphan kills a dataplane that no operator has stopped. The status may be outdated, so the PID must belong to a
// program of this test.
func (s *stage) killOrphan() {
	pid, err := s.dataplane()
	if err != nil {
		return
	}
	if c, err := commandOf(pid); err == nil && filepath.Dir(c.Path) == s.stack.Bin {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}
