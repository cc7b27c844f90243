package faults

import (
	"slices"
	"testing"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/e2e/internal/ask"
)

// liveSessions is the number of other sessions during BenchmarkCallSetup.
const liveSessions = 1000

// L-1: the set-up of a call takes at most 50 ms (p99) with 1,000 live sessions. The set-up is the time before the first
// byte: challenge, Allocate and ChannelBind. The deletion of the session is not included.
func BenchmarkCallSetup(b *testing.B) {
	d := newBench(b)
	d.run()
	for i := range liveSessions {
		d.allocated(i)
	}
	var took []time.Duration
	for n := 0; b.Loop(); n++ {
		c := d.client(liveSessions + n)
		began := time.Now()
		allocate, _ := d.do(c, stun.MethodAllocate, ask.UDP())
		bind, _ := d.do(c, stun.MethodChannelBind, d.three()[stun.MethodChannelBind]...)
		took = append(took, time.Since(began))
		if allocate != 0 || bind != 0 {
			b.Fatalf("allocate: %d, bind channel: %d", allocate, bind)
		}
		if code, _ := d.do(c, stun.MethodRefresh, ask.Lifetime(0)); code != 0 {
			b.Fatalf("end session: %d", code)
		}
		c.Close()
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}
