package relay

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// quietClient is the transport of a client that discards everything, like quietSocket: the cost of the kernel would
// hide the cost of the ledger.
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
			Capacity: session.Amounts{session.RelayPorts: 1000, session.Memory: 64 << 20, session.Slots: 1000},
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

// G-11: TestLedgerAllocatesNothing: media costs no allocation, with and without the accounting of the ledger.
func TestLedgerAllocatesNothing(t *testing.T) {
	for _, accounted := range []bool{false, true} {
		pass := media(t, accounted)
		if n := testing.AllocsPerRun(10, func() { pass(1000) }); n > 0 {
			t.Errorf("accounted %t: %.0f allocations in 1000 packets", accounted, n)
		}
	}
}

// BenchmarkLedger measures two packets with and without the accounting of the ledger.
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
