package gate

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/journal"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// Source makes the client a client over UDP.
func (c *client) Source() []byte { return nil }

func (c *client) At() netip.AddrPort { return c.Local() }

func (c *client) Away() bool { return c.away }

// connection is a client over TCP.
type connection struct{ *client }

func (c connection) Connected() bool { return true }

// stored is a gate in virtual time that has a journal.
type stored struct {
	*virtual
	dir string
	// restored are the sessions of a previous process.
	restored []journal.Entry
}

// withJournal runs a test in virtual time with a gate that has a journal.
func withJournal(t *testing.T, test func(v *stored)) {
	t.Helper()
	dir := t.TempDir()
	virtually(t, func(v *virtual) {
		s := &stored{virtual: v, dir: dir}
		s.open()
		test(s)
	})
}

func (s *stored) open() {
	j, left := journal.Open(journal.Options{Dir: s.dir, Log: slog.New(slog.DiscardHandler), Now: time.Now})
	s.journal, s.restored = j, left.Sessions
	s.routes.OnNomination(s.nominated)
	s.t.Cleanup(func() {
		if err := j.Close(); err != nil {
			s.t.Error(err)
		}
	})
}

// killed returns the gate of the next process after a kill. Its network has no socket. clients are the clients that
// continue to send.
func (s *stored) killed(clients ...*client) *stored {
	s.t.Helper()
	s.fixture.stored()
	next := &stored{virtual: anotherVirtual(s.t.(*testing.T), s.began), dir: s.t.TempDir()}
	left, err := filepath.Glob(filepath.Join(s.dir, "sessions.*"))
	if err != nil || len(left) == 0 {
		s.t.Fatalf("the process has left no journal: %v", err)
	}
	for _, file := range left {
		content, err := os.ReadFile(file)
		if err != nil {
			s.t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(next.dir, filepath.Base(file)), content, 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
	next.open()
	s.Gate.Close() // otherwise its timers would remain
	var saved []Saved
	for _, e := range next.restored {
		socket, err := next.net.Open(e.Relay.Addr(), e.Relay.Port())
		if err != nil {
			s.t.Fatal(err)
		}
		saved = append(saved, Saved{Entry: e, Socket: socket})
	}
	next.Restore(saved, func(r *session.Record) session.Client {
		if i := slices.IndexFunc(clients, func(c *client) bool { return c.addr == r.Client }); i >= 0 {
			return clients[i]
		}
		return &client{addr: r.Client, frames: make(chan []byte, 64)}
	})
	next.journal.Done()
	return next
}

// A session continues after a kill of the process: with its relayed address, its permissions, its channels and its
// user.
func TestRestoredSessionContinues(t *testing.T) {
	withJournal(t, func(s *stored) {
		c := newClient("192.0.2.1:1000")
		allocate := s.signed(c, username, password, stun.MethodAllocate, udp, lifetime(1800))
		if code := codeOf(s.send(c, allocate)); code != 0 {
			t.Fatalf("allocate: %d", code)
		}
		via := s.Relay(c.addr).Session().Relay
		s.must(c, stun.MethodCreatePermission, peerAt("127.0.0.1:4001"))
		s.must(c, stun.MethodChannelBind, channel(0x4000), peerAt("127.0.0.1:4000"))
		s.at(100 * time.Second)

		s = s.killed(c)
		if n := s.meter.Restored.Load(); n != 1 {
			t.Fatalf("%d sessions restored", n)
		}
		if got := s.Relay(c.addr).Session(); got.Relay != via || time.Since(got.Started) != 100*time.Second {
			t.Errorf("relayed at %v, started %v ago; want %v, 1m40s", got.Relay, time.Since(got.Started), via)
		}
		s.carries("channel", s.channel(c, via, s.peer("127.0.0.1:4000")), both)
		s.carries("indications", s.indications(c, via, s.peer("127.0.0.1:4001")), both)
		s.expect(400, c, stun.MethodChannelBind, channel(0x4000), peerAt("127.0.0.1:4002"))
		s.expect(437, c, stun.MethodAllocate, udp)
		s.must(c, stun.MethodRefresh, lifetime(1800))
		other := s.signed(c, "bob", password, stun.MethodRefresh)
		if code := codeOf(s.send(c, other)); code != 401 {
			t.Errorf("Refresh of another user: %d", code)
		}
		s.must(c, stun.MethodChannelBind, channel(0x4001), peerAt("127.0.0.1:4002"))

		s = s.killed(c)
		s.carries("channel", s.channel(c, via, s.peer("127.0.0.1:4000")), both)
		s.must(c, stun.MethodRefresh, lifetime(0))
		if s = s.killed(c); len(s.restored) != 0 {
			t.Errorf("an ended session is restored: %v", s.restored)
		}
	})
}

// movable is a client whose datagrams may arrive at another pod.
type movable struct {
	*client
	// moves is the next result of Follow.
	moves session.Move
	// followed has an entry for each call of Follow: whether the message was authentic.
	followed []bool
	// passes makes Pass succeed. passed counts its calls.
	passes bool
	passed int
}

func (m *movable) Pass([]byte, time.Time) bool {
	m.passed++
	return m.passes
}

func (m *movable) Begin([]byte) bool     { return m.passes }
func (m *movable) Authenticated() bool   { return false }
func (m *movable) Held()                 {}
func (m *movable) Changed()              {}
func (m *movable) Front() netip.AddrPort { return netip.AddrPort{} }

func (m *movable) Follow(_ session.Client, _ []byte, authentic bool) session.Move {
	m.followed = append(m.followed, authentic)
	return m.moves
}

// The journal contains whether a client uses another pod. A signed request moves the client. A Send indication and a
// request with a wrong password do not.
func TestPodOfAClientIsStored(t *testing.T) {
	withJournal(t, func(s *stored) {
		m := &movable{client: newClient("192.0.2.1:1000")}
		receive := func(password string, method stun.Method, attrs ...stun.Setter) {
			s.Receive(s.signed(m.client, username, password, method, attrs...), m)
			<-m.frames
		}
		away := func(want bool) {
			t.Helper()
			if s = s.killed(m.client); len(s.restored) != 1 || s.restored[0].Away != want {
				t.Fatalf("restored %+v, want away %t", s.restored, want)
			}
			s.journal.Done()
		}
		receive(password, stun.MethodAllocate, udp, lifetime(1800))
		receive("wrong", stun.MethodRefresh)
		indication := stun.NewType(stun.MethodSend, stun.ClassIndication)
		s.Receive(s.build(indication, peerAt("127.0.0.1:4000"), data("x")), m)
		m.moves = session.MovedAway
		receive(password, stun.MethodRefresh, lifetime(1800))
		if want := []bool{false, true}; !slices.Equal(m.followed, want) {
			t.Errorf("followed: authentic %v, want %v", m.followed, want)
		}
		away(true)
		away(true)
		s.Moved(m.addr, session.MovedHere)
		s.Moved(netip.MustParseAddrPort("192.0.2.9:1"), session.MovedAway)
		away(false)
	})
}

// A restart extends no lifetime: each lifetime ends when the previous process would have ended it. A request to the new
// process extends a lifetime as usual.
func TestRestoredLifetimesEndInTime(t *testing.T) {
	const peerAddr, channelAddr = "127.0.0.1:4000", "127.0.0.2:4001"
	type ends struct{ allocation, permission, channel, installed time.Duration }
	usual := ends{900 * time.Second, 300 * time.Second, 600 * time.Second, 300 * time.Second}
	cases := map[string]struct {
		after func(s *stored, c *client)
		ends  func(e *ends)
	}{
		"nothing": {func(*stored, *client) {}, func(*ends) {}},
		"CreatePermission": {func(s *stored, c *client) {
			s.must(c, stun.MethodCreatePermission, peerAt(peerAddr))
		}, func(e *ends) { e.permission = 500 * time.Second }},
		"ChannelBind": {func(s *stored, c *client) {
			s.must(c, stun.MethodChannelBind, channel(0x4000), peerAt(channelAddr))
		}, func(e *ends) { e.channel, e.installed = 800*time.Second, 500*time.Second }},
		"Refresh": {func(s *stored, c *client) {
			s.must(c, stun.MethodRefresh, lifetime(1200))
		}, func(e *ends) { e.allocation = 1400 * time.Second }},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			withJournal(t, func(s *stored) {
				s.Update(policy(), routes("127.0.0.0/8:<4000-4999>"))
				c, via := s.guest(900)
				s.must(c, stun.MethodCreatePermission, peerAt(peerAddr))
				s.must(c, stun.MethodChannelBind, channel(0x4000), peerAt(channelAddr))
				s.at(200 * time.Second)
				s = s.killed(c)
				s.Update(policy(), routes("127.0.0.0/8:<4000-4999>"))
				tc.after(s, c)
				want := usual
				tc.ends(&want)
				type end struct {
					at   time.Duration
					what string
					look func() ways
				}
				all := []end{
					{want.permission, "permission", func() ways { return s.indications(c, via, s.peer(peerAddr)) }},
					{want.installed, "permission of the channel", func() ways {
						return s.indications(c, via, s.peer("127.0.0.2:4009"))
					}},
					{want.channel, "channel", func() ways { return s.channel(c, via, s.peer(channelAddr)) }},
				}
				slices.SortFunc(all, func(a, b end) int { return int(a.at - b.at) })
				for _, e := range all {
					s.at(e.at - time.Second)
					s.carries(e.what, e.look(), both)
				}
				for _, e := range all {
					if time.Since(s.began) < e.at {
						s.at(e.at + time.Second)
					}
					s.carries(e.what, e.look(), neither)
				}
				s.at(want.allocation - time.Second)
				if s.Relay(c.addr) == nil {
					t.Error("the allocation has ended early")
				}
				s.at(want.allocation + time.Second)
				if s.Relay(c.addr) != nil || s.table.Len() != 0 {
					t.Error("the allocation has not ended")
				}
			})
		})
	}
}

