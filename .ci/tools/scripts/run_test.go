// Package scripts tests scripts of .ci with stand-ins for the programs that they call.
package scripts

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// standIns are programs that write their arguments to $LOG. df reports free space in KiB: $BEFORE until the build cache
// has been emptied, and $AFTER from then on.
var standIns = map[string]string{
	"go": `echo "go $*" >>"$LOG"
[[ "$*" != "env GOCACHE" ]] || echo "$CACHE"`,
	"make": `echo "make $*" >>"$LOG"`,
	"df": `free=$BEFORE
! grep -q "go clean" "$LOG" || free=$AFTER
printf '   Avail Mounted on\n%s /disk\n%s /disk\n' $free $free`,
}

// TestRunMakesRoom: .ci/run removes caches and what killed tests have left only if the disk has too little space. If
// it still has, .ci/run says how much is free where, how much is needed, and the remedy, and tests nothing.
func TestRunMakesRoom(t *testing.T) {
	const plenty, little = "99000000", "3500000"
	const (
		clean      = "go clean -cache -fuzzcache"
		provisions = "make --no-print-directory provisions"
		test       = "make --no-print-directory test FRESH=1"
	)
	left := []string{"TestTally56", "go-build34", "stunner-cluster-12"}
	others := []string{"TestZebraOfAnotherProject7", "node-compile-cache1", "stunner-in-use8"}
	for _, c := range []struct {
		name, before, after string
		calls, removed      []string
		refusal             string
	}{
		{"enough", plenty, plenty, []string{provisions, test}, nil, ""},
		{"enough after that", little, plenty, []string{clean, provisions, test}, left, ""},
		{"too little after that", little, little, []string{clean}, left,
			"a run needs 20 GiB of disk space, and free are only 3.3 GiB on /disk: free more there, or set GOCACHE and TMPDIR"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			tmp, bin, log := filepath.Join(dir, "tmp"), filepath.Join(dir, "bin"), filepath.Join(dir, "log")
			for name, text := range standIns {
				write(t, filepath.Join(bin, name), "#!/bin/bash\n"+text+"\n")
			}
			write(t, log, "")
			for _, name := range slices.Concat(left, others) {
				write(t, filepath.Join(tmp, name, "file"), "")
				if name == "stunner-in-use8" {
					continue
				}
				old := time.Now().Add(-2 * time.Hour)
				if err := os.Chtimes(filepath.Join(tmp, name), old, old); err != nil {
					t.Fatal(err)
				}
			}
			write(t, filepath.Join(tmp, "stunner-wmem_max9"), "") // no folder
			run := exec.Command("../../run")
			run.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "LOG="+log, "TMPDIR="+tmp, "E2E=never",
				"CACHE="+filepath.Join(dir, "cache"), "BEFORE="+c.before, "AFTER="+c.after)
			out, err := run.CombinedOutput()
			if refused := err != nil; refused != (c.refusal != "") || !strings.Contains(string(out), c.refusal) {
				t.Errorf("%v: %s", err, out)
			}
			called, err := os.ReadFile(log)
			if err != nil {
				t.Fatal(err)
			}
			calls := slices.DeleteFunc(strings.Split(strings.TrimSpace(string(called)), "\n"), func(call string) bool {
				return call == "go env GOCACHE" || strings.HasPrefix(call, "go -C tools list")
			})
			if !slices.Equal(calls, c.calls) {
				t.Errorf("calls %q, want %q", calls, c.calls)
			}
			for _, name := range slices.Concat(left, others, []string{"stunner-wmem_max9"}) {
				_, err := os.Stat(filepath.Join(tmp, name))
				if gone := os.IsNotExist(err); gone != slices.Contains(c.removed, name) {
					t.Errorf("%s is removed: %t", name, gone)
				}
			}
		})
	}
}

// write writes a program or a text, in a new folder if necessary.
func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}
