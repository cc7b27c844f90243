package faults

import (
	"bufio"
	"fmt"
	"strings"
	"testing"
)

// The supervisor of a dataplane needs at most 16 MiB.
func TestSupervisorIsSmall(t *testing.T) {
	b := newBench(t)
	b.run("--supervise")
	live := b.crowd(5)
	for lines := bufio.NewScanner(strings.NewReader(b.proc("status"))); lines.Scan(); {
		var kilobytes int
		if n, _ := fmt.Sscanf(lines.Text(), "VmRSS: %d kB", &kilobytes); n == 1 {
			t.Logf("supervisor: %d kB resident", kilobytes)
			if kilobytes > 16<<10 {
				t.Errorf("the supervisor has %d kB resident, want at most 16 MiB", kilobytes)
			}
			b.unharmed(live, silence)
			return
		}
	}
	t.Fatal("the resident memory of the supervisor is unknown")
}
