package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strconv"
	"testing"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/e2e/turnprobe/internal/probe"
)

// TestCoturn: the prober detects violations. Debian's coturn passes most checks and fails some, so a run without
// failures means that the prober is broken.
func TestCoturn(t *testing.T) {
	t.Parallel()
	target := probe.Target{
		Server: startCoturn(t), Transport: probe.UDP, User: user, Password: password, Realm: realm,
		Denied: netip.MustParseAddr("192.0.2.1"), Silence: probe.DefaultSilence, Answer: probe.DefaultAnswer,
	}
	results, err := probe.Run(target, probe.Checks())
	if err != nil {
		t.Fatal(err)
	}
	t.Log(summary(results))
	for _, r := range results {
		if r.Verdict == probe.Fail {
			t.Logf("%s: %s: %s", r.ID, r.Says, r.Reason)
		}
	}
	count := probe.Count(results)
	if count[probe.Fail] == 0 {
		t.Error("no check fails against coturn: the prober detects nothing")
	}
	if count[probe.Pass] < 60 {
		t.Errorf("only %d checks pass: is coturn reachable?", count[probe.Pass])
	}
}

func startCoturn(t *testing.T) netip.AddrPort {
	t.Helper()
	path, err := exec.LookPath("turnserver")
	if err != nil {
		t.Fatal("turnserver is not installed: run `sudo apt-get install --yes coturn`")
	}
	dir, port := t.TempDir(), harnesstest.Port(t)
	args := []string{
		"-n", "--no-cli", "--no-tls", "--no-dtls", "--lt-cred-mech", "-u", user + ":" + password, "-r", realm,
		"-L", harness.Loopback, "-E", harness.Loopback, "--listening-port", strconv.Itoa(port),
		"--allow-loopback-peers",
		"--denied-peer-ip=192.0.2.1",
		"--db=" + dir + "/users.db", "--log-file=stdout", "--pidfile=" + dir + "/pid",
	}
	address := fmt.Sprintf("%s:%d", harness.Loopback, port)
	harnesstest.Start(t, harness.Command{
		Name: "turnserver", Path: path, Args: args, Dir: dir, Logs: dir,
	}, func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err == nil {
			conn.Close()
		}
		return err
	})
	return netip.MustParseAddrPort(address)
}
