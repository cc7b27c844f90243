package gate

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pion/stun/v2"
)

// T-A6: an allocation lasts exactly as long as granted (RFC 8656 §7.2).
func TestAllocationLastsAsLongAsGranted(t *testing.T) {
	for asked, granted := range map[uint32]time.Duration{
		0: 600, 10: 600, 601: 601, 1800: 1800, 3599: 3599, 3600: 3600, 1 << 31: 3600,
	} {
		t.Run(fmt.Sprint(asked), func(t *testing.T) {
			virtually(t, func(v *virtual) {
				c, via := v.guest(asked)
				v.lasts(c, via, granted*time.Second)
			})
		})
	}
}

// lasts checks that an allocation exists exactly until the given time.
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
		v.t.Errorf(
			"after %s: %d sessions, %d allocations, %d sockets", time.Since(v.began), v.table.Len(),
			v.engine.Allocations(), v.net.Len(),
		)
	}
	v.carries("allocation", v.indications(c, via, v.peer("127.0.0.1:4000")), neither)
	for _, method := range []stun.Method{stun.MethodRefresh, stun.MethodCreatePermission, stun.MethodChannelBind} {
		v.expect(437, c, method, peerAt("127.0.0.1:4000"), channel(0x4000))
	}
}

// A request at the moment of the end gets success or 437, without a panic. pion/turn panics if its own timer ends an
// allocation while it creates a permission: see renewalInterval of pionturn.
func TestCreatePermissionWhileAnAllocationEnds(t *testing.T) {
	virtually(t, func(v *virtual) {
		v.Update(policy(), routes("10.0.0.0/8"))
		const clients, peers = 100, 256
		for round := range 10 {
			end := time.Now().Add(defaultLifetime * time.Second)
			asks := map[*client][]byte{} // built before the end of the lifetime
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

// Only the gate ends a session. The engine keeps the allocation, even if the gate is half an hour late.
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

// A Refresh at the moment of the end gets success, and the session continues, or it gets 437.
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

// A Refresh replaces the remaining lifetime, and may shorten it (RFC 8656 §8.2).
func TestRefreshReplacesTheLifetime(t *testing.T) {
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

// T-A13: a Refresh with lifetime 0 ends the allocation at once, and its 5-tuple is free.
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

// T-A7, G-03: a reserved port is closed after 30 s.
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
				token, err := v.send(first, v.signed(first, username, password, stun.MethodAllocate, udp, even)).Get(
					stun.AttrReservationToken,
				)
				if err != nil || v.net.Len() != 2 {
					t.Fatalf("token: %v, %d sockets", err, v.net.Len())
				}
				v.at(tc.after)
				second := newClient("192.0.2.1:1001")
				v.expect(
					tc.code, second, stun.MethodAllocate, udp,
					stun.RawAttribute{Type: stun.AttrReservationToken, Value: token},
				)
				v.at(tc.after + 30*time.Second)
				if v.net.Len() != tc.open || v.table.Len() != tc.open {
					t.Errorf("%d sockets, %d sessions, want %d", v.net.Len(), v.table.Len(), tc.open)
				}
				if r := v.Relay(second.addr); r != nil &&
					r.Session().Relay.Port() != v.Relay(first.addr).Session().Relay.Port()+1 {
					t.Errorf("the token gave port %d", r.Session().Relay.Port())
				}
			})
		})
	}
}

// lifetimes are measured by the monotonic clock. A time without a monotonic reading would be compared by the wall
// clock.
func TestLifetimesAreMonotonic(t *testing.T) {
	b, c := newFixture(t), newClient("192.0.2.1:1000")
	b.allocate(c)
	permitted := peerAt("127.0.0.1:4000")
	if code := codeOf(b.send(c, b.signed(c, username, password, stun.MethodCreatePermission, permitted))); code != 0 {
		t.Fatal(code)
	}
	f := b.flow(c.addr)
	for what, at := range map[string]time.Time{
		"session, by which channels live": f.Started,
		"lifetime":                        f.until,
		"permission":                      f.permitted.held(permitted.Addr.Addr()).until,
	} {
		if at == at.Round(0) {
			t.Errorf("%s: %s has no monotonic reading", what, at)
		}
	}
}
