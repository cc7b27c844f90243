package relay_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/cluster"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay/relaytest"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// movedClient is a client over UDP that counts the datagrams that it receives.
type movedClient struct{ received []string }

func (c *movedClient) Send(frame []byte) error {
	c.received = append(c.received, string(frame[4:]))
	return nil
}

func (c *movedClient) SendAll(packets []datagram.Packet) {
	for i := range packets {
		packets[i].Err = c.Send(packets[i].Payload)
	}
}

func (*movedClient) Addr() netip.AddrPort  { return netip.MustParseAddrPort("192.0.2.1:1") }
func (*movedClient) Connected() bool       { return false }
func (*movedClient) Local() netip.AddrPort { return netip.AddrPort{} }
func (*movedClient) Released()             {}

// moving is a relay that replaces one with a former socket, on a network in memory.
type moving struct {
	*relay.Relay
	t         *testing.T
	client    *movedClient
	meter     *meter.Meter
	network   relaytest.Network
	routes    relay.Routes
	former    netip.AddrPort
	peer      relaytest.Peer
	permitted bool
}

// check returns a connectivity check.
func check(t *testing.T, user string, attrs ...stun.Setter) string {
	t.Helper()
	first := []stun.Setter{stun.TransactionID, stun.BindingRequest, stun.NewUsername(user)}
	m, err := stun.Build(append(first, attrs...)...)
	if err != nil {
		t.Fatal(err)
	}
	return string(m.Raw)
}

var useCandidate = stun.RawAttribute{Type: stun.AttrUseCandidate}

// answer returns the answer to a check.
func answer(t *testing.T, check string) string {
	t.Helper()
	m, err := stun.Build(stun.NewTransactionIDSetter([12]byte([]byte(check)[8:20])), stun.BindingSuccess)
	if err != nil {
		t.Fatal(err)
	}
	return string(m.Raw)
}

// formerly is the kind of former socket that a relay replaces.
type formerly int

const (
	aSocket formerly = iota
	aLostSocket
	nothing
)

// newMoving returns a relay with a channel to a peer. The former relay had a check for the peer.
func newMoving(t *testing.T, kept string) *moving { return newMovingFrom(t, kept, aSocket) }

