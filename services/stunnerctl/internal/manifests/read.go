// Package manifests reads and corrects files with Kubernetes objects, and has the findings about them.
//
// # Files
//
//	read.go       files and folders
//	kustomize.go  Kustomizations
//	finding.go    findings
//	quote.go      quotes around scalars
package manifests

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// maxFileBytes is one byte more than the operator reads of a file, so that it reports a file that is too big.
const maxFileBytes = 4<<20 + 1

// Stdin is the path and the name of the standard input.
const Stdin = "-"

// Read returns the manifests at the given paths. As for the operator, a folder stands for the *.yaml and *.yml files in
// the folder and in its direct subfolders, without hidden files. A folder or subfolder with a Kustomization stands for
// what is built from it. Stdin stands for the standard input. An error in a Kustomization is a finding of its unit.
func Read(paths []string, stdin io.Reader) ([]Unit, error) {
	r := reader{files: map[string][]byte{}}
	for _, path := range paths {
		if err := r.read(path, stdin); err != nil {
			return nil, err
		}
	}
	if len(r.files)+len(r.roots) == 0 {
		return nil, fmt.Errorf("%s: no *.yaml or *.yml file found", strings.Join(paths, ", "))
	}
	return r.units(), nil
}

// reader collects files, and the folders of Kustomizations.
type reader struct {
	files map[string][]byte
	roots []root
}

func (r *reader) read(path string, stdin io.Reader) error {
	if path == Stdin {
		data, err := io.ReadAll(io.LimitReader(stdin, maxFileBytes))
		if err != nil {
			return fmt.Errorf("read standard input: %w", err)
		}
		r.files[Stdin] = data
		return nil
	}
	if file := kustomizationOf(path); file != "" {
		r.roots = append(r.roots, root{file: file, named: true})
		return nil
	}
	found, roots, err := expand(path)
	if err != nil {
		return err
	}
	r.roots = append(r.roots, roots...)
	for _, file := range found {
		if r.files[file], err = readAtMost(file); err != nil {
			return err
		}
	}
	return nil
}

// expand returns the files for which a path stands, and the Kustomizations in its direct subfolders.
func expand(path string) (files []string, roots []root, err error) {
	err = filepath.WalkDir(path, func(at string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		below, _ := filepath.Rel(path, at)
		switch hidden := at != path && strings.HasPrefix(entry.Name(), "."); {
		case entry.IsDir() && (hidden || strings.Contains(below, string(filepath.Separator))):
			return fs.SkipDir
		case entry.IsDir():
			if file := kustomizationOf(at); at != path && file != "" {
				roots = append(roots, root{file: file})
				return fs.SkipDir
			}
			return nil
		case hidden:
			return nil
		}
		info, err := os.Stat(at) // the target of a symbolic link, as in a mounted ConfigMap
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		ext := filepath.Ext(at)
		if err == nil && (at == path || info.Mode().IsRegular() && (ext == ".yaml" || ext == ".yml")) {
			files = append(files, at)
		}
		return err
	})
	return files, roots, err
}

func readAtMost(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return data, nil
}
