package node

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// A file in the folder of the hierarchies, or a link that leads to no folder, is not used as a hierarchy for a control
// group.
func TestHierarchies(t *testing.T) {
	version1, version2 := t.TempDir(), t.TempDir()
	for _, folder := range []string{"cpu,cpuacct", "memory"} {
		if err := os.Mkdir(filepath.Join(version1, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{
		filepath.Join(version1, "stray"), filepath.Join(version1, "cpu,cpuacct", "tasks"),
		filepath.Join(version2, "cgroup.controllers"), filepath.Join(version2, "cgroup.procs"),
	} {
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"cpu": "cpu,cpuacct", "dangling": "missing", "straylink": "stray"} {
		if err := os.Symlink(to, filepath.Join(version1, link)); err != nil {
			t.Fatal(err)
		}
	}
	for folder, want := range map[string][]string{
		version1: {
			filepath.Join(version1, "cpu"), filepath.Join(version1, "cpu,cpuacct"), filepath.Join(version1, "memory"),
		},
		version2: {version2},
	} {
		if got, err := hierarchies(folder); err != nil || !slices.Equal(got, want) {
			t.Errorf("hierarchies %v, want %v (%v)", got, want, err)
		}
	}
}

// In version 2, controllers are enabled in the parent of a new control group. In version 1 there is nothing to enable.
func TestControllersAreEnabled(t *testing.T) {
	version1, version2 := t.TempDir(), t.TempDir()
	control := filepath.Join(version2, "cgroup.subtree_control")
	if err := errors.Join(
		os.WriteFile(filepath.Join(version2, "cgroup.controllers"), []byte("cpuset cpu memory pids\n"), 0o600),
		os.WriteFile(control, nil, 0o600),
		makeGroup(version1, "node"), makeGroup(version2, "node"),
	); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(control); err != nil || string(got) != "+cpuset +cpu +memory +pids" {
		t.Errorf("enabled %q (%v)", got, err)
	}
	if files, err := os.ReadDir(version1); err != nil || len(files) != 1 {
		t.Errorf("version 1 contains %v (%v)", files, err)
	}
}
