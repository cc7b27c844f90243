package main

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/turnprobe/internal/probe"
)

func sample() (probe.Target, []probe.Result) {
	check := func(id, rfc, says string) probe.Check { return probe.Check{ID: id, RFC: rfc, Says: says} }
	return probe.Target{Server: netip.MustParseAddrPort("192.0.2.1:3478"), Transport: probe.TCP}, []probe.Result{
		{Check: check(
			"S-01 address", "8489 §6.3.1", "a request is answered",
		), Verdict: probe.Pass, Took: 1500 * time.Microsecond},
		{Check: check("C-07", "policy", "nothing is lost"), Verdict: probe.Fail, Reason: "two of three lost"},
		{Check: check("P-06", "8656 §9", "it ends"), Verdict: probe.Skipped, Reason: "takes minutes"},
		{Check: check(
			"S-12", "8489 §6", "it is the same",
		), Verdict: probe.NotApplicable, Reason: "not a matter of tcp"},
	}
}

// TestTable: columns are aligned, a reason stands below its check, and checks that do not apply are counted separately.
func TestTable(t *testing.T) {
	var out bytes.Buffer
	target, results := sample()
	if err := writeTable(&out, target, results); err != nil {
		t.Fatal(err)
	}
	const want = `192.0.2.1:3478 over tcp

✔ S-01 address  8489 §6.3.1  a request is answered
✘ C-07          policy       nothing is lost
                             └ fail: two of three lost
– P-06          8656 §9      it ends
                             └ skipped: takes minutes
· S-12          8489 §6      it is the same
                             └ not applicable: not a matter of tcp

4 checks: 1 pass, 1 fail, 1 skipped, 1 not applicable
`
	if got := out.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestJSON: the JSON output contains the values of the table.
func TestJSON(t *testing.T) {
	var out bytes.Buffer
	target, results := sample()
	if err := writeJSON(&out, target, results); err != nil {
		t.Fatal(err)
	}
	var got report
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.Server != "192.0.2.1:3478" || got.Transport != probe.TCP || len(got.Checks) != 4 ||
		got.Counts[probe.NotApplicable] != 1 {
		t.Errorf("got %s", out.String())
	}
	if c := got.Checks[1]; c.ID != "C-07" || c.Verdict != probe.Fail || c.Reason != "two of three lost" ||
		got.Checks[0].Seconds != 0.0015 {
		t.Errorf("got %s", out.String())
	}
}

// TestCommandLine: invalid flags are reported before any packet is sent. An unreachable server is a failure.
func TestCommandLine(t *testing.T) {
	credential := []string{"-user", "ann", "-password", "sesame"}
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{nil, exitUsage, "credential"},
		{[]string{"-user", "ann"}, exitUsage, "go together"},
		{append([]string{"-transport", "sctp"}, credential...), exitUsage, `"sctp" is unknown`},
		{append([]string{"-run", "("}, credential...), exitUsage, "-run"},
		{append([]string{"-run", "no such check"}, credential...), exitUsage, "no check matches"},
		{append([]string{"-peer", "here"}, credential...), exitUsage, "-peer"},
		{append([]string{"-denied-peer", "there"}, credential...), exitUsage, "-denied-peer"},
		{append([]string{"-server", "127.0.0.1"}, credential...), exitUsage, "-server"},
		{append(credential, "127.0.0.1:3478"), exitUsage, "unexpected argument"},
		{[]string{"-help"}, exitOK, "-server"},
		{append(
			[]string{"-server", "127.0.0.1:9", "-answer", "50ms"}, credential...,
		), exitFailed, "make an allocation at 127.0.0.1:9 over udp"},
	} {
		var stdout, stderr bytes.Buffer
		if code := run(c.args, &stdout, &stderr); code != c.code || !strings.Contains(stderr.String(), c.says) {
			t.Errorf("%q: exit code %d, want %d with %q:\n%s", c.args, code, c.code, c.says, &stderr)
		}
	}
}
