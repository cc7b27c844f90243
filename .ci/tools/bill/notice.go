package bill

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Notice returns the licence and notice texts of modules, which most licences require to be passed on with a program.
// Equal texts are printed once. It fails if a module has a licence that is not recognized.
func Notice(modules []Module, licences map[Module]Licence) (string, error) {
	type text struct{ name, body string }
	users := map[text][]string{}
	var order []text
	var out strings.Builder
	out.WriteString("STUNner\nIts programs contain the following modules. Their licence texts are below.\n\n")
	for _, m := range modules {
		l := licences[m]
		if l.Expression == "" {
			return "", fmt.Errorf("write notice: %s %s: no known licence: read its folder, and add its file to texts "+
				"in .ci/tools/bill/licence.go", m.Path, m.Version)
		}
		title := strings.TrimSpace(m.Path + " " + m.Version)
		fmt.Fprintf(&out, "%s: %s\n", title, l.Expression)
		for _, name := range slices.Sorted(maps.Keys(l.Texts)) {
			t := text{name, strings.TrimSpace(l.Texts[name])}
			if users[t] == nil {
				order = append(order, t)
			}
			users[t] = append(users[t], title)
		}
	}
	for _, t := range order {
		fmt.Fprintf(&out, "\n%s\n%s of\n", strings.Repeat("=", 80), t.name)
		for _, title := range users[t] {
			fmt.Fprintf(&out, "  %s\n", title)
		}
		fmt.Fprintf(&out, "\n%s\n", t.body)
	}
	return out.String(), nil
}
