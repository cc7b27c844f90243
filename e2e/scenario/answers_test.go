package scenario

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
)

func metric(s *stage, _ *testscript.TestScript, args []string) error {
	value, err := strconv.ParseFloat(args[2], 64)
	if err != nil {
		return err
	}
	holds, ok := map[string]func(float64) bool{
		"==": func(v float64) bool { return v == value },
		">=": func(v float64) bool { return v >= value },
	}[args[1]]
	if !ok {
		return fmt.Errorf("no comparison %q: use == or >=", args[1])
	}
	read := s.stack.Metric
	if len(args) == 4 {
		read = func(ctx context.Context, name string) (float64, error) { return bed.Metric(ctx, args[3], name) }
	}
	ctx, cancel := s.within(patience)
	defer cancel()
	return bed.Until(ctx, func(ctx context.Context) error {
		v, err := read(ctx, args[0])
		if err == nil && !holds(v) {
			err = fmt.Errorf("%s is %g, want %s %s", args[0], v, args[1], args[2])
		}
		return err
	})
}

func runs(s *stage, _ *testscript.TestScript, neg bool, args []string) error {
	pattern, err := regexp.Compile(args[0])
	if err != nil {
		return err
	}
	ctx, cancel := s.within(patience)
	defer cancel()
	return bed.Until(ctx, func(ctx context.Context) error {
		status, err := s.stack.Status(ctx)
		if err == nil && pattern.Match(status) == neg {
			err = fmt.Errorf("status of the dataplane matches %s: %t: %s", pattern, !neg, status)
		}
		return err
	})
}

func request(s *stage, ts *testscript.TestScript, args []string) error {
	status, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	body := ""
	if len(args) == 4 {
		body = ts.ReadFile(args[3])
	}
	req, err := http.NewRequestWithContext(s.ctx, args[0], args[1], strings.NewReader(body))
	if err != nil {
		return err
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if bearer := ts.Getenv("BEARER"); bearer != "" {
		if file, ok := strings.CutPrefix(bearer, "@"); ok {
			bearer = strings.TrimSpace(ts.ReadFile(file))
		}
		req.Header.Set("Authorization", "Bearer "+bearer)
	}
	got, answer, err := bed.Do(req)
	if err != nil {
		return err
	}
	if got != status {
		return fmt.Errorf("%s %s: status %d, want %d: %s", args[0], args[1], got, status, answer)
	}
	_, err = ts.Stdout().Write(answer)
	return err
}

func open(s *stage, _ *testscript.TestScript, args []string) error {
	status, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	ctx, cancel := s.within(patience)
	defer cancel()
	return bed.Until(ctx, bed.Answers(args[0], status))
}

// credential requests a credential and puts it into the environment of the script. It waits until the auth service
// returns the gateway.
func credential(s *stage, ts *testscript.TestScript, args []string) error {
	ctx, cancel := s.within(patience)
	defer cancel()
	var server bed.ICEServer
	err := bed.Until(ctx, func(ctx context.Context) (err error) {
		server, err = s.server(ctx, args[1:]...)
		return err
	})
	if err != nil {
		return err
	}
	ts.Setenv(args[0]+"_USER", server.Username)
	ts.Setenv(args[0]+"_PASSWORD", server.Credential)
	return nil
}

// settled compares revisions: the dataplane reports its revision in its status, the auth service logs it.
func settled(s *stage, _ *testscript.TestScript, _ []string) error {
	ctx, cancel := s.within(patience)
	defer cancel()
	return bed.Until(ctx, func(ctx context.Context) error {
		c, err := s.stack.Config(ctx)
		if err != nil {
			return err
		}
		status, err := s.stack.Status(ctx)
		if err != nil {
			return err
		}
		if revision := c.Revision(); !strings.Contains(string(status), revision) ||
			!strings.Contains(s.stack.Auth.Output(), revision) {
			return fmt.Errorf("revision %s is not in force everywhere; status of the dataplane: %s", revision, status)
		}
		return nil
	})
}