// newMovingFrom is newMoving for a relay that replaces a socket, a lost socket or no socket.
func newMovingFrom(t *testing.T, kept string, replaces formerly) *moving {
	t.Helper()
	b := &moving{t: t, client: &movedClient{}, meter: meter.New(), permitted: true}
	b.peer = b.network.Peer(netip.MustParseAddrPort("127.0.0.1:4000"))
	b.routes.Store(cluster.NewView([]config.Cluster{{Name: "c", Type: config.Static, Endpoints: []string{"127.0.0.1", "127.0.0.8"}}},
		[]string{"c"}))
	open := func(addr string) relay.Socket {
		s, err := b.network.Open(netip.MustParseAddr(addr), 0)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	former, socket := open("127.0.0.2"), open("127.0.0.3")
	b.former = former.Bound()
	s := &session.Session{Client: b.client, Started: time.Now()}
	b.Relay = relay.New(s, socket, netip.MustParseAddr("127.0.0.3"), &b.routes, b.meter, func(*relay.Relay) {})
	b.Bind(0x4000, b.peer.Addr())()
	checks := []session.Check{{Peer: b.peer.Addr(), Message: []byte(kept)}}
	switch replaces {
	case aSocket:
		if b.From(former, checks); former.Start(formerReceiver{b.Relay}) != nil {
			t.Fatal("the former socket does not start")
		}
	case aLostSocket:
		b.From(nil, checks)
		_ = former.Close()
	case nothing:
		_ = former.Close()
		b.former = socket.Bound()
	}
	if err := b.Start(func(netip.AddrPort) bool { return b.permitted }); err != nil {
		t.Fatal(err)
	}
	return b
}

// formerReceiver passes on the datagrams at a former socket.
type formerReceiver struct{ *relay.Relay }

func (r formerReceiver) ReceiveBatch(batch []relay.Datagram, now time.Time) {
	r.ReceiveFormer(batch, now)
}

// send makes the client send a datagram, and returns the relayed addresses from which it was sent.
func (b *moving) send(payload string) (from []netip.AddrPort) {
	b.t.Helper()
	b.peer.Got()
	b.FromClient(append([]byte{0x40, 0, byte(len(payload) >> 8), byte(len(payload))}, payload...))
	for _, d := range b.peer.Got() {
		if d.Payload != payload {
			b.t.Errorf("the peer got %q, want %q", d.Payload, payload)
		}
		from = append(from, d.From)
	}
	return from
}

// receives makes the peer send a datagram to a relayed address, and reports whether the client gets it.
func (b *moving) receives(to netip.AddrPort, payload string) bool {
	before := len(b.client.received)
	b.peer.Send(to, payload)
	synctest.Wait()
	return slices.Equal(b.client.received[before:], []string{payload})
}

func (b *moving) own() netip.AddrPort { return b.Session().Relay }

const media = "\x80media"

// when a peer that has accepted the check sends data to the new address, data is sent to it from the new address.
// Until then, data is sent from the former socket, and requests are sent from both sockets. The answer to a check is
// sent from the socket at which the check has arrived.
func TestPeerTakesTheNewAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept := check(t, "a:b", useCandidate)
		b := newMoving(t, kept)
		defer b.Close()
		both, former, own := []netip.AddrPort{b.former, b.own()}, []netip.AddrPort{b.former}, []netip.AddrPort{b.own()}
		if from := b.send(media); !slices.Equal(from, former) {
			t.Errorf("before the move, data leaves from %v", from)
		}
		b.Move()
		time.Sleep(time.Second)
		sent := b.peer.Got()
		if len(sent) != 3 || sent[0].Payload != kept || sent[2].Payload != kept || sent[2].From != b.own() {
			t.Errorf("sent again: %v", sent)
		}
		request := check(t, "a:b")
		if from := b.send(request); !slices.Equal(from, both) {
			t.Errorf("a request leaves from %v", from)
		}
		time.Sleep(100 * time.Millisecond)
		if again := b.peer.Got(); len(again) != 1 || again[0].From != b.own() || again[0].Payload != request {
			t.Errorf("after a request: %v", again)
		}
		for _, step := range []struct {
			at      netip.AddrPort
			arrives string
			data    []netip.AddrPort // the addresses from which data of the client is sent afterwards
		}{
			{b.own(), media, former}, // forged: without an answer
			{b.own(), answer(t, check(t, "a:b")), former},
			{b.own(), media, former}, // still without an answer to a check of the client
			{b.own(), answer(t, kept), former},
			{b.own(), check(t, "b:a"), former},
			{b.former, media, former},
			{b.own(), media, own},
			{b.former, media, own},
		} {
			if !b.receives(step.at, step.arrives) {
				t.Errorf("the client does not get %q", step.arrives)
			}
			if from := b.send(media); !slices.Equal(from, step.data) {
				t.Errorf("after %q at %v, data leaves from %v", step.arrives, step.at, from)
			}
		}
		atOwn, atFormer := check(t, "b:a"), check(t, "b:a")
		b.receives(b.own(), atOwn)
		b.receives(b.former, atFormer)
		if from := b.send(answer(t, atOwn)); !slices.Equal(from, own) {
			t.Errorf("the answer to a question at the new address leaves from %v", from)
		}
		if from := b.send(answer(t, atFormer)); !slices.Equal(from, former) {
			t.Errorf("the answer to a question at the former address leaves from %v", from)
		}
		if from := b.send(request); !slices.Equal(from, own) {
			t.Errorf("a request after the move leaves from %v", from)
		}
		if b.Former() == nil {
			t.Error("the former socket is closed at once")
		}
		time.Sleep(3 * time.Second)
		if b.Former() != nil || b.network.Len() != 1 {
			t.Error("the former socket is not closed")
		}
		if from := b.send(media); !slices.Equal(from, own) {
			t.Errorf("after the end, data leaves from %v", from)
		}
		if moved, not := b.meter.PeersMoved.Load(), b.meter.PeersNotMoved.Load(); moved != 1 || not != 0 {
			t.Errorf("counted: %d moved, %d not", moved, not)
		}
	})
}

