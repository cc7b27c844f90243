package gate

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/engine/pionturn"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/limit"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/nonce"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay/relaytest"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/stunmsg"
)

// virtual is a gate in virtual time, whose relays meet peers in memory.
type virtual struct {
	bed
	net   *relaytest.Network
	began time.Time
}

// virtually runs a test in virtual time. When it returns all lifetimes pass, and then there must be nothing left of what it did: no session,
// no allocation, no socket, and no goroutine, for which synctest itself waits.
func virtually(t *testing.T, test func(v *virtual)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		v := newVirtual(t)
		test(v)
		time.Sleep(time.Hour + time.Second)
		synctest.Wait()
		if a, b, c, d := v.table.Len(), v.engine.Allocations(), v.Sessions(), v.net.Len(); a+b+c+d != 0 {
			t.Errorf("left behind: %d sessions in the table, %d allocations, %d flows, %d relay sockets", a, b, c, d)
		}
	})
}

func newVirtual(t *testing.T) *virtual {
	// The bubble begins in 2000, when no ephemeral user name expires: an expiry is a number of ten digits, which begins in September 2001.
	time.Sleep(time.Until(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)))
	log := slog.New(slog.DiscardHandler)
	engine, err := pionturn.New(2, log)
	if err != nil {
		t.Fatal(err)
	}
	nonces, err := nonce.New()
	if err != nil {
		t.Fatal(err)
	}
	v := &virtual{net: &relaytest.Network{}, began: time.Now()}
	v.bed = bed{t: t, Gate: New("test", config.TURNUDP, Shared{
		Engine: engine, Nonces: nonces, Network: v.net, Held: relay.NewReservations(), Limits: limit.NewProcess(), Table: session.NewTable(), Meter: meter.New(), Log: log,
	})}
	v.Update(policy(), routes("127.0.0.1:<4000-4999>"))
	t.Cleanup(func() {
		v.Gate.Close()
		if err := errors.Join(v.held.Close(), engine.Close()); err != nil {
			t.Error(err)
		}
	})
	return v
}

// at lets time pass until so much of it has passed since the beginning.
func (v *virtual) at(moment time.Duration) {
	time.Sleep(time.Until(v.began.Add(moment)))
	synctest.Wait()
}

// ask makes a request with the credential of the policy and returns the code that answers it.
func (v *virtual) ask(c *client, method stun.Method, attrs ...stun.Setter) stun.ErrorCode {
	v.t.Helper()
	return codeOf(v.send(c, v.signed(c, username, password, method, attrs...)))
}

// must makes a request that succeeds.
func (v *virtual) must(c *client, method stun.Method, attrs ...stun.Setter) {
	v.t.Helper()
	if code := v.ask(c, method, attrs...); code != 0 {
		v.t.Fatalf("%s: %d", method, code)
	}
}

// expect makes a request that is answered with a code.
func (v *virtual) expect(want stun.ErrorCode, c *client, method stun.Method, attrs ...stun.Setter) {
	v.t.Helper()
	if code := v.ask(c, method, attrs...); code != want {
		v.t.Errorf("%s after %s: %d, want %d", method, time.Since(v.began), code, want)
	}
}

// guest is a client with an allocation of so many seconds, or the default for 0, and the address of its relay.
func (v *virtual) guest(seconds uint32) (*client, netip.AddrPort) {
	v.t.Helper()
	c := newClient("192.0.2.1:1000")
	attrs := []stun.Setter{udp}
	if seconds != 0 {
		attrs = append(attrs, lifetime(seconds))
	}
	v.must(c, stun.MethodAllocate, attrs...)
	return c, v.Relay(c.addr).Session().Relay
}

func lifetime(seconds uint32) stunmsg.Number { return number(stun.AttrLifetime, seconds) }

// ways says where data passes.
type ways struct{ toPeer, toClient bool }

var (
	both    = ways{true, true}
	neither = ways{}
)

func (w ways) String() string {
	return fmt.Sprintf("to the peer %t, to the client %t", w.toPeer, w.toClient)
}

