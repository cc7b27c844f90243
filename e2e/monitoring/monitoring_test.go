// Package monitoring holds dashboards/ against the running product: a real Prometheus scrapes every service, and answers every question
// that a board or an alert asks.
package monitoring

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/telemetry"
)

// clusterOnly are the metrics of the operator that there are in a cluster only.
var clusterOnly = []string{
	telemetry.OperatorWrites, telemetry.OperatorWriteErrors, telemetry.OperatorLeader, telemetry.OperatorDiscoveryStreams, telemetry.OperatorDiscoveryRefused,
}

// silent are the panels without data here, each with the reason. One that has data all the same does not belong here.
var silent = map[string]string{
	"Overview / What is wrong, and since when":       "nothing is",
	"Overview / Alert":                               "none fires",
	"Dataplane / Alert":                              "none fires",
	"Control plane / Alert":                          "none fires",
	"Auth / Alert":                                   "none fires",
	"Control plane / Leaders":                        "replicas elect a leader in a cluster",
	"Control plane / Who leads":                      "replicas elect a leader in a cluster",
	"Control plane / Failed writes":                  "there is no API server",
	"Control plane / Writes to the API server":       "there is no API server",
	"Control plane / Readers of configs":             "counted in a cluster",
	"Control plane / Readers turned away, by reason": "counted in a cluster",
	"Control plane / Dataplanes by what they run: B": "every dataplane hears its operator",
}

// TestMonitoring is one test, because what takes time is to start everything.
func TestMonitoring(t *testing.T) {
	s := newStage(t)
	t.Run("every panel has data", s.panels)
	t.Run("the table of metrics is what the services export", s.metrics)
	t.Run("alerts can be evaluated, and none fires", s.alerts)
}

// metrics: what is exported has the names and labels of telemetry.Metrics, and all of it is.
func (s *stage) metrics(t *testing.T) {
	var series []map[string]string
	s.prometheus.get(t, "series", &series, "match[]", `{__name__=~"stunner_.+"}`)
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
		labels, found := exported[m.Name]
		if found == slices.Contains(clusterOnly, m.Name) {
			t.Errorf("%s: exported %t, listed as exported in a cluster only %t", m.Name, found, !found)
		}
		for _, of := range []string{"__name__", "job", "instance", "namespace", "gateway", "pod"} {
			delete(labels, of)
		}
		if got := slices.Sorted(maps.Keys(labels)); found && !slices.Equal(got, slices.Sorted(slices.Values(m.Labels))) {
			t.Errorf("%s has the labels %q, the table says %q", m.Name, got, m.Labels)
		}
		delete(exported, m.Name)
	}
	for name := range exported {
		t.Errorf("%s is exported, and not in the table", name)
	}
}

// panels: every query of every board answers.
func (s *stage) panels(t *testing.T) {
	asked := questions(t)
	s.until(t, func(ctx context.Context) error {
		var missing []error
		for where, expr := range asked {
			if reasonFor(where) != "" {
				continue
			}
			n, err := s.prometheus.results(ctx, expr)
			if err != nil || n == 0 {
				missing = append(missing, fmt.Errorf("%s: %d results, %v: %s", where, n, err, expr))
				continue
			}
			delete(asked, where) // it has answered once
		}
		return errors.Join(missing...)
	})
	for where, expr := range asked {
		if n, err := s.prometheus.results(t.Context(), expr); err != nil || n > 0 {
			t.Errorf("%s: %d results, %v, although %s", where, n, err, reasonFor(where))
		}
	}
	for panel := range silent {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(asked)), func(where string) bool { return strings.HasPrefix(where, panel) }) {
			t.Errorf("there is no %q", panel)
		}
	}
}

// reasonFor says why a query has no data, if there is a reason.
func reasonFor(where string) string {
	panel, _, _ := strings.Cut(where, ": ")
	if why := silent[panel]; why != "" {
		return why
	}
	return silent[where]
}

// alerts: Prometheus has read all of them, and nothing is wrong here.
func (s *stage) alerts(t *testing.T) {
	var rules struct {
		Groups []struct {
			Rules []struct {
				Name, State, Health, LastError string
			} `json:"rules"`
		} `json:"groups"`
	}
	s.until(t, func(ctx context.Context) error {
		if err := s.prometheus.ask(ctx, "rules", &rules); err != nil {
			return err
		}
		for _, g := range rules.Groups {
			for _, r := range g.Rules {
				if r.Health == "unknown" {
					return fmt.Errorf("%s has not been evaluated yet", r.Name)
				}
			}
		}
		return nil
	})
	if len(rules.Groups) == 0 {
		t.Error("no alert")
	}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if r.Health != "ok" || r.State == "firing" {
				t.Errorf("%s: %s, %s %s", r.Name, r.State, r.Health, r.LastError)
			}
		}
	}
}

// TestScrapeConfigOfAHost: Prometheus takes it. The one for a cluster is what the stage scrapes with.
func TestScrapeConfigOfAHost(t *testing.T) {
	file := filepath.Join(t.TempDir(), "prometheus.yaml")
	if err := os.WriteFile(file, []byte(configs(t)[1]), 0o600); err != nil {
		t.Fatal(err)
	}
	if said, err := exec.Command("promtool", "check", "config", file).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, said)
	}
}

// configs are the scrape configs of docs/monitoring.md: for a cluster, and for a host.
func configs(t *testing.T) (all []string) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root(t), "docs/monitoring.md"))
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

// questions are the queries of all boards by where they stand: board, panel, and which of its queries.
func questions(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root(t), "dashboards/*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no boards: %v", err)
	}
	all := map[string]string{}
	for _, file := range files {
		var b struct {
			Title  string
			Panels []struct {
				Title   string
				Targets []struct{ RefID, Expr string }
			}
			Annotations struct{ List []struct{ Name, Expr string } }
			Templating  struct {
				List []struct{ Name, Query string }
			}
		}
		data, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(data, &b)
		}
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(b.Title, "STUNner / ") + " / "
		for _, p := range b.Panels {
			for _, q := range p.Targets {
				all[name+p.Title+": "+q.RefID] = filled(q.Expr)
			}
		}
		for _, a := range b.Annotations.List {
			all[name+a.Name] = filled(a.Expr)
		}
		for _, v := range b.Templating.List {
			if match := labelValues.FindStringSubmatch(v.Query); match != nil {
				all[name+"$"+v.Name] = filled("count by (" + match[2] + ") (" + match[1] + ")")
			}
		}
	}
	return all
}

var labelValues = regexp.MustCompile(`^label_values\((.+), (\w+)\)$`)

// filled is a query as Grafana sends it when all of everything is chosen.
func filled(expr string) string {
	return strings.NewReplacer("$__rate_interval", "15s", "$namespace", ".*", "$gateway", ".*", "$pod", ".*").Replace(expr)
}
