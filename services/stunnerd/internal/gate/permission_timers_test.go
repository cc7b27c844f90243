package gate

import (
	"net/netip"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pion/stun/v2"
)

// P-06: a permission lasts 300 s (RFC 8656 §9). CreatePermission and ChannelBind refresh it, with any port. Data does
// not.
func TestPermissionLasts300Seconds(t *testing.T) {
	const peerAddr, otherPort = "127.0.0.1:4000", "127.0.0.1:4001"
	cases := map[string]struct {
		at100 func(v *virtual, c *client, via netip.AddrPort)
		ends  time.Duration
	}{
		"nothing": {func(*virtual, *client, netip.AddrPort) {}, 300 * time.Second},
		"CreatePermission": {func(v *virtual, c *client, _ netip.AddrPort) {
			v.must(c, stun.MethodCreatePermission, peerAt(peerAddr))
		}, 400 * time.Second},
		"CreatePermission for another port": {func(v *virtual, c *client, _ netip.AddrPort) {
			v.must(c, stun.MethodCreatePermission, peerAt("127.0.0.1:9"))
		}, 400 * time.Second},
		"ChannelBind": {func(v *virtual, c *client, _ netip.AddrPort) {
			v.must(c, stun.MethodChannelBind, channel(0x4000), peerAt(otherPort))
		}, 400 * time.Second},
		"Refresh": {
			func(v *virtual, c *client, _ netip.AddrPort) { v.must(c, stun.MethodRefresh, lifetime(1800)) },
			300 * time.Second,
		},
		"indications": {func(v *virtual, c *client, via netip.AddrPort) {
			v.carries("indications", v.indications(c, via, v.peer(peerAddr)), both)
		}, 300 * time.Second},
		"ChannelData": {func(v *virtual, c *client, via netip.AddrPort) {
			v.carries("channel", v.channel(c, via, v.peer(otherPort)), both)
		}, 300 * time.Second},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(v *virtual) {
				c, via := v.guest(1800)
				v.must(c, stun.MethodChannelBind, channel(0x4000), peerAt(otherPort))
				v.must(c, stun.MethodCreatePermission, peerAt(peerAddr))
				v.at(100 * time.Second)
				tc.at100(v, c, via)
				v.at(tc.ends - time.Second)
				v.carries("permission", v.indications(c, via, v.peer(peerAddr)), both)
				v.at(tc.ends + time.Second)
				v.carries("permission", v.indications(c, via, v.peer(peerAddr)), neither)
			})
		})
	}
}

// P-06: a channel lasts 600 s (RFC 8656 §12). Only ChannelBind refreshes it. After that, number and peer can be bound
// at once: the five minutes of §12 are a rule for clients.
func TestChannelLasts600Seconds(t *testing.T) {
	peer, other := peerAt("127.0.0.1:4000"), peerAt("127.0.0.1:4001")
	cases := map[string]struct {
		at300 func(v *virtual, c *client, via netip.AddrPort)
		ends  time.Duration
	}{
		"nothing": {func(*virtual, *client, netip.AddrPort) {}, 600 * time.Second},
		"ChannelBind": {func(v *virtual, c *client, _ netip.AddrPort) {
			v.must(c, stun.MethodChannelBind, channel(0x4000), peer)
		}, 900 * time.Second},
		"CreatePermission": {
			func(v *virtual, c *client, _ netip.AddrPort) { v.must(c, stun.MethodCreatePermission, peer) },
			600 * time.Second,
		},
		"Refresh": {
			func(v *virtual, c *client, _ netip.AddrPort) { v.must(c, stun.MethodRefresh, lifetime(1800)) },
			600 * time.Second,
		},
		"ChannelData": {func(v *virtual, c *client, via netip.AddrPort) {
			v.carries("channel", v.channel(c, via, v.peer("127.0.0.1:4000")), both)
		}, 600 * time.Second},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(v *virtual) {
				c, via := v.guest(1800)
				v.must(c, stun.MethodChannelBind, channel(0x4000), peer)
				v.at(300 * time.Second)
				tc.at300(v, c, via)
				v.at(tc.ends - time.Second)
				v.must(c, stun.MethodCreatePermission, peer)
				v.carries("channel", v.channel(c, via, v.peer("127.0.0.1:4000")), both)
				v.expect(400, c, stun.MethodChannelBind, channel(0x4000), other)
				v.expect(400, c, stun.MethodChannelBind, channel(0x4001), peer)
				v.at(tc.ends + time.Second)
				v.carries("channel", v.channel(c, via, v.peer("127.0.0.1:4000")), neither)
				v.carries("indications", v.indications(c, via, v.peer("127.0.0.1:4000")), both)
				v.must(c, stun.MethodChannelBind, channel(0x4000), other)
				v.must(c, stun.MethodChannelBind, channel(0x4001), peer)
				v.carries("channel", v.channel(c, via, v.peer("127.0.0.1:4001")), both)
			})
		})
	}
}

