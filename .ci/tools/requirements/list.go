package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// area is a heading of the list and of the page.
type area struct {
	Area         string
	Requirements []requirement
}

// requirement is one entry of the list.
type requirement struct {
	ID       string
	Says     string // what holds, in one sentence
	Source   string // the section of a standard that asks for it; empty for a rule of our own
	Priority string

	// By names what shows the requirement beside tests: "make TARGET", or a file of the repository.
	By []string
	// With names requirements whose tests show this one, too.
	With []string
	// Part says what the tests of the requirement do not show.
	Part string
	// Open and NotOffered are reasons for having no test: what is missing, or why the product does not do it.
	Open       string
	NotOffered string `yaml:"not offered"`
}

// readList reads the list. A key that it does not know is an error, because a misspelt reason would be lost.
func readList(tree fs.FS) ([]area, error) {
	text, err := fs.ReadFile(tree, listFile)
	if err != nil {
		return nil, err
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	var areas []area
	if err := d.Decode(&areas); err != nil {
		return nil, fmt.Errorf("read %s: %w", listFile, err)
	}
	return areas, nil
}

// contradictions returns everything that is wrong with the list, or between the list and the claims of the tests.
func contradictions(tree fs.FS, areas []area, claims map[string][]claim) (faults []error) {
	known := map[string]bool{}
	for _, a := range areas {
		for _, r := range a.Requirements {
			if known[r.ID] {
				faults = append(faults, fmt.Errorf("%s is in the list twice", r.ID))
			}
			known[r.ID] = true
			for _, fault := range r.faults(tree, claims) {
				faults = append(faults, fmt.Errorf("%s: %w", r.ID, fault))
			}
		}
	}
	for id, all := range claims {
		if !known[id] {
			faults = append(
				faults, fmt.Errorf("%s in %s is not in the list: add it, or correct the comment", id, all[0].path),
			)
		}
	}
	slices.SortFunc(faults, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return faults
}

var (
	idAlone    = regexp.MustCompile(`^` + id + `$`)
	priorities = []string{"P0", "P1", "P2"}
)

// faults returns what is wrong with one entry.
func (r requirement) faults(tree fs.FS, claims map[string][]claim) (faults []error) {
	wrong := func(is bool, says string) {
		if is {
			faults = append(faults, errors.New(says))
		}
	}
	shown := len(claims[r.ID]) > 0 || len(r.By) > 0 || len(r.With) > 0
	wrong(!idAlone.MatchString(r.ID), "is no id: use a letter and a number, as in T-07")
	wrong(r.Says == "", "has no sentence: fill in says")
	wrong(!slices.Contains(priorities, r.Priority), "has no priority: use P0, P1 or P2")
	wrong(
		!shown && r.Open == "" && r.NotOffered == "",
		"has neither a test nor a reason: let a test carry it, or fill in open or not offered",
	)
	wrong(shown && r.Open != "", "is open, and a test shows it: remove open, or make it part")
	wrong(shown && r.NotOffered != "", "is not offered, and a test shows it: remove not offered")
	wrong(r.Open != "" && r.NotOffered != "", "is open and not offered: remove one of them")
	wrong(!shown && r.Part != "", "is shown in part, and there is no test: make part open")
	for _, by := range r.By {
		wrong(
			!exists(tree, by),
			fmt.Sprintf("is shown by %q, which is not there: name a target of make as \"make TARGET\", or a file", by),
		)
	}
	for _, with := range r.With {
		wrong(
			with == r.ID || len(claims[with]) == 0,
			fmt.Sprintf("is shown with %s, which no test carries: name another, or remove it", with),
		)
	}
	return faults
}

// exists tells whether there is a target of make, or a file, of that name.
func exists(tree fs.FS, by string) bool {
	target, isTarget := strings.CutPrefix(by, "make ")
	if !isTarget {
		_, err := fs.Stat(tree, by)
		return err == nil
	}
	rule := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(target) + `:`)
	files, err := fs.Glob(tree, ".ci/mk/*.mk")
	return err == nil && slices.ContainsFunc(files, func(file string) bool {
		text, err := fs.ReadFile(tree, file)
		return err == nil && rule.Match(text)
	})
}
