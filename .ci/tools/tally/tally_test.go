package main

import (
	"strings"
	"testing"
)

// stream writes events as `go test -json` does: one `ACTION PACKAGE [TEST] [OUTPUT]` a line.
func stream(lines ...string) string {
	var b strings.Builder
	for _, l := range lines {
		f := strings.SplitN(l, " ", 4)
		f = append(f, "", "")
		b.WriteString(
			`{"Action":"` + f[0] + `","Package":"` + repository + f[1] + `","Test":"` + f[2] + `","Output":"` + f[3] + `\n"}` + "\n",
		)
	}
	return b.String()
}

func TestTally(t *testing.T) {
	good := []string{
		"run services/auth/internal/rest TestA", "run services/auth/internal/rest TestA/one",
		"run services/auth/internal/rest TestA/two",
		"output services/auth/internal/rest TestA/one quiet",
		"pass services/auth/internal/rest TestA/one", "pass services/auth/internal/rest TestA/two",
		"pass services/auth/internal/rest TestA",
		"pass services/auth/internal/rest",
	}
	for _, c := range []struct {
		name   string
		lines  []string
		well   bool
		shown  []string
		hidden string
	}{
		{"subtests count, their parent does not", good, true, []string{
			"services/auth            2 passed", "\n2 passed, 0 failed\n",
		}, "quiet"},
		{"a failing test fails and shows its output", append(
			good, "run services/auth TestB", "output services/auth TestB loud", "fail services/auth TestB",
			"fail services/auth",
		),
			false, []string{"loud", "1 FAILED", "\n2 passed, 1 failed\n"}, "quiet"},
		{"the summary says why", append(good, "run services/auth TestB", "output services/auth TestB     b_test.go:7: got 1", "output services/auth TestB its log", "fail services/auth TestB",
			"fail services/auth"), false, []string{
			"1 FAILED\n\nFAIL services/auth TestB\n    b_test.go:7: got 1\n\n2 passed, 1 failed\n",
		}, ""},
		{"a skipped test fails", append(good, "skip services/auth TestB", "pass services/auth"), false, []string{
			"1 SKIPPED", "\n2 passed, 1 failed\n",
		}, ""},
		{"a package that does not compile fails", append(good, "fail services/auth"), false, []string{
			"\n2 passed, 1 failed\n",
		}, ""},
		{"a panic shows what it left", append(
			good, "run services/auth TestB", "output services/auth TestB panicked", "fail services/auth",
		), false, []string{"panicked"}, ""},
		{"a suite without tests fails", nil, false, []string{"FAILED: 0 of 1 ran", "\n0 passed, 1 failed\n"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out strings.Builder
			tally := newTally(&out)
			if err := tally.read(strings.NewReader(stream(c.lines...))); err != nil {
				t.Fatal(err)
			}
			if well := tally.summary([]string{"services/auth"}); well != c.well {
				t.Errorf("well = %t, want %t", well, c.well)
			}
			for _, s := range c.shown {
				if !strings.Contains(out.String(), s) {
					t.Errorf("output lacks %q:\n%s", s, &out)
				}
			}
			if c.hidden != "" && strings.Contains(out.String(), c.hidden) {
				t.Errorf("output shows %q:\n%s", c.hidden, &out)
			}
		})
	}
}

func TestTallyShowsWhatIsNoEvent(t *testing.T) {
	var out strings.Builder
	if err := newTally(&out).read(strings.NewReader("go: cannot load package\n")); err != nil {
		t.Fatal(err)
	}
	if out.String() != "go: cannot load package\n" {
		t.Errorf("got %q", &out)
	}
}

// fuzzed are the events of a target that was fuzzed and ended with that output.
func fuzzed(action, end string) string {
	lines := []string{
		"run services/auth FuzzA",
		"output services/auth FuzzA fuzz: elapsed: 0s, gathering baseline coverage: 0/15 completed",
		"output services/auth FuzzA fuzz: elapsed: 3s, execs: 4906 (1634/sec), new interesting: 7 (total: 22)",
		"output services/auth FuzzA fuzz: elapsed: 6s, execs: 9000 (1365/sec), new interesting: 7 (total: 22)",
	}
	for line := range strings.Lines(end) {
		lines = append(lines, "output services/auth FuzzA "+strings.TrimSuffix(line, "\n"))
	}
	return stream(append(lines, action+" services/auth FuzzA", action+" services/auth")...)
}

func TestTallyCountsFuzzTargets(t *testing.T) {
	const finding = "--- FAIL: FuzzA (3.02s)\n    --- FAIL: FuzzA (0.00s)\n        context deadline exceeded\n    Failing input written to testdata/fuzz/FuzzA/12"
	for _, c := range []struct {
		name, events, required string
		well                   bool
		shown                  []string
	}{
		{"one is a test of its own suite", fuzzed("pass", "--- PASS: FuzzA (6.04s)"), "fuzz=1", true,
			[]string{
				"services/auth FuzzA", "9000 executions\n", "fuzz                     1 passed\n",
				"\n1 passed, 0 failed\n",
			}},
		{"a finding fails and says where it is", fuzzed("fail", finding), "fuzz=1", false,
			[]string{
				"testdata/fuzz/FuzzA/12", "executions  FAILED", "fuzz                     0 passed  1 FAILED",
				"\n0 passed, 1 failed\n",
			}},
		{"the go command's own deadline is no finding", fuzzed(
			"fail", "--- FAIL: FuzzA (6.04s)\n    context deadline exceeded",
		), "fuzz=1", true,
			[]string{"\n1 passed, 0 failed\n"}},
		{"one that tried nothing fails", strings.ReplaceAll(
			strings.ReplaceAll(fuzzed("pass", ""), "4906", "0"), "9000", "0",
		), "fuzz", false,
			[]string{"1 FAILED"}},
		{"one that did not run is missed", fuzzed("pass", ""), "fuzz=2", false, []string{
			"FAILED: 1 of 2 ran", "\n1 passed, 1 failed\n",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out strings.Builder
			tally := newTally(&out)
			if err := tally.read(strings.NewReader(c.events)); err != nil {
				t.Fatal(err)
			}
			if well := tally.summary([]string{c.required}); well != c.well {
				t.Errorf("well = %t, want %t", well, c.well)
			}
			for _, s := range c.shown {
				if !strings.Contains(out.String(), s) {
					t.Errorf("output lacks %q:\n%s", s, &out)
				}
			}
		})
	}
}
