package faults

import (
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/pion/stun/v2"
	"golang.org/x/sync/errgroup"

	"github.com/stunner-gateway/stunner/e2e/internal/ask"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
)

// A process that is killed with 10,000 sessions, each with a permission and a channel, restores all of them, in less
// CPU time than their creation took.
func TestCrashWithManySessions(t *testing.T) {
	if !netns.Isolated(t) { // no other process takes a relay port while this one is killed
		return
	}
	const sessions = 10_000
	flags := []string{"--state-dir", t.TempDir(), "--relay-ports", "4000-17999"}
	d := running(t, flags...)
	first := d.learn(d.client(0))
	allocate := request{stun.MethodAllocate, []stun.Setter{ask.UDP(), ask.Lifetime(3600)}}
	requests := append([]request{allocate}, d.ofAllocation()[1:]...)
	all := make([]*ask.Client, sessions)
	for i := range all {
		all[i] = d.another(first)
		for _, r := range requests {
			if code := ask.Code(d.once(all[i], all[i].Request(r.method, r.attrs...))); code != 0 {
				t.Fatalf("session %d: %s: %d", i, r.method, code)
			}
		}
	}
	made := d.metric("process_cpu_seconds_total")
	d.kill()
	d.start(harness.Command{Path: stunnerd}, d.file, flags...)
	// a busy machine needs minutes
	d.within(2*time.Minute, "ready", harness.Answers(d.health()+"/ready", http.StatusOK))
	used := d.metric("process_cpu_seconds_total")
	d.await("all sessions are restored", d.sessions(sessions))
	restore := d.logged("restore sessions of a previous process", "read") + d.logged("sessions restored", "took")
	t.Logf("%d sessions made in %.3f s of CPU time, restored in %s with %.3f s", sessions, made, restore, used)
	if used > made {
		t.Errorf("the restore took %.3f s of CPU time, want less than the sessions before: %.3f s", used, made)
	}
	for _, c := range all {
		d.echo(c)
	}
}

// logged returns a duration in the log of the process: the value of a key in the line with a message.
func (d *dataplane) logged(message, key string) time.Duration {
	d.t.Helper()
	line := regexp.MustCompile(`msg="` + message + `".* ` + key + `=(\S+)`).FindStringSubmatch(d.process.Output())
	if line == nil {
		d.t.Fatalf("the log has no line %q with %s", message, key)
	}
	took, err := time.ParseDuration(line[1])
	if err != nil {
		d.t.Fatal(err)
	}
	return took
}

// BenchmarkJournal compares the rate of allocations with the journal to that without, in one run. An iteration creates
// and ends allocations of concurrent clients at one process and then at the other, in turn, so that the load of the
// machine affects both in the same way.
func BenchmarkJournal(b *testing.B) {
	const clients, batch = 16, 50
	state, err := os.MkdirTemp("/dev/shm", "stunner-bench-") // in memory, like the state folder of a pod
	if err != nil {
		b.Fatal(err)
	}
	defer os.RemoveAll(state)
	var (
		sides [2]*dataplane
		all   [2][]*ask.Client
		took  [2]time.Duration
		cpu   [2]float64 // in seconds
	)
	for i, flags := range [][]string{nil, {"--state-dir", state}} {
		sides[i] = running(b, flags...)
		first := sides[i].learn(sides[i].client(0))
		for range clients {
			all[i] = append(all[i], sides[i].another(first))
		}
		cpu[i] = -sides[i].metric("process_cpu_seconds_total")
	}
	var ratios []float64
	for n := 0; b.Loop(); n++ {
		var last [2]time.Duration
		for i := range sides {
			side := (n + i) % 2
			last[side] = allocateAndEnd(b, all[side], batch)
			took[side] += last[side]
		}
		ratios = append(ratios, last[0].Seconds()/last[1].Seconds())
	}
	made := float64(len(ratios) * clients * batch)
	slices.Sort(ratios)
	b.ReportMetric(ratios[len(ratios)/2], "ratio")
	for i, name := range []string{"", "stored-"} {
		cpu[i] += sides[i].metric("process_cpu_seconds_total")
		b.ReportMetric(made/took[i].Seconds(), name+"allocations/s")
		b.ReportMetric(cpu[i]/made*1e6, "cpu-µs/"+name+"allocation")
	}
}

// allocateAndEnd makes each client create and end a number of allocations, all clients at the same time, and returns
// how long it took.
func allocateAndEnd(b *testing.B, clients []*ask.Client, batch int) time.Duration {
	b.Helper()
	var group errgroup.Group
	began := time.Now()
	for _, c := range clients {
		group.Go(func() error {
			for i := range 2 * batch {
				r := c.Request(stun.MethodAllocate, ask.UDP())
				if i%2 == 1 {
					r = c.Request(stun.MethodRefresh, ask.Lifetime(0))
				}
				if answer, err := c.Once(r, timeout); err != nil || ask.Code(answer) != 0 {
					return fmt.Errorf("code %d: %w", ask.Code(answer), err)
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		b.Fatal(err)
	}
	return time.Since(began)
}
