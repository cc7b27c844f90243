//go:build node

package node_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

// finding is a part of a finding of stunnerctl doctor and why.
type finding struct{ Severity, Object, Problem, Remedy string }

// TestStunnerctl runs the commands of stunnerctl against the product on a cluster, during calls, with the rights of the
// administrator, and with the rights of the ClusterRole view in one namespace.
func TestStunnerctl(t *testing.T) {
	s := newTestNamespace(t)
	s.prepare()
	s.shell([]string{"helm"}, `cd `+harnesstest.Root(t)+`/charts
helm install stunner-crds stunner-crds --namespace stunner-system --set gatewayAPI.enabled=true
helm install stunner stunner --namespace stunner-system --set 'stunnerAuthService.gateways={*/*}' \
  --set 'inspection.reachableBy[0].kind=ServiceAccount,inspection.reachableBy[0].name=viewer' \
  --set 'inspection.reachableBy[0].namespace=`+s.namespace+`' \
  --set 'inspection.reachableBy[1].kind=ServiceAccount,inspection.reachableBy[1].name=manager' \
  --set 'inspection.reachableBy[1].namespace=`+s.namespace+`' \
  --set stunnerGatewayOperator.dataplane.spec.resources.requests.cpu=100m --wait`)
	s.kubectl("", "apply", "--kustomize", harnesstest.Root(t)+"/"+example)
	s.wait("condition=Programmed", "gateway/front-door")
	s.wait("condition=Available", "deployment/echo", "deployment/front-door")
	m := caller{testNamespace: s, auth: s.publish(), peer: s.echo()}
	m.call(t)
	programs := t.TempDir()
	if err := harness.Build(t.Context(), harnesstest.Root(t), programs, harness.Stunnerctl); err != nil {
		t.Fatal(err)
	}
	ctl := ctl{m, filepath.Join(programs, filepath.Base(harness.Stunnerctl)), cluster.Kubeconfig()}
	t.Run("healthy", ctl.healthy)
	t.Run("calls", ctl.calls)
	t.Run("fault", ctl.fault)
	t.Run("turncat", ctl.turncat)
	t.Run("icetest", ctl.icetest)
	t.Run("viewer", ctl.viewer)
	t.Run("sysdump", ctl.sysdump)
}

// ctl runs stunnerctl with a kubeconfig.
type ctl struct {
	caller
	program, kubeconfig string
}

// on returns ctl for a subtest.
func (c ctl) on(t *testing.T) ctl {
	c.T = t
	return c
}

// gateway is the name of the Gateway in arguments.
func (c ctl) gateway() string { return c.namespace + "/front-door" }

// try runs a command and returns its output, its errors and its exit code.
func (c ctl) try(stdin []byte, args ...string) (out, errs string, code int) {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.Context(), timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.program, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig)
	var o, e bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &o, &e
	begun := time.Now()
	_ = cmd.Run() // the exit code is -1 if it did not run
	c.Logf("after %s: stunnerctl %s: exit code %d", since(begun), strings.Join(args, " "), cmd.ProcessState.ExitCode())
	return o.String(), e.String(), cmd.ProcessState.ExitCode()
}

// run runs a command that must succeed.
func (c ctl) run(args ...string) string {
	c.Helper()
	out, errs, code := c.try(nil, args...)
	if code != 0 {
		c.Fatalf("stunnerctl %s: exit code %d\n%s%s", strings.Join(args, " "), code, out, errs)
	}
	return out
}

// findings returns the findings of a command other than infos.
func (c ctl) findings(args ...string) (all []finding, code int) {
	c.Helper()
	out, errs, code := c.try(nil, append(args, "-o", "json")...)
	var report struct{ Findings []finding }
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		c.Fatalf("%v in\n%s%s", err, out, errs)
	}
	for _, f := range report.Findings {
		if f.Severity != "info" {
			all = append(all, f)
		}
	}
	return all, code
}

// healthy: doctor and why have no findings on a healthy cluster.
func (c ctl) healthy(t *testing.T) {
	c = c.on(t)
	for _, args := range [][]string{
		{"doctor", "-A"}, {"why", c.gateway()}, {"why", c.gateway(), "--peer", c.peer.String()},
	} {
		if found, code := c.findings(args...); len(found) > 0 || code != 0 {
			t.Errorf("%s: exit code %d, findings %+v", strings.Join(args, " "), code, found)
		}
	}
	t.Logf("stunnerctl why\n%s", c.run("why", c.gateway(), "--peer", c.peer.String()))
	t.Logf("stunnerctl status\n%s", c.run("status", c.gateway(), "-o", "wide"))
	if out, _, code := c.try(nil, "can-reach", c.gateway(), c.peer.String()); code != 0 || !strings.Contains(out, "to-echo") {
		t.Errorf("can-reach: exit code %d\n%s", code, out)
	}
	if out, _, code := c.try(nil, "can-reach", c.gateway(), "10.255.255.1:9"); code != 1 {
		t.Errorf("can-reach of a peer without a route: exit code %d\n%s", code, out)
	}
}

