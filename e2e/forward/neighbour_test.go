package forward

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/e2e/internal/ask"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// neighbours are activities of one client with a session at three pods. pods[0] has the session. step is called at a
// rate, and sends one datagram from the address of the client.
var neighbours = []struct {
	sentence string
	rate     int // datagrams a second
	step     func(n int, pods []*pod, send func(to *pod, payload []byte))
}{
	{"floods through two pods", 3000, func(n int, pods []*pod, send func(*pod, []byte)) {
		send(pods[1+n%2], channelData)
	}},
	{"moves to another pod with each datagram", 2000, func(n int, pods []*pod, send func(*pod, []byte)) {
		send(pods[n%3], channelData)
	}},
	{"moves to another pod with each datagram, which is a request or a check", 2000,
		func(n int, pods []*pod, send func(*pod, []byte)) {
			payload := ask.ChannelData(0x4000, stun.MustBuild(stun.TransactionID, stun.BindingRequest).Raw)
			if n/3%2 == 0 {
				payload = stun.MustBuild(stun.TransactionID, stun.NewType(stun.MethodRefresh, stun.ClassRequest)).Raw
			}
			send(pods[n%3], payload)
		}},
}

// K-17: TestNoisyClientOfThreePods: while a client uses several pods, the calls of others lose at most one percent more
// than without this client. This holds at any pod, whether another pod forwards their datagrams or not. New calls
// succeed at each pod.
func TestNoisyClientOfThreePods(t *testing.T) {
	g := newGateway(t)
	pods := g.add(3)
	noisy := g.dial(pods[0], voice)
	awaitMore(t, []*client{noisy}, 5)
	others := g.dialEach(3, voice, pods...)
	for i, c := range others {
		if i%3 == 0 {
			c.move(pods[(slices.Index(pods, c.at)+1)%3])
		}
	}
	awaitMore(t, others, 20)
	const window, more = 4 * time.Second, 1.0
	lost := func(do func(context.Context)) float64 {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), window)
		defer cancel()
		sent, lost := 0, 0
		for _, c := range others {
			s := c.Stats()
			sent, lost = sent-s.Sent, lost-(s.Sent-s.Received)
		}
		do(ctx)
		awaitMore(t, others, 5) // the echoes of the window have arrived or are lost
		for _, c := range others {
			s := c.Stats()
			sent, lost = sent+s.Sent, lost+(s.Sent-s.Received)
		}
		return 100 * float64(max(lost-len(others), 0)) / float64(sent) // one datagram of each call may be in flight
	}
	raw := netns.NewRawSocket(t)
	for _, n := range neighbours {
		t.Run(n.sentence, func(t *testing.T) {
			control := lost(func(ctx context.Context) { <-ctx.Done() })
			passed, done := pods[1].forwarding().Passed+pods[2].forwarding().Passed, 0
			disturbed := lost(func(ctx context.Context) {
				began := time.Now()
				tick := time.NewTicker(2 * time.Millisecond)
				defer tick.Stop()
				for ctx.Err() == nil {
					for due := int(time.Since(began).Seconds() * float64(n.rate)); done < due; done++ {
						n.step(done, pods, func(to *pod, payload []byte) { _ = raw.Send(noisy.local, to.addr, payload) })
					}
					<-tick.C
				}
			})
			passed = pods[1].forwarding().Passed + pods[2].forwarding().Passed - passed
			t.Logf("%d datagrams, %d forwarded; calls of others lose %.2f %%, %.2f %% without", done, passed, disturbed, control)
			if passed < 100 {
				t.Errorf("TEST NOT VALID: %d datagrams are forwarded", passed)
			}
			if disturbed > control+more {
				t.Errorf("calls of others lose %.2f %%, %.2f %% without the client", disturbed, control)
			}
			fresh := g.dialEach(1, voice, pods...)
			for _, c := range fresh {
				c.End(time.Second)
			}
		})
	}
	for _, c := range append(others, noisy) {
		c.End(0)
	}
}

// T-03: TestNoSessionThroughAnotherPod: with a route to all pods, a client of one pod gets no session in another pod
// through its relay. Permissions and channels for a listener and for the port of forwarded datagrams are refused, and
// so are indications after a permission for another port of the pod.
func TestNoSessionThroughAnotherPod(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	pods := g.add(3)
	for _, p := range pods {
		g.config.Clusters[0].Endpoints = append(g.config.Clusters[0].Endpoints, p.addr.Addr().String())
	}
	g.discovery.Publish(g.config)
	c, err := ask.DialFrom(netip.AddrPortFrom(g.net.Home[0], 31_000), pods[0].addr, user, password)
	must(t, err)
	t.Cleanup(c.Close)
	do := func(method stun.Method, attrs ...stun.Setter) stun.ErrorCode {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		answer, _, err := c.Do(ctx, method, attrs...)
		must(t, err)
		return ask.Code(answer)
	}
	if code := do(stun.MethodAllocate, ask.UDP()); code != 0 {
		t.Fatalf("Allocate: %d", code)
	}
	relay := func(p *pod) netip.AddrPort { return netip.AddrPortFrom(p.addr.Addr(), 50_000) }
	pods[0].await("the route to the pods", func(context.Context) error {
		if code := do(stun.MethodCreatePermission, ask.Peer(relay(pods[1]))); code != 0 {
			return fmt.Errorf("error %d", code)
		}
		return nil
	})
	for i, p := range pods {
		g.mu.Lock()
		forwards := g.reported[p.name].Address
		g.mu.Unlock()
		for what, to := range map[string]netip.AddrPort{"listener": p.addr, "port of forwarded datagrams": forwards} {
			if code := do(stun.MethodCreatePermission, ask.Peer(to)); code != stun.CodeForbidden {
				t.Errorf("permission for the %s of %s: %d, want 403", what, p.name, code)
			}
			if code := do(stun.MethodChannelBind, ask.Channel(0x4000+uint16(i)), ask.Peer(to)); code != stun.CodeForbidden {
				t.Errorf("channel to the %s of %s: %d, want 403", what, p.name, code)
			}
		}
	}
	const indications = 20
	denied := func() (n int) {
		var list inspection.RefusalList
		pods[0].read("refusals", &list)
		for _, r := range list.Refusals {
			if !r.Answered && r.Peer == pods[1].addr.String() {
				n += r.Times
			}
		}
		return n
	}
	before := denied()
	binding := stun.MustBuild(stun.TransactionID, stun.BindingRequest).Raw
	for range indications {
		must(t, c.Send(ask.SendIndication(pods[1].addr, binding)))
	}
	pods[0].await("drops of the indications", func(context.Context) error {
		if n := denied() - before; n < indications {
			return fmt.Errorf("%d of %d indications are dropped", n, indications)
		}
		return nil
	})
	if n := len(pods[1].sessions()) + len(pods[2].sessions()); n != 0 {
		t.Errorf("%d sessions in other pods", n)
	}
}
