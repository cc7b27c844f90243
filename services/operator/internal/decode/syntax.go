package decode

import (
	"bytes"
	"strconv"
)

// Limits of the search for a syntax error, which parses prefixes of the text.
const (
	maxSearchBytes = 64 << 10
	maxRecoveries  = 8
)

// syntaxLine returns the line of a syntax error, counted from 1. The parser reports where the surrounding mapping or
// string begins, which may be far above. The error is nearer to the first line that makes the text up to it invalid, so
// syntaxLine parses prefixes of the text to find that line.
func syntaxLine(text []byte, err error) int {
	line := 1
	if m := atLine.FindStringSubmatch(err.Error()); m[1] != "" {
		line, _ = strconv.Atoi(m[1])
	}
	if len(text) > maxSearchBytes {
		return line
	}
	lines := bytes.SplitAfter(text, []byte("\n"))
	good := goodPrefix(lines, 0)
	for range maxRecoveries {
		next := recovers(lines, good)
		if next == good {
			break
		}
		good = goodPrefix(lines, next)
	}
	return min(max(line, good+1), len(lines))
}

// goodPrefix returns a number of lines, at least from, that can be parsed, but cannot with one more line.
func goodPrefix(lines [][]byte, from int) int {
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

// recovers searches the next lines for a longer prefix that can be parsed. There is one if the prefix only ends within
// a quoted string, which is not an error.
func recovers(lines [][]byte, good int) int {
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
