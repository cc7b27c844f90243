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
	b := newKernelBed(t, nil)
	t.Run("TCX", func(t *testing.T) { b.test(t, "TC", "TCX") })
	t.Run("clsact", func(t *testing.T) {
		bpf.OccupyTCX(t, "browsers", "media")
		b.test(t, "TC", "clsact")
	})
}

// A program in the driver of the network card forwards the media of a browser.
func TestBrowserXDP(t *testing.T) {
	if !netns.Isolated(t) {
		return
	}
	newKernelBed(t, netns.NewSwitch(t, "lan")).test(t, "XDP", "XDP")
}

// kernelBed has the gateway in the network namespace of this process.
type kernelBed struct {
	browsers *netns.Space
	stunnerd string // path of the program
	page     string // URL of a test
}

// newKernelBed starts the media server and the web server of the test page, behind links of their own or a switch.
func newKernelBed(t *testing.T, lan *netns.Switch) *kernelBed {
	t.Helper()
	bin := bedtest.Build(t, bed.Stunnerd, bed.Echo)
	b := &kernelBed{browsers: lan.New(t, "browsers"), stunnerd: filepath.Join(bin, "stunnerd")}
	netns.Run(t, "sysctl -q -w net.ipv6.conf.default.disable_ipv6=1 net.ipv4.ip_forward=0")
	media := lan.New(t, "media")
	b.browsers.Link(t, netip.PrefixFrom(gatewayAddr, 24), netip.PrefixFrom(browserAddr, 24))
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
	b.page = serve(t, filepath.Join(bedtest.Root(t), "services/auth/internal/demo/page"))
	return b
}

// test makes a call with an offload engine, and expects that the kernel forwards its media by a mechanism.
func (b *kernelBed) test(t *testing.T, engine, mechanism string) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	text := fmt.Appendf(nil, kernelConfig, health, metrics, engine, user, password, mediaAddr)
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	bedtest.Start(t, bed.Command{
		Name: "stunnerd", Path: b.stunnerd, Args: []string{"--config", file},
		Env: []string{"STUNNER_ADDRS=" + relayAddr.String()}, Logs: t.TempDir(),
	}, bed.Answers(health+"/ready", http.StatusOK))
	r := chromium.OpenBy(t, func(c *exec.Cmd) (err error) {
		b.browsers.Do(func() { err = c.Start() })
		return err
	}, b.page).Reports("the test is over", over)
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
	// The counters of clusters include the packets of the kernel. The page sends 100 datagrams, which the media server
	// echoes.
	if kernel < 150 || all < kernel {
		t.Errorf("%g datagrams were relayed, the kernel has forwarded %g of them", all, kernel)
	}
	t.Logf("sent %d, received %d, lost %d; relayed %g, in the kernel %g", r.Sent, r.Received, r.Lost, all, kernel)
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
admin: {name: meet/kernel, healthcheck_endpoint: "%s", metrics_endpoint: "%s", offload_engine: %s}
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
