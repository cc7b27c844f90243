package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// Folders of the programs, relative to the root of the repository.
const (
	Operator   = "services/operator"
	Stunnerctl = "services/stunnerctl"
	Stunnerd   = "services/stunnerd"
	Auth       = "services/auth"
	Echo       = "e2e/echo"
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

// Build compiles programs into dir, each under the base name of its folder. The programs are linked into bin/e2e of the
// repository, where `go build` finds a current program and does not link it again: all test binaries, and the child
// processes that a test starts of itself, share one link of some seconds.
func Build(ctx context.Context, root, dir string, folders ...string) error {
	for _, folder := range folders {
		once, _ := built.LoadOrStore(
			filepath.Join(root, folder),
			sync.OnceValues(func() (*os.File, error) { return build(ctx, root, folder) }),
		)
		program, err := once.(func() (*os.File, error))()
		if err != nil {
			return fmt.Errorf("build %s: %w", folder, err)
		}
		if err := install(program, filepath.Join(dir, filepath.Base(folder))); err != nil {
			return fmt.Errorf("build %s: %w", folder, err)
		}
	}
	return nil
}

// built caches open files of the programs that this process has built, by folder. An open file stays readable when a
// later build replaces the program, so that all tests of a process run the same one.
var built sync.Map

// build links a program into bin/e2e unless it is current, and opens it. A lock excludes concurrent builds of the same
// program by other processes.
func build(ctx context.Context, root, folder string) (*os.File, error) {
	path := filepath.Join(root, "bin/e2e", filepath.Base(folder))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return nil, fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
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
