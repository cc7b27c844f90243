package scenario

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
)

func up(s *stage, _ *testscript.TestScript, args []string) error {
	if len(args) == 0 {
		args = []string{"echo", "operator", "auth"}
	}
	starts := map[string]func(context.Context) error{
		"echo": s.stack.StartEcho, "operator": s.startOperator, "auth": s.stack.StartAuth,
	}
	for _, part := range args {
		start, ok := starts[part]
		if !ok {
			return fmt.Errorf("no part %q: use echo, operator, auth", part)
		}
		ctx, cancel := s.within(2 * patience)
		defer cancel()
		if err := start(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (s *stage) startOperator(ctx context.Context) error {
	return s.stack.StartOperator(ctx)
}

func run(s *stage, ts *testscript.TestScript, args []string) error {
	p, err := bed.Start(bed.Command{
		Name: args[0], Path: filepath.Join(s.stack.Bin, args[1]), Args: args[2:], Dir: ts.MkAbs("."),
		Logs: s.stack.Logs(),
		Env:  []string{"STUNNER_ADDR=" + bed.Loopback},
	})
	if err != nil {
		return err
	}
	s.extra[args[0]] = p
	return nil
}

func crash(s *stage, _ *testscript.TestScript, args []string) error {
	p, err := s.process(args[0])
	if err != nil {
		return err
	}
	return p.Kill()
}

func drain(s *stage, _ *testscript.TestScript, args []string) error {
	p, err := s.process(args[0])
	if err != nil {
		return err
	}
	return p.Signal(syscall.SIGTERM)
}

func gone(s *stage, _ *testscript.TestScript, args []string) error {
	p, err := s.process(args[0])
	if err != nil {
		return err
	}
	select {
	case <-p.Done():
		return p.Err()
	case <-time.After(patience):
		return fmt.Errorf("%s is still running after %s", args[0], patience)
	}
}

func quit(s *stage, ts *testscript.TestScript, args []string) error {
	if err := drain(s, ts, args); err != nil {
		return err
	}
	return gone(s, ts, args)
}

func says(s *stage, _ *testscript.TestScript, args []string) error {
	p, err := s.process(args[0])
	if err != nil {
		return err
	}
	pattern, err := regexp.Compile(args[1])
	if err != nil {
		return err
	}
	ctx, cancel := s.within(patience)
	defer cancel()
	_, err = p.AwaitOutput(ctx, pattern)
	return err
}
