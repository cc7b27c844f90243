package harness

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
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
// repository. `go build` does not link a program there again if it is current. So all test binaries and their child
// processes share the result of one link, which takes some seconds.
func Build(ctx context.Context, root, dir string, folders ...string) error {
	programs, err := builds.open(ctx, root, folders)
	if err != nil {
		return fmt.Errorf("build %s: %w", strings.Join(folders, ", "), err)
	}
	for i, program := range programs {
		if err := install(program, filepath.Join(dir, filepath.Base(folders[i]))); err != nil {
			return fmt.Errorf("install %s: %w", folders[i], err)
		}
	}
	return nil
}

// builds contains the programs that this process has built.
var builds = built{files: map[string]*os.File{}}

// built caches open files of programs, by folder. An open file stays readable when a later build replaces the program,
// so that all tests of a process run the same one.
type built struct {
	mu    sync.Mutex
	files map[string]*os.File
}

// open returns the programs of folders, and builds those that this process has not built yet.
func (b *built) open(ctx context.Context, root string, folders []string) (programs []*os.File, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var missing []string
	for _, folder := range folders {
		if b.files[folder] == nil {
			missing = append(missing, folder)
		}
	}
	if len(missing) > 0 {
		if err := b.build(ctx, root, missing); err != nil {
			return nil, err
		}
	}
	for _, folder := range folders {
		programs = append(programs, b.files[folder])
	}
	return programs, nil
}

// build links programs into bin/e2e unless they are current, and opens copies of them. One command builds all of them,
// because it reads the same packages for each. A lock excludes concurrent builds by other processes.
func (b *built) build(ctx context.Context, root string, folders []string) error {
	bin := filepath.Join(root, "bin/e2e")
	if err := os.MkdirAll(filepath.Join(bin, "copies"), 0o755); err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(bin, ".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	args := []string{"build", "-o", bin + "/"}
	for _, folder := range folders {
		args = append(args, "./"+folder)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	for _, folder := range folders {
		name := filepath.Base(folder)
		copied := filepath.Join(bin, "copies", name)
		if err := refresh(copied, filepath.Join(bin, name)); err != nil {
			return err
		}
		if b.files[folder], err = os.Open(copied); err != nil {
			return err
		}
	}
	return nil
}

// refresh replaces the copy of a program unless both have the same build ID. Tests run the copy, because `go build`
// sets the modification time of a program that is current. The operator of another test would take that for a new
// program, and upgrade its dataplanes.
func refresh(copied, program string) error {
	id, err := buildID(program)
	if err != nil {
		return err
	}
	if old, err := buildID(copied); err == nil && bytes.Equal(old, id) {
		return nil
	}
	draft := copied + ".draft"
	if out, err := exec.Command("cp", program, draft).CombinedOutput(); err != nil {
		return fmt.Errorf("copy: %w\n%s", err, out)
	}
	return os.Rename(draft, copied)
}

// buildID returns the ELF note with the build ID that the Go linker writes.
func buildID(program string) ([]byte, error) {
	file, err := elf.Open(program)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	const section = ".note.go.buildid"
	note := file.Section(section)
	if note == nil {
		return nil, fmt.Errorf("%s has no section %s", program, section)
	}
	return note.Data()
}

// install puts a program at path unless path exists: as a hard link, which needs no space, or as a copy if the folder
// is on another file system or a later build has replaced the program. Nothing may write to the file. A child process
// writes the copy. If this process wrote the file, a child that is forked at that moment would inherit the open
// descriptor, and executing the file would fail with ETXTBSY.
func install(program *os.File, path string) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	opened := fmt.Sprintf("/proc/self/fd/%d", program.Fd())
	if unix.Linkat(unix.AT_FDCWD, opened, unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW) == nil {
		return nil
	}
	cmd := exec.Command("cp", "/proc/self/fd/3", path)
	cmd.ExtraFiles = []*os.File{program}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("copy: %w\n%s", err, out)
	}
	return nil
}
