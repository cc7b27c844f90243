package gate

import (
	"net/netip"
	"testing"

	"github.com/pion/stun/v2"
)

// The first byte of an XOR-PEER-ADDRESS is ignored (RFC 8489 §14.1).
func TestFirstByteOfAnAddressIsIgnored(t *testing.T) {
	virtually(t, func(v *virtual) {
		c, via := v.guest(0)
		peer := v.net.Peer(netip.MustParseAddrPort("127.0.0.1:4000"))
		v.must(c, stun.MethodCreatePermission, scribbled{peer.Addr()})
		v.Receive(
			v.build(stun.NewType(stun.MethodSend, stun.ClassIndication), scribbled{peer.Addr()}, data("there")), c,
		)
		if !v.arrived(via, peer) {
			t.Error("a Send indication does not arrive")
		}
		v.must(c, stun.MethodChannelBind, channel(0x4000), scribbled{peer.Addr()})
		v.carries("a channel", v.channel(c, via, peer), both)
	})
}

// scribbled is an XOR-PEER-ADDRESS whose first byte is not 0.
type scribbled struct{ addr netip.AddrPort }

func (s scribbled) AddTo(m *stun.Message) error {
	if err := (addressAttr(stun.AttrXORPeerAddress, s.addr)).AddTo(m); err != nil {
		return err
	}
	a, _ := m.Attributes.Get(stun.AttrXORPeerAddress)
	a.Value[0] = 0xFF
	return nil
}
