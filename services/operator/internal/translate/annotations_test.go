package translate

import (
	"maps"
	"strings"
	"testing"
)

// K-09: an invalid map of ports, or a map with a port out of range, is an error.
func TestParsePorts(t *testing.T) {
	for text, want := range map[string]map[string]int32{
		"":                       {},
		"{}":                     {},
		`{"a":1}`:                {"a": 1},
		`{a:1,b:65535}`:          {"a": 1, "b": 65535},
		` { 'a' : 1 , "b" : 2 }`: {"a": 1, "b": 2},
		"a=1,b=2":                {"a": 1, "b": 2},
		`"a":1, "b":2,`:          {"a": 1, "b": 2},
	} {
		got, err := parsePorts(text)
		if err != nil || !maps.Equal(got, want) {
			t.Errorf("%q: got %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{
		"a", "a=", "=1", "a=0", "a=-1", "a=65536", "a=1.5", "a=0x10", "{a:1", "a:1}", "a=1,a=2", `{"a":{"b":1}}`, `[1]`,
		"a=99999999999999999999", strings.Repeat("a=1,", 10_000),
	} {
		if got, err := parsePorts(text); err == nil {
			t.Errorf("%.40q: got %v, want an error", text, got)
		}
	}
}

// F-08, K-09: a map of ports without an error has names, and ports in range.
func FuzzParsePorts(f *testing.F) {
	for _, text := range []string{"", "{}", `{"a":1}`, "a=1,b=2", "{a:1", ":,=", `{"a":{"b":1}}`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		ports, err := parsePorts(text)
		if err != nil && ports != nil {
			t.Errorf("%q: error and ports %v", text, ports)
		}
		for name, port := range ports {
			if name == "" || port < 1 || port > 65535 {
				t.Errorf("%q: listener %q has port %d", text, name, port)
			}
		}
	})
}
