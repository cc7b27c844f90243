// Package stunnerctl runs the commands of stunnerctl against the operator of a folder, its dataplane and the auth
// service, during calls. The commands in other installations are behaviours of e2e/shapes.
//
// # Files
//
//	completion_test.go  completion in bash and zsh
//	folder_test.go      mistakes in the folder of objects
//	plugin_test.go      the kubectl plugin
package stunnerctl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/services/api/config"
)

const timeout = 30 * time.Second

// ctl is stunnerctl with the running product.
type ctl struct {
	*testing.T
	*harness.Stack
}

// try runs stunnerctl with the output folder of the operator.
func (c ctl) try(args ...string) (out, errs string, code int) {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.Context(), timeout)
	defer cancel()
	args = append([]string{"--folder", c.Output()}, args...)
	command := exec.CommandContext(ctx, filepath.Join(c.Bin, "stunnerctl"), args...)
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	if err := command.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		c.Fatal(err)
	}
	return stdout.String(), stderr.String(), command.ProcessState.ExitCode()
}

// read reads the JSON output of a command that succeeds.
func (c ctl) read(into any, args ...string) {
	c.Helper()
	out, errs, code := c.try(append(args, "-o", "json")...)
	if err := json.Unmarshal([]byte(out), into); err != nil || code != 0 {
		c.Fatalf("%s: exit code %d, %v\n%s%s", args, code, err, out, errs)
	}
}

func (c ctl) until(cond func() error) {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.Context(), timeout)
	defer cancel()
	harnesstest.NoError(c.T, harness.Until(ctx, func(context.Context) error { return cond() }))
}

// dial starts a call of a user with the credential that stunnerctl auth prints.
func (c ctl) dial(user string) *call.Call {
	c.Helper()
	var ice harness.ICE
	c.read(&ice, "auth", harness.GatewayID, "-u", user, "--show-secrets", "--auth-server-address", c.AuthURL())
	address, err := ice.Servers[0].Address(config.TURNUDP)
	harnesstest.NoError(c.T, err)
	started, err := call.Start(c.Context(), call.Options{
		Gateway: address, Network: call.UDP, Username: ice.Servers[0].Username, Password: ice.Servers[0].Credential,
		Peer: c.Datagrams(),
	})
	harnesstest.NoError(c.T, err)
	c.Cleanup(func() { started.End(0) })
	harnesstest.NoError(c.T, started.Await(c.Context(), 10))
	return started
}

// sessions returns "ID LISTENER" of sessions.
func (c ctl) sessions(args ...string) (all []string) {
	c.Helper()
	var list struct {
		Sessions []struct{ ID, User, Listener string }
	}
	c.read(&list, append([]string{"sessions", harness.GatewayID}, args...)...)
	for _, s := range list.Sessions {
		if s.User == "ada" || s.User == "bob" {
			c.Errorf("a user name is not hashed: %+v", s)
		}
		all = append(all, s.ID+" "+strings.TrimPrefix(s.Listener, harness.GatewayID+"/"))
	}
	return all
}

