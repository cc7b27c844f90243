package report

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stunner-gateway/stunner/services/stunnerctl/internal/diagnose"
)

var example = []diagnose.Report{{
	Subject: "Gateway meet/front-door",
	Steps: []diagnose.Step{
		{Stage: "class", State: diagnose.OK, Fact: "calls, config 3f2a…"},
		{Stage: "service", State: diagnose.Failed, Fact: "front-door (LoadBalancer)"},
		{Stage: "pods", State: diagnose.Skipped}, {Stage: "config", State: diagnose.Skipped},
	},
	Findings: []diagnose.Finding{{
		Severity: diagnose.Error, Stage: "service", Object: "Service meet/front-door", Field: "status.loadBalancer",
		Problem: "no load balancer has assigned an address, and none has written an event, so that clients cannot connect",
		Remedy:  "install a load balancer controller", Command: "kubectl describe service -n meet front-door",
	}},
}}

func printed(t *testing.T, reports []diagnose.Report, s Style) string {
	t.Helper()
	var b strings.Builder
	if err := Print(&b, reports, s); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestPrint(t *testing.T) {
	const want = `Gateway meet/front-door
 ✓ class        calls, config 3f2a…
 ✗ service      front-door (LoadBalancer)
 · not checked  pods, config

ERROR  Service meet/front-door
  Field    status.loadBalancer
  Problem  no load balancer has assigned an address, and none has written an
           event, so that clients cannot connect
  Remedy   install a load balancer controller
  Run      kubectl describe service -n meet front-door

1 error
`
	if got := printed(t, example, Style{}); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := printed(t, example, Style{ASCII: true}); strings.IndexFunc(
		got,
		func(r rune) bool { return r >= utf8.RuneSelf },
	) >= 0 {
		t.Errorf("not ASCII:\n%s", got)
	}
	for _, width := range []int{1, 40, 60, 80, 200} {
		for line := range strings.Lines(printed(t, example, Style{Width: width})) {
			if n := utf8.RuneCountInString(line); n > max(min(width, 100), 40)+1 && !strings.Contains(line, "Run") {
				t.Errorf("width %d: %d characters: %s", width, n, line)
			}
		}
	}
	if got := printed(t, []diagnose.Report{{Subject: "Gateway a/b"}}, Style{}); !strings.HasSuffix(
		got,
		"\nNo problem found.\n",
	) {
		t.Errorf("got\n%s", got)
	}
}

// If stages had no objects or answers, the last line does not claim that there is no problem.
func TestPrintNotChecked(t *testing.T) {
	for state, want := range map[diagnose.State]string{
		diagnose.OK: "\nNo problem found.\n", diagnose.Skipped: "\nNo problem found in what was checked.\n",
	} {
		reports := []diagnose.Report{{Subject: "Gateway a/b", Steps: []diagnose.Step{{Stage: "config", State: state, Fact: "x"}}}}
		if got := printed(t, reports, Style{}); !strings.HasSuffix(got, want) {
			t.Errorf("%s: got\n%s", state, got)
		}
	}
}

func TestUTF8(t *testing.T) {
	for locale, want := range map[string]bool{"en_US.UTF-8": true, "C.utf8": true, "C": false, "": false, "POSIX": false} {
		if got := UTF8(func(name string) string { return map[string]string{"LANG": locale}[name] }); got != want {
			t.Errorf("%q: %v", locale, got)
		}
	}
}
