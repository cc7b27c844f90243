package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/testroot"
)

// withOrphan is the value of asProgram for a supervisor that has a child which it has not started. Process 1 of a
// container may have such children.
const withOrphan = "with an orphan"

// adoptOrphan makes this process the parent of an orphan, and prints the process id of the orphan.
func adoptOrphan() {
	err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	orphan, startErr := exec.Command("sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!").Output()
	if err := errors.Join(err, startErr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(exitFailed)
	}
	fmt.Fprintf(os.Stderr, "orphan=%s\n", bytes.TrimSpace(orphan))
}

// supervised starts stunnerd with --supervise. The command of the process is the supervisor.
func supervised(t *testing.T, flags ...string) *process {
	return start(t, append(flags, "--supervise")...)
}

// child returns the process id of the supervised process; 0 if none is running. A process that has ended has no
// executable, even if it is not reaped.
func (p *process) child() int {
	p.t.Helper()
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", p.command.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	for _, list := range lists {
		data, _ := os.ReadFile(list)
		for _, field := range strings.Fields(string(data)) {
			pid, _ := strconv.Atoi(field)
			if env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid)); err == nil &&
				bytes.Contains(env, []byte(supervisorVariable+"=")) && runs(pid) {
				return pid
			}
		}
	}
	return 0
}

func runs(pid int) bool {
	_, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return err == nil
}

// next waits until a child other than the former child is ready, and returns it.
func (p *process) next(former int) (pid int) {
	p.t.Helper()
	p.within("another child", func() bool { p.runs(); pid = p.child(); return pid != 0 && pid != former })
	p.within("ready", func() bool { return p.code("/ready") == http.StatusOK })
	return pid
}

func (p *process) signal(pid int, s syscall.Signal) {
	p.t.Helper()
	if err := syscall.Kill(pid, s); err != nil {
		p.t.Fatal(err)
	}
}

// endsWith waits for the end of the supervisor and expects an exit code.
func (p *process) endsWith(code int) {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(time.Minute):
		p.t.Fatal("the supervisor does not end")
	}
	if got := p.command.ProcessState.ExitCode(); got != code {
		p.t.Errorf("exit code %d, want %d", got, code)
	}
}

func TestChildThatCrashesIsStartedAgain(t *testing.T) {
	for name, s := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "panic": syscall.SIGABRT} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := supervised(t)
			first := p.child()
			p.signal(first, s)
			began := time.Now()
			p.within("another child", func() bool { pid := p.child(); return pid != 0 && pid != first })
			t.Logf("started again within %s", time.Since(began))
			if live := p.mustDialAfter(first); live.echo("again") != nil {
				t.Error("the next child does not relay")
			}
			p.terminate()
		})
	}
}

// mustDialAfter makes an allocation at a new child, after the previous child.
func (p *process) mustDialAfter(former int) *call {
	p.t.Helper()
	p.next(former)
	return p.mustDial("ann")
}

func TestSupervisorIsProcess1(t *testing.T) {
	testroot.Need(t, "PID namespaces")
	t.Parallel()
	p := &process{t: t, peer: echo(t), ended: make(chan struct{})}
	p.attr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	p.launch("--supervise", "--config", p.config(func(*config.Config) {}))
	pid := p.child()
	p.signal(pid, syscall.SIGKILL)
	p.next(pid)
	p.mustDial("ann")
	p.draining()
	p.runs()
	p.terminate()
	p.endsWith(0)
}

func TestThirdCrashEndsTheSupervisor(t *testing.T) {
	t.Parallel()
	p := supervised(t)
	pid := p.child()
	for range maxCrashes - 1 {
		p.signal(pid, syscall.SIGKILL)
		pid = p.next(pid)
	}
	p.signal(pid, syscall.SIGKILL)
	p.endsWith(128 + int(syscall.SIGKILL))
	if !bytes.Contains(p.said(), []byte("crashed repeatedly")) {
		t.Error("the log does not say why the supervisor ended")
	}
}

func TestSupervisorEndsAsItsChildDoes(t *testing.T) {
	t.Parallel()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	good := (&process{t: t}).config(func(*config.Config) {})
	for code, flags := range map[int][]string{
		0: {"--dry-run", "--config", good}, 1: {"--config", "/does/not/exist"}, 2: {"--no-such-flag"},
	} {
		var out, log bytes.Buffer
		c := exec.Command(program, append(flags, "--supervise")...)
		c.Env = append(os.Environ(), asProgram+"=yes")
		c.Stdout, c.Stderr = &out, &log
		if err := c.Run(); c.ProcessState.ExitCode() != code {
			t.Errorf("%v: %v, want exit code %d; log %s", flags, err, code, &log)
		}
		if plan, explained := out.Len() > 0, log.Len() > 0; plan != (code == 0) || explained != (code != 0) {
			t.Errorf("%v: output %q and log %q", flags, &out, &log)
		}
	}
}

