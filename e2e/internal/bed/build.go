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

// Folders of the programs, relative to the root of the repository.
const (
	Operator = "services/operator"
	Stunnerd = "services/stunnerd"
	Auth     = "services/auth"
	Echo     = "e2e/echo"
)

// Root returns the root of the repository: the nearest parent of the working directory that holds go.work.
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
			return "", errors.New(
				"find root of repository: no go.work in the working directory or above: run inside the repository",
			)
		}
		dir = parent
	}
}

// Published returns the folder into which `make NAME` has built a third-party program. The folder .ci/programs lists
// the names.
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

// Build compiles programs into dir, each under the base name of its folder. Each program is linked once per process.
func Build(ctx context.Context, root, dir string, folders ...string) error {
	for _, folder := range folders {
		path := filepath.Join(dir, filepath.Base(folder))
		once, _ := built.LoadOrStore(
			filepath.Join(root, folder),
			sync.OnceValues(func() (*os.File, error) { return build(ctx, root, folder, path) }),
		)
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

// built caches open files of the programs that this process has linked, by folder. Linking takes seconds. An open file
// stays readable after the folder of the test that built it is removed.
var built sync.Map

func build(ctx context.Context, root, folder, path string) (*os.File, error) {
	cmd := exec.CommandContext(ctx, "go", "build", "-o", path, ".")
	cmd.Dir = filepath.Join(root, folder)
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, out)
	}
	return os.Open(path)
}

// install copies a program to path unless path exists. A child process writes the copy: if this process wrote the file,
// a child that it forks at that moment would inherit the open descriptor, and executing the file would fail with
// ETXTBSY.
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