// indications tries Send and Data.
func (v *virtual) indications(c *client, via netip.AddrPort, peer relaytest.Peer) (w ways) {
	v.t.Helper()
	at := addressAttr(stun.AttrXORPeerAddress, peer.Addr())
	v.Receive(v.build(stun.NewType(stun.MethodSend, stun.ClassIndication), at, data("there")), c)
	w.toPeer = v.arrived(via, peer)
	m := &stun.Message{Raw: v.answer(c, via, peer)}
	var from stun.XORMappedAddress
	if m.Raw != nil && m.Decode() == nil && from.GetFromAs(m, stun.AttrXORPeerAddress) == nil {
		payload, err := m.Get(stun.AttrData)
		w.toClient = err == nil && string(payload) == "back" && from.String() == peer.Addr().String() &&
			m.Type == stun.NewType(stun.MethodData, stun.ClassIndication)
	}
	return w
}

// channel tries ChannelData on channel 0x4000.
func (v *virtual) channel(c *client, via netip.AddrPort, peer relaytest.Peer) (w ways) {
	v.t.Helper()
	if r := v.Relay(c.addr); r != nil {
		r.FromClient([]byte("\x40\x00\x00\x05there"))
	}
	w.toPeer = v.arrived(via, peer)
	w.toClient = string(v.answer(c, via, peer)) == "\x40\x00\x00\x04back"
	return w
}

func data(payload string) stun.RawAttribute {
	return stun.RawAttribute{Type: stun.AttrData, Value: []byte(payload)}
}

// arrived tells whether the peer has got what was sent there.
func (v *virtual) arrived(via netip.AddrPort, peer relaytest.Peer) bool {
	synctest.Wait()
	got := peer.Got()
	return len(got) == 1 && got[0].From == via && got[0].Payload == "there"
}

// answer is what the client gets when the peer sends something, nil for nothing.
func (v *virtual) answer(c *client, via netip.AddrPort, peer relaytest.Peer) []byte {
	peer.Send(via, "back")
	synctest.Wait()
	select {
	case frame := <-c.frames:
		return frame
	default:
		return nil
	}
}

// carries expects that data passes, or that it does not.
func (v *virtual) carries(what string, got, want ways) {
	v.t.Helper()
	if got != want {
		v.t.Errorf("%s after %s: %s; want %s", what, time.Since(v.began), got, want)
	}
}

// P-06: a permission lasts 300 s (RFC 8656 §9). CreatePermission and ChannelBind begin them anew, whatever the port; data does not.
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
		"Refresh": {func(v *virtual, c *client, _ netip.AddrPort) { v.must(c, stun.MethodRefresh, lifetime(1800)) }, 300 * time.Second},
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

func (v *virtual) peer(addr string) relaytest.Peer { return v.net.Peer(netip.MustParseAddrPort(addr)) }

// P-06: a channel lasts 600 s (RFC 8656 §12). Only ChannelBind begins them anew. Then number and peer are free at once: the five minutes that
// §12 speaks of are for the client to wait.
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
		"CreatePermission": {func(v *virtual, c *client, _ netip.AddrPort) { v.must(c, stun.MethodCreatePermission, peer) }, 600 * time.Second},
		"Refresh":          {func(v *virtual, c *client, _ netip.AddrPort) { v.must(c, stun.MethodRefresh, lifetime(1800)) }, 600 * time.Second},
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

