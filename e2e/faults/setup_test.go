package faults

import (
	"slices"
	"testing"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/e2e/internal/ask"
)

// liveSessions is how many sessions there are while BenchmarkCallSetup begins another one.
const liveSessions = 1000

// L-1: a call is set up within 50 ms (p99) beside 1,000 live sessions. A set-up is what a client waits for before its first byte: challenge, Allocate and
// ChannelBind, and the end of the session is not in it.
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
