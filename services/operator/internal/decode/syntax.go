package decode

import (
	"bytes"
	"strconv"
)

// Limits of the search for a syntax error, which parses prefixes of the YAML text.
const (
	maxSearchBytes = 64 << 10
	maxRecoveries  = 8
)

// syntaxLine returns the line of a YAML syntax error, counted from 1. The parser reports where the surrounding mapping
// or string begins, which may be far above the error. syntaxLine parses prefixes of the text instead: the error is near
// the first line with which the prefix becomes invalid.
func syntaxLine(text []byte, err error) int {
	line := 1
	if m := atLine.FindStringSubmatch(err.Error()); m[1] != "" {
		line, _ = strconv.Atoi(m[1])
	}
	if len(text) > maxSearchBytes {
		return line
	}
	lines := bytes.SplitAfter(text, []byte("\n"))
	good := parsablePrefix(lines, 0)
	for range maxRecoveries {
		next := longerPrefix(lines, good)
		if next == good {
			break
		}
		good = parsablePrefix(lines, next)
	}
	return min(max(line, good+1), len(lines))
}

// parsablePrefix returns the number of lines of a prefix that can be parsed, but not together with the next line. The
// number is at least from.
func parsablePrefix(lines [][]byte, from int) int {
	good, bad := from, len(lines)
	for bad-good > 1 {
		middle := (good + bad) / 2
		if parses(lines[:middle]) {
			good = middle
		} else {
			bad = middle
		}
	}
	return good
}

// longerPrefix searches for a prefix that can be parsed and that is longer than good, the length of a parsable prefix.
// It finds one if the next line only begins a quoted string that ends some lines later, which is not an error.
func longerPrefix(lines [][]byte, good int) int {
	for n := min(good+40, len(lines)-1); n > good+1; n-- {
		if parses(lines[:n]) {
			return n
		}
	}
	return good
}

func parses(lines [][]byte) bool {
	_, err := parse(bytes.Join(lines, nil))
	return err == nil
}
