package scenario

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
)

// command is a command of a scenario. It waits for its effect, and an error fails the scenario.
type command struct {
	run         func(s *scenario, ts *testscript.TestScript, args []string) error
	usage       string
	least, most int // number of arguments
}

const many = 64

// table returns the commands that testscript does not have.
func table() map[string]command {
	return map[string]command{
		// Programs.
		"up":   {up, "[PART…]", 0, 3},                      // start echo, operator, auth; without PART all of them
		"run":  {runProgram, "NAME PROGRAM ARG…", 2, many}, // start another program
		"quit": {quit, "NAME", 1, 1},                       // SIGTERM, and wait until it has exited with code 0
		"says": {says, "NAME REGEXP", 2, 2},                // wait until the output of a program matches

		// Files. Ports of the quickstart are replaced by ports of the scenario, and variables of the scenario are
		// expanded.
		"put":    {put, "FILE…", 1, many},      // copy files into the operator's folder
		"edit":   {edit, "FILE OLD NEW", 3, 3}, // replace a regular expression in a file of the operator's folder
		"expand": {expand, "FILE", 1, 1},       // expand variables of the scenario
		// make a certificate that calls trust, for the loopback address or for host names only; sets $CERTIFICATE and $KEY to
		// base64 of PEM
		"certificate": {certificate, "[NAME…]", 0, many},

		// Responses.
		"metric": {metric, "NAME VALUE URL", 3, 3}, // wait until a metric has a value
		// dataplane and auth service have the config that the operator serves; with "changed" it is not the config from
		// before the last put or edit
		"settled": {settled, "[changed]", 0, 1},
		// one request must return STATUS; the file $TOKEN holds its bearer token, stdout the response
		"http": {request, "METHOD URL STATUS", 3, 3},
		// wait until the auth service gives web apps exactly these URLs, in this order
		"told": {told, "URL…", 1, many},
		// request a credential from the auth service; sets $NAME_USER and $NAME_PASSWORD
		"credential": {credential, "NAME [GATEWAY]", 1, 2},

		"call": {callCommand, "NAME VERB ARG…", 2, many}, // see calls_test.go
	}
}

// conditions returns the commands that wait until a text matches a REGEXP. With ! before the command, they wait until
// no text matches.
func conditions() map[string]func(s *scenario, ts *testscript.TestScript, args []string) (string, error) {
	return map[string]func(s *scenario, ts *testscript.TestScript, args []string) (string, error){
		// PATH REGEXP: a file, or a file below the folder
		"file": func(_ *scenario, ts *testscript.TestScript, args []string) (string, error) {
			return contents(ts.MkAbs(args[0]))
		},
		// REGEXP: the status of the Gateway's dataplane
		"runs": func(s *scenario, _ *testscript.TestScript, _ []string) (string, error) {
			text, err := s.stack.Status(s.ctx)
			return string(text), err
		},
	}
}

// commands returns all commands for testscript.
func commands() map[string]func(*testscript.TestScript, bool, []string) {
	all := make(map[string]func(*testscript.TestScript, bool, []string))
	for name, c := range table() {
		all[name] = func(ts *testscript.TestScript, neg bool, args []string) {
			if neg || len(args) < c.least || len(args) > c.most {
				ts.Fatalf("usage: %s %s", name, c.usage)
			}
			ts.Check(c.run(ts.Value(key{}).(*scenario), ts, args))
		}
	}
	for name, read := range conditions() {
		all[name] = func(ts *testscript.TestScript, neg bool, args []string) {
			s, pattern := ts.Value(key{}).(*scenario), regexp.MustCompile("(?m)"+args[len(args)-1])
			ts.Check(s.until(func(context.Context) error {
				text, err := read(s, ts, args)
				if err == nil && pattern.MatchString(text) == neg {
					err = fmt.Errorf("match of %s: %t: %s", pattern, !neg, text)
				}
				return err
			}))
		}
	}
	return all
}

func up(s *scenario, _ *testscript.TestScript, args []string) error {
	if len(args) == 0 {
		args = []string{"echo", "operator", "auth"}
	}
	ctx, cancel := context.WithTimeout(s.ctx, 3*timeout)
	defer cancel()
	for _, part := range args {
		start, ok := map[string]func(context.Context) error{
			"echo": s.stack.StartEcho, "operator": s.stack.StartOperator, "auth": s.stack.StartAuth,
		}[part]
		if !ok {
			return fmt.Errorf("no part %q: use echo, operator, auth", part)
		}
		if err := start(ctx); err != nil {
			return err
		}
	}
	return nil
}

func runProgram(s *scenario, ts *testscript.TestScript, args []string) (err error) {
	s.programs[args[0]], err = harness.Start(harness.Command{
		Name: args[0], Path: filepath.Join(s.stack.Bin, args[1]), Args: args[2:], Dir: ts.MkAbs("."),
		Logs: s.stack.Logs(), Env: []string{"STUNNER_ADDR=" + harness.Loopback},
	})
	return err
}

