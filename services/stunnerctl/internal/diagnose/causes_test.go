package diagnose

import (
	"maps"
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestRemediesEqualTheDocumentation compares the causes with the table of reasons in docs/reference/reasons.md, in both
// directions. The meanings of that table are the texts in the answers of stunnerd (services/stunnerd/refusals_test.go),
// which findings repeat.
func TestRemediesEqualTheDocumentation(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/reference/reasons.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(page), "## Reasons: clients\n")
	if !found {
		t.Fatal("docs/reference/reasons.md has no section on the reasons of clients")
	}
	section, _, _ = strings.Cut(section, "\n#")
	causes := map[string]cause{}
	for _, all := range []map[string]cause{credentialCauses, limitCauses, routeCauses, clientCauses} {
		maps.Copy(causes, all)
	}
	rows := regexp.MustCompile("(?m)^\\| `(\\w+)` \\| .* \\| (.*) \\|$").FindAllStringSubmatch(section, -1)
	for _, row := range rows {
		reason, remedy := row[1], row[2]
		c, ok := causes[reason]
		if !ok || c.remedy != strings.ReplaceAll(remedy, "`", "") || c.field == "" {
			t.Errorf("%s: stunnerctl says %q, docs/reference/reasons.md %q", reason, c.remedy, remedy)
		}
		delete(causes, reason)
	}
	for reason := range causes {
		t.Errorf("%s has a cause and no row in docs/reference/reasons.md", reason)
	}
	if len(rows) < 40 {
		t.Errorf("only %d rows", len(rows))
	}
}
