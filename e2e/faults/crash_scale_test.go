package faults

import (
	"net"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/pion/stun/v2"

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
	b, state := newBench(t), t.TempDir()
	b.run("--state-dir", state)
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
	b.killed(func() {}, "--state-dir", state)
	t.Logf("ready %s after the kill", time.Since(began).Round(time.Millisecond))
	log := b.process.Tail(1000)
	for _, what := range []string{"restore sessions of a former process", "sessions restored"} {
		i := slices.IndexFunc(log, func(line string) bool { return regexp.MustCompile(`msg="` + what + `"`).MatchString(line) })
		if i < 0 {
			t.Fatalf("the log has no line %q", what)
		}
		t.Log(log[i])
	}
	if n := b.status().AllocationCount; n != sessions {
		t.Errorf("%d allocations", n)
	}
	for _, c := range all {
		b.echoes(c)
	}
	if info, err := os.Stat(state + "/sessions.journal"); err == nil {
		t.Logf("%d bytes of journal a session", info.Size()/sessions)
	}
}

// BenchmarkJournal compares the rate of allocations with the journal to that without, in one run. An iteration creates
// and ends allocations at two processes in turn.
func BenchmarkJournal(b *testing.B) {
	const batch = 200
	type side struct {
		*bench
		first *ask.Client
		took  time.Duration
		made  int
	}
	var sides []*side
	for _, flags := range [][]string{nil, {"--state-dir", b.TempDir()}} {
		s := &side{bench: newBench(b)}
		s.run(flags...)
		s.first = s.client(0)
		s.do(s.first, stun.MethodRefresh, ask.Lifetime(600))
		sides = append(sides, s)
	}
	for n := 0; b.Loop(); n++ {
		for i := range sides {
			s := sides[(n+i)%2]
			c := s.another(s.first)
			began := time.Now()
			for range batch {
				for _, r := range [][]byte{
					c.Request(stun.MethodAllocate, ask.UDP()), c.Request(stun.MethodRefresh, ask.Lifetime(0)),
				} {
					if answer, err := c.Once(r, patience); err != nil || ask.Code(answer) != 0 {
						b.Fatalf("%d, %v", ask.Code(answer), err)
					}
				}
			}
			s.took, s.made = s.took+time.Since(began), s.made+batch
		}
	}
	rate := func(s *side) float64 { return float64(s.made) / s.took.Seconds() }
	b.ReportMetric(rate(sides[0]), "allocations/s")
	b.ReportMetric(rate(sides[1]), "stored-allocations/s")
	b.ReportMetric(rate(sides[1])/rate(sides[0]), "ratio")
}