func quit(s *scenario, _ *testscript.TestScript, args []string) error {
	p, err := s.process(args[0])
	if err != nil {
		return err
	}
	return p.Stop(timeout)
}

func says(s *scenario, _ *testscript.TestScript, args []string) error {
	p, err := s.process(args[0])
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(s.ctx, timeout)
	defer cancel()
	_, err = p.AwaitOutput(ctx, regexp.MustCompile(args[1]))
	return err
}

func put(s *scenario, ts *testscript.TestScript, args []string) (err error) {
	s.remember()
	for _, name := range args {
		err = errors.Join(err, s.stack.Put(filepath.Base(name), []byte(os.Expand(ts.ReadFile(name), ts.Getenv))))
	}
	return err
}

// remember notes the served revision, for "settled changed". An operator that does not run yet serves none.
func (s *scenario) remember() {
	s.before = ""
	if c, err := s.stack.Config(s.ctx); err == nil {
		s.before = c.Revision()
	}
}

func edit(s *scenario, ts *testscript.TestScript, args []string) error {
	old, text := regexp.MustCompile("(?m)"+args[1]), ts.ReadFile(filepath.Join(s.stack.Input(), args[0]))
	if !old.MatchString(text) {
		return fmt.Errorf("%s does not contain %s", args[0], old)
	}
	s.remember()
	return s.stack.Put(args[0], []byte(old.ReplaceAllString(text, args[2])))
}

// contents returns the text of a file, or of all files below a folder. Files may be removed while the folder is read.
func contents(path string) (text string, err error) {
	err = filepath.WalkDir(path, func(name string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			var data []byte
			data, err = os.ReadFile(name)
			text += string(data) + "\n"
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	return text, err
}

func expand(_ *scenario, ts *testscript.TestScript, args []string) error {
	return os.WriteFile(ts.MkAbs(args[0]), []byte(os.Expand(ts.ReadFile(args[0]), ts.Getenv)), 0o600)
}

func certificate(s *scenario, ts *testscript.TestScript, names []string) error {
	chain, private, err := harness.Certificate()
	if len(names) > 0 {
		chain, private, err = (&harness.Authority{}).IssueNames(names...)
	}
	if err != nil {
		return err
	}
	s.roots.AppendCertsFromPEM(chain)
	ts.Setenv("CERTIFICATE", base64.StdEncoding.EncodeToString(chain))
	ts.Setenv("KEY", base64.StdEncoding.EncodeToString(private))
	return nil
}

func metric(s *scenario, _ *testscript.TestScript, args []string) error {
	want, err := strconv.ParseFloat(args[1], 64)
	if err != nil {
		return err
	}
	return s.until(func(ctx context.Context) error {
		got, err := harness.Metric(ctx, args[2], args[0])
		if err == nil && got != want {
			err = fmt.Errorf("%s is %g, want %g", args[0], got, want)
		}
		return err
	})
}

// settled compares revisions: the dataplane reports its revision in its status, the auth service logs it.
func settled(s *scenario, _ *testscript.TestScript, args []string) error {
	if len(args) > 0 && args[0] != "changed" {
		return fmt.Errorf("unknown argument %q", args[0])
	}
	return s.until(func(ctx context.Context) error {
		c, err := s.stack.Config(ctx)
		if err == nil && len(args) > 0 && c.Revision() == s.before {
			err = errors.New("the operator serves the config from before the last put or edit")
		}
		if err != nil {
			return err
		}
		status, err := s.stack.Status(ctx)
		if revision := c.Revision(); err == nil && (!strings.Contains(string(status), revision) ||
			!strings.Contains(s.stack.Auth.Output(), revision)) {
			err = fmt.Errorf("revision %s is not in force everywhere; status of the dataplane: %s", revision, status)
		}
		return err
	})
}

func request(s *scenario, ts *testscript.TestScript, args []string) error {
	req, err := http.NewRequestWithContext(s.ctx, args[0], args[1], nil)
	if err != nil {
		return err
	}
	if file := ts.Getenv("TOKEN"); file != "" {
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(ts.ReadFile(file)))
	}
	got, answer, err := harness.Do(req)
	if err != nil {
		return err
	}
	if strconv.Itoa(got) != args[2] {
		return fmt.Errorf("%s %s: status %d, want %s: %s", args[0], args[1], got, args[2], answer)
	}
	_, err = ts.Stdout().Write(answer)
	return err
}

func told(s *scenario, _ *testscript.TestScript, urls []string) error {
	return s.until(func(ctx context.Context) error {
		server, err := s.server(ctx)
		if err == nil && !slices.Equal(server.URLs, urls) {
			err = fmt.Errorf("URLs are %q, want %q", server.URLs, urls)
		}
		return err
	})
}

// credential waits until the auth service returns the gateway.
func credential(s *scenario, ts *testscript.TestScript, args []string) error {
	return s.until(func(ctx context.Context) error {
		server, err := s.server(ctx, args[1:]...)
		ts.Setenv(args[0]+"_USER", server.Username)
		ts.Setenv(args[0]+"_PASSWORD", server.Credential)
		return err
	})
}
