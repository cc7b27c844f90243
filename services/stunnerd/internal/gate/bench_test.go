package gate

import (
	"testing"

	"github.com/pion/stun/v2"
)

// BenchmarkReceive measures one request of each kind in a session, and a Send indication.
func BenchmarkReceive(b *testing.B) {
	g, c := newBed(b), newClient("192.0.2.1:1000")
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
				g.Receive(message.raw, c)
				if len(c.frames) > 0 {
					<-c.frames
				}
			}
		})
	}
}