// a supervised process drains like any other. If it crashes while it drains, the supervisor ends.
func TestSupervisedProcessDrains(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(*process, *call)
		code int
	}{
		"last call ends": {func(_ *process, c *call) { _ = c.relay.Close() }, 0},
		"second SIGTERM": {func(p *process, _ *call) { p.terminate() }, 0},
		"crash":          {func(p *process, _ *call) { p.signal(p.child(), syscall.SIGKILL) }, 128 + int(syscall.SIGKILL)},
		"not replaced": {func(p *process, c *call) {
			p.signal(p.command.Process.Pid, syscall.SIGUSR2)
			_ = c.relay.Close()
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := supervised(t)
			live, pid := p.mustDial("ann"), p.child()
			p.draining()
			if err := live.echo("still here"); err != nil || p.child() != pid {
				t.Errorf("the live call is cut: %v", err)
			}
			c.end(p, live)
			p.endsWith(c.code)
			if n := bytes.Count(p.said(), []byte("msg=drain ")); n != 1 {
				t.Errorf("%d processes drained, want 1", n)
			}
		})
	}
}

// Ctrl-C sends SIGINT to the process group of the terminal. The child receives it once, and continues to drain.
func TestChildHasAProcessGroupOfItsOwn(t *testing.T) {
	t.Parallel()
	p := supervised(t)
	if group, err := syscall.Getpgid(p.child()); err != nil || group != p.child() {
		t.Errorf("the child is in process group %d, %v", group, err)
	}
}

func TestChildEndsWithTheSupervisor(t *testing.T) {
	t.Parallel()
	p := supervised(t)
	pid := p.child()
	p.signal(p.command.Process.Pid, syscall.SIGKILL)
	p.within("the child has ended", func() bool { return !runs(pid) })
}

func TestSupervisorReapsOrphans(t *testing.T) {
	t.Parallel()
	p := &process{t: t, role: withOrphan, peer: echo(t), ended: make(chan struct{})}
	p.launch("--supervise", "--config", p.config(func(*config.Config) {}))
	_, rest, _ := strings.Cut(string(p.said()), "orphan=")
	text, _, _ := strings.Cut(rest, "\n")
	orphan, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	p.signal(orphan, syscall.SIGKILL)
	p.within("the orphan is reaped", func() bool {
		return errors.Is(syscall.Kill(orphan, 0), syscall.ESRCH)
	})
	p.runs()
}

// SIGUSR2 replaces the process by a process of the program that is now at its path. If that program cannot be started,
// the child runs the program of the supervisor.
func TestSIGUSR2StartsTheProgramAtThePath(t *testing.T) {
	t.Parallel()
	original, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "stunnerd")
	put := func(program string) {
		// A child of another test must not inherit the file while it is open for writing: execve(2) would fail.
		if err := errors.Join(exec.Command("cp", program, path+".new").Run(), os.Rename(path+".new", path)); err != nil {
			t.Fatal(err)
		}
	}
	put(original)
	p := &process{t: t, program: path, peer: echo(t), ended: make(chan struct{})}
	p.launch("--supervise", "--config", p.config(func(*config.Config) {}))
	for range maxCrashes { // a replacement does not count as a crash
		put(original)
		former := p.child()
		p.signal(p.command.Process.Pid, syscall.SIGUSR2)
		now := p.next(former)
		want, wantErr := os.Stat(path)
		got, err := os.Stat(fmt.Sprintf("/proc/%d/exe", now))
		if errors.Join(err, wantErr) != nil || !os.SameFile(got, want) {
			t.Fatalf("the program of the child is not the one at the path: %v", errors.Join(err, wantErr))
		}
	}
	if err := errors.Join(os.Remove(path), os.WriteFile(path, []byte("no program"), 0o755)); err != nil {
		t.Fatal(err)
	}
	former := p.child()
	p.signal(p.command.Process.Pid, syscall.SIGUSR2)
	p.next(former)
	p.terminate()
	p.endsWith(0)
}

// Without a supervisor, the process ends after SIGUSR2 with an exit code of its own, even with a session.
func TestSIGUSR2EndsWithoutDraining(t *testing.T) {
	t.Parallel()
	p := start(t)
	p.mustDial("ann")
	p.signal(p.command.Process.Pid, syscall.SIGUSR2)
	p.endsWith(exitReplaced)
	if p.status().Status == inspection.Terminating || bytes.Contains(p.said(), []byte("msg=drain ")) {
		t.Error("the process drained")
	}
}
