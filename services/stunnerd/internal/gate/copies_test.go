package gate

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// copyOf returns the copy of a session as the pod has it that takes the session over.
func (s *stored) copyOf(c *client, most int) *session.Record {
	s.t.Helper()
	b, ok := s.Copy(c.addr, most)
	if !ok || len(b) > most {
		s.t.Fatalf("copy of %d bytes: %t", len(b), ok)
	}
	var r session.Record
	if err := r.UnmarshalBinary(b); err != nil {
		s.t.Fatal(err)
	}
	return &r
}

// another pod continues the session of a lost pod with its lifetime, permissions, channels and user. It sends
// nothing before a datagram of the client has arrived, and then sends the nominating check.
func TestSessionOfALostPodContinues(t *testing.T) {
	withJournal(t, func(s *stored) {
		c := s.idle()
		r := s.copyOf(c, 1000)
		id, generation, ok := s.Version(c.addr)
		if !ok || id != r.Transaction || generation != 0 {
			t.Errorf("version %x %d %t", id, generation, ok)
		}
		next := s.successor()
		peer := next.peer("127.0.0.1:4000")
		r.Generation = 256
		if err := next.Take(r, c, nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if sent := peer.Got(); len(sent) > 0 || len(c.frames) > 0 {
			t.Errorf("before the client is reached: %v", sent)
		}
		next.Moved(c.addr, session.Reached)
		time.Sleep(200 * time.Millisecond)
		if sent := peer.Got(); len(sent) == 0 || sent[0].Payload != string(r.Checks[0].Message) {
			t.Errorf("to the peer: %v", sent)
		}
		time.Sleep(time.Minute)
		peer.Got()
		via := next.Relay(c.addr).Session().Relay
		next.carries("channel", next.channel(c, via, peer), both)
		next.carries("indications", next.indications(c, via, next.peer("127.0.0.1:4001")), both)
		next.expect(437, c, stun.MethodAllocate, udp)
		next.must(c, stun.MethodRefresh, lifetime(1800))
		if _, generation, _ := next.Version(c.addr); generation != 256 || next.meter.SessionsRescued.Load() != 1 {
			t.Errorf("generation %d, %d counted", generation, next.meter.SessionsRescued.Load())
		}
		if after := next.killed(c); len(after.restored) != 1 || after.restored[0].Generation != 257 {
			t.Errorf("in the journal: %v", after.restored)
		}
		s.Gate.Close()
	})
}

// a replaced pod ends the session without a datagram to the client, and removes it from the journal.
func TestReplacedPodGivesUp(t *testing.T) {
	withJournal(t, func(s *stored) {
		c := s.idle()
		id, generation, _ := s.Version(c.addr)
		s.GiveUp(c.addr, id, generation+1)
		s.GiveUp(c.addr, [12]byte{1}, generation)
		if s.table.Len() != 1 {
			t.Fatal("another version ends the session")
		}
		s.GiveUp(c.addr, id, generation)
		s.GiveUp(c.addr, id, generation)
		synctest.Wait()
		if s.table.Len() != 0 || s.engine.Allocations() != 0 || s.net.Len() != 0 || len(c.frames) > 0 {
			t.Errorf("%d sessions, %d sockets, %d frames", s.table.Len(), s.net.Len(), len(c.frames))
		}
		if n := s.meter.SessionsGivenUp.Load(); n != 1 {
			t.Errorf("%d sessions counted", n)
		}
		if _, _, ok := s.Version(c.addr); ok {
			t.Error("an ended session has a version")
		}
		if after := s.killed(c); len(after.restored) != 0 {
			t.Errorf("in the journal: %v", after.restored)
		}
	})
}

// quotas refuse new sessions only. A session that moves, or whose pod is lost, continues at a pod that has
// as many sessions of its user and its source as they may have, for example because a quota was lowered meanwhile.
func TestSessionsContinueAboveTheQuota(t *testing.T) {
	for name, quota := range map[string]session.Bounds{"user": {UserSessions: 1}, "source": {SourceSessions: 1}} {
		for _, lost := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, lost %t", name, lost), func(t *testing.T) {
				withJournal(t, func(s *stored) {
					c := s.idle()
					next := s.successor()
					next.guest(600)
					next.table.SetBounds(quota)
					moved, fresh := newClient("192.0.2.1:1001"), newClient("192.0.2.1:1002") // of the same source
					var err error
					if lost {
						err = next.Take(s.copyOf(c, 1000), moved, nil)
					} else {
						d, departed := s.Depart(c.addr, none)
						if departed != nil {
							t.Fatal(departed)
						}
						err = next.Take(transfer(t, &d.Record), moved, next.former())
						d.Go(func([]relay.Datagram) {})
						next.Confirm(moved.addr)
						_ = d.Socket().Close()
					}
					if err != nil || next.table.Len() != 2 {
						t.Fatalf("%v; %d sessions", err, next.table.Len())
					}
					next.expect(stun.CodeAllocQuotaReached, fresh, stun.MethodAllocate, udp)
					s.Gate.Close()
					next.Gate.Close()
				})
			})
		}
	}
}

