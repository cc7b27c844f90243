package host

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// supervisedPlayer returns the command of a supervisor whose program is a copy of this binary that a test may replace.
func supervisedPlayer(t *testing.T, below string) (c command, replace func()) {
	t.Helper()
	original, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c = player("supervisor", filepath.Join(below, "n_g"))
	c.Path = filepath.Join(t.TempDir(), "stunnerd")
	c.Env = append(c.Env, superviseVariable+"=true")
	replace = func() {
		t.Helper()
		// A process that another test starts must not inherit the file while it is open for writing.
		err := errors.Join(exec.Command("cp", original, c.Path+".new").Run(), os.Rename(c.Path+".new", c.Path))
		if err != nil {
			t.Fatal(err)
		}
	}
	replace()
	t.Cleanup(func() { killOrphans(t, c.Path, below) })
	return c, replace
}

// upgrades counts the signals that the supervisor has got.
func (k *supervisor) upgrades() int {
	data, _ := os.ReadFile(logFile(k.common.logs, "n_g"))
	return strings.Count(string(data), "upgraded")
}

func TestDataplaneIsUpgradedOnceItsProgramIsReplaced(t *testing.T) {
	k := newSupervisor(t)
	below := t.TempDir()
	c, replace := supervisedPlayer(t, below)
	p := k.start(c, nil)
	h := k.await(p, "running", isRunning)
	k.awaitLog("n_g", "begins as serve")
	for n := 1; n <= 2; n++ {
		replace()
		until(t, "the dataplane is upgraded", func() bool { return k.upgrades() == n })
	}
	p.Leave()
	<-p.Done()

	// The next operator finds the supervisor only, and notices an upgrade that took place before it started. The child
	// of this test still runs the first program.
	found, err := orphans(c.Path, below)
	o := found["n_g"]
	if err != nil || len(found) != 1 || o.pid != h.PID {
		t.Fatalf("found %+v, %v, want pid %d only", found, err, h.PID)
	}
	next := k.start(o.command, &o)
	until(t, "the adopted dataplane is upgraded", func() bool { return k.upgrades() == 3 })
	if now := k.await(next, "running", isRunning); now.PID != h.PID || !now.Adopted || now.Restarts != 0 {
		t.Errorf("after the upgrade: %s, want pid %d", now, h.PID)
	}
	k.stop(next)
}

func TestUpgradeIsDue(t *testing.T) {
	c, replace := supervisedPlayer(t, t.TempDir())
	u := newUpgrade(c, nil)
	plain := c
	plain.Env = nil
	unsupervised := newUpgrade(plain, nil)
	step := func(what string, want ...bool) {
		t.Helper()
		for i, want := range want {
			if got := u.due(); got != want {
				t.Errorf("%s: look %d: due %t, want %t", what, i, got, want)
			}
		}
	}
	step("same file", false, false)
	replace()
	step("replaced", false, true, false)
	replace()
	step("replaced again", false)
	replace()
	step("replaced between two looks", false, true)
	if err := os.Remove(c.Path); err != nil {
		t.Fatal(err)
	}
	step("removed", false, false)
	if err := os.WriteFile(c.Path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	step("not executable", false, false)
	replace()
	if unsupervised.due(); unsupervised.due() {
		t.Error("a dataplane without a supervisor gets SIGUSR2")
	}
}
