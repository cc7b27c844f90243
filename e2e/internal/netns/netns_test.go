package netns

import (
	"flag"
	"slices"
	"testing"
)

func TestChildHasTheFlagsOfTheSuite(t *testing.T) {
	set := flag.NewFlagSet("suite", flag.PanicOnError)
	for _, name := range []string{"test.v", "coturn", "long"} {
		set.Bool(name, false, "")
	}
	if err := set.Parse([]string{"-test.v", "-coturn"}); err != nil {
		t.Fatal(err)
	}
	if got, want := ownFlags(set), []string{"-coturn=true"}; !slices.Equal(got, want) {
		t.Errorf("flags %q, want %q", got, want)
	}
}

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
