package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/api/telemetry"
	"github.com/stunner-gateway/stunner/services/operator/internal/inspect"
)

// TestEveryRefusalIsDocumented compares the reasons of config discovery and of the inspection API with the tables in
// docs/reference/operator-refusals.md, in both directions.
func TestEveryRefusalIsDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference/operator-refusals.md")
	if err != nil {
		t.Fatal(err)
	}
	found, asked := map[string]string{}, map[string]string{}
	for _, r := range discovery.Refusals {
		found[string(r.Refusal)] = r.Text
	}
	for _, r := range inspect.Refusals {
		asked[r.Reason] = r.Text
	}
	for heading, s := range map[string]struct {
		metric string
		texts  map[string]string
	}{
		"## Reasons of refusals\n":         {telemetry.OperatorDiscoveryRefused, found},
		"## Reasons of refused requests\n": {telemetry.OperatorInspectionRefused, asked},
	} {
		_, section, _ := strings.Cut(string(page), heading)
		section, _, _ = strings.Cut(section, "\n#")
		if !strings.Contains(section, s.metric) {
			t.Errorf("section %q does not name %s", heading, s.metric)
		}
		row := regexp.MustCompile("(?m)^\\| `(\\w+)` \\|(?: \\d+ \\|)? ([^|]*) \\| ([^|]+) \\|$")
		for _, match := range row.FindAllStringSubmatch(section, -1) {
			if want, ok := s.texts[match[1]]; !ok || want != match[2] {
				t.Errorf("%s: docs/reference/operator-refusals.md has %q, the text is %q", match[1], match[2], want)
			}
			delete(s.texts, match[1])
		}
		for reason := range s.texts {
			t.Errorf("%s has no row in docs/reference/operator-refusals.md", reason)
		}
	}
}

// TestTheTableOfOtherRefusalsIsTrue checks the log lines and metrics that docs/reference/operator-refusals.md names.
func TestTheTableOfOtherRefusalsIsTrue(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference/operator-refusals.md")
	if err != nil {
		t.Fatal(err)
	}
	var source strings.Builder
	for _, path := range []string{
		"internal/file/report.go", "internal/kube/intake.go", "internal/kube/writer.go", "internal/kube/installations.go",
		"ignored.go",
	} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		source.Write(text)
	}
	_, section, _ := strings.Cut(string(page), "## What the operator does not accept\n")
	section, _, _ = strings.Cut(section, "\n#")
	rows := regexp.MustCompile("(?m)^\\| [^`|]* \\| .* \\| .* \\| (.*) \\| (.*) \\|$").FindAllStringSubmatch(section, -1)
	if len(rows) < 5 {
		t.Fatalf("%d rows", len(rows))
	}
	metrics := map[string]bool{"none": true}
	for _, m := range telemetry.Metrics {
		metrics["`"+m.Name+"`"] = true
	}
	for _, row := range rows {
		if line := regexp.MustCompile("`(.*)`").FindStringSubmatch(row[1]); line != nil &&
			!strings.Contains(source.String(), line[1]) {
			t.Errorf("the operator does not log %q", line[1])
		}
		if row[2] != "input" && row[2] != "metric" && !metrics[row[2]] && !strings.HasPrefix(row[2], "-") {
			t.Errorf("there is no metric %s", row[2])
		}
	}
}
