package forward

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/netns"
)

// TestOwnerRestartsBehindAFront: the process of the owner is killed while another pod forwards the datagrams of its
// client, and the peer goes on sending. The owner sends nothing to the client by itself: the node would take that for a
// flow of the pod, and give the client another port when it returns to the owner.
func TestOwnerRestartsBehindAFront(t *testing.T) {
	if !netns.Isolated(t) {
		return
	}
	w := newWorld(t, true)
	// Those of a node of Kubernetes. An entry of a datagram without an answer must last longer than the test.
	netns.Run(t, "sysctl -q -w net.netfilter.nf_conntrack_udp_timeout=120 net.netfilter.nf_conntrack_udp_timeout_stream=180")
	owner := w.pod(1)
	owner.start("--supervise")
	front := w.add(2)
	owner.awaitPeers(1)
	front.awaitPeers(1)
	c := w.dial(owner, voice, 200)
	calls := []*client{c}
	awaitAll(t, calls, 50)
	w.send(c, front)
	owner.await("the client uses the front", func(context.Context) error {
		if owner.front() == "" {
			return errors.New("no front")
		}
		return nil
	})
	byItself := fmt.Sprintf("--orig-src %s --orig-dst %s", owner.addr, clientAddr)
	w.forgetFlows(byItself) // from before the first datagram at the front
	w.insist(c)
	owner.crash()
	silent := time.Now()
	awaitAll(t, calls, c.Stats().Received+1)
	t.Logf("the forwarded call was silent for %s", time.Since(silent).Round(time.Millisecond))
	awaitAll(t, calls, c.Stats().Received+50)
	if n := w.forgetFlows(byItself); n > 0 {
		t.Errorf("the owner has sent to the client by itself: %d flows", n)
	}
	before := c.Stats().Lost
	w.send(c, owner)
	awaitAll(t, calls, c.Stats().Received+50)
	s := c.End(time.Second) // what was sent while the process restarted is lost
	t.Log(s)
	if lost := s.Lost - before; lost != 0 {
		t.Errorf("%d datagrams lost by the return to the owner", lost)
	}
	if s.LongestGap > 1500*time.Millisecond {
		t.Errorf("the call was silent for %s", s.LongestGap)
	}
}

// insist makes the peer of a call send to its relay, from another port, until the test ends.
func (w *world) insist(c *client) {
	relay := netip.MustParseAddrPort(c.Relay().String())
	w.t.Helper()
	var conn *net.UDPConn
	var err error
	w.peers.Do(func() {
		conn, err = net.DialUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(peerAddr.Addr(), 0)),
			net.UDPAddrFromAddrPort(relay))
	})
	if err != nil {
		w.t.Fatal(err)
	}
	done := make(chan struct{})
	w.t.Cleanup(func() { conn.Close(); <-done })
	go func() {
		defer close(done)
		for tick := time.NewTicker(2 * time.Millisecond); ; <-tick.C {
			if _, err := conn.Write([]byte("media")); errors.Is(err, net.ErrClosed) {
				return
			}
		}
	}()
}

// crash kills the process that the supervisor of a pod has started.
func (p *pod) crash() {
	t := p.world.t
	t.Helper()
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", p.process.PID(), p.process.PID()))
	if err != nil {
		t.Fatal(err)
	}
	child, err := strconv.Atoi(strings.TrimSpace(string(children)))
	if err == nil {
		err = syscall.Kill(child, syscall.SIGKILL)
	}
	if err != nil {
		t.Fatal(err)
	}
}