// A session whose lifetime ends while no process runs is not restored. Sessions over connections are not stored.
func TestEndedSessionsAreNotRestored(t *testing.T) {
	withJournal(t, func(s *stored) {
		c, _ := s.guest(0)
		tcp := connection{newClient("192.0.2.2:1000")}
		s.Receive(s.signed(tcp.client, username, password, stun.MethodAllocate, udp), tcp)
		if n := s.table.Len(); n != 2 {
			t.Fatalf("%d sessions", n)
		}
		s = s.killed(c)
		if len(s.restored) != 1 || s.restored[0].Client != c.addr {
			t.Fatalf("restored: %v", s.restored)
		}
		saved := []Saved{{Entry: s.restored[0]}}
		saved[0].Client = netip.MustParseAddrPort("192.0.2.3:1000")
		var err error
		if saved[0].Socket, err = s.net.Open(saved[0].Relay.Addr(), 0); err != nil {
			t.Fatal(err)
		}
		time.Sleep(600 * time.Second)
		s.Restore(saved, func(*session.Record) session.Client { return newClient("192.0.2.3:1000") })
		synctest.Wait() // the first session ends at the same time
		if n := s.meter.Unrestored()["expired"]; n != 1 || s.net.Len() != 0 {
			t.Errorf("%d sessions counted as expired, %d sockets are open", n, s.net.Len())
		}
	})
}

