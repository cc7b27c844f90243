package journal

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// sample is a session as a browser has it, without permissions, channels and checks.
func sample(now time.Time) *session.Record {
	return &session.Record{
		Listener: "stunner/udp-gateway/udp-listener", Client: netip.MustParseAddrPort("203.0.113.7:51234"),
		Local: netip.MustParseAddrPort("10.244.1.17:3478"), Source: []byte{10, 244, 1, 17, 10, 244, 1, 17},
		Username: "1795278827:KZMK6BL45Q7JSW4FJHV6ARZ4VC", UserID: "KZMK6BL45Q7JSW4FJHV6ARZ4VC",
		Realm: "stunner.l7mp.io", Relay: netip.MustParseAddrPort("10.244.1.17:40123"),
		Transaction: [12]byte{1, 2, 3}, Lifetime: 600, Started: now, Until: now.Add(10 * time.Minute),
	}
}

// BenchmarkChange is the cost of one change for the goroutine that reads packets, which waits for no write, and for the
// writer. In the steady state a change of a session does not allocate, apart from compactions.
func BenchmarkChange(b *testing.B) {
	now := time.Now()
	peers := []netip.Addr{netip.MustParseAddr("10.1.2.3")}
	bench := func(name string, run func(*Journal, ID)) {
		b.Run(name, func(b *testing.B) {
			j, _ := Open(Options{Dir: b.TempDir()})
			id := j.Add(sample(now))
			b.ReportAllocs()
			for b.Loop() {
				run(j, id)
			}
			if s := j.Status(); s.Problem != "" {
				b.Error(s.Problem)
			}
			if err := j.Close(); err != nil {
				b.Error(err)
			}
		})
	}
	r := sample(now)
	bench("AddEnd", func(j *Journal, _ ID) { j.End(j.Add(r)) })
	bench("Permit", func(j *Journal, id ID) { j.Permit(id, peers, now) })
	check := session.Check{Peer: r.Client, Message: make([]byte, 108)}
	bench("Check", func(j *Journal, id ID) { check.Message[50]++; j.Check(id, check) })
	bench("CheckRepeated", func(j *Journal, id ID) { j.Check(id, check) })
	bench("Refresh", func(j *Journal, id ID) { j.Refresh(id, 600, now) })
	bench("Bind", func(j *Journal, id ID) { j.Bind(id, session.ChannelRecord{Number: 0x4000, Peer: r.Client, Until: now}) })
}
