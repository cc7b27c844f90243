package netns

import "testing"

func TestChildRunsTheSelectedSubtests(t *testing.T) {
	for pattern, want := range map[string]string{
		"":                "^TestA$",
		"TestA":           "^TestA$",
		"TestB":           "^TestA$",
		"A/one/two":       "^TestA$/one/two",
		"TestB/x|A/one":   "^TestA$/one",
		"A/one|TestA/two": "^TestA$/one|^TestA$/two",
		"TestA|TestA/two": "^TestA$",
		"TestB/x|TestC/y": "^TestA$",
		"(|TestA/one":     "^TestA$/one",
	} {
		if got := selected("TestA", pattern); got != want {
			t.Errorf("-run %q: %q, want %q", pattern, got, want)
		}
	}
}