// Restored sessions count against quotas, and are never refused because of quotas.
func TestQuotasCountRestoredSessions(t *testing.T) {
	withJournal(t, func(s *stored) {
		clients := []*client{newClient("192.0.2.1:1000"), newClient("192.0.2.1:1001")}
		for _, c := range clients {
			s.must(c, stun.MethodAllocate, udp)
		}
		next := s.killed()
		next.table.SetBounds(session.Bounds{UserSessions: 1})
		if n := next.table.Len(); n != 2 {
			t.Errorf("%d sessions restored", n)
		}
		next.expect(486, newClient("192.0.2.1:1002"), stun.MethodAllocate, udp)
		next.must(clients[0], stun.MethodRefresh, lifetime(0))
		next.must(clients[1], stun.MethodRefresh, lifetime(0))
		next.must(newClient("192.0.2.1:1002"), stun.MethodAllocate, udp)
		if n := next.table.Added(); n != 1 {
			t.Errorf("%d sessions counted as new", n)
		}
	})
}

// The journal has one nominating check for each peer, from a channel or a Send indication: the first check with the
// newest USERNAME. It is written within a second.
func TestNominatingChecksAreStored(t *testing.T) {
	withJournal(t, func(s *stored) {
		c, _ := s.guest(0)
		bound, unbound := s.peer("127.0.0.1:4000"), s.peer("127.0.0.1:4001")
		s.must(c, stun.MethodChannelBind, channel(0x4000), peerAt(bound.Addr().String()))
		useCandidate := stun.RawAttribute{Type: stun.AttrUseCandidate}
		check := func(user string, attrs ...stun.Setter) []byte {
			return s.build(append([]stun.Setter{stun.BindingRequest, stun.NewUsername(user)}, attrs...)...)
		}
		inChannel := func(m []byte) {
			s.Relay(c.addr).FromClient(append([]byte{0x40, 0, byte(len(m) >> 8), byte(len(m))}, m...))
		}
		inIndication := func(m []byte) {
			at := addressAttr(stun.AttrXORPeerAddress, unbound.Addr())
			s.Receive(s.build(stun.NewType(stun.MethodSend, stun.ClassIndication), at, data(string(m))), c)
		}
		first, later := check("one:two", useCandidate), check("one:three", useCandidate)
		for _, m := range [][]byte{
			check("one:two"), first, check("one:two", useCandidate), check("one:four"), append([]byte{0, 1}, make([]byte, 40)...),
			check("one:five", useCandidate, stun.RawAttribute{Type: stun.AttrSoftware, Value: make([]byte, 500)}),
		} {
			inChannel(m)
		}
		inIndication(first)
		inIndication(later)
		time.Sleep(time.Second)
		synctest.Wait()
		if n := len(bound.Got()) + len(unbound.Got()); n != 8 {
			t.Errorf("%d of 8 datagrams have arrived", n)
		}
		got := s.killed(c).restored[0].Checks
		slices.SortFunc(got, func(a, b session.Check) int { return a.Peer.Compare(b.Peer) })
		if len(got) != 2 || got[0].Peer != bound.Addr() || string(got[0].Message) != string(first) ||
			got[1].Peer != unbound.Addr() || string(got[1].Message) != string(later) {
			t.Errorf("stored: %v", got)
		}
	})
}

