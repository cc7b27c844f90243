package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/stunner-gateway/stunner/dashboards/internal/alert"
	"github.com/stunner-gateway/stunner/dashboards/internal/board"
)

const runbooks = "../docs/runbooks"

// cases is the part of a promtool test file that the tests need.
type cases struct {
	Tests []struct {
		Name  string `json:"name"`
		Rules []struct {
			Alert    string `json:"alertname"`
			Expected []any  `json:"exp_alerts"`
		} `json:"alert_rule_test"`
	} `json:"tests"`
}

// TestAlerts runs the promtool cases: each alert fires when it should, with the right text, and not otherwise.
func TestAlerts(t *testing.T) {
	var files []string
	for _, name := range names() {
		path := filepath.Join("testdata/alerts", name+".yaml")
		if fires, quiet := expectations(t, path, name); fires == 0 || quiet == 0 {
			t.Errorf("%s: fires in %d cases, is quiet in %d: want one of each at least", path, fires, quiet)
		}
		files = append(files, path)
	}
	promtool(t, "check", "rules", rulesFile)
	promtool(t, append([]string{"test", "rules"}, files...)...)
	if files := in(t, "testdata/alerts", ".yaml"); !slices.Equal(files, names()) {
		t.Errorf("alerts %v\ntested %v", names(), files)
	}
}

func promtool(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("promtool", args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// expectations counts the cases in which an alert is wanted, and those in which it is not.
func expectations(t *testing.T, path, name string) (fires, quiet int) {
	t.Helper()
	var c cases
	data, err := os.ReadFile(path)
	if err == nil {
		err = yaml.Unmarshal(data, &c)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range c.Tests {
		for _, rule := range test.Rules {
			switch {
			case rule.Alert != name:
				t.Errorf("%s: case %q is about %s", path, test.Name, rule.Alert)
			case len(rule.Expected) > 0:
				fires++
			default:
				quiet++
			}
		}
	}
	return fires, quiet
}

// TestRunbooks checks that each alert has a runbook with the same four sections, that each runbook has an alert, and
// that the links of dashboards exist.
func TestRunbooks(t *testing.T) {
	headings := []string{"## Meaning", "## Impact", "## Diagnosis", "## Mitigation"}
	for _, name := range names() {
		page, err := os.ReadFile(filepath.Join(runbooks, name+".md"))
		if err != nil {
			t.Error(err)
			continue
		}
		if found := regexp.MustCompile(`(?m)^##? .*$`).FindAllString(string(page), -1); !slices.Equal(
			found, append([]string{"# " + name}, headings...),
		) {
			t.Errorf("%s: headings %q, want its name and %q", name, found, headings)
		}
		if !strings.Contains(string(page), "\nstunnerctl ") {
			t.Errorf("%s: no command of stunnerctl", name)
		}
	}
	if pages := in(t, runbooks, ".md"); !slices.Equal(pages, append([]string{"README"}, names()...)) {
		t.Errorf("alerts %v\nrunbooks %v", names(), pages)
	}
	for file, b := range board.All() {
		for _, p := range b.Panels {
			for _, link := range p.Links {
				name, page := strings.CutPrefix(strings.TrimSuffix(link.URL, ".md"), alert.Runbooks+"/")
				if page && !slices.Contains(names(), name) {
					t.Errorf("%s: panel %q links to %s, which is no runbook", file, p.Title, link.URL)
				}
			}
		}
	}
}

// names returns the names of all alerts, sorted.
func names() (all []string) {
	for _, g := range alert.AsFile().Groups {
		for _, r := range g.Rules {
			all = append(all, r.Alert)
		}
	}
	slices.Sort(all)
	return all
}

// in returns the names without extension of the files of a type in a folder.
func in(t *testing.T, folder, ending string) (all []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*"+ending))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		all = append(all, strings.TrimSuffix(filepath.Base(f), ending))
	}
	return all
}
