// Package monitoring tests dashboards/ with the running product. A Prometheus scrapes every service, and runs the
// queries of all boards and alerts.
package monitoring

import (
	"context"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/stunner-gateway/stunner/e2e/internal/boards"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/services/api/telemetry"
)

// clusterOnly lists the metrics that are exported only in a cluster, or by an auth service that needs tokens.
var clusterOnly = []string{
	telemetry.OperatorWrites, telemetry.OperatorWriteErrors, telemetry.OperatorLeader,
	telemetry.OperatorDiscoveryStreams,
	telemetry.OperatorScalerAnswers, telemetry.OperatorTranslationDuration, telemetry.OperatorConfigsMissing,
	telemetry.OperatorUnread, telemetry.OperatorPaused, telemetry.AuthKeysAge,
}

// silent lists the panels without data in this test, with the reason. It is an error if one of them returns data.
var silent = boards.Silent{
	"Overview / Firing alerts":                   "none fires",
	"Overview / Alert":                           "none fires",
	"Dataplane / Alert":                          "none fires",
	"Auth / Refused by reason":                   "no request is refused",
	"Auth / Age of the keys and the policy":      "no tokens are needed",
	"Dataplane / Refused, by reason: B":          "no client misplaces an attribute",
	"Overview / Refused, by reason: B":           "no client misplaces an attribute",
	"Control plane / Alert":                      "none fires",
	"Auth / Alert":                               "none fires",
	"Control plane / Leaders":                    "replicas elect a leader in a cluster",
	"Control plane / Leader":                     "replicas elect a leader in a cluster",
	"Control plane / Failed writes":              "there is no API server",
	"Control plane / Writes to the API server":   "there is no API server",
	"Control plane / Readers of configs":         "counted in a cluster",
	"Control plane / Refused readers, by reason": "no reader is refused",
	"Control plane / Answers to KEDA, by code":   "KEDA asks in a cluster",
	"Control plane / Time of one translation":    "measured in a cluster",
	"Control plane / Configs and problems: B":    "counted in a cluster",
	"Control plane / Configs and problems: D":    "counted in a cluster",
	"Control plane / Dataplanes by state: B":     "every dataplane is connected to its operator",
}

// TestMonitoring is a single test, because the set-up takes most of the time.
func TestMonitoring(t *testing.T) {
	s := start(t)
	t.Run("every panel has data", s.panels)
	t.Run("the table of metrics is what the services export", s.metrics)
	t.Run("alerts can be evaluated, and none fires", s.alerts)
}

// metrics: the exported metrics have the names and labels of telemetry.Metrics, and no metric is missing.
func (s *product) metrics(t *testing.T) {
	var series []map[string]string
	if err := s.prometheus.Ask(t.Context(), "series", &series, "match[]", `{__name__=~"stunner_.+"}`); err != nil {
		t.Fatal(err)
	}
	exported := map[string]map[string]bool{}
	for _, one := range series {
		labels := exported[one["__name__"]]
		if labels == nil {
			labels = map[string]bool{}
			exported[one["__name__"]] = labels
		}
		for label := range one {
			labels[label] = true
		}
	}
	for _, m := range telemetry.Metrics {
		for _, one := range m.Series() {
			labels, found := exported[one.Name]
			if found == slices.Contains(clusterOnly, m.Name) {
				t.Errorf("%s: exported %t, listed as exported in a cluster only %t", one.Name, found, !found)
			}
			for _, of := range []string{"__name__", "job", "instance", "namespace", "gateway", "pod"} {
				delete(labels, of)
			}
			if got := slices.Sorted(maps.Keys(labels)); found &&
				!slices.Equal(got, slices.Sorted(slices.Values(one.Labels))) {
				t.Errorf("%s has the labels %q, the table says %q", one.Name, got, one.Labels)
			}
			delete(exported, one.Name)
		}
	}
	for name := range exported {
		t.Errorf("%s is exported but not in the table", name)
	}
}

// panels: every query of every board returns data.
func (s *product) panels(t *testing.T) {
	asked, err := boards.Read(harnesstest.Root(t))
	if err != nil {
		t.Fatal(err)
	}
	s.until(t, func(ctx context.Context) error { return asked.Unanswered(ctx, s.prometheus, silent) })
	if err := asked.Unexpected(t.Context(), s.prometheus, silent); err != nil {
		t.Error(err)
	}
}

// alerts: Prometheus has evaluated all alerts, and none fires.
func (s *product) alerts(t *testing.T) {
	var rules []boards.Rule
	s.until(t, func(ctx context.Context) (err error) {
		rules, err = s.prometheus.Rules(ctx)
		return err
	})
	if len(rules) == 0 {
		t.Error("no alert")
	}
	for _, r := range rules {
		if r.Health != "ok" || r.State == "firing" {
			t.Errorf("%s: %s, %s %s", r.Name, r.State, r.Health, r.LastError)
		}
	}
}

// TestScrapeConfigOfAHost: the documented scrape config for a host is valid. TestMonitoring uses the one for a cluster.
func TestScrapeConfigOfAHost(t *testing.T) {
	file := filepath.Join(t.TempDir(), "prometheus.yaml")
	if err := os.WriteFile(file, []byte(configs(t)[1]), 0o600); err != nil {
		t.Fatal(err)
	}
	if said, err := exec.Command("promtool", "check", "config", file).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, said)
	}
}

// configs returns the scrape configs of docs/monitoring.md: for a cluster, and for a host.
func configs(t *testing.T) (all []string) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(harnesstest.Root(t), "docs/monitoring.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(page, -1) {
		all = append(all, string(block[1]))
	}
	if len(all) != 2 {
		t.Fatalf("docs/monitoring.md has %d scrape configs, want one for a cluster and one for a host", len(all))
	}
	return all
}
