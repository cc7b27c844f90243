package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// verdict matches the last lines of a successful run.
var verdict = regexp.MustCompile(`(?m)^verdict +media flows through the gateway
relayed RTT +[0-9.]+ ms median, [0-9.]+ ms p95
allocations +1$`)

const timeout = 60 * time.Second

// TestDemo: the demo prints a verdict. No process is left, however the demo ends.
func TestDemo(t *testing.T) {
	bin := build(t)
	t.Run("ends after the verdict", func(t *testing.T) {
		p := start(t, bin, "DEMO_EXIT=1")
		select {
		case <-p.Done():
		case <-time.After(timeout):
			t.Fatalf("still running:\n%s", p.Output())
		}
		lines := strings.Join(p.Tail(3), "\n")
		if p.Err() != nil || !verdict.MatchString(lines) {
			t.Errorf("%v; last lines:\n%s", p.Err(), lines)
		}
		nothingLeft(t, bin)
	})
	t.Run("Ctrl-C", func(t *testing.T) {
		p := start(t, bin)
		says(t, p, verdict)
		send(t, p, syscall.SIGINT)
		if p.Err() != nil {
			t.Errorf("exit: %v\n%s", p.Err(), p.Output())
		}
		nothingLeft(t, bin)
	})
	t.Run("Ctrl-C while it starts", func(t *testing.T) {
		p := start(t, bin)
		says(t, p, regexp.MustCompile(`echo peer`))
		send(t, p, syscall.SIGINT)
		nothingLeft(t, bin)
	})
	t.Run("killed", func(t *testing.T) {
		p := start(t, bin)
		says(t, p, verdict)
		send(t, p, syscall.SIGKILL)
		nothingLeft(t, bin)
	})
	t.Run("a process of the stack dies", func(t *testing.T) {
		p := start(t, bin)
		says(t, p, verdict)
		for _, pid := range left(t, bin) {
			if name := program(pid); filepath.Base(name) == "auth" {
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
		}
		<-p.Done()
		if p.Err() == nil || !strings.Contains(p.Output(), "✗ auth") {
			t.Errorf("exit %v:\n%s", p.Err(), p.Output())
		}
		nothingLeft(t, bin)
	})
	t.Run("a program is missing", func(t *testing.T) {
		if err := os.Remove(filepath.Join(bin, "auth")); err != nil {
			t.Fatal(err)
		}
		p := start(t, bin)
		<-p.Done()
		if p.Err() == nil || !strings.Contains(p.Output(), "✗ auth service") {
			t.Errorf("exit %v:\n%s", p.Err(), p.Output())
		}
		nothingLeft(t, bin)
	})
}

// TestOnlyTerminalsGetColours: only terminals get colours. The text is the same.
func TestOnlyTerminalsGetColours(t *testing.T) {
	show := func(colour bool) string {
		var out strings.Builder
		s := &screen{out: &out, colour: colour}
		s.success("echo peer", "on port 7001")
		s.failure("operator", errors.New("no folder"), "name one", []string{"last words"})
		s.result("verdict", "fine", green)
		return out.String()
	}
	want := `  ✓ echo peer      on port 7001
  ✗ operator       no folder
    │ last words
    → name one
verdict        fine
`
	if got := show(false); got != want {
		t.Errorf("without colour:\n%s\nwant:\n%s", got, want)
	}
	coloured := show(true)
	if stripped := regexp.MustCompile("\x1b\\[[0-9]+m").ReplaceAllString(coloured, ""); stripped != want ||
		coloured == want {
		t.Errorf("with colour:\n%q", coloured)
	}
}

func build(t *testing.T) string {
	t.Helper()
	return harnesstest.Build(t, harness.Operator, harness.Stunnerd, harness.Auth, harness.Echo, "e2e/demo")
}

// start runs the demo. Its work folder is inside the test's temporary folder.
func start(t *testing.T, bin string, env ...string) *harness.Process {
	t.Helper()
	root := harnesstest.Root(t)
	dir := t.TempDir()
	p, err := harness.Start(harness.Command{
		Name: "demo", Path: filepath.Join(bin, "demo"),
		Args: []string{"--quickstart", filepath.Join(root, "docs/examples/quickstart")},
		Env:  append([]string{"DEMO_EXIT=", "TMPDIR=" + dir}, env...), Logs: dir,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Stop(timeout) })
	return p
}

func says(t *testing.T, p *harness.Process, pattern *regexp.Regexp) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	if _, err := p.AwaitOutput(ctx, pattern); err != nil {
		t.Fatalf("%v\n%s", err, p.Output())
	}
}

// send sends a signal and waits until the process has ended.
func send(t *testing.T, p *harness.Process, s syscall.Signal) {
	t.Helper()
	if err := p.Signal(s); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Done():
	case <-time.After(timeout):
		t.Fatalf("still running after %s:\n%s", s, p.Output())
	}
}

// nothingLeft waits until no program of the folder is running.
func nothingLeft(t *testing.T, bin string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	err := harness.Until(ctx, func(context.Context) error {
		if pids := left(t, bin); len(pids) > 0 {
			return fmt.Errorf("left running: %v", pids)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// left returns the processes that run a program of the folder, including deleted programs.
func left(t *testing.T, bin string) (pids []int) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		var pid int
		if _, err := fmt.Sscanf(e.Name(), "%d", &pid); err == nil && strings.HasPrefix(program(pid), bin+"/") {
			pids = append(pids, pid)
		}
	}
	return pids
}

// program returns the executable of a process, or "" if the process has ended.
func program(pid int) string {
	path, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return ""
	}
	return path
}
