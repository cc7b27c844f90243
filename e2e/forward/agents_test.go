package forward

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/pion/ice/v4"
	"github.com/pion/stun/v3"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
)

// parameters are the data that ICE agents exchange by signalling.
type parameters struct {
	Ufrag      string   `json:"ufrag"`
	Pwd        string   `json:"pwd"`
	Candidates []string `json:"candidates"`
	// Lite is set for an agent with a lite implementation (RFC 8445 §2.5).
	Lite bool `json:"-"`
	// Port is the port for datagrams: of a script, or of the test.
	Port uint16 `json:"port"`
}

// agent is an ICE agent of a call.
type agent interface {
	own() parameters
	// connect connects the agent with the other agent, and returns the connection between both.
	connect(ctx context.Context, other parameters) (net.Conn, error)
}

// pionAgent is an ICE agent of pion.
type pionAgent struct {
	*ice.Agent
	controls bool
	parameters
}

// newPionAgent returns an agent that has gathered its candidates.
func newPionAgent(t *testing.T, controls bool, options ...ice.AgentOption) *pionAgent {
	t.Helper()
	made, err := ice.NewAgentWithOptions(append(options, ice.WithNetworkTypes([]ice.NetworkType{ice.NetworkTypeUDP4}),
		ice.WithMulticastDNSMode(ice.MulticastDNSModeDisabled))...)
	must(t, err)
	t.Cleanup(func() { _ = made.Close() })
	a := &pionAgent{Agent: made, controls: controls}
	gathered := make(chan struct{})
	must(t, made.OnCandidate(func(c ice.Candidate) {
		if c == nil {
			close(gathered)
			return
		}
		a.Candidates = append(a.Candidates, c.Marshal())
	}))
	a.Ufrag, a.Pwd, err = made.GetLocalUserCredentials()
	must(t, err)
	must(t, made.GatherCandidates())
	select {
	case <-gathered:
	case <-time.After(limit):
		t.Fatal("the agent of pion gathers no candidates")
	}
	return a
}

// pionPeer returns an agent of pion in the network of the test process.
func (g *gateway) pionPeer(t *testing.T, controls, lite bool) agent {
	t.Helper()
	conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(g.net.Home[0], 0)))
	must(t, err)
	mux := ice.NewUDPMuxDefault(ice.UDPMuxParams{UDPConn: conn})
	t.Cleanup(func() { _ = mux.Close() })
	a := newPionAgent(t, controls, ice.WithUDPMux(mux), ice.WithICELite(lite),
		ice.WithCandidateTypes([]ice.CandidateType{ice.CandidateTypeHost}))
	a.Lite = lite
	return a
}

// pionClient returns an agent of pion in the network of the test process that has candidates only of the relay at an
// address.
func pionClient(t *testing.T, relay netip.Addr, controls bool) agent {
	t.Helper()
	return newPionAgent(t, controls, ice.WithCandidateTypes([]ice.CandidateType{ice.CandidateTypeRelay}),
		ice.WithUrls([]*stun.URI{{
			Scheme: stun.SchemeTypeTURN, Host: relay.String(), Port: port, Username: user, Password: password,
			Proto: stun.ProtoTypeUDP,
		}}))
}

func (a *pionAgent) own() parameters { return a.parameters }

func (a *pionAgent) connect(ctx context.Context, other parameters) (net.Conn, error) {
	for _, text := range other.Candidates {
		c, err := ice.UnmarshalCandidate(text)
		if err = errors.Join(err, a.AddRemoteCandidate(c)); err != nil {
			return nil, err
		}
	}
	if a.controls {
		return a.Dial(ctx, other.Ufrag, other.Pwd)
	}
	return a.Accept(ctx, other.Ufrag, other.Pwd)
}

// scriptAgent is an ICE agent of another project in a Python process. It exchanges the datagrams of the connection with
// a UDP socket of the loopback interface.
type scriptAgent struct {
	parameters
	space   *netns.Space
	process *os.Process
	input   io.Writer
	output  *bufio.Reader
}

// scriptConn is the connection of a scriptAgent. It ends with the agent.
type scriptConn struct {
	net.Conn
	process *os.Process
}

func (c scriptConn) Close() error { return errors.Join(c.Conn.Close(), c.process.Kill()) }