// a peer that does not accept the new address is counted after 10 s, and loses nothing. When it is silent for
// longer than ICE allows, the former socket is closed.
func TestPeerThatStaysLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept := check(t, "a:b", useCandidate)
		b := newMoving(t, kept)
		defer b.Close()
		b.Move()
		for range 600 { // the peer answers checks and selects no other address
			b.receives(b.own(), answer(t, kept))
			if !b.receives(b.former, media) {
				t.Fatal("the client does not get data")
			}
			if from := b.send(media); !slices.Equal(from, []netip.AddrPort{b.former}) {
				t.Fatalf("data leaves from %v", from)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if moved, not := b.meter.PeersMoved.Load(), b.meter.PeersNotMoved.Load(); moved != 0 || not != 1 {
			t.Errorf("counted: %d moved, %d not", moved, not)
		}
		if b.Former() == nil {
			t.Fatal("the former socket is closed")
		}
		time.Sleep(time.Minute)
		if b.Former() != nil {
			t.Error("the former socket is open, although the peer is silent")
		}
	})
}

// a peer has answered a check, but still sends to the former address, and prefers the address of the latest data,
// as a controlled agent of libwebrtc does. Such a peer changes to the new address. At most two datagrams a second are
// sent from the new address, until the attempt counts as failed. A peer that sends nothing gets none.
func TestPeerThatPrefersTheLatestData(t *testing.T) {
	for name, peer := range map[string]struct{ sends, takes bool }{
		"takes": {true, true}, "stays": {true, false}, "is silent": {false, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				kept := check(t, "a:b", useCandidate)
				b := newMoving(t, kept)
				defer b.Close()
				b.Move()
				time.Sleep(time.Second)
				both, own, sent := []netip.AddrPort{b.former, b.own()}, []netip.AddrPort{b.own()}, 0
				for i := range 1000 {
					if i == 50 {
						b.receives(b.own(), answer(t, kept))
					}
					if peer.sends {
						b.receives(b.former, media)
					}
					b.peer.Got()
					b.FromClient(append([]byte{0x40, 0, 0, byte(len(media))}, media...))
					time.Sleep(20 * time.Millisecond)
					var from []netip.AddrPort
					for _, d := range b.peer.Got() {
						from = append(from, d.From)
					}
					if !slices.Equal(from, both) {
						continue
					}
					if sent++; i < 50 {
						t.Fatal("data is sent to the new address before the peer has answered a check")
					}
					if peer.takes {
						b.receives(b.own(), media)
						break
					}
				}
				switch {
				case peer.takes:
					if from := b.send(media); sent != 1 || !slices.Equal(from, own) {
						t.Errorf("data leaves from %v after %d datagrams from both", from, sent)
					}
				case peer.sends && (sent < 10 || sent > 20), !peer.sends && sent > 0:
					t.Errorf("%d datagrams left from both addresses", sent)
				}
			})
		})
	}
}

// no check is sent to a peer without a permission or a route.
func TestCheckNeedsRouteAndPermission(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, peer := range []string{"127.0.0.8:4001", "127.0.0.9:4001"} {
			b := newMoving(t, check(t, "a:b"))
			b.permitted = strings.HasPrefix(peer, "127.0.0.9")
			socket, err := b.network.Open(netip.MustParseAddr("127.0.0.4"), 0)
			if err != nil {
				t.Fatal(err)
			}
			_ = b.Former().Close()
			b.From(socket, []session.Check{{Peer: netip.MustParseAddrPort(peer), Message: []byte(check(t, "a:b"))}})
			b.Move()
			time.Sleep(time.Second)
			if sent := b.network.Sent(); len(sent) > 0 {
				t.Errorf("sent to %s: %v", peer, sent)
			}
			_ = b.Close()
			synctest.Wait()
		}
	})
}

