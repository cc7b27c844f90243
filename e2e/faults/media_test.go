package faults

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
	"github.com/stunner-gateway/stunner/services/api/config"
)

// doctorTimeout is how long doctor is repeated until it has a finding.
const doctorTimeout = 30 * time.Second

// doctor waits until stunnerctl doctor ends with an exit code and prints texts.
func doctor(t *testing.T, s *harness.Stack, code int, texts ...string) {
	t.Helper()
	begun := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), doctorTimeout)
	defer cancel()
	err := harness.Until(ctx, func(ctx context.Context) error {
		command := exec.CommandContext(ctx, filepath.Join(s.Bin, "stunnerctl"), "--folder", s.Output(), "doctor")
		out, err := command.CombinedOutput()
		if err != nil && !errors.As(err, new(*exec.ExitError)) {
			return err
		}
		printed := strings.Join(strings.Fields(string(out)), " ")
		for _, text := range texts {
			if !strings.Contains(printed, text) {
				return fmt.Errorf("doctor does not print %q: %s", text, out)
			}
		}
		if got := command.ProcessState.ExitCode(); got != code {
			return fmt.Errorf("exit code %d, want %d: %s", got, code, out)
		}
		return nil
	})
	harnesstest.NoError(t, err)
	t.Logf("doctor ends with code %d and %q after %s", code, texts, time.Since(begun).Round(time.Second))
}

// stunnerctl doctor compares the traffic of calls in both directions. It names the route whose media server has ended
// during calls, or whose port a firewall blocks, and the peer that no route allows. It has no findings while calls have
// media in both directions, and after the fault has ended.
func TestDoctorFindsCallsWithoutMedia(t *testing.T) {
	t.Parallel()
	if !netns.Isolated(t) {
		return
	}
	s := harnesstest.Quickstart(t, "", harness.Stunnerctl)
	ice, err := s.ICEServers(t.Context())
	harnesstest.NoError(t, err)
	gateway, err := ice.Servers[0].Address(config.TURNUDP)
	harnesstest.NoError(t, err)
	dial := func(peer netip.AddrPort) (*call.Call, error) {
		return call.Start(t.Context(), call.Options{
			Gateway: gateway, Network: call.UDP, Username: ice.Servers[0].Username, Password: ice.Servers[0].Credential,
			Peer: peer,
		})
	}
	for range 3 {
		c, err := dial(s.Datagrams())
		harnesstest.NoError(t, err)
		t.Cleanup(func() { c.End(0) })
		harnesstest.NoError(t, c.Await(t.Context(), 10))
	}
	const silent, route = "3 of 3 calls send and get nothing back from meet/to-echo", "UDPRoute meet/to-echo"
	healthy := func() {
		t.Helper()
		doctor(t, s, 0)
	}
	healthy()

	harnesstest.NoError(t, s.Echo.Kill())
	doctor(t, s, 1, "ERROR "+route, silent, "ICMP errors report to 3 calls", "start the media server")
	harnesstest.NoError(t, s.StartEcho(t.Context()))
	healthy()

	for _, command := range []string{
		"nft add table inet firewall", "nft add chain inet firewall in { type filter hook input priority 0 ; }",
		fmt.Sprintf("nft add rule inet firewall in udp dport %d drop", s.Datagrams().Port()),
	} {
		netns.Run(t, command)
	}
	doctor(t, s, 1, "WARNING "+route, silent, "firewall")
	netns.Run(t, "nft delete table inet firewall")
	healthy()

	denied := netip.MustParseAddrPort("127.0.0.2:5000")
	for range 4 {
		if c, err := dial(denied); !errors.Is(err, call.ErrRefused) {
			t.Errorf("call of a peer without a route: %v, %v", c, err)
		}
	}
	doctor(t, s, 1, "WARNING "+route, "127.0.0.2:5000 was denied to 4 calls, of which 4 got no media", "add the peer to a UDPRoute")
}