// calls: a call is listed, and an account that may end sessions ends it. e2e/stunnerctl measures how long that takes.
func (c ctl) calls(t *testing.T) {
	c = c.on(t)
	one := c.dial(t, call.UDP)
	var list struct {
		Sessions []struct{ ID, Pod string }
	}
	if err := json.Unmarshal([]byte(c.run("sessions", c.gateway(), "-o", "json")), &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Sessions) != 1 {
		t.Fatalf("%d sessions are listed", len(list.Sessions))
	}
	t.Logf("stunnerctl sessions\n%s", c.run("sessions", c.gateway()))
	// The administrator has a client certificate and no token, and acts as the account stunner-inspector, which only
	// reads.
	if _, errs, code := c.try(nil, "kick", c.gateway(), list.Sessions[0].ID); code != 1 || !strings.Contains(errs, "needs delete") {
		t.Errorf("kick as stunner-inspector: exit code %d\n%s", code, errs)
	}
	c.as("manager", "stunner-session-manager").run("kick", c.gateway(), list.Sessions[0].ID)
	ended := time.Now()
	c.until("the call has ended", func(context.Context) error {
		var now struct{ Sessions []struct{ ID string } }
		if err := json.Unmarshal([]byte(c.run("sessions", c.gateway(), "-o", "json")), &now); err != nil {
			return err
		}
		if len(now.Sessions) > 0 {
			return fmt.Errorf("%d sessions are left", len(now.Sessions))
		}
		return nil
	})
	t.Logf("the session was gone %s after kick", since(ended))
	one.End(0)
}

// fault: a route that is deleted is the first finding, and the peer is denied in the running pods.
func (c ctl) fault(t *testing.T) {
	c = c.on(t)
	route := c.kubectl("", "get", "udproute.stunner.l7mp.io/to-echo", "--output=json")
	c.kubectl("", "delete", "udproute.stunner.l7mp.io/to-echo")
	c.until("the missing route is found", func(context.Context) error {
		found, code := c.findings("why", c.gateway(), "--peer", c.peer.String())
		if code != 1 || len(found) == 0 || !strings.Contains(found[0].Problem+found[0].Remedy, "UDPRoute") {
			return fmt.Errorf("exit code %d, findings %+v", code, found)
		}
		return nil
	})
	c.kubectl(route, "apply", "-f", "-")
	c.until("nothing is found any more", func(context.Context) error {
		if found, code := c.findings("why", c.gateway(), "--peer", c.peer.String()); code != 0 {
			return fmt.Errorf("exit code %d, findings %+v", code, found)
		}
		return nil
	})
}

// turncat: each listener of the Gateway relays data to a peer and back, unchanged.
func (c ctl) turncat(t *testing.T) {
	c = c.on(t)
	data := bytes.Repeat([]byte("0123456789abcdef"), 100<<20/16)
	for _, listener := range []string{"udp", "tcp"} {
		begun := time.Now()
		out, errs, code := c.try(data, "turncat", "--pace", "echo", "-", "k8s://"+c.gateway()+":"+listener, "udp://"+c.peer.String())
		if code != 0 || sha256.Sum256([]byte(out)) != sha256.Sum256(data) {
			t.Errorf("%s: exit code %d, %d of %d bytes came back: %s", listener, code, len(out), len(data), errs)
		}
		t.Logf("%s: %d MB in %s", listener, len(data)>>20, since(begun))
	}
}

