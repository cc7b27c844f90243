package probe

import (
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/pulse"
)

// Verdict is how a check ended.
type Verdict string

// The verdicts.
const (
	Pass Verdict = "pass"
	Fail Verdict = "fail"
	// Skipped checks could be made, but something that they need is not given.
	Skipped Verdict = "skipped"
	// NotApplicable checks have no meaning for this transport or this server.
	NotApplicable Verdict = "not applicable"
)

// Result is the verdict on one check.
type Result struct {
	Check
	Verdict Verdict
	// Reason says what came instead of what must come, or why the check was not made.
	Reason string
	Took   time.Duration
}

// Trial is one check under way.
type Trial struct {
	Target
	id      string
	tag     string // of the run
	source  *source
	pulse   *pulse.Pulse // what the prober's own machine stands still is not the server's
	asks6   bool         // an Allocate request must ask for IPv6
	verdict Verdict
	reason  string
	cleanup []func()
}

// Failf ends the check: something is not as it must be.
func (t *Trial) Failf(format string, args ...any) { t.end(Fail, fmt.Sprintf(format, args...)) }

// Skipf ends the check: something that it needs is not given.
func (t *Trial) Skipf(format string, args ...any) { t.end(Skipped, fmt.Sprintf(format, args...)) }

// Pointless ends the check: it has no meaning here.
func (t *Trial) Pointless(reason string) { t.end(NotApplicable, reason) }

// end ends the goroutine of the check: a check reads as what must hold, line by line.
func (t *Trial) end(v Verdict, reason string) {
	t.verdict, t.reason = v, reason
	runtime.Goexit()
}

// must ends the check when something failed on the prober's side of the network.
func (t *Trial) must(err error, doing string) {
	if err != nil {
		t.Failf("%s: %v", doing, err)
	}
}

// later runs f when the check has ended, last first.
func (t *Trial) later(f func()) { t.cleanup = append(t.cleanup, f) }

// run runs the check to its end.
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

// name is the id as it may stand in a username. It is of this run only: quotas count what other runs have.
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

// onLoopback4 ends the check unless the prober can choose among source addresses.
func (t *Trial) onLoopback4(server netip.Addr) {
	if !server.Is4() || !server.IsLoopback() {
		t.Pointless("needs several source addresses, as 127.0.0.0/8 has")
	}
}

// Verdicts are all verdicts, in the order in which they are counted up.
var Verdicts = []Verdict{Pass, Fail, Skipped, NotApplicable}

// Count counts results by verdict. Every verdict has an entry.
func Count(results []Result) map[Verdict]int {
	count := map[Verdict]int{Pass: 0, Fail: 0, Skipped: 0, NotApplicable: 0}
	for _, r := range results {
		count[r.Verdict]++
	}
	return count
}
