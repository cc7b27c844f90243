package bed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// Folders of the programs, below the root of the repository.
const (
	Operator = "services/operator"
	Stunnerd = "services/stunnerd"
	Auth     = "services/auth"
	Echo     = "e2e/echo"
)

// Root finds the root of the repository: the nearest folder, from the working directory upwards, that holds go.work.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find root of repository: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("find root of repository: no go.work in the working directory or above: run inside the repository")
		}
		dir = parent
	}
}

// Published finds the folder in which `make NAME` has put a program that others publish; .ci/programs has their names.
func Published(ctx context.Context, root, name string) (folder string, err error) {
	out, err := exec.CommandContext(ctx, filepath.Join(root, ".ci/build"), "-n", name).Output()
	if err != nil {
		return "", fmt.Errorf("find %s: %w", name, err)
	}
	folder = strings.TrimSpace(string(out))
	if _, err := os.Stat(folder); err != nil {
		return "", fmt.Errorf("find %s: %w: run `make %s`", name, err, name)
	}
	return folder, nil
}

// Build compiles programs into dir, each under the name of its folder. What did not change comes from the build cache.
func Build(ctx context.Context, root, dir string, folders ...string) error {
	for _, folder := range folders {
		path := filepath.Join(dir, filepath.Base(folder))
		once, _ := built.LoadOrStore(filepath.Join(root, folder), sync.OnceValues(func() (*os.File, error) { return build(ctx, root, folder, path) }))
		program, err := once.(func() (*os.File, error))()
		if err != nil {
			return fmt.Errorf("build %s: %w", folder, err)
		}
		if err := install(program, path); err != nil {
			return fmt.Errorf("build %s: %w", folder, err)
		}
	}
	return nil
}

// built holds the programs that this process has built, by their folder: to link one takes seconds, and many tests want the same. An open file
// outlives the folder of the test that was first.
var built sync.Map

func build(ctx context.Context, root, folder, path string) (*os.File, error) {
	cmd := exec.CommandContext(ctx, "go", "build", "-o", path, ".")
	cmd.Dir = filepath.Join(root, folder)
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, out)
	}
	return os.Open(path)
}

// install copies a program to where it is not yet. Another process does so: while this one writes a program and starts another at the same time,
// the kernel takes the first for one that is still being written, and does not run it.
func install(program *os.File, path string) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	cmd := exec.Command("cp", "/proc/self/fd/3", path)
	cmd.ExtraFiles = []*os.File{program}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("copy: %w\n%s", err, out)
	}
	return nil
}
