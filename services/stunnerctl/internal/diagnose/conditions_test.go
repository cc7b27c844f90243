package diagnose

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var (
	goldenState   = regexp.MustCompile(`([A-Z]\w+)=(True|False|Unknown)/(\w+)`)
	goldenMessage = regexp.MustCompile(`^ +([A-Z]\w+): (.*)$`)
)

// Every condition with a problem in the goldens of the operator becomes a finding with a field, a problem and a remedy.
func TestConditionsOfTheOperator(t *testing.T) {
	files, err := filepath.Glob("../../../operator/internal/translate/testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no goldens of the operator", err)
	}
	seen := map[string]bool{}
	for _, file := range files {
		a, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range a.Files {
			if f.Name != "want/status.txt" {
				continue
			}
			states := map[string]metav1.Condition{}
			for line := range strings.Lines(string(f.Data)) {
				for _, m := range goldenState.FindAllStringSubmatch(line, -1) {
					states[m[1]] = metav1.Condition{
						Type: m[1], Status: metav1.ConditionStatus(m[2]), Reason: m[3], LastTransitionTime: metav1.Now(),
					}
				}
				m := goldenMessage.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
				if m == nil {
					continue
				}
				c := states[m[1]]
				c.Message = m[2]
				if c.Type == "" || len(wrong([]metav1.Condition{c})) == 0 || seen[c.Type+c.Message] {
					continue
				}
				seen[c.Type+c.Message] = true
				got := fromCondition("Gateway ns/name", "", c, "")
				if got.Remedy == noRemedy || got.Field == "" || got.Problem == "" ||
					strings.HasPrefix(got.Problem, ":") {
					t.Errorf("%s=%s: %s", c.Type, c.Reason, c.Message)
				}
				t.Logf(
					"%s\n\tobject  %s\n\tfield   %s\n\tproblem %s\n\tremedy  %s",
					c.Message,
					got.Object,
					got.Field,
					got.Problem,
					got.Remedy,
				)
			}
		}
	}
	if len(seen) < 50 {
		t.Errorf("only %d conditions with a problem", len(seen))
	}
}
