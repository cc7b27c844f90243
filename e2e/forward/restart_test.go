package forward

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
)

// TestOwnerRestartsBehindAFront: the process of the owner is killed while another pod forwards the datagrams of
// its client and the peer continues to send. The owner must not send to the client first: the node would create a
// conntrack entry, and give the client another port when it returns to the owner.
func TestOwnerRestartsBehindAFront(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	owner, front := g.pod(), g.pod()
	owner.start("--supervise")
	front.start()
	g.awaitPeers(owner, front)
	calls := g.dialEach(1, voice, owner)
	c := calls[0]
	c.move(front)
	must(t, c.Renew()) // data alone moves no client
	owner.await("the client uses the front", func(context.Context) error {
		if s := owner.sessions(); len(s) != 1 || s[0].Front == "" {
			return fmt.Errorf("sessions %+v", s)
		}
		return nil
	})
	awaitMore(t, calls, 5) // then no earlier datagram of the owner is on its way
	byItself := c.balancer.Received(owner.addr)
	g.sendToRelay(c)
	owner.crash()
	ended, echoes := time.Now(), c.Stats().Received
	owner.await("ready again", harness.Answers(owner.admin("ready"), http.StatusOK))
	ready := time.Now()
	awaitMore(t, calls, max(0, echoes+1-c.Stats().Received))
	t.Logf("the owner was ready after %s, and the call went on %s later", ready.Sub(ended), time.Since(ready))
	if silent := time.Since(ready); silent > time.Second {
		t.Errorf("the call was silent for %s after the restart", silent)
	}
	awaitMore(t, calls, 50)
	if n := c.balancer.Received(owner.addr) - byItself; n > 0 {
		t.Errorf("the owner has sent %d datagrams to the client by itself", n)
	}
	before := c.Stats().Lost // lost while the process restarted; one more may be on its way
	c.move(owner)
	awaitMore(t, calls, 50)
	if s := c.End(time.Second); s.Lost > before {
		t.Errorf("%d datagrams lost before and %d after the return to the owner", before, s.Lost)
	}
}

// sendToRelay makes the peer of a call send to its relay, from another port, until the test ends.
func (g *gateway) sendToRelay(c *client) {
	g.t.Helper()
	relay := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(c.Relay().String()))
	from := net.UDPAddrFromAddrPort(netip.AddrPortFrom(g.peer.Addr(), 0))
	var conn *net.UDPConn
	var err error
	g.net.Peers.Do(func() { conn, err = net.DialUDP("udp4", from, relay) })
	must(g.t, err)
	done := make(chan struct{})
	g.t.Cleanup(func() { conn.Close(); <-done })
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
	p.t.Helper()
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", p.process.PID(), p.process.PID()))
	must(p.t, err)
	child, err := strconv.Atoi(strings.TrimSpace(string(children)))
	if err == nil {
		err = syscall.Kill(child, syscall.SIGKILL)
	}
	must(p.t, err)
}
