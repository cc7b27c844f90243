package gate

import (
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

func none(netip.Addr) bool { return false }

// successor returns the gate of another pod.
func (s *stored) successor() *stored {
	next := &stored{virtual: anotherVirtual(s.t.(*testing.T), s.began), dir: s.t.TempDir()}
	next.open()
	return next
}

// former opens a socket that stands for the socket of another pod.
func (s *stored) former() relay.Socket {
	s.t.Helper()
	socket, err := s.net.Open(netip.MustParseAddr("127.0.0.9"), 0)
	if err != nil {
		s.t.Fatal(err)
	}
	return socket
}

// transfer returns a record as another pod receives it.
func transfer(t testing.TB, r *session.Record) *session.Record {
	t.Helper()
	b, err := r.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	var got session.Record
	if err := got.UnmarshalBinary(b); err != nil {
		t.Fatal(err)
	}
	return &got
}

// idle returns a client whose peers use ICE and are silent, so that its session can move at once.
func (s *stored) idle() *client {
	s.t.Helper()
	c, _ := s.guest(1800)
	s.must(c, stun.MethodCreatePermission, peerAt("127.0.0.1:4001"))
	s.must(c, stun.MethodChannelBind, channel(0x4000), peerAt("127.0.0.1:4000"))
	check := s.build(stun.BindingRequest, stun.NewUsername("a:b"), stun.RawAttribute{Type: stun.AttrUseCandidate})
	s.Relay(c.addr).FromClient(append([]byte{0x40, 0, 0, byte(len(check))}, check...))
	s.at(time.Minute)
	s.peer("127.0.0.1:4000").Got()
	return c
}

// a session continues at another pod with a new relayed address, and with its lifetime, permissions, channels and
// user. Its requests are dropped during the move. After that, the former pod does not have the session.
func TestHandedOverSessionContinues(t *testing.T) {
	withJournal(t, func(s *stored) {
		c := s.idle()
		refresh := s.signed(c, username, password, stun.MethodRefresh)
		d, err := s.Depart(c.addr, none)
		if err != nil {
			t.Fatal(err)
		}
		s.Receive(refresh, c)
		s.fixture.stored()
		if len(c.frames) > 0 {
			t.Error("a request of a session that leaves is answered")
		}
		next := s.successor()
		former := next.former()
		if err := next.Take(transfer(t, &d.Record), c, former); err != nil {
			t.Fatal(err)
		}
		if err := next.Take(transfer(t, &d.Record), c, former); !errors.Is(err, ErrNotTaken) {
			t.Errorf("taken twice: %v", err)
		}
		d.Go(func([]relay.Datagram) {})
		if n := s.table.Len(); n != 0 || s.engine.Allocations() != 0 || s.net.Len() != 1 {
			t.Errorf("the former pod has %d sessions and %d sockets", n, s.net.Len())
		}
		_ = d.Socket().Close()
		if next.Taken(c.addr, func(f relay.Socket) bool { return f == former }) == nil {
			t.Error("the successor does not know the former socket")
		}
		next.Confirm(c.addr)
		next.Confirm(c.addr)
		if n := next.meter.SessionsTaken.Load(); n != 1 {
			t.Errorf("%d sessions counted", n)
		}
		time.Sleep(5 * time.Second) // no peer is active
		r := next.Relay(c.addr)
		if r.Former() != nil || r.Session().Relay == d.Record.Relay && r.Session().Relay.IsValid() && next.net.Len() != 1 {
			t.Errorf("the former socket is open: %d sockets", next.net.Len())
		}
		via := r.Session().Relay
		next.carries("channel", next.channel(c, via, next.peer("127.0.0.1:4000")), both)
		next.carries("indications", next.indications(c, via, next.peer("127.0.0.1:4001")), both)
		next.expect(437, c, stun.MethodAllocate, udp)
		next.must(c, stun.MethodRefresh, lifetime(1800))
		if after := next.killed(c); len(after.restored) != 1 || after.restored[0].Generation != 2 {
			t.Errorf("in the journal of the successor: %v", after.restored)
		}
	})
}

// a provisional session without a confirmation ends after provisionalTime, and leaves nothing.
func TestUnconfirmedSessionEnds(t *testing.T) {
	withJournal(t, func(s *stored) {
		c := s.idle()
		d, err := s.Depart(c.addr, none)
		if err != nil {
			t.Fatal(err)
		}
		next := s.successor()
		former := next.former()
		if err := next.Take(transfer(t, &d.Record), newClient(c.addr.String()), former); err != nil {
			t.Fatal(err)
		}
		time.Sleep(provisionalTime + time.Second)
		synctest.Wait()
		next.Confirm(c.addr)
		if next.table.Len() != 0 || next.engine.Allocations() != 0 || next.net.Len() != 0 {
			t.Errorf("%d sessions, %d sockets", next.table.Len(), next.net.Len())
		}
		if sent := next.net.Sent(); len(sent) > 0 {
			t.Errorf("sent: %v", sent)
		}
		d.Stay()
		s.must(c, stun.MethodRefresh, lifetime(600))
		s.must(c, stun.MethodChannelBind, channel(0x4000), peerAt("127.0.0.1:4000"))
	})
}

// a session is handed over to one pod at a time: a second attempt fails, and does not affect the first one. A
// session that stays can be handed over later.
func TestSessionIsHandedOverOnce(t *testing.T) {
	withJournal(t, func(s *stored) {
		c := s.idle()
		refresh := s.signed(c, username, password, stun.MethodRefresh)
		d, err := s.Depart(c.addr, none)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Depart(c.addr, none); err == nil {
			t.Error("a session departs twice")
		}
		s.Receive(refresh, c)
		s.fixture.stored()
		if len(c.frames) > 0 {
			t.Error("a request of a session that leaves is answered")
		}
		d.Stay()
		if d, err = s.Depart(c.addr, none); err != nil {
			t.Fatal(err)
		}
		d.Stay()
		s.must(c, stun.MethodRefresh, lifetime(600))
		s.Gate.Close()
	})
}

// while a session is provisional, requests and indications of its client are passed to the former pod, and data
// of the client has no relay here. After the confirmation, this pod handles them.
func TestClientOfAnUnconfirmedSession(t *testing.T) {
	withJournal(t, func(s *stored) {
		c := s.idle()
		d, err := s.Depart(c.addr, none)
		if err != nil {
			t.Fatal(err)
		}
		next := s.successor()
		if err := next.Take(transfer(t, &d.Record), newClient(c.addr.String()), next.former()); err != nil {
			t.Fatal(err)
		}
		m := &movable{client: newClient(c.addr.String()), passes: true}
		send := func() {
			next.Receive(next.signed(m.client, username, password, stun.MethodRefresh, lifetime(600)), m)
			next.Receive(next.build(stun.NewType(stun.MethodSend, stun.ClassIndication), peerAt("127.0.0.1:4001")), m)
			next.fixture.stored()
		}
		send()
		if m.passed != 2 || len(m.frames) != 0 || next.Owned(c.addr) != nil || next.Relay(c.addr) == nil {
			t.Errorf("%d messages passed, %d answered", m.passed, len(m.frames))
		}
		d.Go(func([]relay.Datagram) {})
		next.Confirm(c.addr)
		send()
		if m.passed != 2 || len(m.frames) != 1 || next.Owned(c.addr) == nil {
			t.Errorf("after the move: %d messages passed, %d answered", m.passed, len(m.frames))
		}
		_ = d.Socket().Close()
	})
}

// a session is refused by a pod that drains or is full, if its lifetime is over, and if its caveats are unknown.
func TestRefusedHandOvers(t *testing.T) {
	for name, refuse := range map[string]func(next *stored, r *session.Record){
		"draining":         func(next *stored, _ *session.Record) { next.table.Drain() },
		"retired listener": func(next *stored, _ *session.Record) { next.Retire() },
		"full": func(next *stored, _ *session.Record) {
			next.table.SetBounds(session.Bounds{Capacity: session.Amounts{session.Memory: 1}})
		},
		"expired":         func(_ *stored, r *session.Record) { r.Until = time.Now().Add(-time.Second) },
		"family":          func(_ *stored, r *session.Record) { r.Relay = netip.MustParseAddrPort("[2001:db8::1]:1") },
		"unknown caveats": func(_ *stored, r *session.Record) { r.Username, r.UserID = "9999999999:ann:~9~Z", "ann" },
	} {
		t.Run(name, func(t *testing.T) {
			withJournal(t, func(s *stored) {
				c := s.idle()
				d, err := s.Depart(c.addr, none)
				if err != nil {
					t.Fatal(err)
				}
				next := s.successor()
				former := next.former()
				refuse(next, &d.Record)
				if err := next.Take(transfer(t, &d.Record), newClient(c.addr.String()), former); err == nil {
					t.Error("the session is taken")
				}
				if next.table.Len() != 0 || next.engine.Allocations() != 0 || next.net.Len() != 1 {
					t.Errorf("%d sessions, %d sockets", next.table.Len(), next.net.Len())
				}
				_ = former.Close()
				d.Stay()
			})
		})
	}
}

// sessions over connections stay, and so do sessions with an active peer that may not use ICE. They are not
// disturbed.
func TestSessionsThatStay(t *testing.T) {
	withJournal(t, func(s *stored) {
		c, via := s.guest(600)
		s.must(c, stun.MethodChannelBind, channel(0x4000), peerAt("127.0.0.1:4000"))
		if _, err := s.Depart(c.addr, none); !errors.Is(err, ErrPeer) {
			t.Errorf("a peer without ICE: %v", err)
		}
		s.carries("channel", s.channel(c, via, s.peer("127.0.0.1:4000")), both)
		s.must(c, stun.MethodRefresh, lifetime(600))
		stream := newClient("192.0.2.1:1001")
		s.Receive(s.signed(stream, username, password, stun.MethodAllocate, udp), connection{stream})
		if _, err := s.Depart(stream.addr, none); !errors.Is(err, ErrTransport) {
			t.Errorf("a connection: %v", err)
		}
		if _, err := s.Depart(netip.MustParseAddrPort("192.0.2.9:1"), none); err == nil {
			t.Error("a client without a session departs")
		}
		s.Gate.Close()
	})
}