// Data that come while a ChannelBind is being answered do not overtake the answer: clients are there that know no channel before it. They come right
// behind it.
func TestChannelIsAnsweredBeforeItIsUsed(t *testing.T) {
	virtually(t, func(v *virtual) {
		c, via := v.guest(0)
		peer := v.peer("127.0.0.1:4000")
		bind := v.signed(c, username, password, stun.MethodChannelBind, channel(0x4000), addressAttr(stun.AttrXORPeerAddress, peer.Addr()))
		c.meanwhile = func() {
			peer.Send(via, "back")
			for range 1000 { // whoever wants to overtake can
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

// P-06: the peer of a channel is heard for 300 s after the client has refreshed its permission, with CreatePermission or ChannelBind, or has sent
// ChannelData to it. The last is no part of RFC 8656 §12: clients that renew nothing but their channels, aioice among them, count on it. What the peer
// sends prolongs nothing, and neither does ChannelData to another peer.
func TestPeerOfChannelIsHeard300Seconds(t *testing.T) {
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
				v.t.Error("the peer is not heard")
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

// P-06: a client that sends ChannelData all the time hears its peer for as long as the channel is bound. The permission for other ports of the peer, and for
// Send indications, ends all the same.
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

// T-A6: an allocation lasts as long as its client is told, to the second. What it is told is RFC 8656 §7.2.
func TestAllocationLastsAsLongAsGranted(t *testing.T) {
	for asked, granted := range map[uint32]time.Duration{0: 600, 10: 600, 601: 601, 1800: 1800, 3599: 3599, 3600: 3600, 1 << 31: 3600} {
		t.Run(fmt.Sprint(asked), func(t *testing.T) {
			virtually(t, func(v *virtual) {
				c, via := v.guest(asked)
				v.lasts(c, via, granted*time.Second)
			})
		})
	}
}

// lasts expects that an allocation is there until a moment, and that nothing is left of it then.
func (v *virtual) lasts(c *client, via netip.AddrPort, ends time.Duration) {
	v.t.Helper()
	v.at(ends - time.Second/2)
	v.expect(0, c, stun.MethodCreatePermission, peerAt("127.0.0.1:4000"))
	v.carries("allocation", v.indications(c, via, v.peer("127.0.0.1:4000")), both)
	v.at(ends + time.Second/2)
	v.gone(c, via)
}

func (v *virtual) gone(c *client, via netip.AddrPort) {
	v.t.Helper()
	synctest.Wait()
	if v.table.Len() != 0 || v.engine.Allocations() != 0 || v.net.Len() != 0 {
		v.t.Errorf("after %s: %d sessions, %d allocations, %d sockets", time.Since(v.began), v.table.Len(), v.engine.Allocations(), v.net.Len())
	}
	v.carries("allocation", v.indications(c, via, v.peer("127.0.0.1:4000")), neither)
	for _, method := range []stun.Method{stun.MethodRefresh, stun.MethodCreatePermission, stun.MethodChannelBind} {
		v.expect(437, c, method, peerAt("127.0.0.1:4000"), channel(0x4000))
	}
}

// Sessions end in their lane: whoever times requests to the moment of the end is answered with success or 437, and costs nobody anything. When
// pion/turn ended them beside the lane, a permission that was being made then killed the process.
func TestPermissionsAreAskedForAtTheMomentOfTheEnd(t *testing.T) {
	virtually(t, func(v *virtual) {
		v.Update(policy(), routes("10.0.0.0/8"))
		const clients, peers = 100, 256
		for round := range 10 {
			end := time.Now().Add(defaultLifetime * time.Second)
			asks := map[*client][]byte{} // made before, so that nothing but the gate is at work then
			for i := range clients {
				c := newClient(fmt.Sprintf("192.0.2.%d:%d", 1+i, 1000+round))
				v.must(c, stun.MethodAllocate, udp)
				var attrs []stun.Setter
				for p := range peers {
					attrs = append(attrs, peerAt(fmt.Sprintf("10.0.%d.%d:1", 1+round, p)))
				}
				asks[c] = v.signed(c, username, password, stun.MethodCreatePermission, attrs...)
			}
			var asking sync.WaitGroup
			for c, ask := range asks {
				asking.Go(func() {
					time.Sleep(time.Until(end))
					if code := codeOf(v.send(c, ask)); code != 0 && code != 437 {
						t.Errorf("%d", code)
					}
				})
			}
			asking.Wait()
			synctest.Wait()
			if n := v.engine.Allocations(); n != 0 {
				t.Fatalf("%d allocations are left", n)
			}
		}
	})
}

// The gate alone ends a session: the engine keeps the allocation, even if the gate is half an hour late.
func TestEngineDoesNotEndSessions(t *testing.T) {
	for _, granted := range []time.Duration{600 * time.Second, 3000 * time.Second, 3600 * time.Second} {
		t.Run(granted.String(), func(t *testing.T) {
			virtually(t, func(v *virtual) {
				c, _ := v.guest(uint32(granted.Seconds()))
				v.at(granted - time.Second)
				f := v.flow(c.addr)
				f.expiry.Stop()
				v.at(granted + 30*time.Minute)
				if n := v.engine.Allocations(); n != 1 {
					t.Errorf("%d allocations", n)
				}
				f.expiry.Reset(0)
				synctest.Wait()
				if a, b := v.engine.Allocations(), v.table.Len(); a+b != 0 {
					t.Errorf("%d allocations, %d sessions", a, b)
				}
			})
		})
	}
}

// A refresh that comes at the moment of the end is granted, and then holds, or is answered with 437.
func TestRefreshAtTheMomentOfTheEnd(t *testing.T) {
	virtually(t, func(v *virtual) {
		granted := map[*client]bool{}
		var all []*client
		for i := range 200 {
			c := newClient(fmt.Sprintf("192.0.2.%d:1000", 1+i))
			v.must(c, stun.MethodAllocate, udp)
			all = append(all, c)
		}
		var asking sync.WaitGroup
		var mu sync.Mutex
		for _, c := range all {
			ask := v.signed(c, username, password, stun.MethodRefresh)
			asking.Go(func() {
				time.Sleep(time.Until(v.began.Add(defaultLifetime * time.Second)))
				code := codeOf(v.send(c, ask))
				mu.Lock()
				defer mu.Unlock()
				if granted[c] = code == 0; !granted[c] && code != 437 {
					t.Errorf("%d", code)
				}
			})
		}
		asking.Wait()
		v.at(2*defaultLifetime*time.Second - time.Second)
		for c, want := range granted {
			if live := v.Relay(c.addr) != nil; live != want {
				t.Errorf("granted: %t, lives: %t", want, live)
			}
		}
		v.at(2*defaultLifetime*time.Second + time.Second)
		if n := v.table.Len(); n != 0 {
			t.Errorf("%d sessions outlive their refresh", n)
		}
	})
}

// A refresh counts from when it is made, and may shorten what is left (RFC 8656 §8.2).
func TestRefreshBeginsTheLifetimeAnew(t *testing.T) {
	cases := map[string]struct {
		first, then   uint32
		refresh, ends time.Duration
	}{
		"default":             {0, 0, 300, 900},
		"at the last moment":  {0, 0, 599, 1199},
		"longer":              {600, 1800, 300, 2100},
		"shorter":             {3599, 600, 100, 700},
		"below the default":   {1800, 1, 100, 700},
		"longest":             {600, 3600, 300, 3900},
		"longest, twice over": {3600, 3600, 3000, 6600},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(v *virtual) {
				c, via := v.guest(tc.first)
				v.at(tc.refresh * time.Second)
				var attrs []stun.Setter
				if tc.then != 0 {
					attrs = append(attrs, lifetime(tc.then))
				}
				v.must(c, stun.MethodRefresh, attrs...)
				v.lasts(c, via, tc.ends*time.Second)
			})
		})
	}
}

// T-A13: a refresh to zero ends the allocation at once, and its 5-tuple is free.
func TestRefreshToZeroEndsAtOnce(t *testing.T) {
	virtually(t, func(v *virtual) {
		c, via := v.guest(1800)
		v.must(c, stun.MethodCreatePermission, peerAt("127.0.0.1:4000"))
		v.must(c, stun.MethodChannelBind, channel(0x4000), peerAt("127.0.0.1:4000"))
		v.must(c, stun.MethodRefresh, lifetime(0))
		v.gone(c, via)
		c, via = v.guest(0)
		v.carries("a permission of before", v.indications(c, via, v.peer("127.0.0.1:4000")), neither)
		v.carries("a channel of before", v.channel(c, via, v.peer("127.0.0.1:4000")), neither)
	})
}

// a nonce is good for an hour; then the client gets another one.
func TestNonceLastsAnHour(t *testing.T) {
	virtually(t, func(v *virtual) {
		nonce := v.nonce(newClient("192.0.2.1:1"))
		ask := func(port int, nonce stun.Nonce) *stun.Message {
			return v.send(newClient(fmt.Sprint("192.0.2.1:", port)), v.build(request4(stun.MethodAllocate), udp,
				stun.NewUsername(username), stun.NewRealm(realm), nonce, stun.NewLongTermIntegrity(username, realm, password)))
		}
		v.at(time.Hour - time.Second)
		if code := codeOf(ask(2, nonce)); code != 0 {
			t.Errorf("after 59:59: %d", code)
		}
		v.at(time.Hour + time.Second)
		stale := ask(3, nonce)
		fresh, err := stale.Get(stun.AttrNonce)
		if codeOf(stale) != 438 || err != nil || !stale.Contains(stun.AttrRealm) {
			t.Fatalf("after 60:01: %v, %v", stale, err)
		}
		if code := codeOf(ask(3, fresh)); code != 0 {
			t.Errorf("with the new nonce: %d", code)
		}
	})
}

// T-13: a credential begins allocations until it expires, but for the leeway, and carries one that it began until then, or for the grace more.
func TestCredentialEndsToTheSecond(t *testing.T) {
	const ttl = 600 * time.Second
	requests := map[stun.Method][]stun.Setter{
		stun.MethodRefresh: {lifetime(3600)}, stun.MethodCreatePermission: {peerAt("127.0.0.1:4000")},
		stun.MethodChannelBind: {channel(0x4000), peerAt("127.0.0.1:4000")},
	}
	for _, grace := range []time.Duration{0, 300 * time.Second} {
		t.Run(fmt.Sprint("grace ", grace), func(t *testing.T) {
			virtually(t, func(v *virtual) {
				p := policy()
				p.Authority.SharedSecret, p.SessionGrace = "shared", grace
				v.Update(p, routes("127.0.0.1:<4000-4999>"))
				cred, err := p.Authority.Mint("ann", ttl, time.Now())
				if err != nil {
					t.Fatal(err)
				}
				c := newClient("192.0.2.1:1000")
				try := func(want stun.ErrorCode, c *client, method stun.Method, attrs ...stun.Setter) {
					t.Helper()
					if got := codeOf(v.send(c, v.signed(c, cred.Username, string(cred.Password), method, attrs...))); got != want {
						t.Errorf("%s after %s: %d, want %d", method, time.Since(v.began), got, want)
					}
				}
				all := func(want stun.ErrorCode) {
					t.Helper()
					for method, attrs := range requests {
						try(want, c, method, attrs...)
					}
				}
				try(0, c, stun.MethodAllocate, udp, lifetime(3600))
				v.at(ttl + 5*time.Second)
				try(0, newClient("192.0.2.1:1001"), stun.MethodAllocate, udp)
				all(0)
				v.at(ttl + 6*time.Second)
				try(401, newClient("192.0.2.1:1002"), stun.MethodAllocate, udp)
				if grace > 0 {
					v.at(ttl + grace - time.Second)
					all(0)
					v.at(ttl + grace + time.Second)
				}
				all(401)
			})
		})
	}
}

// after a password was changed the old one begins nothing, and carries a session until its time is over; the new one carries it too.
func TestFormerPasswordCarriesSessionsForAWhile(t *testing.T) {
	const overlap = 10 * time.Minute
	virtually(t, func(v *virtual) {
		c, _ := v.guest(3600)
		next := policy()
		next.Authority.Password = "second"
		next.Former = []Former{{Authority: policy().Authority, Until: time.Now().Add(overlap)}}
		v.Update(next, routes("127.0.0.1:<4000-4999>"))
		v.expect(401, newClient("192.0.2.1:1001"), stun.MethodAllocate, udp)
		v.expect(0, c, stun.MethodRefresh, lifetime(3600))
		v.at(overlap - time.Second)
		v.expect(0, c, stun.MethodRefresh, lifetime(3600))
		v.expect(0, c, stun.MethodCreatePermission, peerAt("127.0.0.1:4000"))
		v.at(overlap + time.Second)
		v.expect(401, c, stun.MethodRefresh, lifetime(3600))
		if code := codeOf(v.send(c, v.signed(c, username, "second", stun.MethodRefresh))); code != 0 {
			t.Errorf("the new password: %d", code)
		}
	})
}

// what a former authority that is good for new sessions has signed begins sessions, and carries them, until its time is over.
func TestFormerAuthorityBeginsSessionsForAWhile(t *testing.T) {
	const grace = time.Hour
	virtually(t, func(v *virtual) {
		next := policy()
		next.Authority.Password = "second"
		next.Former = []Former{{Authority: policy().Authority, Until: time.Now().Add(grace), New: true}}
		v.Update(next, routes("127.0.0.1:<4000-4999>"))
		c := newClient("192.0.2.1:1001")
		v.expect(0, c, stun.MethodAllocate, udp)
		v.at(grace - time.Second)
		v.expect(0, newClient("192.0.2.1:1002"), stun.MethodAllocate, udp)
		v.at(grace + time.Second)
		v.expect(401, newClient("192.0.2.1:1003"), stun.MethodAllocate, udp)
		if code := codeOf(v.send(c, v.signed(c, username, "second", stun.MethodAllocate, udp))); code != 0 {
			t.Errorf("the new password: %d", code)
		}
	})
}

// speaker is a client that has a nonce and a realm, as clients do: until they are told others.
type speaker struct {
	*client
	realm, password string
	nonce           stun.Nonce
	// keeps tells that the client takes the nonce of a 438, and not its realm. Some do.
	keeps bool
}

// says makes a request, once more after a 438, and returns the code of the last answer and the realm of the 438.
func (v *virtual) says(s *speaker, method stun.Method, attrs ...stun.Setter) (code stun.ErrorCode, told string) {
	v.t.Helper()
	for range 2 {
		setters := append([]stun.Setter{request4(method)}, attrs...)
		setters = append(setters, stun.NewUsername(username), stun.NewRealm(s.realm), s.nonce, stun.NewLongTermIntegrity(username, s.realm, s.password))
		m := v.send(s.client, v.build(setters...))
		if code = codeOf(m); code != stun.CodeStaleNonce {
			break
		}
		s.nonce, _ = m.Get(stun.AttrNonce)
		is, _ := m.Get(stun.AttrRealm)
		if told = string(is); !s.keeps {
			s.realm = told
		}
	}
	return code, told
}

// speaker is a client with an allocation of an hour.
func (v *virtual) speaker(addr string, keeps bool) *speaker {
	v.t.Helper()
	a := v.policy.Load().Authority
	s := &speaker{client: newClient(addr), realm: a.Realm, password: string(a.Password), keeps: keeps}
	s.nonce = v.nonce(s.client)
	if code, _ := v.says(s, stun.MethodAllocate, udp, lifetime(3600)); code != 0 {
		v.t.Fatalf("allocate: %d", code)
	}
	return s
}

// authority puts an authority in force, and others for ten minutes more.
func (v *virtual) authority(now credential.Authority, before ...credential.Authority) {
	p := policy()
	p.Authority = now
	for _, a := range before {
		p.Former = append(p.Former, Former{Authority: a, Until: time.Now().Add(10 * time.Minute)})
	}
	v.Update(p, routes("127.0.0.1:<4000-4999>"))
}

// when the realm changes sessions go on for as long as they want, in the realm that they know, or in the new one, which the next nonce
// comes with. Nobody begins one in a realm of before.
func TestSessionsOutliveTheirRealm(t *testing.T) {
	for name, keeps := range map[string]bool{"a client that keeps its realm": true, "a client that takes the new one": false} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(v *virtual) {
				s := v.speaker("192.0.2.1:1000", keeps)
				first := policy().Authority
				for hour, realm := range []string{"second.example", "third.example", "fourth.example"} {
					v.at(time.Duration(hour)*90*time.Minute + time.Minute)
					v.authority(first.In(realm))
					for range 3 {
						time.Sleep(28 * time.Minute)
						code, told := v.says(s, stun.MethodRefresh, lifetime(3600))
						if code != 0 || told != "" && told != realm {
							t.Errorf("refresh after %s: %d, realm %q", time.Since(v.began), code, told)
						}
						if code, _ := v.says(s, stun.MethodCreatePermission, peerAt("127.0.0.1:4000")); code != 0 {
							t.Errorf("permission after %s: %d", time.Since(v.began), code)
						}
					}
					if s.keeps != (s.realm == first.Realm) {
						t.Errorf("after %s the client speaks in %q", time.Since(v.began), s.realm)
					}
				}
				late := &speaker{client: newClient("192.0.2.2:1000"), realm: first.Realm, password: password, nonce: v.nonce(newClient("192.0.2.2:1"))}
				if code, _ := v.says(late, stun.MethodAllocate, udp); code != 401 {
					t.Errorf("allocate in a realm of before: %d", code)
				}
			})
		})
	}
}