// If a client changes the USERNAME or the peer of its checks in each packet, the journal is written rarely, and the
// newest check is written within a second.
func TestNominatingChecksAreLimited(t *testing.T) {
	const seconds, rate = 3, 1000
	for name, row := range map[string]struct {
		peers int // the number of peers with a stored check
		at    func(i int) (user, peer string)
	}{
		"another USERNAME": {1, func(i int) (string, string) { return fmt.Sprint("user:", i), "127.0.0.1:4000" }},
		"another peer": {session.MaxChecks, func(i int) (string, string) {
			return "one:two", fmt.Sprint("127.0.0.1:", 4000+i%1000)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			withJournal(t, func(s *stored) {
				s.Update(policy(), routes("127.0.0.1:<4000-4999>"))
				c, _ := s.guest(0)
				s.must(c, stun.MethodCreatePermission, peerAt("127.0.0.1:4000"))
				s.fixture.stored()
				before := s.journal.Status().Bytes
				var newest session.Check
				for i := range seconds * rate {
					user, peer := row.at(i)
					newest.Peer = netip.MustParseAddrPort(peer)
					newest.Message = s.build(stun.BindingRequest, stun.NewUsername(user),
						stun.RawAttribute{Type: stun.AttrUseCandidate})
					s.Receive(s.build(stun.NewType(stun.MethodSend, stun.ClassIndication),
						addressAttr(stun.AttrXORPeerAddress, newest.Peer), data(string(newest.Message))), c)
					time.Sleep(time.Second / rate)
				}
				time.Sleep(time.Second)
				synctest.Wait()
				written := s.journal.Status().Bytes - before
				if most := int64((seconds + 1) * row.peers * (len(newest.Message) + 32)); written > most {
					t.Errorf("%d bytes written, want %d at most", written, most)
				}
				checks := s.killed(c).restored[0].Checks
				if last := checks[len(checks)-1]; last.Peer != newest.Peer || !bytes.Equal(last.Message, newest.Message) {
					t.Errorf("the newest check stored is %v, want %v", last, newest)
				}
			})
		})
	}
}

