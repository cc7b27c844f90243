package monitoring

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/stunner-gateway/stunner/e2e/internal/boards"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/telemetry"
)

const (
	limit    = 3 * time.Minute
	interval = "1s"
)

// product is the product on this host with a Prometheus.
type product struct {
	stack      *harness.Stack
	prometheus boards.Prometheus
}

// start starts the product on this host with calls and a Prometheus, and changes the config after Prometheus has
// scraped the first config.
func start(t *testing.T) *product {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ports, err := harness.FreePorts()
	must(err)
	bin := harnesstest.Build(t, harness.Operator, harness.Stunnerd, harness.Auth, harness.Echo)
	p := &product{stack: &harness.Stack{Bin: bin, Dir: t.TempDir(), Ports: ports}}
	must(p.stack.Prepare(filepath.Join(harnesstest.Root(t), "docs/examples/quickstart")))
	must(p.secure())
	t.Cleanup(func() {
		must(p.stack.Stop())
		if t.Failed() {
			t.Logf("last log lines of the dataplane:\n%s", strings.Join(harness.Tail(p.stack.DataplaneLog(), 40), "\n"))
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	must(p.stack.Start(ctx))
	p.startPrometheus(t, ctx)
	ice, err := p.stack.ICEServers(ctx)
	must(err)
	gateway, err := ice.Servers[0].Address(config.TURNUDP)
	must(err)
	end, err := boards.Traffic(t.Context(), call.Options{
		Gateway: gateway, Network: call.UDP, Username: ice.Servers[0].Username, Password: ice.Servers[0].Credential,
		Peer: p.stack.Datagrams(),
	}, p.stack.AuthURL())
	must(err)
	t.Cleanup(end)
	p.until(t, func(ctx context.Context) error {
		if n, err := p.prometheus.Results(ctx, telemetry.ConfigApplied); err != nil || n == 0 {
			return fmt.Errorf("ask for %s: %d results, %v", telemetry.ConfigApplied, n, err)
		}
		return nil
	})
	const name = "gatewayconfig.yaml"
	text, err := os.ReadFile(filepath.Join(p.stack.Input(), name))
	must(err)
	must(p.stack.Put(name, bytes.Replace(text, []byte("all:INFO"), []byte("all:WARN"), 1)))
	return p
}

// secure adds a listener with a certificate.
func (s *product) secure() error {
	chain, key, err := harness.Certificate()
	if err != nil {
		return err
	}
	encoded := base64.StdEncoding.EncodeToString
	text := fmt.Sprintf(`apiVersion: v1
kind: Secret
metadata: {name: certificate, namespace: meet}
type: kubernetes.io/tls
data: {tls.crt: %s, tls.key: %s}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: front-door, namespace: meet}
spec:
  gatewayClassName: calls
  listeners:
    - {name: udp, port: %d, protocol: TURN-UDP}
    - {name: tls, port: %d, protocol: TURN-TLS, tls: {certificateRefs: [{name: certificate}]}}
`, encoded(chain), encoded(key), s.stack.Ports.TURN, s.stack.Ports.TURN)
	return s.stack.Put("gateway.yaml", []byte(text))
}

// startPrometheus starts a Prometheus that scrapes every service with the config of docs/monitoring.md.
func (s *product) startPrometheus(t *testing.T, ctx context.Context) {
	t.Helper()
	health, err := s.stack.Operator.AwaitOutput(ctx, regexp.MustCompile(`health=(\S+)`))
	if err != nil {
		t.Fatal(err)
	}
	c, err := s.stack.Config(ctx)
	if err != nil {
		t.Fatal(err)
	}
	address := harnesstest.Address(t)
	auth := net.JoinHostPort(harness.Loopback, strconv.Itoa(s.stack.Ports.AuthHealth))
	data := scrapeConfig(t,
		target{"stunner", "metrics-port", "front-door-0", "front-door", c.Admin.MetricsEndpoint},
		target{"stunner-operator", "health", "operator-0", "", "http://" + health[1] + "/metrics"},
		target{"stunner-auth", "health", "auth-0", "", "http://" + auth + "/metrics"},
	)
	file := filepath.Join(s.stack.Dir, "prometheus.yaml")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	program, err := exec.LookPath("prometheus")
	if err != nil {
		t.Fatal("prometheus is not installed: run `sudo apt-get install --yes --no-install-recommends prometheus`")
	}
	s.prometheus = boards.Prometheus{URL: "http://" + address}
	harnesstest.Start(t, harness.Command{Name: "prometheus", Path: program, Logs: s.stack.Logs(), Args: []string{
		"--config.file", file, "--storage.tsdb.path", filepath.Join(s.stack.Dir, "tsdb"), "--web.listen-address",
		address, "--log.level", "warn",
	}}, harness.Answers(s.prometheus.URL+"/-/ready", http.StatusOK))
}

// target is a scrape target, as Prometheus would discover it from a pod.
type target struct{ app, port, pod, gateway, url string }

// scrapeConfig returns the documented scrape config for a cluster, with targets on this host in place of pods.
func scrapeConfig(t *testing.T, targets ...target) []byte {
	t.Helper()
	type object = map[string]any
	var c object
	if err := yaml.Unmarshal([]byte(configs(t)[0]), &c); err != nil {
		t.Fatal(err)
	}
	var found []object
	for _, one := range targets {
		at, err := url.Parse(one.url)
		if err != nil {
			t.Fatal(err)
		}
		const meta = "__meta_kubernetes_"
		found = append(found, object{"targets": []string{at.Host}, "labels": object{
			"__metrics_path__": at.Path, meta + "namespace": "meet", meta + "pod_name": one.pod,
			meta + "pod_label_app": one.app, meta + "pod_container_port_name": one.port,
			meta + "pod_label_stunner_l7mp_io_related_gateway_name": one.gateway,
		}})
	}
	scrape := c["scrape_configs"].([]any)[0].(object)
	delete(scrape, "kubernetes_sd_configs")
	scrape["static_configs"] = found
	c["rule_files"] = []string{filepath.Join(harnesstest.Root(t), "dashboards/alerts.yaml")}
	c["global"] = object{"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval}
	data, err := yaml.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func (s *product) until(t *testing.T, cond func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if err := harness.Until(ctx, cond); err != nil {
		t.Error(err)
	}
}
