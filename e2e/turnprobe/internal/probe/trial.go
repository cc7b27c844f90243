package probe

import (
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/stall"
)

// Verdict is the result of a check.
type Verdict string

// The verdicts.
const (
	Pass Verdict = "pass"
	Fail Verdict = "fail"
	// Skipped means that a setting which the check needs is missing.
	Skipped Verdict = "skipped"
	// NotApplicable means that the check does not apply to this transport or server.
	NotApplicable Verdict = "not applicable"
)

// Result is the verdict of one check.
type Result struct {
	Check
	Verdict Verdict
	// Reason describes the deviation, or why the check was not run.
	Reason string
	Took   time.Duration
}

// Trial is a running check.
type Trial struct {
	Target
	id      string
	tag     string // unique per run
	source  *source
	pulse   *stall.Monitor // excludes stalls of the prober's machine from measured times
	asks6   bool           // Allocate requests need REQUESTED-ADDRESS-FAMILY IPv6
	verdict Verdict
	reason  string
	cleanup []func()
}

// Failf ends the check with verdict Fail.
func (t *Trial) Failf(format string, args ...any) { t.end(Fail, fmt.Sprintf(format, args...)) }

// Skipf ends the check with verdict Skipped.
func (t *Trial) Skipf(format string, args ...any) { t.end(Skipped, fmt.Sprintf(format, args...)) }

// Pointless ends the check with verdict NotApplicable.
func (t *Trial) Pointless(reason string) { t.end(NotApplicable, reason) }

// end ends the goroutine of the check with a verdict, so that a check needs no error handling.
func (t *Trial) end(v Verdict, reason string) {
	t.verdict, t.reason = v, reason
	runtime.Goexit()
}

// must ends the check after an error on the prober's side.
func (t *Trial) must(err error, doing string) {
	if err != nil {
		t.Failf("%s: %v", doing, err)
	}
}

// later registers f to run when the check has ended, in reverse order.
func (t *Trial) later(f func()) { t.cleanup = append(t.cleanup, f) }

func (t *Trial) run(c Check) Result {
	started := time.Now()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			for i := len(t.cleanup) - 1; i >= 0; i-- {
				t.cleanup[i]()
			}
		}()
		c.Run(t)
		t.verdict = Pass
	}()
	<-done
	return Result{Check: c, Verdict: t.verdict, Reason: t.reason, Took: time.Since(started)}
}

// name returns the check's ID in a form for usernames. It is unique per run, because quotas also count allocations of
// earlier runs.
func (t *Trial) name() string {
	return t.tag + "-" + strings.ToLower(strings.NewReplacer(" ", "-", ",", "", ":", "").Replace(t.id))
}

// on4 ends the check unless the server relays from IPv4.
func (t *Trial) on4() {
	if t.PeerAddr.Is6() {
		t.Pointless("the relay address is IPv6")
	}
}

// on6 ends the check unless the server relays from IPv6.
func (t *Trial) on6() {
	if t.PeerAddr.Is4() {
		t.Pointless("the relay address is IPv4")
	}
}

// onLoopback4 ends the check unless the prober has several source addresses.
func (t *Trial) onLoopback4(server netip.Addr) {
	if !server.Is4() || !server.IsLoopback() {
		t.Pointless("needs several source addresses, as in 127.0.0.0/8")
	}
}

// Verdicts lists all verdicts in display order.
var Verdicts = []Verdict{Pass, Fail, Skipped, NotApplicable}

// Count counts results by verdict. The map has an entry for every verdict.
func Count(results []Result) map[Verdict]int {
	count := map[Verdict]int{Pass: 0, Fail: 0, Skipped: 0, NotApplicable: 0}
	for _, r := range results {
		count[r.Verdict]++
	}
	return count
}
