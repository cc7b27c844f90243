// Requirements writes the page that says which test shows which requirement.
//
//	requirements ROOT
//
// It reads the list ROOT/docs/requirements.yaml and the comments of the tests below ROOT, and writes
// ROOT/docs/requirements.md. It writes nothing, and exits with 1, when the list and the tests contradict each other.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

const (
	listFile = "docs/requirements.yaml"
	pageFile = "docs/requirements.md"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: requirements ROOT")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "requirements:", err)
		os.Exit(1)
	}
}

func run(root string) error {
	tree := os.DirFS(root)
	areas, err := readList(tree)
	if err != nil {
		return err
	}
	claims, stray, err := readClaims(tree)
	if err != nil {
		return err
	}
	faults := append(stray, contradictions(tree, areas, claims)...)
	if len(faults) > 0 {
		return fmt.Errorf("%s and the tests contradict each other:\n%w", listFile, errors.Join(faults...))
	}
	return os.WriteFile(filepath.Join(root, pageFile), page(areas, claims), 0o644)
}
