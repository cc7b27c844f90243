package forward

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/e2e/internal/ice"
	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// awaitDrain waits until the pod has handled SIGTERM. Before that, it admits clients itself.
func (p *pod) awaitDrain() {
	p.t.Helper()
	p.await("it drains", func(context.Context) error {
		var status inspection.Status
		if p.read("status", &status); status.Drain == nil {
			return errors.New("it does not drain yet")
		}
		return nil
	})
}

// drain returns the field drain of the status.
func (p *pod) drain() inspection.DrainStatus {
	p.t.Helper()
	var status inspection.Status
	if p.read("status", &status); status.Drain == nil {
		return inspection.DrainStatus{}
	}
	return *status.Drain
}

// sockets returns the number of UDP sockets in the network of the pod.
func (p *pod) sockets() int {
	p.t.Helper()
	table, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/udp", p.process.PID()))
	must(p.t, err)
	return strings.Count(string(table), "\n") - 1
}

// dialICE starts calls with a peer that has an ICE lite agent, and waits until they work.
func (g *gateway) dialICE(number int, every time.Duration, at *pod) (calls []*client) {
	g.t.Helper()
	for range number {
		g.checks = ice.NewSession(int(g.nextPort))
		calls = append(calls, g.dial(at, every))
	}
	g.checks = nil
	awaitMore(g.t, calls, 20)
	return calls
}

const tcpPort = port + 1

// listenTCP adds a TCP listener to the Gateway.
func (g *gateway) listenTCP() {
	tcp := g.config.Listeners[0]
	tcp.Name, tcp.Protocol, tcp.Port = "media/edge/tcp", config.TURNTCP, tcpPort
	g.config.Listeners = append(g.config.Listeners, tcp)
	g.discovery.Publish(g.config)
}

// tryTCP starts a call over TCP to the pod, which may be refused.
func (p *pod) tryTCP(every time.Duration, checks *ice.Session) (*client, error) {
	c := new(client)
	var err error
	c.Call, err = call.Start(p.t.Context(), call.Options{
		Gateway: netip.AddrPortFrom(p.addr.Addr(), tcpPort), Network: call.TCP, Username: user, Password: password,
		Peer: p.peer, Interval: every, Checks: checks,
	})
	return c, err
}

// laps returns the longest gap of some calls since the last call of laps.
func laps(calls []*client) (longest time.Duration) {
	for _, c := range calls {
		longest = max(longest, c.Lap())
	}
	return longest
}

// TestCallsMoveOnSIGTERM: after SIGTERM, 200 calls over UDP move from a pod to the two other pods within 10 s,
// without a lost datagram. 5 calls over TCP drain as before. When they have ended, the pod becomes unready, its clients
// use other pods, and it ends.
func TestCallsMoveOnSIGTERM(t *testing.T) {
	g := newGateway(t)
	g.net.Peers.Do(func() { g.peer = harnesstest.Peer(t, g.net.Peer(0)[0], ice.Serve) })
	g.listenTCP()
	pods := g.add(3)
	leaving, others := pods[0], pods[1:]
	const count, every = 200, 100 * time.Millisecond
	before := leaving.sockets()
	calls := g.dialICE(count, every, leaving)
	control := g.dialICE(20, every, others[0])
	var streams []*client
	for range 5 {
		c, err := leaving.tryTCP(every, ice.NewSession(-1-len(streams)))
		must(t, err)
		streams = append(streams, c)
	}
	awaitMore(t, streams, 5)
	laps(calls)
	laps(control)

	must(t, leaving.process.Signal(syscall.SIGTERM))
	begun := time.Now()
	leaving.await("the calls move", func(context.Context) error {
		if d := leaving.drain(); d.Moved != count {
			return fmt.Errorf("%s", d)
		}
		return nil
	})
	took, left := time.Since(begun), leaving.sockets()-before
	status := leaving.drain().String()
	awaitMore(t, calls, 10)
	moved, unmoved := laps(calls), laps(control)
	t.Logf("%s after %s; %d sockets left; longest gap %s, of calls at another pod %s", status, took, left, moved, unmoved)
	if took > 10*time.Second {
		t.Errorf("the move took %s", took)
	}
	if want := "200 moved, 5 stay (5 TCP)"; status != want {
		t.Errorf("drain: %q, want %q", status, want)
	}
	if left > len(streams)+4 { // 4 sockets send to clients and pods
		t.Errorf("%d sockets are open", left)
	}
	if most := max(250*time.Millisecond, 2*unmoved); moved > most {
		t.Errorf("longest gap %s, want %s at most", moved, most)
	}
	if n := len(leaving.sessions()); n != len(streams) {
		t.Errorf("the pod has %d sessions, want those over TCP", n)
	}
	for _, p := range others {
		if n := len(p.sessions()); n < count/4 {
			t.Errorf("%s has %d sessions", p.name, n)
		}
	}
	leaving.await("it stays ready", harness.Answers(leaving.admin("ready"), http.StatusOK))
	end(t, streams...)
	ended := time.Now()
	leaving.await("it is not ready", harness.Answers(leaving.admin("ready"), http.StatusServiceUnavailable))
	for i, c := range calls {
		c.move(others[i%len(others)])
	}
	awaitExit(t, leaving)
	t.Logf("the pod was gone %s after its last call over TCP", time.Since(ended))
	if gone := time.Since(ended); gone > 30*time.Second {
		t.Errorf("the pod was gone after %s", gone)
	}
	awaitMore(t, calls, 20)
	end(t, append(calls, control...)...)
}