// Data of a peer that arrives during a ChannelBind is sent to the client after the answer, because some clients drop
// ChannelData of a channel that is not confirmed.
func TestChannelIsAnsweredBeforeItIsUsed(t *testing.T) {
	virtually(t, func(v *virtual) {
		c, via := v.guest(0)
		peer := v.peer("127.0.0.1:4000")
		bind := v.signed(
			c, username, password, stun.MethodChannelBind, channel(0x4000),
			addressAttr(stun.AttrXORPeerAddress, peer.Addr()),
		)
		c.meanwhile = func() {
			peer.Send(via, "back")
			for range 1000 { // lets other goroutines run
				runtime.Gosched()
			}
		}
		if code := codeOf(v.send(c, bind)); code != 0 {
			t.Fatalf("bind: %d", code)
		}
		synctest.Wait()
		if got := string(<-c.frames); got != "\x40\x00\x00\x04back" {
			t.Errorf("behind the answer comes %q", got)
		}
		v.carries("the channel", v.channel(c, via, peer), both)
	})
}

// P-06: the peer of a channel may send for 300 s after CreatePermission, ChannelBind or ChannelData of the client.
// ChannelData is not mentioned in RFC 8656 §12, but clients that refresh only their channels, such as aioice, depend on
// it. Data of the peer, and ChannelData to another peer, refresh nothing.
func TestPeerOfChannelMaySendFor300Seconds(t *testing.T) {
	const peerAddr, samePeer, otherPeer = "127.0.0.1:4000", "127.0.0.1:4001", "127.0.0.2:4000"
	cases := map[string]struct {
		at295 func(v *virtual, c *client, via netip.AddrPort)
		ends  time.Duration
	}{
		"nothing": {func(*virtual, *client, netip.AddrPort) {}, 300 * time.Second},
		"ChannelData of the client": {func(v *virtual, c *client, _ netip.AddrPort) {
			v.Relay(c.addr).FromClient([]byte("\x40\x00\x00\x05there"))
			if !v.arrived(v.Relay(c.addr).Session().Relay, v.peer(peerAddr)) {
				v.t.Error("ChannelData did not arrive")
			}
		}, 595 * time.Second},
		"ChannelData to another peer": {func(v *virtual, c *client, _ netip.AddrPort) {
			v.Relay(c.addr).FromClient([]byte("\x40\x01\x00\x05there"))
		}, 300 * time.Second},
		"data of the peer": {func(v *virtual, c *client, via netip.AddrPort) {
			if v.answer(c, via, v.peer(peerAddr)) == nil {
				v.t.Error("data of the peer is not forwarded")
			}
		}, 300 * time.Second},
		"Send indication": {func(v *virtual, c *client, _ netip.AddrPort) {
			v.Receive(v.build(stun.NewType(stun.MethodSend, stun.ClassIndication), peerAt(peerAddr), data("there")), c)
		}, 300 * time.Second},
		"CreatePermission for another port": {func(v *virtual, c *client, _ netip.AddrPort) {
			v.must(c, stun.MethodCreatePermission, peerAt(samePeer))
		}, 595 * time.Second},
		"ChannelBind": {func(v *virtual, c *client, _ netip.AddrPort) {
			v.must(c, stun.MethodChannelBind, channel(0x4000), peerAt(peerAddr))
		}, 595 * time.Second},
		"ChannelBind for another port": {func(v *virtual, c *client, _ netip.AddrPort) {
			v.must(c, stun.MethodChannelBind, channel(0x4002), peerAt(samePeer))
		}, 595 * time.Second},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(v *virtual) {
				v.Update(policy(), routes("127.0.0.0/8:<4000-4999>"))
				c, via := v.guest(1800)
				v.must(c, stun.MethodChannelBind, channel(0x4000), peerAt(peerAddr))
				v.must(c, stun.MethodChannelBind, channel(0x4001), peerAt(otherPeer))
				v.at(295 * time.Second)
				tc.at295(v, c, via)
				v.at(tc.ends - time.Second)
				if got := string(v.answer(c, via, v.peer(peerAddr))); got != "\x40\x00\x00\x04back" {
					t.Errorf("after %s the client gets %q", time.Since(v.began), got)
				}
				v.at(tc.ends + time.Second)
				if got := v.answer(c, via, v.peer(peerAddr)); got != nil {
					t.Errorf("after %s the client still gets %q", time.Since(v.began), got)
				}
				if n := v.meter.Drops()["no_permission"]; n != 1 {
					t.Errorf("%d datagrams counted as dropped without permission, want 1", n)
				}
			})
		})
	}
}

// P-06: if a client keeps sending ChannelData, its peer may send for as long as the channel is bound. The permission
// for other ports of the peer, and for Send indications, expires nevertheless.
func TestChannelInUseOutlivesItsPermission(t *testing.T) {
	virtually(t, func(v *virtual) {
		c, via := v.guest(1800)
		v.must(c, stun.MethodChannelBind, channel(0x4000), peerAt("127.0.0.1:4000"))
		for moment := time.Duration(0); moment < 590*time.Second; moment += 290 * time.Second {
			v.at(moment)
			v.carries("channel", v.channel(c, via, v.peer("127.0.0.1:4000")), both)
		}
		v.at(306 * time.Second)
		v.carries("another port", v.indications(c, via, v.peer("127.0.0.1:4001")), neither)
		v.at(599 * time.Second)
		v.carries("channel", v.channel(c, via, v.peer("127.0.0.1:4000")), both)
		v.at(601 * time.Second)
		v.carries("channel", v.channel(c, via, v.peer("127.0.0.1:4000")), neither)
		v.carries("indications", v.indications(c, via, v.peer("127.0.0.1:4000")), neither)
	})
}
