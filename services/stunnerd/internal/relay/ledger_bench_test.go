package relay

import (
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// quietClient is the transport of a client that sends nothing, as quietSocket: the cost of the kernel would hide that of
// the accounting.
type quietClient struct{ *sink }

func (quietClient) SendAll([]datagram.Packet) {}

// media returns a function that relays n packets in a channel, half of them to the peer and half to the client. The
// session is in a table with a limit of each kind, so that the ledger accounts it; without a table it accounts nothing.
func media(tb testing.TB, accounted bool) func(n int) {
	tb.Helper()
	routes := new(Routes)
	routes.Store(allow("127.0.0.0/8"))
	s := &session.Session{Client: quietClient{&sink{}}, Started: time.Now(), UserID: "ann", Username: "ann"}
	if accounted {
		table := session.NewTable()
		table.SetBounds(session.Bounds{
			UserSessions: 10, SourceSessions: 10,
			Capacity: session.Amounts{session.Places: 1000, session.Memory: 64 << 20, session.Slots: 1000},
		})
		if err := table.Reserve(s); err != nil {
			tb.Fatal(err)
		}
		table.Add(s)
	}
	r := New(s, &quietSocket{}, loopback, routes, meter.New(), func(*Relay) {})
	r.permitted = func(netip.AddrPort) bool { return true }
	r.Bind(0x4000, peer1)()
	f, answer, now := frame(0x4000, make([]byte, 160)), []Datagram{NewDatagram(make([]byte, 160), peer1)}, time.Now()
	return func(n int) {
		for range n / 2 {
			r.FromClient(f)
			r.ReceiveBatch(answer, now)
		}
	}
}

// G-11: TestLedgerCostsMediaNothing: with the accounting of the ledger a relay passes as many packets a second as without
// it, and neither allocates. The rounds of both alternate, and the fastest of each count: whatever else the machine does
// makes a round slower and never faster.
func TestLedgerCostsMediaNothing(t *testing.T) {
	const packets, leastRounds, mostRounds, much = 20_000, 50, 2000, 1.03
	relay := map[bool]func(int){false: media(t, false), true: media(t, true)}
	for accounted, pass := range relay {
		if n := testing.AllocsPerRun(1, func() { pass(packets) }); n > 0 {
			t.Errorf("accounted %t: %.0f allocations in %d packets", accounted, n, packets)
		}
	}
	fastest := map[bool]float64{false: math.Inf(1), true: math.Inf(1)}
	round := 0
	for ; round < mostRounds && (round < leastRounds || fastest[true] > much*fastest[false]); round++ {
		for accounted, pass := range relay {
			began := time.Now()
			pass(packets)
			fastest[accounted] = min(fastest[accounted], float64(time.Since(began))/packets)
		}
	}
	t.Logf("%.1f ns a packet without the ledger, %.1f ns with it, ratio %.3f, after %d rounds", fastest[false], fastest[true],
		fastest[true]/fastest[false], round)
	if fastest[true] > much*fastest[false] {
		t.Errorf("with the ledger a packet takes %.1f ns, without it %.1f ns", fastest[true], fastest[false])
	}
}

// BenchmarkLedger measures media with and without the accounting of the ledger.
func BenchmarkLedger(b *testing.B) {
	for _, c := range []struct {
		name      string
		accounted bool
	}{{"Without", false}, {"With", true}} {
		b.Run(c.name, func(b *testing.B) {
			pass := media(b, c.accounted)
			b.ReportAllocs()
			for b.Loop() {
				pass(2)
			}
		})
	}
}