// when realm and password change, a session goes on with both that it began with until the time of the password is over. A 438 with
// the new realm would end it: the old password is not good there.
func TestRealmAndPasswordChange(t *testing.T) {
	first := policy().Authority
	other := first
	other.Password = "second"
	for name, change := range map[string]func(v *virtual){
		"at once": func(v *virtual) { v.authority(other.In("second.example"), first) },
		"the realm first": func(v *virtual) {
			v.authority(first.In("second.example"))
			v.authority(other.In("second.example"), first.In("second.example"))
		},
		"the password first": func(v *virtual) { v.authority(other, first); v.authority(other.In("second.example"), first) },
	} {
		for _, keeps := range []bool{true, false} {
			t.Run(fmt.Sprint(name, ", keeps its realm ", keeps), func(t *testing.T) {
				virtually(t, func(v *virtual) {
					s := v.speaker("192.0.2.1:1000", keeps)
					v.at(55 * time.Minute)
					if code, _ := v.says(s, stun.MethodRefresh, lifetime(3600)); code != 0 {
						t.Fatalf("before: %d", code)
					}
					change(v)
					v.at(56 * time.Minute)
					if code, told := v.says(s, stun.MethodRefresh, lifetime(3600)); code != 0 || told != "" {
						t.Errorf("with a nonce that is good: %d, %q", code, told)
					}
					v.at(62 * time.Minute)
					if code, told := v.says(s, stun.MethodRefresh, lifetime(3600)); code != 0 || told != first.Realm {
						t.Errorf("with a nonce that is too old: %d, realm %q", code, told)
					}
					v.at(66 * time.Minute)
					if code, _ := v.says(s, stun.MethodRefresh); code != 401 {
						t.Errorf("after the overlap: %d", code)
					}
					after := v.speaker("192.0.2.2:1000", keeps)
					if after.realm != "second.example" {
						t.Errorf("a new client speaks in %q", after.realm)
					}
				})
			})
		}
	}
}

