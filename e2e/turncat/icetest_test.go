package turncat

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// flags are the flags of commands about the demo.
func flags(s *harness.Stack) []string {
	return []string{"--folder", s.Output(), "--auth-server-address", strings.TrimPrefix(s.AuthURL(), "http://")}
}

// report is a part of the output of icetest.
type report struct {
	Verdict string
	Tests   []struct {
		Listener, Mode, Result, Reason, Relay, Peer string
		Sent, Received                              int
	}
}

// icetest runs icetest, and compares its output with the schema.
func icetest(t *testing.T, s *harness.Stack, args ...string) (r report, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), slow)
	defer cancel()
	args = append(append([]string{"icetest", harness.GatewayID, "-o", "json", "--duration", "1s"}, flags(s)...),
		args...)
	var out, log bytes.Buffer
	cmd := exec.CommandContext(ctx, filepath.Join(bin(), "stunnerctl"), args...)
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	harnesstest.Conforms(t, "docs/icetest.schema.json", out.Bytes())
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("%v\n%s%s", err, out.String(), log.String())
	}
	t.Logf("%+v\n%s", r, log.String())
	return r, cmd.ProcessState.ExitCode()
}

// results returns "LISTENER MODE RESULT" of each test.
func (r report) results() (all []string) {
	for _, test := range r.Tests {
		all = append(all, test.Listener+" "+test.Mode+" "+test.Result)
	}
	return all
}

// TestIcetest: icetest gives a verdict for each listener of the demo: asymmetric calls to the echo peer of the demo
// page, and symmetric calls once a route allows them. Without a route, a test fails with the reason. It leaves no
// allocation, also if it is interrupted.
func TestIcetest(t *testing.T) {
	s := harnesstest.Quickstart(t, harness.Loopback)
	r, code := icetest(t, s)
	if got := strings.Join(r.results(), ", "); code != 0 || r.Verdict != "pass" ||
		got != "udp asymmetric pass, udp symmetric skip, tcp asymmetric pass, tcp symmetric skip" {
		t.Errorf("exit code %d, %s: %s", code, r.Verdict, got)
	}
	t.Run("k8s", func(t *testing.T) {
		for _, listener := range []string{"udp", "tcp"} {
			args := append(flags(s), "-", "k8s://"+harness.GatewayID+":"+listener, "udp://"+s.Datagrams().String())
			returned(t, 1e6, args...)
		}
	})
	for _, end := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		t.Run(end.String(), func(t *testing.T) { interrupted(t, s, end) })
	}
	if err := s.Put("more.yaml", []byte(`
apiVersion: stunner.l7mp.io/v1
kind: UDPRoute
metadata: {name: clients, namespace: meet}
spec:
  parentRefs: [{name: front-door}]
  rules: [{backendRefs: [{name: front-door}]}]
`)); err != nil {
		t.Fatal(err)
	}
	await(t, func(context.Context) error {
		r, code := icetest(t, s, "udp")
		if got := strings.Join(r.results(), ", "); code != 0 || got != "udp asymmetric pass, udp symmetric pass" {
			return fmt.Errorf("exit code %d: %s", code, got)
		}
		return nil
	})
	for _, file := range []string{"udproute.yaml", "more.yaml"} {
		harnesstest.NoError(t, s.Put(file, []byte("# no route\n")))
	}
	await(t, func(context.Context) error {
		r, code := icetest(t, s, "udp")
		if code != 1 || r.Verdict != "fail" || r.Tests[0].Result != "fail" || !strings.Contains(r.Tests[0].Reason, "route") {
			return fmt.Errorf("exit code %d: %+v", code, r)
		}
		return nil
	})
}

func await(t *testing.T, cond func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	if err := harness.Until(ctx, cond); err != nil {
		t.Error(err)
	}
}

// interrupted: a run that a signal ends in the middle of a test prints a report that conforms to the schema and names
// the failed test, and it leaves no allocation.
func interrupted(t *testing.T, s *harness.Stack, end syscall.Signal) {
	args := append([]string{"icetest", harness.GatewayID, "--duration", "30s", "-o", "json"}, flags(s)...)
	cmd := exec.CommandContext(t.Context(), filepath.Join(bin(), "stunnerctl"), args...)
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	// A program ignores a signal that its parent ignores, as after nohup. It does not ignore a signal that its parent
	// handles.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, end)
	defer signal.Stop(signals)
	harnesstest.NoError(t, cmd.Start())
	allocations(t, s, 1)
	harnesstest.NoError(t, cmd.Process.Signal(end))
	stuck := time.AfterFunc(timeout, func() { _ = cmd.Process.Kill() })
	defer stuck.Stop()
	if _ = cmd.Wait(); cmd.ProcessState.ExitCode() != 130 {
		t.Errorf("exit code %d\n%s", cmd.ProcessState.ExitCode(), log.String())
	}
	harnesstest.Conforms(t, "docs/icetest.schema.json", out.Bytes())
	var r report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil || r.Verdict != "fail" {
		t.Errorf("%v: %s", err, out.String())
	}
	allocations(t, s, 0)
}

// allocations waits until the dataplane has n allocations.
func allocations(t *testing.T, s *harness.Stack, n float64) {
	t.Helper()
	await(t, func(ctx context.Context) error {
		got, err := s.Metric(ctx, "stunner_allocations_active")
		if err == nil && got != n {
			err = fmt.Errorf("%g allocations, want %g", got, n)
		}
		return err
	})
}
