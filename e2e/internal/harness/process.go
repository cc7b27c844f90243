// Package harness runs the built programs as child processes, for the scenario tests and for the demo. It picks free
// ports, captures logs, waits for readiness with a deadline, and stops every process at the end.
//
// It controls the programs only through their flags, files and endpoints. It does not import testing, because the demo
// uses it too.
package harness

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// ErrExited reports that a process ended before the awaited condition became true.
var ErrExited = errors.New("process ended")

// Command describes a process to start.
type Command struct {
	Name string   // names the process in errors and its log file
	Path string   // path of the program
	Args []string // arguments without the program
	Dir  string   // working directory; empty means the working directory of this process
	Env  []string // NAME=value, added to the environment of this process without its STUNNER_ variables
	Logs string   // folder that takes NAME.log; a second process of the name appends

	// User is the user and group of the process, which has no capabilities then. 0 means the user and group of this
	// process.
	User uint32

	// Death is the signal that the process gets when this process dies. The default is SIGTERM, because the operator
	// stops its dataplanes before it exits.
	Death syscall.Signal
}

// Process is a running child process. The kernel signals it when this process dies, even by SIGKILL.
type Process struct {
	Name string
	Log  string // file with stdout and stderr

	cmd  *exec.Cmd
	from int64 // where this process's output begins in Log
	done chan struct{}
	err  error // of Wait; written before done is closed
}

// Start starts a command.
//
// Output goes to a file, not a pipe: SIGPIPE must not end a grandchild that outlives its parent.
func Start(c Command) (*Process, error) {
	logfile := filepath.Join(c.Logs, c.Name+".log")
	out, err := os.OpenFile(logfile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: open log: %w", c.Name, err)
	}
	defer out.Close()
	from, err := out.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, fmt.Errorf("start %s: open log: %w", c.Name, err)
	}
	cmd := exec.Command(c.Path, c.Args...)
	cmd.Dir = c.Dir
	cmd.Env = append(environ(), c.Env...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{
		// The process gets a process group of its own. So Ctrl-C in a terminal reaches this process only, which stops its
		// children in order.
		Setpgid: true,
		// The kernel sends this signal when the thread that started the child ends. The Go runtime ends a thread only
		// when a goroutine exits while locked to it, which does not happen here.
		Pdeathsig: cmp.Or(c.Death, syscall.SIGTERM),
	}
	if c.User != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: c.User, Gid: c.User}
	}
	switch err := cmd.Start(); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("start %s: no program %s: run `make build`", c.Name, c.Path)
	case err != nil:
		return nil, fmt.Errorf("start %s: %w", c.Name, err)
	}
	p := &Process{Name: c.Name, Log: logfile, cmd: cmd, from: from, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// environ returns the environment without STUNNER_ variables, which would override flags of the programs.
func environ() []string {
	var keep []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "STUNNER_") {
			keep = append(keep, v)
		}
	}
	return keep
}

// PID returns the process ID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done returns a channel that is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err returns how the process ended: nil while it runs and after exit code 0.
func (p *Process) Err() error {
	select {
	case <-p.done:
		return p.err
	default:
		return nil
	}
}

// Signal sends a signal. It returns nil if the process has already ended.
func (p *Process) Signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", p.Name, err)
	}
	return nil
}

// Kill sends SIGKILL and waits until the process has ended.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.done
	return nil
}

// Stop sends SIGTERM and waits. If the process still runs after the grace period, Stop kills it and returns an error.
func (p *Process) Stop(grace time.Duration) error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(grace):
		return errors.Join(fmt.Errorf("stop %s: still running %s after SIGTERM", p.Name, grace), p.Kill())
	}
}

// Output returns what the process has written so far.
func (p *Process) Output() string {
	data, err := os.ReadFile(p.Log)
	if err != nil || int64(len(data)) < p.from {
		return ""
	}
	return string(data[p.from:])
}

// Tail returns the last n lines of the output.
func (p *Process) Tail(n int) []string { return lastLines(p.Output(), n) }

// Tail returns the last n lines of a file, or none if the file cannot be read.
func Tail(path string, n int) []string {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	return lastLines(string(data), n)
}

func lastLines(text string, n int) []string {
	if strings.TrimSpace(text) == "" {
		return nil
	}
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return lines[max(0, len(lines)-n):]
}

// AwaitOutput waits until the output matches a pattern, and returns the match with its groups.
func (p *Process) AwaitOutput(ctx context.Context, pattern *regexp.Regexp) (match []string, err error) {
	err = p.Until(ctx, func(context.Context) error {
		if match = pattern.FindStringSubmatch(p.Output()); match == nil {
			return fmt.Errorf("output of %s does not match %s", p.Name, pattern)
		}
		return nil
	})
	return match, err
}

// Until waits for a condition that depends on this process. It returns early, with ErrExited, when the process ends.
func (p *Process) Until(ctx context.Context, cond func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-p.done:
			cancel(fmt.Errorf("%w: %s: %v\n%s", ErrExited, p.Name, p.err, strings.Join(p.Tail(10), "\n")))
		case <-ctx.Done():
		}
	}()
	return Until(ctx, cond)
}