// Commands about calls list and end the calls of a user. Each other command prints its documented output, and no
// secret. When the operator has ended, commands fail with an error.
func TestCommandsDuringCalls(t *testing.T) {
	c := ctl{t, harnesstest.Quickstart(t, "", harness.Stunnerctl)}
	id := harness.GatewayID
	ada, bob := c.dial("ada"), c.dial("bob")
	c.until(func() error {
		var gateways []struct {
			Gateway string
			Pods    []struct {
				State, Config, Version string
				Calls                  int
			}
		}
		c.read(&gateways, "status", id)
		if g := gateways[0]; g.Gateway != id || len(g.Pods) != 1 || g.Pods[0].State != "READY" || g.Pods[0].Calls != 2 ||
			g.Pods[0].Config != "synced" || g.Pods[0].Version == "" {
			return fmt.Errorf("status %+v", gateways)
		}
		return nil
	})
	// The dataplane hashes user names and filters by the plain name.
	hers := c.sessions("--user", "ada", "--listener", "udp", "--client", "127.0.0.1", "--since", "10m")
	if all, tcp := c.sessions(), c.sessions("--listener", "tcp"); len(all) != 2 || len(hers) != 1 || len(tcp) != 0 {
		t.Fatalf("sessions %q, of ada %q, over TCP %q", all, hers, tcp)
	}
	session, _, _ := strings.Cut(hers[0], " ")
	auth := " --auth-server-address " + c.AuthURL()
	for _, m := range []struct {
		command string
		code    int
		parts   string // of the output, separated by |
	}{
		{"status", 0, id + "|synced|READY"},
		{"status -A -o wide", 0, "REVISION"},
		{"sessions", 0, "SESSION|udp|" + session},
		{"can-reach " + id + " " + c.Datagrams().String(), 0, "allowed|meet/to-echo|1/1"},
		{"can-reach " + id + "/udp 192.0.2.1:9", 1, "denied|peer_denied"},
		{"refusals", 0, ""},
		{"config " + id, 0, id + "|ephemeral|meet.example.org|<redacted>|TURN-UDP|meet/to-echo"},
		{"config dump " + id, 0, "realm: meet.example.org|name: " + id + "/tcp"},
		{"config dump " + id + " --running", 0, "realm: meet.example.org|stats:"},
		{"config dump " + id + " --running -o json", 0, ""},
		{"config diff " + id, 0, "synced"},
		{"version", 0, "Client:|Operator:  operator|stunnerd"},
		{"__complete status ", 0, id},
		{"auth " + id + auth, 0, "<redacted>"},
		{"auth " + id + " --auth-turn-credential" + auth, 0, `"uris"`},
		{"drain pod", 2, ""},
		{"sessions meet/nowhere", 1, "404"},
		{"kick " + id + " 0000", 1, "no pod of Gateway " + id + " has this session"},
	} {
		out, errs, code := c.try(strings.Split(m.command, " ")...)
		for part := range strings.SplitSeq(m.parts, "|") {
			if code != m.code || !strings.Contains(out+errs, part) {
				t.Errorf("%s: exit code %d, want %d and %q in\n%s%s", m.command, code, m.code, part, out, errs)
			}
		}
		if strings.Contains(out+errs, "quickstart-only-choose-your-own") {
			t.Errorf("%s prints the secret", m.command)
		}
	}

	if out, errs, code := c.try("kick", id, "--user", "ada"); code != 0 || !strings.Contains(out, session) {
		t.Errorf("kick: exit code %d\n%s%s", code, out, errs)
	}
	if err := ada.Renew(); err == nil {
		t.Error("the server answers requests of the session that kick has ended")
	}
	// Echoes in flight when kick ended arrive before the next echoes of bob.
	harnesstest.NoError(t, bob.AwaitMore(t.Context(), 10))
	last := ada.LastEcho()
	if err := bob.AwaitMore(t.Context(), 20); err != nil {
		t.Error("the call of bob:", err)
	}
	if later := ada.LastEcho().Sub(last); later > 0 {
		t.Errorf("ada has received an echo %s after kick had ended", later)
	}
	left := c.sessions()
	if len(left) != 1 || left[0] == hers[0] {
		t.Fatalf("sessions %q after kick", left)
	}
	if _, errs, code := c.try("kick", id, strings.Fields(left[0])[0]); code != 0 || len(c.sessions()) != 0 {
		t.Errorf("kick of a session: exit code %d, %s", code, errs)
	}

	harnesstest.NoError(t, c.Operator.Kill())
	c.Operator = nil
	if _, errs, code := c.try("status", id); code != 1 || !strings.Contains(errs, "no operator runs for this folder") {
		t.Errorf("without operator: exit code %d, %s", code, errs)
	}
}
