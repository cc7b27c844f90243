package browser

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stunner-gateway/stunner/e2e/internal/chromium"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/telemetry"
)

// Addresses of the browser, of the gateway, and of the media server. Each is in a network namespace of its own, and the
// gateway has an interface to both others.
var (
	gatewayAddr, browserAddr = netip.MustParseAddr("10.79.1.1"), netip.MustParseAddr("10.79.1.2")
	relayAddr, mediaAddr     = netip.MustParseAddr("10.79.2.1"), netip.MustParseAddr("10.79.2.2")
)

// Programs of TC forward the media of a browser.
func TestKernelForwardsMediaOfABrowser(t *testing.T) {
	if netns.Isolated(t) {
		forwarded(t, nil, "TC", "TCX")
	}
}

// A program in the driver of the network card forwards the media of a browser.
func TestDriverForwardsMediaOfABrowser(t *testing.T) {
	if netns.Isolated(t) {
		forwarded(t, netns.NewSwitch(t, "lan"), "XDP", "XDP")
	}
}

// forwarded makes a call with an offload engine, and checks that the kernel forwards its media by a mechanism. The
// gateway is in the network namespace of this process, connected by two links or by a switch.
func forwarded(t *testing.T, lan *netns.Switch, engine, mechanism string) {
	bin := harnesstest.Build(t, harness.Stunnerd, harness.Echo)
	netns.Run(t, "sysctl -q -w net.ipv6.conf.default.disable_ipv6=1 net.ipv4.ip_forward=0")
	browsers, media := lan.New(t, "browsers"), lan.New(t, "media")
	browsers.Link(t, netip.PrefixFrom(gatewayAddr, 24), netip.PrefixFrom(browserAddr, 24))
	media.Link(t, netip.PrefixFrom(relayAddr, 24), netip.PrefixFrom(mediaAddr, 24))
	var echo *harness.Process
	var err error
	media.Do(func() {
		echo, err = harness.Start(harness.Command{
			Name: "echo", Path: filepath.Join(bin, "echo"), Logs: t.TempDir(),
			Args: []string{"--http", at(7000), "--media", at(7001), "--udp", at(7002)},
		})
	})
	harnesstest.NoError(t, err)
	t.Cleanup(func() { _ = echo.Kill() })
	d := harnesstest.StartDataplane(t, bin, config.Config{
		Admin: config.Admin{OffloadEngine: engine}, Auth: harnesstest.Static(user, password),
		Listeners: harnesstest.Listeners(config.DefaultAddress)[:1],
		Clusters:  []config.Cluster{{Name: "test/media", Type: config.Static, Endpoints: []string{mediaAddr.String()}}},
	}, []netip.Addr{relayAddr})
	page := serve(t, filepath.Join(harnesstest.Root(t), "services/auth/internal/demo/page"), d.Plain)
	r := chromium.OpenBy(t, func(c *exec.Cmd) (err error) {
		browsers.Do(func() { err = c.Start() })
		return err
	}, page).Reports("the test is over", over)
	if r.Verdict != "ok" || r.Received == 0 || r.Lost > r.Sent/10 || r.Pair.Local.Type != "relay" {
		t.Errorf("%+v", r)
	}
	var status struct {
		Offload struct{ Mechanism, Reason string }
	}
	_, body, err := harness.Get(t.Context(), d.Health+"/status")
	if err == nil {
		err = json.Unmarshal(body, &status)
	}
	if err != nil || status.Offload.Mechanism != mechanism {
		t.Errorf("status %+v, %v", status, err)
	}
	kernel, err := harness.Metric(t.Context(), d.Metrics, telemetry.OffloadPackets)
	all, allErr := harness.Metric(t.Context(), d.Metrics, telemetry.ClusterPackets)
	// The counters of clusters include the packets of the kernel. The page sends 100 datagrams, which the media server
	// echoes.
	if err := errors.Join(err, allErr); err != nil || kernel < 150 || all < kernel {
		t.Errorf("%g datagrams were relayed, the kernel has forwarded %g of them, %v", all, kernel, err)
	}
	t.Logf("sent %d, received %d, lost %d; relayed %g, in the kernel %g", r.Sent, r.Received, r.Lost, all, kernel)
}

func at(port int) string { return netip.AddrPortFrom(mediaAddr, uint16(port)).String() }

// serve serves the test page, as the auth service does, to the namespace of the browser. It returns the URL of a test
// at a port of the gateway.
func serve(t *testing.T, page string, turn int) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle("GET /demo/", http.StripPrefix("/demo/", http.FileServer(http.Dir(page))))
	mux.HandleFunc("POST /v1/ice-servers", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"iceTransportPolicy": "relay", "iceServers": []harness.ICEServer{{
			URLs:     []string{fmt.Sprintf("turn:%s:%d?transport=udp", gatewayAddr, turn)},
			Username: user, Credential: password,
		}}})
	})
	mux.Handle("POST /demo/echo", &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL = &url.URL{Scheme: "http", Host: at(7000), Path: "/"}
	}})
	l, err := net.Listen("tcp", netip.AddrPortFrom(gatewayAddr, 0).String())
	harnesstest.NoError(t, err)
	server := &http.Server{Handler: mux}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	return fmt.Sprintf("http://%s/demo/?run=1&transport=udp", l.Addr())
}
