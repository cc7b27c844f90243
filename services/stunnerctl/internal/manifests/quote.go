package manifests

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	"github.com/stunner-gateway/stunner/services/operator/render"
)

// Quote puts quotes around scalars at the given places. It leaves out a place that is not in the text.
func Quote(text []byte, places []render.Span) []byte {
	lines := bytes.SplitAfter(text, []byte("\n"))
	// from the last to the first, so that a change does not move later places
	slices.SortFunc(places, func(a, b render.Span) int { return cmp.Or(b.Line-a.Line, b.Column-a.Column) })
	for _, at := range places {
		if at.Line < 1 || at.Line > len(lines) {
			continue
		}
		line := []rune(string(lines[at.Line-1]))
		from, to := at.Column-1, at.Column-1+at.Length
		if from < 0 || to > len(line) {
			continue
		}
		lines[at.Line-1] = []byte(string(line[:from]) + quoted(string(line[from:to])) + string(line[to:]))
	}
	return bytes.Join(lines, nil)
}

// quoted returns a plain YAML scalar, which contains no line break, in single quotes.
func quoted(scalar string) string { return "'" + strings.ReplaceAll(scalar, "'", "''") + "'" }