// scriptAgent starts a script of this folder in a network. With relayed set it has relayed candidates only.
func (m *moves) scriptAgent(
	t *testing.T, script string, space *netns.Space, addr netip.Addr, controls, relayed bool,
) agent {
	t.Helper()
	const path = "/usr/bin/python3" // of Debian, whose packages have the modules; another Python may come first in PATH
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: run `sudo apt-get install --yes python3-aioice python3-gi gir1.2-nice-0.1`", err)
	}
	role := map[bool]string{true: "controlling", false: "controlled"}[controls]
	args := []string{filepath.Join(harnesstest.Root(t), "e2e/forward", script), role, addr.String()}
	if relayed {
		args = append(args, m.service.Addr().String(), strconv.Itoa(port), user, password)
	}
	cmd := exec.Command(path, args...)
	cmd.Stderr = os.Stderr
	input, err := cmd.StdinPipe()
	must(t, err)
	output, err := cmd.StdoutPipe()
	must(t, err)
	space.Do(func() { err = cmd.Start() })
	must(t, err)
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // the process has no other end
		_ = cmd.Wait()
	})
	a := &scriptAgent{space: space, process: cmd.Process, input: input, output: bufio.NewReader(output)}
	line, err := a.output.ReadBytes('\n')
	if err = errors.Join(err, json.Unmarshal(line, &a.parameters)); err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return a
}

func (a *scriptAgent) own() parameters { return a.parameters }

func (a *scriptAgent) connect(ctx context.Context, other parameters) (conn net.Conn, err error) {
	at := netip.AddrPortFrom(netip.MustParseAddr(harness.Loopback), a.Port)
	if conn, err = a.space.Dial(ctx, "udp", at.String()); err != nil {
		return nil, err
	}
	conn = scriptConn{conn, a.process}
	other.Port = conn.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	line, err := json.Marshal(other)
	if err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintf(a.input, "%s\n", line); err != nil {
		return nil, err
	}
	connected := make(chan error, 1)
	go func() {
		_, err := a.output.ReadBytes('\n')
		connected <- err
	}()
	select {
	case err = <-connected:
		return conn, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func connectBoth(t *testing.T, one, two agent) (ends [2]net.Conn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var group sync.WaitGroup
	for i, a := range []agent{one, two} {
		other := []agent{two, one}[i]
		group.Go(func() {
			var err error
			if ends[i], err = a.connect(ctx, other.own()); err != nil {
				t.Error(err)
			}
		})
	}
	if group.Wait(); t.Failed() {
		t.FailNow()
	}
	return ends
}

// sender sends numbered messages every 20 ms until it is stopped.
type sender struct {
	mu      sync.Mutex
	number  int
	stopped chan struct{}
}

func newSender(to io.Writer) *sender {
	s := &sender{stopped: make(chan struct{})}
	go func() {
		tick := time.NewTicker(voice)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-s.stopped:
				return
			}
			s.mu.Lock()
			// A message begins like an RTP packet (RFC 3550 §5.1), so that agents do not handle it as a STUN message.
			b := binary.BigEndian.AppendUint64(nil, 2<<62|uint64(s.number))
			s.number++
			_, _ = to.Write(b) // the receiver counts lost messages
			s.mu.Unlock()
		}
	}()
	return s
}

func (s *sender) sent() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.number
}

func (s *sender) stop() { close(s.stopped) }

// receiver counts the messages of a sender, each once.
type receiver struct {
	mu      sync.Mutex
	numbers map[uint32]bool
	last    time.Time
	gap     time.Duration
}

func newReceiver(from io.Reader) *receiver {
	r := &receiver{numbers: map[uint32]bool{}}
	go func() {
		for b := make([]byte, 2048); ; {
			n, err := from.Read(b)
			if err != nil {
				return
			}
			if n >= 8 {
				r.received(binary.BigEndian.Uint32(b[4:]), time.Now())
			}
		}
	}()
	return r
}

func (r *receiver) received(number uint32, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.last.IsZero() {
		r.gap = max(r.gap, now.Sub(r.last))
	}
	r.numbers[number], r.last = true, now
}

func (r *receiver) arrived() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.numbers)
}

// lap returns the longest time without a message since its last call.
func (r *receiver) lap() (gap time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if gap = r.gap; !r.last.IsZero() {
		gap = max(gap, time.Since(r.last))
	}
	r.gap = 0
	return gap
}
