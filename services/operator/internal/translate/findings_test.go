package translate_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/stunner-gateway/stunner/services/operator/internal/condition"
	"github.com/stunner-gateway/stunner/services/operator/internal/translate"
)

// testdata/findings.txt has the different findings of all cases. Each condition that reports a problem has at least
// one, and each finding has a problem and a remedy.
func TestFindings(t *testing.T) {
	seen := map[string]bool{}
	for _, file := range caseFiles(t) {
		c := load(t, file)
		v := c.view()
		var gateways []translate.Result
		for _, key := range v.Gateways() {
			r := translate.Gateway(v, key, c.options)
			if gateways = append(gateways, r); r.OverBudget != nil {
				v.Put(r.OverBudget)
			}
		}
		for _, s := range translate.StatusesBy(v, gateways, func(ref translate.ObjectRef) (translate.Outcome, bool) {
			return ref.Translate(v, c.options), true
		}) {
			wrong := translate.Problems(s.Conditions)
			if len(wrong) != len(s.Problems) {
				t.Errorf("%s: %s: %d conditions report a problem, and %d problems", file, s.Object.GetName(), len(wrong), len(s.Problems))
			}
			for _, p := range s.Problems {
				for _, text := range findingsOf(t, p) {
					seen[text] = true
				}
			}
		}
	}
	var text strings.Builder
	for finding := range sorted(seen) {
		text.WriteString(finding)
	}
	golden := filepath.Join("testdata", "findings.txt")
	if *update {
		if err := os.WriteFile(golden, []byte(text.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), text.String()); diff != "" {
		t.Errorf("%s differs (-want +got):\n%s", golden, diff)
	}
}

func findingsOf(t *testing.T, p condition.Problem) (texts []string) {
	shown := p.Inspected("OBJECT")
	for _, f := range shown.Findings {
		if f.Problem == "" || f.Remedy == "" || f.Severity == "" || f.Object == "" || f.Evidence == "" || f.Since.IsZero() {
			t.Errorf("%s=%s %s: %s: incomplete finding %+v", p.Type, p.Status, p.Reason, p.Message, f)
		}
		texts = append(texts, fmt.Sprintf("%s %s: %s: %s %s\n  %s\n  %s\n",
			p.Type, p.Reason, f.Severity, f.Object, f.Field, f.Problem, f.Remedy))
	}
	if len(shown.Findings) == 0 || p.Message == "" {
		t.Errorf("%s=%s %s: no finding or no message", p.Type, p.Status, p.Reason)
	}
	return texts
}
