package main

import (
	"strings"
	"testing"
)

func TestWrap(t *testing.T) {
	long := strings.TrimSpace(strings.Repeat("word ", 30)) // 149 columns
	for name, c := range map[string]struct{ text, want string }{
		"a short paragraph stays": {"// one\n// two\npackage p", "// one\n// two\npackage p"},
		"a long paragraph is filled": {
			"// " + long + "\n// end", "// " + long[:114] + "\n// " + long[115:] + " end",
		},
		"a requirement id starts a line": {
			"// " + long + "\n// T-07: text", "// " + long[:114] + "\n// " + long[115:] + "\n// T-07: text",
		},
		"a marker stays":      {"// +kubebuilder:" + long, "// +kubebuilder:" + long},
		"a directive stays":   {"//go:generate " + long, "//go:generate " + long},
		"indented text stays": {"//\t" + long, "//\t" + long},
		"a raw string stays":  {"x := `\n// " + long + "\n`", "x := `\n// " + long + "\n`"},
		"an indent counts":    {"\t\t// " + long, "\t\t// " + long[:109] + "\n\t\t// " + long[110:]},
	} {
		t.Run(name, func(t *testing.T) {
			if got := wrap(c.text); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}
