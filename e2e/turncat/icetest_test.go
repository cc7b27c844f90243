package turncat

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/bedtest"
)

// demo starts the product as `make demo` does.
func demo(t *testing.T) *bed.Stack {
	t.Helper()
	ports, err := bed.FreePorts()
	if err != nil {
		t.Fatal(err)
	}
	s := &bed.Stack{Bin: bin, Dir: t.TempDir(), Ports: ports}
	if err := s.Prepare(filepath.Join(bedtest.Root(t), "docs/examples/quickstart")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := s.Start(ctx); err != nil {
		t.Fatal(err)
	}
	return s
}

// flags are those of commands about the demo.
func flags(s *bed.Stack) []string {
	return []string{"--folder", s.Output(), "--auth-server-address", strings.TrimPrefix(s.AuthURL(), "http://")}
}

// report is a part of the output of icetest.
type report struct {
	Verdict string
	Tests   []struct {
		Listener, Mode, Result, Reason string
		Sent, Received                 int
	}
}

// icetest runs icetest, and compares its output with the schema.
func icetest(t *testing.T, s *bed.Stack, args ...string) (r report, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), slow)
	defer cancel()
	args = append(append([]string{"icetest", bed.GatewayID, "-o", "json", "--duration", "1s"}, flags(s)...), args...)
	var out, log bytes.Buffer
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "stunnerctl"), args...)
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	conforms(t, out.Bytes())
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("%v\n%s%s", err, out.String(), log.String())
	}
	t.Logf("%+v\n%s", r, log.String())
	return r, cmd.ProcessState.ExitCode()
}

// conforms compares a report with docs/icetest.schema.json.
func conforms(t *testing.T, data []byte) {
	t.Helper()
	schema, err := jsonschema.NewCompiler().Compile(filepath.Join(bedtest.Root(t), "docs/icetest.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		t.Fatalf("%v:\n%s", err, data)
	}
	if err := schema.Validate(value); err != nil {
		t.Errorf("%v:\n%s", err, data)
	}
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
	s := demo(t)
	r, code := icetest(t, s)
	if got := strings.Join(r.results(), ", "); code != 0 || r.Verdict != "pass" ||
		got != "udp asymmetric pass, udp symmetric skip, tcp asymmetric pass, tcp symmetric skip" {
		t.Errorf("exit code %d, %s: %s", code, r.Verdict, got)
	}
	t.Run("k8s", func(t *testing.T) {
		for _, listener := range []string{"udp", "tcp"} {
			returned(
				t,
				1e6,
				append(flags(s), "-", "k8s://"+bed.GatewayID+":"+listener, "udp://"+s.Datagrams().String())...)
		}
	})
	t.Run("interrupted", func(t *testing.T) {
		args := append([]string{"icetest", bed.GatewayID, "--duration", "30s"}, flags(s)...)
		p, err := bed.Start(
			bed.Command{Name: "stunnerctl", Path: filepath.Join(bin, "stunnerctl"), Args: args, Logs: t.TempDir()},
		)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Kill() })
		allocations(t, s, 1)
		if err := p.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		select {
		case <-p.Done():
		case <-time.After(patience):
			t.Fatal("still running after SIGINT")
		}
		if p.Err() == nil {
			t.Errorf("an interrupted run passed:\n%s", p.Output())
		}
		allocations(t, s, 0)
	})
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
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := bed.Until(ctx, func(context.Context) error {
		r, code := icetest(t, s, "udp")
		if got := strings.Join(r.results(), ", "); code != 0 || got != "udp asymmetric pass, udp symmetric pass" {
			return fmt.Errorf("exit code %d: %s", code, got)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	for _, file := range []string{"udproute.yaml", "more.yaml"} {
		if err := s.Put(file, []byte("# no route\n")); err != nil {
			t.Fatal(err)
		}
	}
	if err := bed.Until(ctx, func(context.Context) error {
		r, code := icetest(t, s, "udp")
		if code != 1 || r.Verdict != "fail" || r.Tests[0].Result != "fail" || !strings.Contains(r.Tests[0].Reason, "route") {
			return fmt.Errorf("exit code %d: %+v", code, r)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// allocations waits until the dataplane has n allocations.
func allocations(t *testing.T, s *bed.Stack, n float64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := bed.Until(ctx, func(ctx context.Context) error {
		got, err := s.Metric(ctx, "stunner_allocations_active")
		if err == nil && got != n {
			err = fmt.Errorf("%g allocations, want %g", got, n)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}
