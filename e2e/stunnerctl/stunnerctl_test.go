// Package stunnerctl runs the commands of stunnerctl against the operator of a folder, its dataplane and the auth
// service, during calls.
//
// # Files
//
//	completion_test.go  completion in bash and zsh
//	plugin_test.go      the kubectl plugin
package stunnerctl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/bedtest"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/services/api/config"
)

const patience = 30 * time.Second

// ctl is stunnerctl with a running stack.
type ctl struct {
	*testing.T
	stack *bed.Stack
}

// start starts the stack of the quickstart.
func start(t *testing.T) ctl {
	t.Helper()
	programs := bedtest.Build(t, bed.Operator, bed.Stunnerd, bed.Auth, bed.Echo, bed.Stunnerctl)
	stack := &bed.Stack{Bin: programs, Dir: t.TempDir()}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var err error
	if stack.Ports, err = bed.FreePorts(); err != nil {
		t.Fatal(err)
	}
	if err = stack.Prepare(filepath.Join(bedtest.Root(t), "docs/examples/quickstart")); err == nil {
		t.Cleanup(func() {
			if err := stack.Stop(); err != nil {
				t.Error(err)
			}
		})
		err = stack.Start(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	return ctl{t, stack}
}

// try runs stunnerctl with the output folder of the stack.
func (c ctl) try(args ...string) (out, errs string, code int) {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.Context(), patience)
	defer cancel()
	command := exec.CommandContext(ctx, filepath.Join(c.stack.Bin, "stunnerctl"),
		append([]string{"--folder", c.stack.Output()}, args...)...)
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	err := command.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		c.Fatal(err)
	}
	return stdout.String(), stderr.String(), command.ProcessState.ExitCode()
}

// run is try for a command that succeeds.
func (c ctl) run(args ...string) string {
	c.Helper()
	out, errs, code := c.try(args...)
	if code != 0 {
		c.Fatalf("%s: exit code %d\n%s%s", args, code, out, errs)
	}
	c.Logf("stunnerctl %s\n%s%s", strings.Join(args, " "), out, errs)
	return out
}

func (c ctl) read(into any, args ...string) {
	c.Helper()
	if err := json.Unmarshal([]byte(c.run(append(args, "-o", "json")...)), into); err != nil {
		c.Fatal(err)
	}
}

// expect checks that a text contains parts.
func (c ctl) expect(text string, parts ...string) {
	c.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			c.Errorf("no %q in\n%s", part, text)
		}
	}
}

