// Package manifests reads and corrects files with Kubernetes objects.
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

// Read returns the files with YAML at the given paths, by path. A folder stands for its *.yaml and *.yml files and
// those of its direct subfolders, without hidden ones, as for the operator. Stdin stands for the standard input.
func Read(paths []string, stdin io.Reader) (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, path := range paths {
		if path == Stdin {
			data, err := io.ReadAll(io.LimitReader(stdin, maxFileBytes))
			if err != nil {
				return nil, fmt.Errorf("read standard input: %w", err)
			}
			files[Stdin] = data
			continue
		}
		found, err := expand(path)
		if err != nil {
			return nil, err
		}
		for _, file := range found {
			if files[file], err = readAtMost(file); err != nil {
				return nil, err
			}
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s: no *.yaml or *.yml file found", strings.Join(paths, ", "))
	}
	return files, nil
}

// expand returns the files for which a path stands.
func expand(path string) (files []string, err error) {
	err = filepath.WalkDir(path, func(at string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		below, _ := filepath.Rel(path, at)
		switch hidden := at != path && strings.HasPrefix(entry.Name(), "."); {
		case entry.IsDir() && (hidden || strings.Contains(below, string(filepath.Separator))):
			return fs.SkipDir
		case entry.IsDir() || hidden:
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
	return files, err
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
