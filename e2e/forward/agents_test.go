package forward

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pion/ice/v4"
	"github.com/pion/stun/v3"

	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// agent is an ICE agent of pion with one kind of candidates.
type agent struct {
	*ice.Agent
	ufrag, pwd string
	gathered   chan struct{}
	candidates []ice.Candidate
}

// newAgent returns an agent that has gathered its candidates.
func newAgent(t *testing.T, options ...ice.AgentOption) *agent {
	t.Helper()
	made, err := ice.NewAgentWithOptions(append(options,
		ice.WithNetworkTypes([]ice.NetworkType{ice.NetworkTypeUDP4}), ice.WithMulticastDNSMode(ice.MulticastDNSModeDisabled))...)
	must(t, err)
	t.Cleanup(func() { _ = made.Close() })
	a := &agent{Agent: made, gathered: make(chan struct{})}
	must(t, made.OnCandidate(func(c ice.Candidate) {
		if c == nil {
			close(a.gathered)
			return
		}
		a.candidates = append(a.candidates, c)
	}))
	a.ufrag, a.pwd, err = made.GetLocalUserCredentials()
	must(t, err)
	must(t, made.GatherCandidates())
	select {
	case <-a.gathered:
	case <-time.After(limit):
		t.Fatal("the agent gathers no candidates")
	}
	if len(a.candidates) == 0 {
		t.Fatal("the agent has no candidates")
	}
	return a
}

