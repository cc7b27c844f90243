package main

import (
	"bytes"
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
)

const intro = `# Which test shows which requirement

<!-- made by ` + "`make gen`" + ` of requirements.yaml and of the comments of the tests -->

P0 holds before the first release, P1 before 1.0, P2 later. Tests below ` + "`e2e/node`" + ` run in ` + "`make e2e`" + `, all others in ` + "`make test`" + `.
"turnprobe" are checks of the prober, which ` + "`TestStunnerd`" + ` in ` + "`e2e/turnprobe`" + ` makes over UDP, TCP, TLS and DTLS, and over IPv4 and IPv6.
"In part" says what the tests leave out. [CONTRIBUTING.md](../CONTRIBUTING.md#a-change) says how a test carries an id.

`

// page renders the list and what shows each entry of it.
func page(areas []area, claims map[string][]claim) []byte {
	var out bytes.Buffer
	out.WriteString(intro)
	out.WriteString(sums(areas))
	for _, a := range areas {
		fmt.Fprintf(&out, "\n## %s\n\n| id | | requirement | source | shown by |\n| --- | --- | --- | --- | --- |\n", a.Area)
		for _, r := range a.Requirements {
			if r.reason() != "" {
				continue
			}
			shown := append(links(claims[r.ID]), codes(r.By)...)
			if len(r.With) > 0 {
				shown = append(shown, "the tests of "+strings.Join(r.With, ", "))
			}
			if r.Part != "" {
				shown = append(shown, "*in part:* "+r.Part)
			}
			fmt.Fprintf(&out, "| %s | %s | %s | %s | %s |\n", r.ID, r.Priority, cell(r.Says), cell(cmp.Or(r.Source, "own rule")), strings.Join(shown, "<br>"))
		}
	}
	out.WriteString("\n## Without a test\n\n| id | | requirement | why |\n| --- | --- | --- | --- |\n")
	for _, a := range areas {
		for _, r := range a.Requirements {
			if r.reason() != "" {
				fmt.Fprintf(&out, "| %s | %s | %s | %s |\n", r.ID, r.Priority, cell(r.Says), cell(r.reason()))
			}
		}
	}
	return out.Bytes()
}

// reason says why there is no test, or nothing where there is one.
func (r requirement) reason() string {
	switch {
	case r.Open != "":
		return "open: " + r.Open
	case r.NotOffered != "":
		return "not offered: " + r.NotOffered
	}
	return ""
}

// sums is the sentence that says how many requirements there are of each kind.
func sums(areas []area) string {
	var all, part, open, not int
	for _, a := range areas {
		for _, r := range a.Requirements {
			all++
			switch {
			case r.Part != "":
				part++
			case r.Open != "":
				open++
			case r.NotOffered != "":
				not++
			}
		}
	}
	return fmt.Sprintf("%d requirements: %d shown, %d shown in part, %d open, %d not offered.\n", all, all-part-open-not, part, open, not)
}

// links are links to tests, sorted; the checks of the prober in one file are one link.
func links(claims []claim) (all []string) {
	checks := map[string][]string{}
	for _, c := range claims {
		if path.Dir(c.path) == checkFolder {
			checks[c.path] = append(checks[c.path], "`"+strings.TrimSpace(c.name)+"`")
			continue
		}
		all = append(all, fmt.Sprintf("[%s `%s`](../%s)", path.Dir(c.path), c.name, c.path))
	}
	for file, names := range checks {
		all = append(all, fmt.Sprintf("[turnprobe](../%s) %s", file, strings.Join(names, ", ")))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func codes(texts []string) (all []string) {
	for _, t := range texts {
		all = append(all, "`"+t+"`")
	}
	return all
}

// cell is text as a table takes it.
func cell(text string) string { return strings.ReplaceAll(strings.TrimSpace(text), "|", `\|`) }
