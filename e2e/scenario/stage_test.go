package scenario

import (
	"context"
	"crypto/x509"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
)

// patience is the timeout of conditions.
const patience = 20 * time.Second

// stage holds the processes and calls of one scenario.
type stage struct {
	stack bed.Stack
	extra map[string]*bed.Process // other processes by name
	calls map[string]*call.Call
	ctx   context.Context // ends with the scenario
	roots *x509.CertPool  // trusted certificates of the scenario
}

type stageKey struct{}

// newStage prepares a stage, and sets the environment of the script: folders, ports and URLs.
func newStage(env *testscript.Env, bin string) (*stage, error) {
	ports, err := bed.FreePorts()
	if err != nil {
		return nil, err
	}
	admin, err := bed.FreePorts() // for dataplanes that the scenario starts
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &stage{
		stack: bed.Stack{Bin: bin, Dir: filepath.Join(env.WorkDir, "stack"), Ports: ports},
		extra: map[string]*bed.Process{},
		calls: map[string]*call.Call{},
		ctx:   ctx,
		roots: x509.NewCertPool(),
	}
	env.Values[stageKey{}] = s
	env.Defer(func() {
		cancel()
		s.clear(env.T())
	})
	for name, value := range map[string]string{
		"IN":        s.stack.Input(),
		"OUT":       s.stack.Output(),
		"DISCOVERY": s.stack.DiscoveryURL(),
		"AUTH":      s.stack.AuthURL(),
		"TURN":      strconv.Itoa(ports.TURN),
		"PEER":      strconv.Itoa(ports.Datagrams),
		"METRICS":   strconv.Itoa(admin.Discovery),
		"HEALTH":    strconv.Itoa(admin.AuthHealth),
	} {
		env.Setenv(name, value)
	}
	return s, nil
}

// clear ends all processes of a scenario, and prints their logs if it failed.
func (s *stage) clear(t testscript.T) {
	for _, c := range s.calls {
		c.End(0)
	}
	for _, p := range s.extra {
		if err := p.Kill(); err != nil {
			t.Log(err)
		}
	}
	if err := s.stack.Stop(); err != nil {
		t.Log(err)
	}
	if s.stack.Free {
		s.killOrphan()
	}
	if failed, ok := t.(interface{ Failed() bool }); ok && failed.Failed() {
		for _, p := range s.processes() {
			t.Log(fmt.Sprintf("end of the log of %s:\n%s", p.Name, joined(p.Tail(40))))
		}
	}
}

func joined(lines []string) (text string) {
	for _, l := range lines {
		text += "  " + l + "\n"
	}
	return text
}

func (s *stage) processes() []*bed.Process {
	all := s.stack.Parts()
	for _, p := range s.extra {
		all = append(all, p)
	}
	return all
}

// process returns a started process by name.
func (s *stage) process(name string) (*bed.Process, error) {
	for _, p := range s.processes() {
		if p.Name == name {
			return p, nil
		}
	}
	return nil, fmt.Errorf("no process %q was started", name)
}

// within returns a context with a timeout.
func (s *stage) within(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(s.ctx, d)
}
