// Command wrap rewraps comments of Go files at 120 columns, and counts the lines that remain longer.
//
//	wrap [-n] FOLDER...
//
// It rewraps paragraphs of // comments that have a line of their own, if one of their lines is longer. It keeps
// directives, markers, lists, indented text, and the requirement ids that start a line. Code is left to a formatter
// such as golines. With -n it only counts.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"unicode/utf8"
)

const (
	columns  = 120
	tabWidth = 4
)

func main() {
	count := flag.Bool("n", false, "only count the lines that are too long")
	flag.Parse()
	for _, folder := range flag.Args() {
		long, err := wrapFolder(folder, *count)
		if err != nil {
			fmt.Fprintln(os.Stderr, "wrap:", err)
			os.Exit(1)
		}
		fmt.Printf("%6d  %s\n", long, folder)
	}
}

func wrapFolder(folder string, countOnly bool) (long int, err error) {
	err = filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".go" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil || generated.Match(text) {
			return err
		}
		if wrapped := wrap(string(text)); !countOnly && !bytes.Equal(text, []byte(wrapped)) {
			text = []byte(wrapped)
			if err := os.WriteFile(path, text, 0o644); err != nil {
				return err
			}
		}
		for line := range strings.Lines(string(text)) {
			if width(strings.TrimSuffix(line, "\n")) > columns {
				long++
			}
		}
		return nil
	})
	return long, err
}

var (
	generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)
	// comment is a line that holds only a comment, with its indentation and its text.
	comment = regexp.MustCompile(`^(\t*)// (\S.*)$`)
	// first is the start of a line that begins a paragraph of its own: a marker, a list item, a heading, a link target
	// or a requirement id.
	first = regexp.MustCompile(`^([-+*#] |\+\w|\d+\. |\[[^]]+\]: |[A-Z](-A)?-?\d+\b|Deprecated:|Output:)`)
	// fixed is a line that is kept as it is.
	fixed = regexp.MustCompile(`^(\+\w|[-*#] |\d+\. |\[[^]]+\]: |Output:)`)
)

func width(line string) int {
	return utf8.RuneCountInString(line) + (tabWidth-1)*strings.Count(line, "\t")
}

// wrap returns the text of a file with its comments rewrapped.
func wrap(text string) string {
	lines := strings.Split(text, "\n")
	var out []string
	raw := false // inside a raw string or a block comment
	for i := 0; i < len(lines); i++ {
		match := comment.FindStringSubmatch(lines[i])
		if raw || match == nil || fixed.MatchString(match[2]) {
			if strings.Count(lines[i], "`")%2 == 1 && !strings.HasPrefix(strings.TrimSpace(lines[i]), "//") {
				raw = !raw
			}
			out = append(out, lines[i])
			continue
		}
		indent, paragraph, tooLong := match[1], []string{match[2]}, width(lines[i]) > columns
		from := i
		for i+1 < len(lines) {
			next := comment.FindStringSubmatch(lines[i+1])
			if next == nil || next[1] != indent || first.MatchString(next[2]) {
				break
			}
			i++
			paragraph, tooLong = append(paragraph, next[2]), tooLong || width(lines[i]) > columns
		}
		if tooLong {
			out = append(out, fill(indent+"// ", strings.Fields(strings.Join(paragraph, " ")))...)
		} else {
			out = append(out, lines[from:i+1]...)
		}
	}
	return strings.Join(out, "\n")
}

// fill breaks words into lines with a prefix. No line but the first starts as a paragraph would.
func fill(prefix string, words []string) (lines []string) {
	line := prefix + words[0]
	for i, word := range words[1:] {
		rest := strings.Join(words[i+1:min(i+3, len(words))], " ")
		if width(line+" "+word) <= columns || first.MatchString(rest) {
			line += " " + word
			continue
		}
		lines = append(lines, line)
		line = prefix + word
	}
	return append(lines, line)
}