// T-A7, G-03: a reserved port waits 30 s for its client, in virtual time, and is closed then.
func TestReservedPortWaits30Seconds(t *testing.T) {
	for _, tc := range []struct {
		after time.Duration
		code  stun.ErrorCode
		open  int
	}{{29 * time.Second, 0, 2}, {31 * time.Second, 508, 1}} {
		t.Run(tc.after.String(), func(t *testing.T) {
			virtually(t, func(v *virtual) {
				first := newClient("192.0.2.1:1000")
				even := stun.RawAttribute{Type: stun.AttrEvenPort, Length: 1, Value: []byte{0x80}}
				token, err := v.send(first, v.signed(first, username, password, stun.MethodAllocate, udp, even)).Get(stun.AttrReservationToken)
				if err != nil || v.net.Len() != 2 {
					t.Fatalf("token: %v, %d sockets", err, v.net.Len())
				}
				v.at(tc.after)
				second := newClient("192.0.2.1:1001")
				v.expect(tc.code, second, stun.MethodAllocate, udp, stun.RawAttribute{Type: stun.AttrReservationToken, Value: token})
				v.at(tc.after + 30*time.Second)
				if v.net.Len() != tc.open || v.table.Len() != tc.open {
					t.Errorf("%d sockets, %d sessions, want %d", v.net.Len(), v.table.Len(), tc.open)
				}
				if r := v.Relay(second.addr); r != nil && r.Session().Relay.Port() != v.Relay(first.addr).Session().Relay.Port()+1 {
					t.Errorf("the token gave port %d", r.Session().Relay.Port())
				}
			})
		})
	}
}

