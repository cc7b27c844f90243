package node

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// A file in the folder of the hierarchies, or a link that leads to no folder, is no hierarchy in which a control group
// can be created.
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
