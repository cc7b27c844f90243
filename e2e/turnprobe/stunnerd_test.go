package main

import (
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/e2e/turnprobe/internal/probe"
	"github.com/stunner-gateway/stunner/services/api/config"
)

// Settings that the dataplane's config and the prober share.
const (
	realm      = "probe.example"
	user       = "ann"
	password   = "opens-the-door"
	secret     = "shared-by-both-sides"
	quota      = 40
	answerTime = 8 * time.Second // for a response; the dataplane closes a connection without a request after 10 s
)

func TestMain(m *testing.M) {
	harnesstest.Parallel(3) // one for stunnerd over IPv4, one for stunnerd over IPv6, one for coturn
	os.Exit(m.Run())
}

// N-08: the dataplane passes the checks over IPv4 and IPv6.
// It passes every check over every transport.
func TestStunnerd(t *testing.T) {
	t.Parallel()
	d := startStunnerd(t)
	first, last := peerPorts[0], peerPorts[1]
	for _, family := range []struct {
		name   string
		target probe.Target
	}{
		{"IPv4", probe.Target{
			Server: netip.MustParseAddrPort("127.0.0.1:0"), PeerAddr: netip.MustParseAddr("127.0.0.1"),
			Denied: netip.MustParseAddr("192.0.2.1"), User: user, Password: password, Secret: secret,
		}},
		{"IPv6", probe.Target{
			Server: netip.MustParseAddrPort("[::1]:0"), PeerAddr: netip.IPv6Loopback(),
			Denied: netip.MustParseAddr("2001:db8::1"), Secret: secret,
		}},
	} {
		t.Run(family.name, func(t *testing.T) {
			t.Parallel()
			for _, transport := range probe.Transports {
				target := family.target
				target.Transport, target.Realm, target.Quota = transport, realm, quota
				target.FirstPeer, target.LastPeer = first, last
				target.Own = []uint16{uint16(d.Plain), uint16(d.Secure)}
				target.Silence, target.Answer = probe.DefaultSilence, answerTime
				port := d.Plain
				if transport == probe.TLS || transport == probe.DTLS {
					port = d.Secure
				}
				target.Server = netip.AddrPortFrom(target.Server.Addr(), uint16(port))
				t.Run(string(transport), func(t *testing.T) { passes(t, target) })
			}
		})
	}
}

// passes runs the prober. No check fails, and only checks that take minutes are skipped.
func passes(t *testing.T, target probe.Target) {
	results, err := probe.Run(target, probe.Checks())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		switch {
		case r.ID == "T-08 time":
			// Timing comparisons are reliable on an idle machine only. Their result is logged and does not fail the
			// test.
			t.Logf("%s: %s %s", r.ID, r.Verdict, r.Reason)
		case r.Verdict == probe.Fail:
			t.Errorf("%s (RFC %s): %s: %s", r.ID, r.RFC, r.Says, r.Reason)
		case r.Verdict == probe.Skipped && r.Pace != probe.Long:
			t.Errorf("%s was not run: %s", r.ID, r.Reason)
		}
	}
	t.Log(summary(results))
}

// peerPorts are the first and last port of peers. They include the listeners' ports, but no relay ports.
var peerPorts = [2]uint16{18000, 31999}

// startStunnerd starts stunnerd with routes to the peers of the prober, and to addresses that must be refused although
// a route names them.
func startStunnerd(t *testing.T) *harnesstest.Dataplane {
	t.Helper()
	peers := func(address string) string { return fmt.Sprintf("%s:<%d-%d>", address, peerPorts[0], peerPorts[1]) }
	auth := harnesstest.Ephemeral(secret)
	auth.Realm = realm
	auth.Credentials[config.KeyUsername], auth.Credentials[config.KeyPassword] = user, password
	return harnesstest.StartDataplane(t, harnesstest.Build(t, harness.Stunnerd), config.Config{
		Admin: config.Admin{LogLevel: "all:WARN", UserQuota: quota}, Auth: auth,
		Listeners: harnesstest.Listeners(config.DefaultAddress),
		Clusters: []config.Cluster{
			{Name: "test/peers", Type: config.Static, Endpoints: []string{peers("127.0.0.1"), peers("::1")}},
			{Name: "test/forbidden", Type: config.Static, Endpoints: []string{
				"0.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4", "100.100.100.200", "::/128", "fe80::/10",
				"ff00::/8", "fd00:ec2::254", "64:ff9b::/96", "2002::/16", "::/96",
			}},
		},
	}, []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}, "--icmp-indications")
}

// TestChecksAreComplete: each check has an ID of its own, and none was lost.
func TestChecksAreComplete(t *testing.T) {
	ids := map[string]bool{}
	for _, c := range probe.Checks() {
		if ids[c.ID] || c.ID == "" || c.RFC == "" || c.Says == "" || c.Run == nil {
			t.Errorf("check %q is a duplicate or incomplete", c.ID)
		}
		ids[c.ID] = true
	}
	if len(ids) < 92 {
		t.Errorf("%d checks, want at least 92", len(ids))
	}
}
