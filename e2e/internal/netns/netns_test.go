package netns

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestSettingIsShared: if two processes run at the same time, the setting has its value until the last process ends,
// which restores the previous value. If a process was killed, the next process restores the previous value. A change by
// another program is an error.
func TestSettingIsShared(t *testing.T) {
	dir := t.TempDir()
	s := Setting{filepath.Join(dir, "wmem_max"), "212992"}
	set := func(value string) {
		t.Helper()
		if err := os.WriteFile(s.File, []byte(value), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	is := func(when, want string) {
		t.Helper()
		if got, err := os.ReadFile(s.File); err != nil || string(got) != want {
			t.Errorf("%s the setting is %q, want %q: %v", when, got, want, err)
		}
	}
	hold := func() func() error {
		t.Helper()
		release, err := s.hold(dir)
		if err != nil {
			t.Fatal(err)
		}
		return release
	}
	for range 2 {
		set("4194304")
		first := hold()
		is("while one runs", s.Value)
		second := hold()
		err := first()
		is("while the other runs", s.Value)
		if err := errors.Join(err, second()); err != nil {
			t.Error(err)
		}
		is("after both", "4194304")
	}

	set(s.Value) // this value is left by a process that was killed
	if err := os.WriteFile(filepath.Join(dir, "stunner-wmem_max"), []byte("4194304"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := hold()(); err != nil {
		t.Error(err)
	}
	is("after the next one", "4194304")

	release := hold()
	set("1")
	if err := release(); err == nil || !strings.Contains(err.Error(), "was changed") {
		t.Errorf("after a change by another program: %v", err)
	}
	is("after a change", "4194304")
}

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
