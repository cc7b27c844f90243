package gate

import (
	"testing"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/journal"
)

// BenchmarkReceive measures one request of each kind in a session, and a Send indication.
func BenchmarkReceive(b *testing.B) {
	for _, name := range []string{"NoJournal", "Journal"} {
		b.Run(name, func(b *testing.B) {
			g := newFixture(b)
			if name == "Journal" {
				g.journal, _ = journal.Open(journal.Options{Dir: b.TempDir()})
				b.Cleanup(func() {
					if err := g.journal.Close(); err != nil {
						b.Error(err)
					}
				})
			}
			receive(b, g)
		})
	}
}

func receive(b *testing.B, g fixture) {
	c := newClient("192.0.2.1:1000")
	g.allocate(c)
	peer := peerAt("127.0.0.1:4000")
	data := stun.RawAttribute{Type: stun.AttrData, Value: make([]byte, 160)}
	signed := func(method stun.Method, attrs ...stun.Setter) []byte {
		return g.signed(c, username, password, method, attrs...)
	}
	for _, message := range []struct {
		name string
		raw  []byte
	}{
		{"Refresh", signed(stun.MethodRefresh)},
		{"CreatePermission", signed(stun.MethodCreatePermission, peer)},
		{"ChannelBind", signed(stun.MethodChannelBind, channel(0x4000), peer)},
		{"Send", g.build(stun.NewType(stun.MethodSend, stun.ClassIndication), peer, data)},
	} {
		b.Run(message.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				g.Receive(message.raw, mute{c})
			}
		})
	}
}

// BenchmarkCopy measures a copy of a session for other pods.
func BenchmarkCopy(b *testing.B) {
	g := newFixture(b)
	c := newClient("192.0.2.1:1000")
	g.allocate(c)
	g.Receive(g.signed(c, username, password, stun.MethodChannelBind, channel(0x4000), peerAt("127.0.0.1:4000")), mute{c})
	check := g.build(stun.BindingRequest, stun.NewUsername("a:b"), stun.RawAttribute{Type: stun.AttrUseCandidate})
	g.Relay(c.addr).FromClient(append([]byte{0x40, 0, 0, byte(len(check))}, check...))
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := g.Copy(c.addr, 1000); !ok {
			b.Fatal("no copy")
		}
	}
}
