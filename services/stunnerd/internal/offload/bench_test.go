package offload

import (
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
)

// statistics makes the kernel measure the run time of programs, which adds about 70 ns to each run.
func statistics(t testing.TB) {
	t.Helper()
	const name = "/proc/sys/kernel/bpf_stats_enabled"
	before, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.WriteFile(name, []byte(strings.TrimSpace(string(before))), 0) })
}

// BenchmarkProgram reports the run time of the ingress program: the mean, and the best of 20 batches, because the
// kernel counts interrupts and other virtual machines too.
func BenchmarkProgram(b *testing.B) {
	w := newWorld(b)
	statistics(b)
	for _, m := range mechanisms() {
		for _, v6 := range []bool{false, true} {
			for _, size := range []int{160, 1200} {
				for _, up := range []bool{true, false} {
					b.Run(fmt.Sprintf("%s/ipv6=%t/bytes=%d/up=%t", m, v6, size, up), func(b *testing.B) {
						at := binding(v6)
						r := w.start(
							b,
							relayConfig{Engine: EngineTC, Mechanisms: []Mechanism{m}, Bindings: []relayBinding{at}},
						)
						p := w.path(b, at)
						p.warm(b, r)
						before := r.do(b, "state")
						payload := media(size)
						datagram, from, to := frame(at.Channel, payload), p.client, at.Listener
						if !up {
							datagram, from, to = payload, p.peer, at.Relay
						}
						b.ResetTimer()
						const batches = 20
						first, best := before, math.Inf(1)
						for range batches {
							for range max(1, b.N/batches) {
								if _, err := from.WriteToUDPAddrPort(datagram, to); err != nil {
									b.Fatal(err)
								}
							}
							after := r.do(b, "state")
							best = min(best, float64(after.RunTime-before.RunTime)/float64(after.Runs-before.Runs))
							before = after
						}
						kernel := before.Kernel.minus(first.Kernel)
						if n := kernel.Up.Packets + kernel.Down.Packets; n < uint64(b.N)*9/10 {
							b.Fatalf("%d of %d packets were forwarded in the kernel", n, b.N)
						}
						b.ReportMetric(best, "best-ns/run")
						mean := float64(before.RunTime-first.RunTime) / float64(before.Runs-first.Runs)
						b.ReportMetric(mean, "mean-ns/run")
						b.ReportMetric(0, "ns/op")
					})
				}
			}
		}
	}
}