// a session is not taken over if it is expired, if its credential has unknown caveats, or if the pod is full or
// drains.
func TestRefusedTakeOvers(t *testing.T) {
	for name, refuse := range map[string]func(next *stored, r *session.Record){
		"draining": func(next *stored, _ *session.Record) { next.table.Drain() },
		"full": func(next *stored, _ *session.Record) {
			next.table.SetBounds(session.Bounds{Capacity: session.Amounts{session.Memory: 1}})
		},
		"expired": func(_ *stored, r *session.Record) { r.Until = time.Now().Add(-time.Second) },
		"unknown caveats": func(_ *stored, r *session.Record) {
			r.Username, r.UserID = "9999999999:ann:~9~Z", "ann"
		},
	} {
		t.Run(name, func(t *testing.T) {
			withJournal(t, func(s *stored) {
				r := s.copyOf(s.idle(), 1000)
				next := s.successor()
				refuse(next, r)
				if err := next.Take(r, newClient("192.0.2.8:1000"), nil); err == nil {
					t.Error("the session is taken over")
				}
				if next.table.Len() != 0 || next.engine.Allocations() != 0 || next.net.Len() != 0 {
					t.Errorf("%d sessions, %d sockets", next.table.Len(), next.net.Len())
				}
				s.Gate.Close()
				next.Gate.Close()
			})
		})
	}
}

// if the peer of a client nominates, the copy has the latest check of the client.
func TestCopyOfAClientThatDoesNotNominate(t *testing.T) {
	withJournal(t, func(s *stored) {
		c, _ := s.guest(1800)
		s.must(c, stun.MethodChannelBind, channel(0x4000), peerAt("127.0.0.1:4000"))
		var check []byte
		for range 2 {
			check = s.build(stun.BindingRequest, stun.NewUsername("a:b"))
			s.Relay(c.addr).FromClient(append([]byte{0x40, 0, 0, byte(len(check))}, check...))
		}
		if r := s.copyOf(c, 1000); len(r.Checks) != 1 || string(r.Checks[0].Message) != string(check) {
			t.Errorf("copied: %q, want %q", r.Checks, check)
		}
		s.Gate.Close()
	})
}

// a copy has the checks and the former credentials that fit. There are no copies of sessions without a check, of
// sessions over connections, and of provisional sessions.
func TestACopyHasTheChecksThatFit(t *testing.T) {
	withJournal(t, func(s *stored) {
		c := s.idle()
		whole := s.copyOf(c, 1000)
		if len(whole.Checks) != 1 || len(whole.Channels) != 1 || len(whole.Permissions) != 1 {
			t.Errorf("copied: %+v", whole)
		}
		for secret, want := range map[int]int{10: 1, 950: 0} {
			p := policy()
			p.Former = []Former{{
				Authority: credential.Authority{SharedSecret: credential.Secret(strings.Repeat("a", secret))},
				Replaced:  time.Now(), Until: time.Now().Add(time.Minute),
			}}
			s.Update(p, routes("127.0.0.1:<4000-4999>"))
			if r := s.copyOf(c, 1000); len(r.Former) != want || len(r.Checks) != 1 {
				t.Errorf("copied with a former secret of %d bytes: %+v", secret, r)
			}
		}
		if _, ok := s.Copy(c.addr, 60); ok {
			t.Error("a copy without checks")
		}
		stream := newClient("192.0.2.7:1001")
		s.Receive(s.signed(stream, username, password, stun.MethodAllocate, udp), connection{stream})
		for _, addr := range []netip.AddrPort{stream.addr, netip.MustParseAddrPort("192.0.2.9:1")} {
			if _, ok := s.Copy(addr, 1000); ok {
				t.Errorf("%s is copied", addr)
			}
		}
		d, err := s.Depart(c.addr, none)
		if err != nil {
			t.Fatal(err)
		}
		next := s.successor()
		plain, _ := next.guest(600)
		if plain.addr == c.addr {
			next.must(plain, stun.MethodRefresh, lifetime(0))
		}
		former := next.former()
		if err := next.Take(transfer(t, &d.Record), newClient(c.addr.String()), former); err != nil {
			t.Fatal(err)
		}
		_, copied := next.Copy(c.addr, 1000)
		if _, _, ok := next.Version(c.addr); ok || copied {
			t.Error("a provisional session counts")
		}
		d.Go(func([]relay.Datagram) {})
		next.Confirm(c.addr)
		if _, generation, ok := next.Version(c.addr); !ok || generation != 1 {
			t.Errorf("after it was handed over: generation %d, %t", generation, ok)
		}
		if err := next.Take(whole, c, nil); !errors.Is(err, ErrNotTaken) {
			t.Errorf("a session that is here is taken over: %v", err)
		}
		_ = d.Socket().Close()
		s.Gate.Close()
		next.Gate.Close()
	})
}

// a session without a nominating check is not copied, because no peer would accept another relayed address.
func TestSessionWithoutACheckIsNotCopied(t *testing.T) {
	withJournal(t, func(s *stored) {
		c, _ := s.guest(600)
		s.must(c, stun.MethodChannelBind, channel(0x4000), peerAt("127.0.0.1:4000"))
		if _, ok := s.Copy(c.addr, 1000); ok {
			t.Error("copied")
		}
	})
}