// TestNewCallsAtAPodThatDrains: a load balancer sends new clients to a pod for 5 s after SIGTERM. No call is
// refused: the other pod has their sessions, and no datagram is lost when the clients are sent to that pod.
func TestNewCallsAtAPodThatDrains(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	pods := g.add(2)
	leaving, other := pods[0], pods[1]
	stays := g.dialEach(1, voice, leaving) // a peer without ICE, so the pod waits for the call
	must(t, leaving.process.Signal(syscall.SIGTERM))
	leaving.await("it drains", func(context.Context) error {
		if d := leaving.drain().String(); d != "0 moved, 1 stay (1 peer)" {
			return fmt.Errorf("%s", d)
		}
		return nil
	})
	var calls []*client
	refused := 0
	for begun := time.Now(); time.Since(begun) < 5*time.Second; awaitMore(t, stays, 10) {
		c, err := g.tryDialAs(user, password, leaving, voice)
		if err != nil {
			refused++
			t.Log(err)
			continue
		}
		calls = append(calls, c)
	}
	t.Logf("%d new calls at a pod that drains, %d refused", len(calls)+refused, refused)
	if refused > 0 || len(calls) < 5 {
		t.Errorf("%d of %d new calls refused", refused, len(calls)+refused)
	}
	awaitMore(t, calls, 20)
	if here, there := len(leaving.sessions()), len(other.sessions()); here != 1 || there != len(calls) {
		t.Errorf("%d sessions at the pod that drains, %d at the other one", here, there)
	}
	end(t, stays...)
	leaving.await("it is not ready", harness.Answers(leaving.admin("ready"), http.StatusServiceUnavailable))
	for _, c := range calls {
		c.move(other)
	}
	awaitExit(t, leaving)
	awaitMore(t, calls, 20)
	end(t, calls...)
}

// TestNewCallsAtAPodWithoutSessions: a load balancer sends new clients to a pod without sessions for 2 s after
// SIGTERM. No call is refused, and the pod ends when its clients use another pod. If there is no other pod, it ends at
// once.
func TestNewCallsAtAPodWithoutSessions(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	alone := g.pod()
	alone.start("--drain-minimum", "10m")
	must(t, alone.process.Signal(syscall.SIGTERM))
	awaitExit(t, alone)
	g.announce(func() { delete(g.reported, alone.name) })
	pods := g.add(2)
	leaving, other := pods[0], pods[1]
	must(t, leaving.process.Signal(syscall.SIGTERM))
	leaving.awaitDrain()
	var calls []*client
	for begun := time.Now(); time.Since(begun) < 2*time.Second; {
		c, err := g.tryDialAs(user, password, leaving, voice)
		if err != nil {
			t.Fatalf("new call %s after SIGTERM: %v", time.Since(begun), err)
		}
		calls = append(calls, c)
		awaitMore(t, calls[len(calls)-1:], 10)
	}
	awaitMore(t, calls, 20)
	if n := len(other.sessions()); n != len(calls) {
		t.Errorf("the other pod has %d sessions, want %d", n, len(calls))
	}
	for _, c := range calls {
		c.move(other)
	}
	awaitExit(t, leaving)
	awaitMore(t, calls, 20)
	end(t, calls...)
}

// TestNewConnectionsAtAPodThatDrains: nodes send new connections to a pod without sessions for 2 s after SIGTERM.
// No call is refused, and the pod keeps all of them until they end. Later calls are refused.
func TestNewConnectionsAtAPodThatDrains(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.listenTCP()
	leaving := g.add(2)[0]
	must(t, leaving.process.Signal(syscall.SIGTERM))
	var calls []*client
	for begun := time.Now(); time.Since(begun) < 2*time.Second; {
		c, err := leaving.tryTCP(voice, nil)
		if err != nil {
			t.Fatalf("new call %s after SIGTERM: %v", time.Since(begun), err)
		}
		calls = append(calls, c)
		awaitMore(t, calls[len(calls)-1:], 10)
	}
	leaving.await("new calls are refused", func(context.Context) error {
		c, err := leaving.tryTCP(voice, nil)
		switch {
		case err == nil:
			c.End(0)
			return errors.New("a call is admitted")
		case !strings.Contains(err.Error(), "error 508"):
			return err
		}
		return nil
	})
	awaitMore(t, calls, 20)
	if n := len(leaving.sessions()); n != len(calls) {
		t.Errorf("the pod has %d sessions, want %d", n, len(calls))
	}
	end(t, calls...)
	awaitExit(t, leaving)
}

// TestPeerOfAnEarlierPodLosesNoDatagram: a session has moved, and its peer still uses the socket of the first
// pod. After SIGTERM at the second pod too, the session stays there, and the call loses no datagram.
func TestPeerOfAnEarlierPodLosesNoDatagram(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	g.config.Clusters[0].Endpoints = append(g.config.Clusters[0].Endpoints, g.net.Home[0].String())
	g.discovery.Publish(g.config)
	pods := g.add(3)
	c := callBetween(t, pionClient(t, pods[0].addr.Addr(), false), g.pionPeer(t, true, false))
	arrive := func() {
		t.Helper()
		if !c.arrive(100, limit) {
			t.Fatal("the call does not go on")
		}
	}
	arrive()
	for i := range 2 {
		at := slices.IndexFunc(pods, func(p *pod) bool { return len(p.sessions()) == 1 })
		must(t, pods[at].process.Signal(syscall.SIGTERM))
		pods[at].await("it drains", func(context.Context) error {
			if d, here := pods[at].drain().String(), len(pods[at].sessions()); d != "0 moved, 1 stay (1 peer)" || here != i {
				return fmt.Errorf("%s; %d sessions are here, want %d", d, here, i)
			}
			return nil
		})
		arrive()
	}
	if down, up := c.lost(false); down+up > 0 {
		t.Errorf("%d datagrams lost down, %d up", down, up)
	}
	c.end()
}
