// Package scenario runs the built programs from a folder through calls, config changes and mistakes. Each scenario is a
// file in testdata whose name states what it proves. A behaviour that also holds in a cluster is tested in e2e/shapes.
//
//	commands_test.go  the commands of scenarios
//	calls_test.go     the command call
package scenario

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// timeout limits the wait for a condition.
const timeout = 20 * time.Second

func TestMain(m *testing.M) {
	harnesstest.Parallel(4)
	os.Exit(m.Run())
}

// TestScenario runs every scenario; TestScenario/NAME runs one.
func TestScenario(t *testing.T) {
	root := harnesstest.Root(t)
	bin := harnesstest.Build(t, harness.Operator, harness.Stunnerd, harness.Auth, harness.Echo)
	testscript.Run(t, testscript.Params{
		Dir:                "testdata",
		Cmds:               commands(),
		RequireUniqueNames: true,
		Setup: func(env *testscript.Env) error {
			s, err := newScenario(env, bin)
			if err != nil {
				return err
			}
			return s.stack.Prepare(filepath.Join(root, "docs/examples/quickstart"))
		},
	})
}

// scenario holds the processes and calls of one scenario.
type scenario struct {
	stack    harness.Stack
	programs map[string]*harness.Process // in addition to the programs of the stack
	calls    map[string]*call.Call
	ctx      context.Context // ends with the scenario
	roots    *x509.CertPool  // trusted certificates of the scenario
	before   string          // revision that the operator served before the last put or edit
}

// key is the key of the scenario in the values of a script.
type key struct{}

// newScenario prepares a scenario, and sets the environment of the script: folders, ports and URLs.
func newScenario(env *testscript.Env, bin string) (*scenario, error) {
	ports, err := harness.FreePorts()
	admin, adminErr := harness.FreePorts() // for dataplanes and listeners that the scenario adds
	if err = errors.Join(err, adminErr); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &scenario{
		stack:    harness.Stack{Bin: bin, Dir: filepath.Join(env.WorkDir, "stack"), Ports: ports},
		programs: map[string]*harness.Process{}, calls: map[string]*call.Call{}, ctx: ctx, roots: x509.NewCertPool(),
	}
	env.Values[key{}] = s
	env.Defer(func() {
		cancel()
		s.close(env.T())
	})
	for name, value := range map[string]string{
		"IN":        s.stack.Input(),
		"OUT":       s.stack.Output(),
		"DISCOVERY": s.stack.DiscoveryURL(),
		"TURN":      strconv.Itoa(ports.TURN),
		"PEER":      strconv.Itoa(ports.Datagrams),
		"METRICS":   strconv.Itoa(admin.Discovery),
		"HEALTH":    strconv.Itoa(admin.AuthHealth),
		"SECOND":    strconv.Itoa(admin.TURN),
		"THIRD":     strconv.Itoa(admin.Datagrams),
		"PATH":      bin + string(os.PathListSeparator) + env.Getenv("PATH"),
	} {
		env.Setenv(name, value)
	}
	return s, nil
}

// close ends all calls and processes, and prints their logs if the scenario failed.
func (s *scenario) close(t testscript.T) {
	for _, c := range s.calls {
		c.End(0)
	}
	for _, p := range s.programs {
		if err := p.Kill(); err != nil {
			t.Log(err)
		}
	}
	if err := s.stack.Stop(); err != nil {
		t.Log(err)
	}
	if failed, ok := t.(interface{ Failed() bool }); ok && failed.Failed() {
		for _, p := range s.processes() {
			t.Log(fmt.Sprintf("end of the log of %s:\n  %s", p.Name, strings.Join(p.Tail(40), "\n  ")))
		}
	}
}

func (s *scenario) processes() []*harness.Process {
	all := s.stack.Parts()
	for _, p := range s.programs {
		all = append(all, p)
	}
	return all
}

// process returns a started process by name.
func (s *scenario) process(name string) (*harness.Process, error) {
	for _, p := range s.processes() {
		if p.Name == name {
			return p, nil
		}
	}
	return nil, fmt.Errorf("no process %q was started", name)
}

func (s *scenario) until(cond func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(s.ctx, timeout)
	defer cancel()
	return harness.Until(ctx, cond)
}
