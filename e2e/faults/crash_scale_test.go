package faults

import (
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/pion/stun/v2"
	"golang.org/x/sync/errgroup"

	"github.com/stunner-gateway/stunner/e2e/internal/ask"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
)

// another returns a client with a socket of its own that shares the nonce of a client at the same address.
func (b *bench) another(first *ask.Client) *ask.Client {
	b.t.Helper()
	conn, err := net.DialUDP("udp", &net.UDPAddr{IP: first.Addr().Addr().AsSlice()}, net.UDPAddrFromAddrPort(b.at(call.UDP)))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { conn.Close() })
	c := *first
	c.Conn = conn
	return &c
}

// A process that is killed with 10,000 sessions, each with a permission and a channel, restores all of them.
func TestCrashWithManySessions(t *testing.T) {
	const sessions = 10_000
	b := newBench(t)
	// No other process of the host gets these ports while the process is killed: the kernel does not select them.
	flags := []string{"--state-dir", t.TempDir(), "--relay-ports", "4000-17999"}
	b.run(flags...)
	first := b.client(0)
	b.do(first, stun.MethodRefresh, ask.Lifetime(600)) // learns a nonce
	var all []*ask.Client
	for range sessions {
		c := b.another(first)
		for _, r := range [][]byte{
			c.Request(stun.MethodAllocate, ask.UDP(), ask.Lifetime(3600)),
			c.Request(stun.MethodCreatePermission, b.three()[stun.MethodCreatePermission]...),
			c.Request(stun.MethodChannelBind, b.three()[stun.MethodChannelBind]...),
		} {
			if answer, err := c.Once(r, patience); err != nil || ask.Code(answer) != 0 {
				t.Fatalf("session %d: %d, %v", len(all), ask.Code(answer), err)
			}
		}
		all = append(all, c)
	}
	began := time.Now()
	b.killed(func() {}, flags...)
	t.Logf("ready %s after the kill", time.Since(began).Round(time.Millisecond))
	restore := b.logged("restore sessions of a former process", "read") + b.logged("sessions restored", "took")
	stalled := b.pulse.Stalled(began, time.Now())
	t.Logf("%d sessions restored in %s, of which the machine was stalled for at most %s", sessions, restore, stalled)
	if limit := time.Second; restore-stalled > limit {
		t.Errorf("the restore took %s, want %s at most", restore, limit)
	}
	if n := b.status().AllocationCount; n != sessions {
		t.Errorf("%d allocations", n)
	}
	for _, c := range all {
		b.echoes(c)
	}
	if info, err := os.Stat(flags[1] + "/sessions.journal"); err == nil {
		t.Logf("%d bytes of journal a session", info.Size()/sessions)
	}
}

// logged returns a duration in the log of the process: the value of a key in the line with a message.
func (b *bench) logged(message, key string) time.Duration {
	b.t.Helper()
	line := regexp.MustCompile(`msg="` + message + `".* ` + key + `=(\S+)`).FindStringSubmatch(b.process.Output())
	if line == nil {
		b.t.Fatalf("the log has no line %q with %s", message, key)
	}
	d, err := time.ParseDuration(line[1])
	if err != nil {
		b.t.Fatal(err)
	}
	return d
}

// BenchmarkJournal compares the rate of allocations with the journal to that without, in one run. An iteration creates
// and ends allocations of concurrent clients at one process and then at the other, in turn, so that the load of the
// machine affects both in the same way.
func BenchmarkJournal(b *testing.B) {
	const clients, batch = 16, 50
	type side struct {
		*bench
		clients []*ask.Client
		took    time.Duration
		cpu     float64 // in seconds, negative before the end
	}
	var sides []*side
	for _, flags := range [][]string{nil, {"--state-dir", inMemory(b)}} {
		s := &side{bench: newBench(b)}
		s.run(flags...)
		first := s.client(0)
		s.do(first, stun.MethodRefresh, ask.Lifetime(600))
		for range clients {
			s.clients = append(s.clients, s.another(first))
		}
		s.cpu = -s.metric("process_cpu_seconds_total")
		sides = append(sides, s)
	}
	var ratios []float64
	for n := 0; b.Loop(); n++ {
		var took [2]time.Duration
		for i := range sides {
			side := (n + i) % 2
			took[side] = allocateAndEnd(b, sides[side].clients, batch)
			sides[side].took += took[side]
		}
		ratios = append(ratios, took[0].Seconds()/took[1].Seconds())
	}
	made := float64(len(ratios) * clients * batch)
	for _, s := range sides {
		s.cpu += s.metric("process_cpu_seconds_total")
	}
	slices.Sort(ratios)
	b.ReportMetric(made/sides[0].took.Seconds(), "allocations/s")
	b.ReportMetric(made/sides[1].took.Seconds(), "stored-allocations/s")
	b.ReportMetric(ratios[len(ratios)/2], "ratio")
	b.ReportMetric(sides[0].cpu/made*1e6, "cpu-µs/allocation")
	b.ReportMetric(sides[1].cpu/made*1e6, "cpu-µs/stored-allocation")
}

// inMemory returns a folder in memory, as the state folder of a pod is.
func inMemory(b *testing.B) string {
	b.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "stunner-bench-")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// allocateAndEnd makes each client create and end a number of allocations, all clients at the same time, and returns
// how long it took.
func allocateAndEnd(b *testing.B, clients []*ask.Client, batch int) time.Duration {
	b.Helper()
	var group errgroup.Group
	began := time.Now()
	for _, c := range clients {
		group.Go(func() error {
			for range batch {
				for _, r := range [][]byte{
					c.Request(stun.MethodAllocate, ask.UDP()), c.Request(stun.MethodRefresh, ask.Lifetime(0)),
				} {
					answer, err := c.Once(r, patience)
					if err == nil && ask.Code(answer) != 0 {
						err = fmt.Errorf("code %d", ask.Code(answer))
					}
					if err != nil {
						return err
					}
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