// the newest nominating check is kept, unless ICE has restarted.
func TestKeptChecks(t *testing.T) {
	nominates, later := check(t, "a:b", useCandidate), check(t, "a:b", useCandidate)
	plain, restarted := check(t, "a:b"), check(t, "a:c")
	for name, row := range map[string]struct {
		sent []string
		want string
	}{
		"the newest":                   {[]string{check(t, "a:b"), later}, later},
		"the newest that nominates":    {[]string{nominates, later, check(t, "a:b")}, later},
		"none nominates":               {[]string{check(t, "a:b"), plain}, plain},
		"the newest USERNAME":          {[]string{nominates, restarted}, restarted},
		"a nomination after a restart": {[]string{nominates, check(t, "a:c"), later}, later},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newMovingFrom(t, nominates, nothing)
				defer b.Close()
				for _, m := range row.sent {
					b.send(m)
				}
				if !b.receives(b.former, media) {
					t.Fatal("the client does not get data")
				}
				checks, ok := b.Depart(func(netip.Addr) bool { return false })
				if !ok || len(checks) != 1 || string(checks[0].Message) != row.want {
					t.Errorf("kept: %v, %q, want %q", ok, checks, row.want)
				}
			})
		})
	}
}

// a session may move only if all active peers are known to use ICE, and none of them is excluded.
func TestOnlySessionsWhosePeersUseICEMove(t *testing.T) {
	inUse := func(b *moving) {
		b.send(check(b.t, "a:b"))
		b.receives(b.former, media)
	}
	for name, row := range map[string]struct {
		prepare  func(b *moving)
		excluded bool
		ok       bool
		checks   int
	}{
		"a channel without checks":    {func(b *moving) { b.send(media) }, false, false, 0},
		"a peer with ICE":             {inUse, false, true, 1},
		"an excluded peer":            {inUse, true, false, 1},
		"a candidate that is dead":    {func(b *moving) { b.send(check(b.t, "a:b")); time.Sleep(time.Minute) }, true, true, 0},
		"a candidate that is checked": {func(b *moving) { b.send(check(b.t, "a:b")) }, true, false, 0},
		"consent that has ended":      {func(b *moving) { inUse(b); time.Sleep(time.Minute) }, false, true, 0},
		"one without a channel too": {func(b *moving) {
			inUse(b)
			b.Send([]byte(media), netip.MustParseAddrPort("127.0.0.1:4001"), false)
		}, false, false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newMovingFrom(t, check(t, "a:b"), nothing)
				defer b.Close()
				row.prepare(b)
				checks, ok := b.Depart(func(netip.Addr) bool { return row.excluded })
				if ok != row.ok || ok && len(checks) != row.checks {
					t.Errorf("%v, %d checks", ok, len(checks))
				}
			})
		})
	}
}

// after Hand, datagrams of peers go to the function, and the end of the relay leaves the socket open.
func TestHandedSocketStaysOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMoving(t, check(t, "a:b"))
		var passed []string
		b.Hand(func(batch []relay.Datagram) {
			for i := range batch {
				passed = append(passed, string(batch[i].Payload()))
			}
		})
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		if b.receives(b.own(), media) || !slices.Equal(passed, []string{media}) {
			t.Errorf("passed: %q", passed)
		}
		if err := b.Socket().Close(); err != nil {
			t.Error(err)
		}
	})
}

// a session stays at its pod while a peer may use the socket of an earlier pod, which the end of the relay would
// close. If that pod is lost, the session stays until a peer has answered.
func TestSessionStaysDuringAMove(t *testing.T) {
	for name, replaces := range map[string]formerly{"a former socket": aSocket, "a lost socket": aLostSocket} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				kept := check(t, "a:b", useCandidate)
				b := newMovingFrom(t, kept, replaces)
				defer b.Close()
				departs := func() bool {
					_, ok := b.Depart(func(netip.Addr) bool { return false })
					b.Stay()
					return ok
				}
				if b.Move(); replaces == aSocket {
					b.receives(b.former, media)
				}
				time.Sleep(takesLong)
				if departs() {
					t.Error("the session departs, although the peer has not taken the new address")
				}
				if replaces == aSocket && !b.receives(b.former, media) {
					t.Error("the former socket is closed")
				}
				b.send(check(t, "a:b"))
				b.receives(b.own(), answer(t, kept))
				b.receives(b.own(), media)
				time.Sleep(takesLong)
				if b.Former() != nil || !departs() {
					t.Error("the session stays, although the peer has taken the new address")
				}
			})
		})
	}
}

