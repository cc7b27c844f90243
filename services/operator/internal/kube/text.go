package kube

import (
	"strings"
	"unicode"
)

// printable converts text from other programs for use in a status: it returns one line of at most limit bytes that is
// not empty.
func printable(text string, limit int) string {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, " "))
	text = truncate(text, limit)
	if strings.TrimSpace(text) == "" {
		return "(nothing)"
	}
	return text
}

// truncate shortens a text to at most limit bytes.
func truncate(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit], "")
}