// connect connects the agent of a client with that of a peer.
func connect(t *testing.T, client, peer *agent, clientControls bool) (up, down *ice.Conn) {
	t.Helper()
	for _, p := range [][2]*agent{{client, peer}, {peer, client}} {
		for _, c := range p[1].candidates {
			must(t, p[0].AddRemoteCandidate(c))
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var group sync.WaitGroup
	join := func(a, other *agent, controls bool, conn **ice.Conn) {
		group.Go(func() {
			start := a.Accept
			if controls {
				start = a.Dial
			}
			var err error
			if *conn, err = start(ctx, other.ufrag, other.pwd); err != nil {
				t.Error(err)
			}
		})
	}
	join(client, peer, clientControls, &up)
	join(peer, client, !clientControls, &down)
	if group.Wait(); t.Failed() {
		t.FailNow()
	}
	return up, down
}

// stream sends numbered datagrams every 20 ms, and counts those that arrive.
type stream struct {
	mu       sync.Mutex
	sent     int
	arrived  map[uint64]bool
	last     time.Time
	gap      time.Duration
	stop     chan struct{}
	finished sync.WaitGroup
}

func newStream(from, to net.Conn) *stream {
	s := &stream{arrived: map[uint64]bool{}, stop: make(chan struct{})}
	s.finished.Go(func() {
		tick := time.NewTicker(voice)
		defer tick.Stop()
		for {
			s.mu.Lock()
			b := binary.BigEndian.AppendUint64(nil, 2<<62|uint64(s.sent))
			s.sent++
			s.mu.Unlock()
			_, _ = from.Write(append(b, make([]byte, 100)...)) // counted by the receiver
			select {
			case <-tick.C:
			case <-s.stop:
				return
			}
		}
	})
	go func() {
		b := make([]byte, 1500)
		for {
			n, err := to.Read(b)
			if err != nil {
				return
			}
			if n < 8 {
				continue
			}
			s.mu.Lock()
			s.arrived[binary.BigEndian.Uint64(b)] = true
			if now := time.Now(); !s.last.IsZero() {
				s.gap, s.last = max(s.gap, now.Sub(s.last)), now
			} else {
				s.last = now
			}
			s.mu.Unlock()
		}
	}()
	return s
}

// counts returns how many datagrams were sent and have arrived.
func (s *stream) counts() (sent, arrived int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent, len(s.arrived)
}

// lap returns the longest time between two datagrams since the last call.
func (s *stream) lap() (gap time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	gap, s.gap = s.gap, 0
	return gap
}

// end stops the stream, and returns the number of lost datagrams.
func (s *stream) end(t *testing.T) (lost int) {
	close(s.stop)
	s.finished.Wait()
	for until := time.Now().Add(10 * time.Second); ; time.Sleep(voice) {
		sent, arrived := s.counts()
		if lost = sent - arrived; lost == 0 || time.Now().After(until) {
			return lost
		}
	}
}

// TestAgentsMove: what ICE agents do when the pod of their peer drains. Those that take the new relayed
// address lose nothing, and those that do not stay at the former one and lose nothing either. A control of each row is
// the same call before.
func TestAgentsMove(t *testing.T) {
	for name, row := range map[string]struct {
		lite, clientControls bool
		want                 string
	}{
		"pion, full, answers": {false, true, "1 moved"},
		"pion, lite, answers": {true, true, "1 moved"},
		"pion, full, offers":  {false, false, "0 moved, 1 stay (1 peer)"},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGateway(t)
			home := g.net.Home[0]
			g.config.Clusters[0].Endpoints = append(g.config.Clusters[0].Endpoints, home.String())
			g.discovery.Publish(g.config)
			pods := g.add(2)
			conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(home, 0)))
			must(t, err)
			mux := ice.NewUDPMuxDefault(ice.UDPMuxParams{UDPConn: conn})
			t.Cleanup(func() { _ = mux.Close() })
			peer := newAgent(t, ice.WithUDPMux(mux), ice.WithICELite(row.lite),
				ice.WithCandidateTypes([]ice.CandidateType{ice.CandidateTypeHost}))
			client := newAgent(t, ice.WithCandidateTypes([]ice.CandidateType{ice.CandidateTypeRelay}),
				ice.WithUrls([]*stun.URI{{
					Scheme: stun.SchemeTypeTURN, Host: pods[0].addr.Addr().String(), Port: port, Username: user, Password: password,
					Proto: stun.ProtoTypeUDP,
				}}))
			upConn, downConn := connect(t, client, peer, row.clientControls)
			up, down := newStream(upConn, downConn), newStream(downConn, upConn)
			arrive := func(more int) {
				t.Helper()
				for _, s := range []*stream{up, down} {
					_, before := s.counts()
					pods[1].await("datagrams arrive", func(context.Context) error {
						if _, n := s.counts(); n < before+more {
							return fmt.Errorf("%d of %d datagrams", n-before, more)
						}
						return nil
					})
				}
			}
			arrive(100)
			upBefore, downBefore := up.lap(), down.lap()
			must(t, pods[0].process.Signal(syscall.SIGTERM))
			begun := time.Now()
			pods[0].await("the peer takes the new address, or does not", func(context.Context) error {
				d := pods[0].drain()
				if d.String() != row.want || d.Stay[inspection.StaysForPeer] > 0 && time.Since(begun) < 11*time.Second {
					return fmt.Errorf("%s, want %s", d, row.want)
				}
				return nil
			})
			took := time.Since(begun)
			if n := len(pods[1].sessions()); n != 1 {
				t.Errorf("the successor has %d sessions", n)
			}
			arrive(50)
			upGap, downGap := up.lap(), down.lap()
			lostUp, lostDown := up.end(t), down.end(t)
			t.Logf("%s: %s after %s; longest gap down %s, up %s, before %s, %s; lost %d, %d", name, pods[0].drain(), took,
				downGap, upGap, downBefore, upBefore, lostDown, lostUp)
			if lostUp+lostDown > 0 {
				t.Errorf("%d datagrams lost up, %d down", lostUp, lostDown)
			}
		})
	}
}

// TestPeersWithoutICEStay: sessions with a peer that does not use ICE stay at the draining pod. The pod stays
// ready, and they lose nothing.
func TestPeersWithoutICEStay(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	pods := g.add(2)
	calls := g.dialEach(3, voice, pods[0])
	must(t, pods[0].process.Signal(syscall.SIGTERM))
	pods[0].await("it drains", func(context.Context) error {
		if d := pods[0].drain().String(); d != "0 moved, 3 stay (3 peer)" {
			return fmt.Errorf("%s", d)
		}
		return nil
	})
	awaitMore(t, calls, 100)
	if n := len(pods[0].sessions()); n != len(calls) {
		t.Errorf("the pod has %d sessions", n)
	}
	end(t, calls...)
	awaitExit(t, pods[0])
}