// A session that could not be stored counts as lost until it is stored completely. After an error, it is stored with
// its next change. If its user has no share left, it is stored with its next Refresh.
func TestLostSessionIsStoredAgain(t *testing.T) {
	for name, lose := range map[string]func(s *stored, lost func()) (found func()){
		"the folder is in use": func(s *stored, lost func()) func() {
			other, _ := journal.Open(journal.Options{Dir: s.dir, Now: time.Now})
			s.open() // without a file
			return func() {
				if err := other.Close(); err != nil {
					s.t.Error(err)
				}
			}
		},
		"the share is used up": func(s *stored, lost func()) func() {
			s.open()
			return lost
		},
	} {
		t.Run(name, func(t *testing.T) {
			withJournal(t, func(s *stored) {
				s.dir = t.TempDir()
				var c *client
				found := lose(s, func() { s.journal.End(s.flow(c.addr).stored()) })
				c, via := s.guest(1800)
				s.must(c, stun.MethodCreatePermission, peerAt("127.0.0.1:4001"))
				s.at(100 * time.Second)
				s.must(c, stun.MethodChannelBind, channel(0x4000), peerAt("127.0.0.1:4000"))
				s.Moved(c.addr, session.MovedAway)
				c.away = true
				synctest.Wait() // the goroutine of the request may write to the journal after its answer
				found()
				if connected, lost := s.Unstored(); connected != 0 || lost != 1 {
					t.Errorf("unstored: %d connected, %d lost", connected, lost)
				}
				s.at(200 * time.Second)
				s.must(c, stun.MethodRefresh, lifetime(1800))
				synctest.Wait() // s.fixture.stored does not wait: without a file, no answer waits for the writer
				if _, lost := s.Unstored(); lost != 0 {
					t.Errorf("%d lost after the Refresh", lost)
				}
				before := s.journal.Status().Bytes
				s.must(c, stun.MethodRefresh, lifetime(1800))
				synctest.Wait()
				if n := s.journal.Status().Bytes - before; n > 32 {
					t.Errorf("the next Refresh writes %d bytes", n)
				}
				s = s.killed(c)
				if len(s.restored) != 1 {
					t.Fatalf("restored: %v", s.restored)
				}
				r, bound := s.restored[0], s.began.Add(100*time.Second)
				if !r.Away || r.Lifetime != 1800 || !r.Until.Equal(s.began.Add(2000*time.Second)) || len(r.Channels) != 1 ||
					!r.Channels[0].Installed.Equal(bound) || !r.Channels[0].Until.Equal(bound.Add(600*time.Second)) {
					t.Errorf("stored: %+v", r.Record)
				}
				s.carries("channel", s.channel(c, via, s.peer("127.0.0.1:4000")), both)
				s.carries("indications", s.indications(c, via, s.peer("127.0.0.1:4001")), both)
				s.at(401 * time.Second)
				s.carries("indications", s.indications(c, via, s.peer("127.0.0.1:4001")), neither)
			})
		})
	}
}

// A repeated ChannelBind does not change the stored time of the first binding.
func TestChannelIsStoredWithItsFirstBinding(t *testing.T) {
	withJournal(t, func(s *stored) {
		c, _ := s.guest(1800)
		for _, moment := range []time.Duration{100 * time.Second, 200 * time.Second} {
			s.at(moment)
			s.must(c, stun.MethodChannelBind, channel(0x4000), peerAt("127.0.0.1:4000"))
		}
		r := s.killed(c).restored[0].Channels
		if want := s.began.Add(100 * time.Second); len(r) != 1 || !r[0].Installed.Equal(want) {
			t.Errorf("stored: %+v, want installed at %v", r, want)
		}
	})
}

// After Leave, another process continues the sessions of a gate, except those that their clients have ended.
func TestLeftSessionsStayInTheJournal(t *testing.T) {
	withJournal(t, func(s *stored) {
		stays, _ := s.guest(0)
		ends := newClient("192.0.2.2:1000")
		s.must(ends, stun.MethodAllocate, udp)
		s.Leave()
		s.must(ends, stun.MethodRefresh, lifetime(0))
		s.Gate.Close()
		if s = s.killed(); len(s.restored) != 1 || s.restored[0].Client != stays.addr {
			t.Errorf("restored: %v", s.restored)
		}
	})
}

// mute is a client that discards all datagrams to it.
type mute struct{ *client }

func (mute) Send([]byte) error { return nil }

// Several goroutines may handle requests of one client, because other pods forward them. Run with -race.
func TestRequestsOfOneClientAtATime(t *testing.T) {
	withJournal(t, func(s *stored) {
		c := newClient("192.0.2.1:1000")
		allocate := s.signed(c, username, password, stun.MethodAllocate, udp)
		refresh := s.signed(c, username, password, stun.MethodRefresh, lifetime(1200))
		if code := codeOf(s.send(c, allocate)); code != 0 {
			t.Fatalf("allocate: %d", code)
		}
		var group sync.WaitGroup
		for _, request := range [][]byte{allocate, refresh} {
			group.Go(func() {
				for range 500 {
					s.Receive(bytes.Clone(request), mute{c})
				}
			})
		}
		group.Wait()
		if _, lost := s.Unstored(); lost != 0 || s.table.Len() != 1 {
			t.Errorf("%d of %d sessions lost", lost, s.table.Len())
		}
	})
}
