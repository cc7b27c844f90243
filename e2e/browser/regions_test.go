package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/chromium"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

const clustersFile = `version: v1
regions:
- {name: far, networks: [192.0.2.0/24]}
- {name: near, networks: [127.0.0.0/8]}
clusters:
- {name: second, region: far, config: "%s", tokenFile: "%s"}
- {name: first, region: near, config: "%s", tokenFile: "%s"}
`

// TestSecondRegionTakesOver: a browser gets the gateway of the nearest region first, and the gateway of another region
// after it, each with its own credential. A call succeeds while the gateway, the operator and the auth service of the
// nearest region are down.
func TestSecondRegionTakesOver(t *testing.T) {
	first := harnesstest.Quickstart(t, "")
	harnesstest.NoError(t, first.Put("relays.yaml", []byte(relaysRoute)))
	second := elsewhere(t, first)
	token := func(s *harness.Stack) string { return filepath.Join(s.Output(), "discovery.token") }
	file := filepath.Join(t.TempDir(), "clusters.yaml")
	harnesstest.NoError(t, os.WriteFile(file, fmt.Appendf(nil, clustersFile,
		second.DiscoveryURL(), token(second), first.DiscoveryURL(), token(first)), 0o600))
	both := *first // with the auth service of both
	both.Ports.Auth, both.Ports.AuthHealth = harnesstest.Port(t), harnesstest.Port(t)
	health := fmt.Sprintf("%s:%d", harness.Loopback, both.Ports.AuthHealth)
	harnesstest.Start(t, harness.Command{
		Name: "auth", Path: filepath.Join(first.Bin, "auth"), Logs: t.TempDir(), Args: []string{
			"--clusters", file, "--address", harness.Loopback, "--port", strconv.Itoa(both.Ports.Auth),
			"--health-address", health,
			"--shutdown-delay", "0",
		},
	}, harness.Answers("http://"+health+"/ready", http.StatusOK))
	ask := func(ctx context.Context) (harness.ICE, error) {
		ice, err := both.ICEServers(ctx)
		if err == nil && (len(ice.Servers) != 2 || ice.Servers[0].URLs[0] != address(first) || ice.Servers[1].URLs[0] != address(second)) {
			err = fmt.Errorf("ICE servers %+v, want %s and then %s", ice.Servers, address(first), address(second))
		}
		return ice, err
	}
	await(t, func(ctx context.Context) error { _, err := ask(ctx); return err })
	page := httptest.NewServer(http.FileServer(http.Dir(".")))
	defer page.Close()
	call := func() {
		t.Helper()
		ice, err := ask(t.Context())
		harnesstest.NoError(t, err)
		servers, err := json.Marshal(ice.Servers)
		harnesstest.NoError(t, err)
		chromium.Open(t, page.URL+"/call.html#"+url.PathEscape(string(servers))).
			Reports("messages arrive", func(r chromium.Report) bool { return r.Verdict == "running" && r.Received >= 100 })
	}
	call()

	dataplane, err := first.Config(t.Context())
	harnesstest.NoError(t, err)
	harnesstest.NoError(t, first.Operator.Kill()) // the dataplane ends with its operator
	harnesstest.NoError(t, first.Auth.Kill())
	await(t, func(ctx context.Context) error {
		if _, _, err := harness.Get(ctx, *dataplane.Admin.HealthcheckEndpoint+"/live"); err == nil {
			return fmt.Errorf("the dataplane of the first region still lives")
		}
		return nil
	})
	before, err := second.Metric(t.Context(), "stunner_allocations_total")
	harnesstest.NoError(t, err)
	call() // the last config of the first region is still used
	after, err := second.Metric(t.Context(), "stunner_allocations_total")
	if err != nil || after < before+2 {
		t.Errorf("the second region has %g allocations, and had %g before: %v", after, before, err)
	}
}

// relaysRoute lets the two clients of a call reach each other's relay.
const relaysRoute = `apiVersion: stunner.l7mp.io/v1
kind: UDPRoute
metadata: {name: relays, namespace: meet}
spec:
  parentRefs: [{name: front-door}]
  rules: [{backendRefs: [{name: echo, port: 1024, endPort: 65535}]}]
`

// elsewhere runs an operator and a dataplane with another secret, without an auth service. The programs of the given
// stack are used.
func elsewhere(t *testing.T, peer *harness.Stack) *harness.Stack {
	t.Helper()
	s := &harness.Stack{Bin: peer.Bin, Dir: t.TempDir(), Ports: peer.Ports}
	s.Ports.TURN, s.Ports.Discovery = harnesstest.Port(t), harnesstest.Port(t)
	harnesstest.NoError(t, s.Prepare(filepath.Join(harnesstest.Root(t), "docs/examples/quickstart")))
	harnesstest.NoError(t, s.Put("relays.yaml", []byte(relaysRoute)))
	edit(t, s, "gatewayconfig.yaml", "secret: quickstart", "secret: another-region")
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	harnesstest.NoError(t, s.StartOperator(ctx))
	return s
}

// address returns the URL of the UDP listener.
func address(s *harness.Stack) string { return fmt.Sprintf("turn:%s?transport=udp", s.Gateway()) }
