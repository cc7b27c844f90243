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

// BenchmarkProgram reports the run time of the programs for a packet: the mean, and the shortest of 20 batches, because
// the kernel also counts interrupts and other virtual machines.
func BenchmarkProgram(b *testing.B) {
	statistics(b)
	for _, s := range setups() {
		for _, v6 := range []bool{false, true} {
			for _, size := range []int{160, 1200} {
				for _, up := range []bool{true, false} {
					b.Run(fmt.Sprintf("%s/ipv6=%t/bytes=%d/up=%t", s.name, v6, size, up), func(b *testing.B) {
						w, at := s.topology(b), binding(v6)
						c := s.relayConfig
						c.Bindings = []relayBinding{at}
						r, p := w.start(b, c), w.path(b, at)
						if c.Engine == EngineXDP { // the XDP program forwards packets with complete checksums
							w.client.run(b, "ethtool -K eth0 tx off")
							w.peer.run(b, "ethtool -K eth0 tx off")
						}
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
						size := max(1, b.N/batches)
						for range batches {
							for range size {
								if _, err := from.WriteToUDPAddrPort(datagram, to); err != nil {
									b.Fatal(err)
								}
							}
							after := r.do(b, "state")
							best = min(best, float64(after.RunTime-before.RunTime)/float64(size))
							before = after
						}
						kernel := before.Kernel.minus(first.Kernel)
						if n := kernel.Up.Packets + kernel.Down.Packets; n < uint64(b.N)*9/10 {
							b.Fatalf("%d of %d packets were forwarded in the kernel", n, b.N)
						}
						b.ReportMetric(best, "best-ns/packet")
						mean := float64(before.RunTime-first.RunTime) / float64(batches*size)
						b.ReportMetric(mean, "mean-ns/packet")
						b.ReportMetric(0, "ns/op")
					})
				}
			}
		}
	}
}
