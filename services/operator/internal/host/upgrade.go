package host

import (
	"os"
	"slices"
	"time"
)

// upgradePoll is the interval at which the program file of a dataplane is checked.
const upgradePoll = 2 * time.Second

// upgrade detects that the program file of a supervised dataplane was replaced. SIGUSR2 then makes the supervisor start
// the new program, which continues the sessions.
type upgrade struct {
	path string // "" if the dataplane has no supervisor
	// running is the file that the dataplane executes; seen is the file at path at the last check. nil means unknown.
	running, seen os.FileInfo
}

func newUpgrade(c command, adopted *orphan) upgrade {
	u := upgrade{path: c.Path}
	if variable(c.Env, superviseVariable) != "true" && !slices.Contains(c.Args, "--supervise") {
		u.path = ""
	}
	if adopted != nil {
		u.running = adopted.program
	} else {
		u.running, _ = os.Stat(c.Path)
	}
	return u
}

// due reports whether the dataplane must be upgraded. It returns true once for each new file. Two consecutive checks
// must see the same file, because it may be incomplete at the first check.
func (u *upgrade) due() bool {
	if u.path == "" {
		return false
	}
	now, err := os.Stat(u.path)
	if err != nil {
		return false
	}
	stable := sameFile(u.seen, now)
	u.seen = now
	if !stable || now.Mode()&0o111 == 0 || sameFile(u.running, now) {
		return false
	}
	u.running = now
	return true
}

func sameFile(a, b os.FileInfo) bool {
	return a != nil && b != nil && os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}