// takesLong is longer than takeTimeout, and shorter than the time after which a silent peer does not count.
const takesLong = 15 * time.Second

// when a client that does not nominate sends a check with a new USERNAME, other pods get a copy of the session,
// at most once a second.
func TestFreshChecksAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMovingFrom(t, "", nothing)
		defer b.Close()
		reports := 0
		b.routes.OnFreshCheck(func(*relay.Relay) { reports++ })
		for _, step := range []struct {
			sends []string
			want  int
		}{
			{[]string{check(t, "a:b"), check(t, "a:c"), check(t, "a:d")}, 1},
			{[]string{check(t, "a:d")}, 0},
			{[]string{check(t, "a:e")}, 1},
			{[]string{check(t, "a:e", useCandidate)}, 0},
		} {
			reports = 0
			for _, m := range step.sends {
				b.send(m)
			}
			time.Sleep(2 * time.Second)
			synctest.Wait()
			if checks := b.Checks(); reports != step.want || len(checks) != 1 ||
				string(checks[0].Message) != step.sends[len(step.sends)-1] {
				t.Errorf("%d reports, want %d; kept %q", reports, step.want, checks)
			}
		}
	})
}

// if the former relay is lost, nothing is sent to the peer before the client is reached. Then the check is sent
// until the peer has answered and sends data. Everything is sent from the new address.
func TestPeerOfALostRelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept := check(t, "a:b", useCandidate)
		b := newMovingFrom(t, kept, aLostSocket)
		defer b.Close()
		own := []netip.AddrPort{b.own()}
		time.Sleep(20 * time.Second)
		if sent := b.peer.Got(); len(sent) > 0 || b.Former() != nil {
			t.Errorf("before the client is reached: %v", sent)
		}
		b.Reached()
		b.Reached()
		time.Sleep(4 * time.Second)
		sent := b.peer.Got()
		if len(sent) < 9 || len(sent) > 13 {
			t.Errorf("%d checks in 4 s", len(sent))
		}
		for _, d := range sent {
			if d.Payload != kept || d.From != b.own() {
				t.Errorf("sent again: %v", d)
			}
		}
		request := check(t, "a:b")
		for _, payload := range []string{media, request, answer(t, request)} {
			if from := b.send(payload); !slices.Equal(from, own) {
				t.Errorf("%q leaves from %v", payload, from)
			}
		}
		for _, arrives := range []string{media, answer(t, kept), media} {
			if !b.receives(b.own(), arrives) {
				t.Errorf("the client does not get %q", arrives)
			}
		}
		b.peer.Got()
		time.Sleep(10 * time.Second)
		if sent := b.peer.Got(); len(sent) > 0 {
			t.Errorf("after the peer has taken the address: %v", sent)
		}
		if moved, not := b.meter.PeersMoved.Load(), b.meter.PeersNotMoved.Load(); moved != 1 || not != 0 {
			t.Errorf("counted: %d moved, %d not", moved, not)
		}
	})
}

// a peer that does not accept the address of the new relay gets no checks after 10 s, and is counted.
func TestPeerOfALostRelayThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newMovingFrom(t, check(t, "a:b", useCandidate), aLostSocket)
		defer b.Close()
		b.Reached()
		time.Sleep(11 * time.Second)
		b.peer.Got()
		time.Sleep(time.Minute)
		if sent := b.peer.Got(); len(sent) > 0 || b.meter.PeersNotMoved.Load() != 1 {
			t.Errorf("sent %v, %d peers counted", sent, b.meter.PeersNotMoved.Load())
		}
		if from := b.send(media); !slices.Equal(from, []netip.AddrPort{b.own()}) {
			t.Errorf("data leaves from %v", from)
		}
	})
}