// icetest: every listener passes. No object is left in the cluster after a run, after an interrupted run, and after
// icetest --cleanup if a run was killed.
func (c ctl) icetest(t *testing.T) {
	c = c.on(t)
	before := c.made()
	out := c.run("icetest", c.gateway(), "-o", "json")
	harnesstest.Conforms(t, "docs/icetest.schema.json", []byte(out))
	var result struct {
		Verdict string
		Tests   []struct {
			Listener, Mode, Result string
			Sent, Received         int
			RTT                    struct{ Median, P95, P99 float64 }
		}
	}
	// Two listeners have two modes each.
	if err := json.Unmarshal([]byte(out), &result); err != nil || result.Verdict != "pass" || len(result.Tests) != 4 {
		t.Errorf("icetest: %v\n%s", err, out)
	}
	for _, r := range result.Tests {
		t.Logf("%s %s: %s, %d of %d echoes, RTT median %g ms, p95 %g ms, p99 %g ms",
			r.Listener, r.Mode, r.Result, r.Received, r.Sent, r.RTT.Median, r.RTT.P95, r.RTT.P99)
		if r.Result != "pass" {
			t.Errorf("%s %s: %s", r.Listener, r.Mode, r.Result)
		}
	}
	c.leaves(before)
	for _, end := range []os.Signal{os.Interrupt, os.Kill} {
		cmd := exec.CommandContext(t.Context(), c.program, "icetest", c.gateway())
		cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		c.until("the echo peer runs", func(context.Context) error {
			if len(c.pods("stunner.l7mp.io/icetest")) == 0 {
				return errors.New("no pod")
			}
			return nil
		})
		if err := cmd.Process.Signal(end); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait() // the command was ended by a signal
		if end == os.Kill {
			c.run("icetest", "--cleanup", "-n", c.namespace)
		}
		c.leaves(before)
	}
}

// made returns the objects of the kinds that icetest makes.
func (c ctl) made() string {
	c.Helper()
	return c.kubectl("", "get", "jobs,services,udproutes.stunner.l7mp.io,pods", "--all-namespaces", "--output=name")
}

// leaves waits until the objects are the same as before.
func (c ctl) leaves(before string) {
	c.Helper()
	c.until("nothing is left", func(context.Context) error {
		if after := c.made(); after != before {
			return fmt.Errorf("before:\n%s\nafter:\n%s", before, after)
		}
		return nil
	})
}

// as returns ctl with the token of a new account, which has a ClusterRole in the namespace of the Gateway.
func (c ctl) as(account, role string) ctl {
	c.Helper()
	c.kubectl("", "create", "serviceaccount", account)
	c.kubectl("", "create", "rolebinding", account, "--clusterrole="+role, "--serviceaccount="+c.namespace+":"+account)
	token := c.kubectl("", "create", "token", account)
	text := c.kubectl("", "config", "view", "--raw", "--minify", "--flatten")
	c.kubeconfig = filepath.Join(c.TempDir(), "kubeconfig")
	if err := os.WriteFile(c.kubeconfig, []byte(text), 0o600); err != nil {
		c.Fatal(err)
	}
	for _, args := range [][]string{
		{"set-credentials", account, "--token=" + token}, {"set-context", "--current", "--user=" + account},
	} {
		if _, err := cluster.Kubectl(c.Context(), append([]string{"config", "--kubeconfig=" + c.kubeconfig}, args...)...); err != nil {
			c.Fatal(err)
		}
	}
	return c
}

// viewer: an account with the ClusterRole view in one namespace can read the Gateways there, and is refused elsewhere.
// It can read no Secret.
func (c ctl) viewer(t *testing.T) {
	c = c.on(t)
	viewer := c.as("viewer", "view")
	one := c.dial(t, call.UDP)
	for _, args := range [][]string{
		{"status", c.gateway()}, {"sessions", c.gateway()}, {"refusals", c.gateway()}, {"why", c.gateway()},
	} {
		viewer.run(args...)
	}
	for _, args := range [][]string{
		{"sessions", home + "/front-door"}, {"kick", c.gateway(), "--user", "ada"},
	} {
		out, errs, code := viewer.try(nil, args...)
		if code != 1 || !strings.Contains(out+errs, "needs") {
			t.Errorf("%s: exit code %d\n%s%s", strings.Join(args, " "), code, out, errs)
		}
	}
	if _, err := cluster.Kubectl(t.Context(), "get", "secrets", "--namespace="+c.namespace,
		"--as=system:serviceaccount:"+c.namespace+":viewer"); err == nil || !strings.Contains(err.Error(), "orbidden") {
		t.Errorf("the account may read Secrets: %v", err)
	}
	c.echoes(t, call.UDP, one)
	c.end(t, call.UDP, one)
}

// sysdump: the archive contains the Gateway and no Secret.
func (c ctl) sysdump(t *testing.T) {
	c = c.on(t)
	file := filepath.Join(t.TempDir(), "dump.tar.gz")
	c.run("sysdump", "--file", file)
	out, err := exec.CommandContext(t.Context(), "tar", "-tzf", file).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "/gateway.gateway.networking.k8s.io/front-door.yaml") ||
		!strings.Contains(string(out), "/logs/"+home+"/") || strings.Contains(string(out), "/secret/") {
		t.Errorf("%v:\n%s", err, out)
	}
}
