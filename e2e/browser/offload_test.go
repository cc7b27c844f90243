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
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/bedtest"
	"github.com/stunner-gateway/stunner/e2e/internal/bpf"
	"github.com/stunner-gateway/stunner/e2e/internal/chromium"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
	"github.com/stunner-gateway/stunner/services/api/telemetry"
)

// Addresses of the browser, of the gateway, and of the media server. Each is in a network namespace of its own, and the
// gateway has an interface to both others.
var (
	gatewayAddr, browserAddr = netip.MustParseAddr("10.79.1.1"), netip.MustParseAddr("10.79.1.2")
	relayAddr, mediaAddr     = netip.MustParseAddr("10.79.2.1"), netip.MustParseAddr("10.79.2.2")
)

const (
	user, password = "ann", "opens-the-door"
	health         = "http://127.0.0.1:8086"
	metrics        = "http://127.0.0.1:8080/metrics"
)

// The kernel forwards the media of a browser, by TCX and by clsact.
func TestBrowserInKernel(t *testing.T) {
	if !netns.Isolated(t) {
		return
	}
	root, bin := bedtest.Root(t), bedtest.Build(t, bed.Stunnerd, bed.Echo)
	netns.Run(t, "sysctl -q -w net.ipv6.conf.default.disable_ipv6=1 net.ipv4.ip_forward=0")
	browsers, media := netns.New(t, "browsers"), netns.New(t, "media")
	browsers.Link(t, netip.PrefixFrom(gatewayAddr, 24), netip.PrefixFrom(browserAddr, 24))
	media.Link(t, netip.PrefixFrom(relayAddr, 24), netip.PrefixFrom(mediaAddr, 24))
	media.Do(func() {
		echo, err := bed.Start(bed.Command{Name: "echo", Path: filepath.Join(bin, "echo"), Logs: t.TempDir(), Args: []string{
			"--http", at(7000), "--media", at(7001), "--udp", at(7002),
		}})
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { _ = echo.Kill() })
	})
	page := serve(t, filepath.Join(root, "services/auth/internal/demo/page"))

	for _, mechanism := range []string{"TCX", "clsact"} {
		t.Run(mechanism, func(t *testing.T) {
			if mechanism == "clsact" {
				bpf.OccupyTCX(t, "browsers", "media")
			}
			file := filepath.Join(t.TempDir(), "config.yaml")
			text := fmt.Appendf(nil, kernelConfig, health, metrics, user, password, mediaAddr)
			if err := os.WriteFile(file, text, 0o600); err != nil {
				t.Fatal(err)
			}
			bedtest.Start(t, bed.Command{
				Name: "stunnerd", Path: filepath.Join(bin, "stunnerd"), Args: []string{"--config", file},
				Env: []string{"STUNNER_ADDRS=" + relayAddr.String()}, Logs: t.TempDir(),
			}, bed.Answers(health+"/ready", http.StatusOK))
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
			_, body, err := bed.Get(t.Context(), health+"/status")
			if err == nil {
				err = json.Unmarshal(body, &status)
			}
			kernel, all := metric(t, telemetry.OffloadPackets), metric(t, telemetry.ClusterPackets)
			if err != nil || status.Offload.Mechanism != mechanism {
				t.Errorf("status %+v, %v", status, err)
			}
			// The counters of clusters include the packets of the kernel. The page sends 100 datagrams, which the media
			// server echoes.
			if kernel < 150 || all < kernel {
				t.Errorf("%g datagrams were relayed, the kernel has forwarded %g of them", all, kernel)
			}
			t.Logf("sent %d, received %d, lost %d; relayed %g, in the kernel %g", r.Sent, r.Received, r.Lost, all, kernel)
		})
	}
}

// metric returns the sum of the series of a metric, 0 if there is none.
func metric(t *testing.T, name string) float64 {
	t.Helper()
	n, err := bed.Metric(t.Context(), metrics, name)
	if err != nil && !errors.Is(err, bed.ErrNoMetric) {
		t.Fatal(err)
	}
	return n
}

func at(port int) string { return netip.AddrPortFrom(mediaAddr, uint16(port)).String() }

const kernelConfig = `version: v1
admin: {name: meet/kernel, healthcheck_endpoint: "%s", metrics_endpoint: "%s", offload_engine: TC}
auth: {type: static, realm: meet.example.org, credentials: {username: %s, password: %s}}
listeners: [{name: meet/kernel/udp, protocol: TURN-UDP, port: 3478, routes: [meet/media]}]
clusters: [{name: meet/media, type: STATIC, endpoints: ["%s"]}]
`

// serve serves the test page, as the auth service does, to the namespace of the browser. It returns the URL of a test.
func serve(t *testing.T, page string) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle("GET /demo/", http.StripPrefix("/demo/", http.FileServer(http.Dir(page))))
	mux.HandleFunc("POST /v1/ice-servers", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(bed.ICE{Servers: []bed.ICEServer{{
			URLs:     []string{fmt.Sprintf("turn:%s:3478?transport=udp", gatewayAddr)},
			Username: user, Credential: password,
		}}})
	})
	mux.Handle("POST /demo/echo", &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL = &url.URL{Scheme: "http", Host: at(7000), Path: "/"}
	}})
	l, err := net.Listen("tcp", netip.AddrPortFrom(gatewayAddr, 0).String())
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: mux}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	return fmt.Sprintf("http://%s/demo/?run=1&transport=udp", l.Addr())
}
