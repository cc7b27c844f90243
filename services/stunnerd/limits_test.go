package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestCapacityFollowsMemoryAndDescriptors(t *testing.T) {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	byFiles := math.MaxInt
	if files.Cur < math.MaxInt32 {
		byFiles = int(files.Cur) - int(files.Cur)/16 - reservedFiles
	}
	if got := capacity(0); got != byFiles {
		t.Errorf("without a memory limit: %d, want %d", got, byFiles)
	}
	if got, want := capacity(64<<20), min(1024, byFiles); got != want {
		t.Errorf("with 64 MiB: %d, want %d", got, want)
	}
}

// From the start the table of file descriptors has room for all clients, because the process stops while it grows.
func TestFileTableHasRoomForAllClients(t *testing.T) {
	p := start(t)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.command.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "FDSize:")
	var size int
	if _, err := fmt.Sscan(after, &size); err != nil {
		t.Fatal(err)
	}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	if want := 2 * min(int(min(files.Cur, maxTable))/2, capacity(memoryLimit(cgroups))); size < want {
		t.Errorf("the table has room for %d descriptors, want %d", size, want)
	}
}

// T-A16: a process has no more allocations than relay ports.
func TestAllocationsFollowRelayPorts(t *testing.T) {
	for _, tc := range []struct{ capacity, ports, want int }{{1000, 0, 1000}, {1000, 100, 100}, {1000, 5000, 1000}} {
		if got := allocations(tc.capacity, tc.ports); got != tc.want {
			t.Errorf("%d clients, %d ports: %d allocations, want %d", tc.capacity, tc.ports, got, tc.want)
		}
	}
}

// the memory limit is read from a cgroup of either version.
func TestMemoryLimitOfEitherCgroup(t *testing.T) {
	for _, tc := range []struct {
		file, content string
		want          int64
	}{
		{"memory.max", "1048576\n", 1 << 20}, {"memory.max", "max\n", 0},
		{"memory/memory.limit_in_bytes", "2097152\n", 2 << 20},
		{"memory/memory.limit_in_bytes", "9223372036854771712\n", 0}, {"other", "1", 0},
	} {
		root := t.TempDir()
		path := filepath.Join(root, tc.file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(tc.content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := memoryLimit(root); got != tc.want {
			t.Errorf("%s %q: %d, want %d", tc.file, tc.content, got, tc.want)
		}
	}
}

// GOGC has the default of stunnerd, and takes precedence if it is set.
func TestGOGC(t *testing.T) {
	before := debug.SetGCPercent(100)
	defer debug.SetGCPercent(before)
	t.Setenv("GOGC", "100")
	tuneGC(0)
	if got := debug.SetGCPercent(100); got != 100 {
		t.Errorf("with GOGC=100 the value is %d", got)
	}
	t.Setenv("GOGC", "")
	tuneGC(0)
	if got := debug.SetGCPercent(100); got != gcPercent {
		t.Errorf("without GOGC the value is %d, want %d", got, gcPercent)
	}
}