// T-10: a source that never comes back is challenged ten times, then ten times a second.
func TestForgedSourceIsChallengedTenTimesASecond(t *testing.T) {
	virtually(t, func(v *virtual) {
		challenges := func(times int) (n int) {
			for i := range times {
				if v.send(newClient(fmt.Sprint("203.0.113.7:", 1+i)), v.build(request4(stun.MethodAllocate), udp)) != nil {
					n++
				}
			}
			return n
		}
		for _, step := range []struct {
			at   time.Duration
			want int
		}{{0, 10}, {90 * time.Millisecond, 0}, {110 * time.Millisecond, 1}, {601 * time.Millisecond, 5}, {10 * time.Second, 10}} {
			v.at(step.at)
			if n := challenges(50); n != step.want {
				t.Errorf("%d of 50 challenged after %s, want %d", n, step.at, step.want)
			}
		}
	})
}

// what lasts a while lasts by the monotonic clock, whatever the wall clock does meanwhile. A time without a monotonic reading would be
// compared by the wall clock.
func TestLifetimesAreMonotonic(t *testing.T) {
	b, c := newBed(t), newClient("192.0.2.1:1000")
	b.allocate(c)
	permitted := peerAt("127.0.0.1:4000")
	if code := codeOf(b.send(c, b.signed(c, username, password, stun.MethodCreatePermission, permitted))); code != 0 {
		t.Fatal(code)
	}
	f := b.flow(c.addr)
	for what, at := range map[string]time.Time{
		"session, by which channels live": f.Started,
		"lifetime":                        f.until,
		"permission":                      f.permitted.until[permitted.Addr.Addr()],
	} {
		if at == at.Round(0) {
			t.Errorf("%s: %s has no monotonic reading", what, at)
		}
	}
}
