package access

import (
	"regexp"
	"strings"
	"testing"
)

func TestPatterns(t *testing.T) {
	for pattern, names := range map[string]map[string]bool{
		"media/oslo": {
			"media/oslo": true, "media/bergen": false, "media/os": false, "media/oslo2": false, "a/oslo": false,
			"/oslo": false,
		},
		"media/*":      {"media/oslo": true, "media/": true, "med/oslo": false, "media2/oslo": false, "/oslo": false},
		"*/*":          {"media/oslo": true, "/oslo": true},
		"*/oslo":       {"media/oslo": true, "/oslo": true, "media/bergen": false},
		"team-*/front": {"team-a/front": true, "team-/front": true, "team/front": false, "a-team-a/front": false},
		"*-dev/a*b*c": {
			"x-dev/abc": true, "x-dev/a1b2c": true, "x-dev/acb": false, "x-dev/ab": false, "x-dev/abcd": false,
		},
		"a*a/x":         {"aa/x": true, "aba/x": true, "a/x": false},
		"med?a/[a-z].*": {"media/oslo": false, "med?a/[a-z].x": true},
	} {
		set, err := ParseGateways([]string{"nobody/nothing", pattern})
		if err != nil {
			t.Fatal(err)
		}
		for id, want := range names {
			namespace, name, _ := strings.Cut(id, "/")
			if got := set.Contains(namespace, name); got != want {
				t.Errorf("%s holds %s: %t, want %t", pattern, id, got, want)
			}
			if want && !set.CoversNamespace(namespace) {
				t.Errorf("%s does not reach namespace %s", pattern, namespace)
			}
		}
	}
}

func TestInvalidPatternsAreRefused(t *testing.T) {
	for _, entry := range []string{"", "*", "oslo", "/oslo", "media/", "media/a/b", "/"} {
		if set, err := ParseGateways([]string{entry}); err == nil || !strings.Contains(err.Error(), "NAMESPACE/NAME") ||
			set.Contains("media", "oslo") {
			t.Errorf("%q: %+v, %v", entry, set, err)
		}
	}
	var all Gateways
	none, err := ParseGateways(nil)
	if err != nil || all.Empty() || !all.Contains("", "x") || !none.Empty() || none.Contains("media", "oslo") ||
		none.CoversNamespace("media") {
		t.Errorf("all %+v, none %+v, %v", all, none, err)
	}
}

// Matching a pattern allocates no memory, and its time is linear in the length of the pattern, for any pattern.
func TestPatternsAreBounded(t *testing.T) {
	longest := "m/" + strings.Repeat("*a", maxPattern/2-1)
	set, err := ParseGateways([]string{longest, "m/" + strings.Repeat("*", maxPattern-2)})
	if err != nil {
		t.Fatal(err)
	}
	name := strings.Repeat("a", 252) + "b"
	if n := testing.AllocsPerRun(10, func() { set.Contains("m", name) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if !set.Contains("m", name) {
		t.Error("asterisks do not match any name")
	}
	if _, err := ParseGateways([]string{longest + "*a"}); err == nil || !strings.Contains(err.Error(), "at most 512") {
		t.Errorf("a pattern that is too long: %v", err)
	}
}

// J-05: a pattern matches the same names as the equivalent regular expression.
func FuzzPatterns(f *testing.F) {
	for _, seed := range [][2]string{{"media", "media"}, {"m*a", "media"}, {"*", ""}, {"a**b", "ab"}, {"*a*", "bab"}} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, part, name string) {
		expression := "(?s)^" + strings.ReplaceAll(regexp.QuoteMeta(part), `\*`, ".*") + "$"
		compiled, err := regexp.Compile(expression)
		if err != nil {
			return // no UTF-8
		}
		if got, want := matches(part, name), compiled.MatchString(name); got != want {
			t.Errorf("%q matches %q: %t, want %t", part, name, got, want)
		}
	})
}
