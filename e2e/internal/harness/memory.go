package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
)

// MemoryGroup is a memory cgroup. The kernel kills a process of the group when the group exceeds its limit.
type MemoryGroup struct{ dir string }

// groups counts the memory groups of this process, so that each gets a folder of its own.
var groups atomic.Int64

// NewMemoryGroup makes a cgroup, of version 1 or 2, with a limit in bytes and without swap. It needs root.
func NewMemoryGroup(name string, limit int64) (*MemoryGroup, error) {
	controller, limitFile, swapFile := "memory", "memory.limit_in_bytes", "memory.swappiness"
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		controller, limitFile, swapFile = "", "memory.max", "memory.swap.max"
	}
	folder := fmt.Sprintf("stunner-%s-%d-%d", name, os.Getpid(), groups.Add(1))
	g := &MemoryGroup{dir: filepath.Join("/sys/fs/cgroup", controller, folder)}
	if err := os.Mkdir(g.dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("make a memory cgroup: %w: run this test as root, with /sys/fs/cgroup writable", err)
	}
	// A kernel without swap accounting has no file for the swap limit, so this error is ignored.
	_ = os.WriteFile(filepath.Join(g.dir, swapFile), []byte("0"), 0o600)
	return g, os.WriteFile(filepath.Join(g.dir, limitFile), []byte(strconv.FormatInt(limit, 10)), 0o600)
}

// Confine returns a command whose process joins the group before it executes the program.
func (g *MemoryGroup) Confine(c Command) Command {
	c.Args = append([]string{"-c", `echo $$ > "$0/cgroup.procs" && exec "$@"`, g.dir, c.Path}, c.Args...)
	c.Path = "/bin/sh"
	return c
}

// Peak returns the peak memory usage of the group in bytes.
func (g *MemoryGroup) Peak() (int64, error) {
	data, err := os.ReadFile(filepath.Join(g.dir, "memory.max_usage_in_bytes"))
	if errors.Is(err, os.ErrNotExist) {
		data, err = os.ReadFile(filepath.Join(g.dir, "memory.peak"))
	}
	if err != nil {
		return 0, fmt.Errorf("read the peak of a memory cgroup: %w", err)
	}
	return strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
}

// Remove deletes the group. It retries until ctx ends, because the kernel refuses until the last process of the group
// is gone.
func (g *MemoryGroup) Remove(ctx context.Context) error {
	return Until(ctx, func(context.Context) error { return os.Remove(g.dir) })
}

// Contain is Confine for a process that sees the group as the root of the cgroups, as in a container. It needs root.
func (g *MemoryGroup) Contain(c Command) Command {
	const script = `mount --bind "$0" "$1" && shift && exec "$@"`
	c.Args = append([]string{"--mount", "sh", "-c", script, g.dir, filepath.Dir(g.dir), c.Path}, c.Args...)
	c.Path = "unshare"
	return g.Confine(c)
}