// until waits for a condition.
func (c ctl) until(what string, ok func() bool) {
	c.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			c.Fatal("not within ", patience, ": ", what)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// dial starts a call of a user with the credential that stunnerctl auth prints.
func (c ctl) dial(user string) *call.Call {
	c.Helper()
	var ice struct {
		Servers []bed.ICEServer `json:"iceServers"`
	}
	c.read(&ice, "auth", bed.GatewayID, "-u", user, "--show-secrets", "--auth-server-address", c.stack.AuthURL())
	address, err := ice.Servers[0].Address(config.TURNUDP)
	if err != nil {
		c.Fatal(err)
	}
	started, err := call.Start(c.Context(), call.Options{
		Gateway: address, Network: call.UDP, Username: ice.Servers[0].Username, Password: ice.Servers[0].Credential,
		Peer: c.stack.Datagrams(),
	})
	if err != nil {
		c.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(c.Context(), patience)
	defer cancel()
	if err := started.Await(ctx, 10); err != nil {
		c.Fatal(err)
	}
	return started
}

// kickLimit is the time in which a session ends after kick was started.
const kickLimit = time.Second

// refusal returns a channel with the time at which the server refuses a request of a call, because its session has
// ended. The client sends one request after another.
func refusal(of *call.Call) <-chan time.Time {
	at := make(chan time.Time, 1)
	go func() {
		for of.Renew() == nil {
		}
		at <- time.Now()
	}()
	return at
}

type sessions struct {
	Sessions []struct{ ID, Pod, User, Listener string }
	Total    int
}

func (c ctl) sessions(args ...string) (list sessions) {
	c.Helper()
	c.read(&list, append([]string{"sessions", bed.GatewayID}, args...)...)
	return list
}

// The whole way of an operator who looks for a person's calls.
func TestStunnerctl(t *testing.T) {
	c := start(t)
	id := bed.GatewayID

	var gateways []struct {
		Gateway, Revision string
		Pods              []struct {
			Pod, State, Config, Version string
			Calls                       int
		}
	}
	c.until("the config is synced", func() bool {
		c.read(&gateways, "status", id)
		return len(gateways[0].Pods) == 1 && gateways[0].Pods[0].Config == "synced"
	})
	if pod := gateways[0].Pods[0]; pod.State != "READY" || pod.Calls != 0 || pod.Version == "" || gateways[0].Gateway != id {
		t.Errorf("%+v", gateways)
	}
	c.expect(c.run("status"), id, "synced", "READY")
	c.expect(c.run("status", "-A", "-o", "wide"), "REVISION", gateways[0].Revision)

	ada, bob := c.dial("ada"), c.dial("bob")
	c.read(&gateways, "status", id)
	if calls := gateways[0].Pods[0].Calls; calls != 2 {
		t.Errorf("%d calls in the status", calls)
	}
	if all := c.sessions(); len(all.Sessions) != 2 || all.Total != 2 || all.Sessions[0].Listener != id+"/udp" {
		t.Errorf("sessions %+v", all)
	}
	// The dataplane hashes user names and filters by the plain name.
	hers := c.sessions("--user", "ada", "--listener", "udp", "--client", "127.0.0.1", "--since", "10m")
	if len(hers.Sessions) != 1 || hers.Sessions[0].User == "ada" {
		t.Fatalf("sessions of ada: %+v", hers)
	}
	if none := c.sessions("--listener", "tcp"); len(none.Sessions) != 0 {
		t.Errorf("sessions over TCP: %+v", none)
	}
	c.expect(c.run("sessions"), "SESSION", hers.Sessions[0].ID, "udp")

	c.expect(c.run("can-reach", id, c.stack.Datagrams().String()), "allowed", "meet/to-echo", "1/1")
	out, _, code := c.try("can-reach", id+"/udp", "192.0.2.1:9")
	if c.expect(out, "denied", "peer_denied"); code != 1 || strings.Contains(out, "tcp") {
		t.Errorf("exit code %d\n%s", code, out)
	}

	refused := refusal(ada)
	start := time.Now()
	c.expect(c.run("kick", id, "--user", "ada"), hers.Sessions[0].ID)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	select {
	case at := <-refused:
		if took := at.Sub(start); took < 0 || took > kickLimit {
			t.Errorf("the session has ended %s after the start of kick, want at most %s", took, kickLimit)
		} else {
			t.Logf("the session has ended %s after the start of kick", took)
		}
	case <-ctx.Done():
		t.Fatal("the server answers requests of the session that kick has ended")
	}
	if err := bob.AwaitMore(ctx, 20); err != nil {
		t.Error("the call of bob:", err)
	}
	if last := ada.LastEcho().Sub(start); last > kickLimit {
		t.Errorf("ada has received an echo %s after the start of kick", last)
	}
	if left := c.sessions("--user", "ada"); len(left.Sessions) != 0 {
		t.Errorf("sessions of ada: %+v", left)
	}
	c.run("kick", id, c.sessions().Sessions[0].ID)
	if left := c.sessions(); len(left.Sessions) != 0 {
		t.Errorf("sessions %+v", left)
	}
	out, errs, code := c.try("kick", id, "0000")
	if c.expect(errs, "no pod of Gateway "+id+" has this session"); code != 1 {
		t.Errorf("exit code %d\n%s", code, out)
	}
	ada.End(0)
	bob.End(0)

	c.run("refusals")
	c.expect(c.run("config", id), id, "ephemeral", "meet.example.org", "<redacted>", "TURN-UDP", "meet/to-echo")
	c.expect(c.run("config", "dump", id), "realm: meet.example.org", "name: "+id+"/tcp")
	c.expect(c.run("config", "dump", id, "--running"), "realm: meet.example.org", "stats:")
	c.expect(c.run("config", "diff", id), "synced")
	c.expect(c.run("version"), "Client:", "Operator:  operator", "stunnerd")
	c.expect(c.run("__complete", "status", ""), id)
	c.expect(c.run("auth", id, "--auth-server-address", c.stack.AuthURL()), "<redacted>")
	c.expect(c.run("auth", id, "--auth-turn-credential", "--auth-server-address", c.stack.AuthURL()), `"uris"`)
	if out, errs, code = c.try("drain", "pod"); code != 2 {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
	if out, errs, code = c.try("sessions", "meet/nowhere"); code != 1 || !strings.Contains(errs, "404") {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
	c.noSecrets()
}

// noSecrets checks that no command prints the shared secret.
func (c ctl) noSecrets() {
	c.Helper()
	for _, args := range [][]string{
		{"status"}, {"config"}, {"config", "dump", bed.GatewayID}, {"config", "dump", bed.GatewayID, "--running"}, {"sessions"},
	} {
		for _, format := range []string{"table", "wide", "json", "yaml"} {
			out, errs, _ := c.try(slices.Concat(args, []string{"-o", format})...)
			if strings.Contains(out+errs, "quickstart-only-choose-your-own") {
				c.Errorf("%s prints the secret", args)
			}
		}
	}
}

// After the end of the operator, a command ends with an error.
func TestWithoutOperator(t *testing.T) {
	c := start(t)
	if err := c.stack.Operator.Kill(); err != nil {
		t.Fatal(err)
	}
	c.stack.Operator = nil
	_, errs, code := c.try("status", bed.GatewayID)
	if code != 1 || !strings.Contains(errs, "connection refused") {
		t.Error(code, errs)
	}
}
