//go:build node

package node_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stunner-gateway/stunner/e2e/internal/boards"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/telemetry"
)

// silent lists the panels without data on a healthy cluster, with the reason.
var silent = boards.Silent{
	"Overview / Firing alerts":                 "none fires",
	"Overview / Alert":                         "none fires",
	"Dataplane / Alert":                        "none fires",
	"Control plane / Alert":                    "none fires",
	"Auth / Alert":                             "none fires",
	"Overview / Refused, by reason: B":         "no client sends an attribute that is ignored",
	"Dataplane / Refused, by reason: B":        "no client sends an attribute that is ignored",
	"Auth / Refused by reason: A":              "no request is refused",
	"Auth / Age of the keys and the policy: A": "the auth service has no keys for tokens",
	"Control plane / Dataplanes by state: B":   "every dataplane is connected to its operator",
	"Control plane / Dataplane restarts: B":    "the kubelet restarts them, not the operator",
}

// TestBoards: on a cluster with calls and with KEDA, every panel of every board has data from a Prometheus with service
// discovery, and no alert fires.
func TestBoards(t *testing.T) {
	if err := cluster.KEDA(t.Context()); err != nil {
		t.Fatal(err)
	}
	m := newBusyCaller(t)
	(&callsByPod{caller: m}).autoscaling(map[string]any{"trigger": "external"})
	prometheus := m.prometheus()
	m.until("Prometheus has scraped the first config", func(ctx context.Context) error {
		if n, err := prometheus.Results(ctx, telemetry.ConfigApplied); err != nil || n == 0 {
			return fmt.Errorf("ask for %s: %d results, %w", telemetry.ConfigApplied, n, err)
		}
		return nil
	})
	m.secure()
	ice, err := m.ask(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	gateway, err := ice.Address(config.TURNUDP)
	if err != nil {
		t.Fatal(err)
	}
	end, err := boards.Traffic(t.Context(), call.Options{
		Gateway: gateway, Network: call.UDP, Username: ice.Username, Password: ice.Credential, Peer: m.peer,
	}, fmt.Sprintf("http://%s:8088", m.auth))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(end)

	asked, err := boards.Read(harnesstest.Root(t))
	if err != nil {
		t.Fatal(err)
	}
	begun := len(asked)
	m.until("every panel has data", func(ctx context.Context) error {
		m.requestWithoutToken(ctx)
		return asked.Unanswered(ctx, prometheus, silent)
	})
	t.Logf("%d queries of boards return data, %d are silent", begun-len(asked), len(asked))
	if err := asked.Unexpected(t.Context(), prometheus, silent); err != nil {
		t.Error(err)
	}
	rules, err := prometheus.Rules(t.Context())
	if err != nil || len(rules) == 0 {
		t.Fatalf("%d alerts, %v", len(rules), err)
	}
	for _, r := range rules {
		if r.Health != "ok" || r.State == "firing" {
			t.Errorf("alert %s: %s, %s %s", r.Name, r.State, r.Health, r.LastError)
		}
	}
}

// requestWithoutToken sends a request without a token to config discovery, through the API server's proxy.
func (s testNamespace) requestWithoutToken(ctx context.Context) {
	_, err := cluster.Kubectl(
		ctx, "get", "--raw",
		"/api/v1/namespaces/"+home+"/services/https:stunner-config-discovery:13478/proxy/api/v1/configs",
	)
	if err == nil {
		s.Error("config discovery accepts a request without a token")
	}
}

// prometheus starts a Prometheus with the alerts and with service discovery as in docs/monitoring.md.
func (s testNamespace) prometheus() boards.Prometheus {
	s.Helper()
	if _, err := cluster.Load(s.Context(), "prometheus"); err != nil {
		s.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(harnesstest.Root(s.T), "docs/monitoring.md"))
	if err != nil {
		s.Fatal(err)
	}
	scrape := regexp.MustCompile("```yaml\n([^`]*kubernetes_sd_configs:[^`]*)```").FindSubmatch(page)
	if scrape == nil {
		s.Fatal("docs/monitoring.md has no scrape config for a cluster")
	}
	s.kubectl("", "create", "configmap", "prometheus", "--from-file="+filepath.Join(
		harnesstest.Root(s.T), "dashboards/alerts.yaml",
	),
		"--from-literal=prometheus.yml=global: {scrape_interval: 5s, evaluation_interval: 5s}\n"+string(scrape[1]))
	const binding = "e2e-prometheus"
	s.kubectl(
		"", "create", "clusterrolebinding", binding, "--clusterrole=view", "--serviceaccount="+s.namespace+":default",
	)
	s.Cleanup(func() {
		if _, err := cluster.Kubectl(context.Background(), "delete", "clusterrolebinding", binding); err != nil {
			s.Error(err)
		}
	})
	s.apply("testdata/prometheus.yaml")
	return boards.Prometheus{URL: fmt.Sprintf("http://%s:9090", s.pods("app=prometheus")[0].Status.PodIP)}
}

// secure adds a listener with a certificate to the Gateway, which also changes its config.
func (s testNamespace) secure() {
	s.Helper()
	chain, key, err := harness.Certificate()
	dir := s.TempDir()
	err = errors.Join(
		err, os.WriteFile(filepath.Join(dir, "chain"), chain, 0o600),
		os.WriteFile(filepath.Join(dir, "key"), key, 0o600),
	)
	if err != nil {
		s.Fatal(err)
	}
	s.kubectl(
		"", "create", "secret", "tls", "certificate", "--cert="+filepath.Join(dir, "chain"),
		"--key="+filepath.Join(dir, "key"),
	)
	s.kubectl("", "patch", "gateway", "front-door", "--type=json", "-p",
		`[{"op":"add","path":"/spec/listeners/-","value":{"name":"tls","port":443,"protocol":"TURN-TLS","tls":{"certificateRefs":[{"name":"certificate"}]}}}]`)
}
