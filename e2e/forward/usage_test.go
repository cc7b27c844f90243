package forward

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/e2e/internal/ice"
	"github.com/stunner-gateway/stunner/services/api/inspection"
	"github.com/stunner-gateway/stunner/services/api/telemetry"
)

type usageCount struct{ Bytes, Packets int }

func (c *usageCount) add(d usageCount) {
	c.Bytes += d.Bytes
	c.Packets += d.Packets
}

// media returns the number of datagrams of one size in the count, if all others have another size. It also reports
// whether both numbers are whole.
func (c usageCount) media(size, other int) (n int, whole bool) {
	n = (c.Bytes - other*c.Packets) / (size - other)
	return n, n > 0 && n < c.Packets && c.Bytes == size*n+other*(c.Packets-n)
}

// usagePart is the last record of a part of a session.
type usagePart struct {
	Session, Part, User, Reason string
	Final                       bool
	Sent, Received              usageCount
}

type usageOf struct {
	sessions       map[string]bool
	reasons        map[string]int // numbers of ended parts by reason
	sent, received usageCount
}

// bill returns the usage by user in a file of records, by the rule of docs/operate/usage.md, and the number of parts.
func bill(t *testing.T, file string) (users map[string]*usageOf, parts int) {
	t.Helper()
	data, err := os.ReadFile(file)
	must(t, err)
	last := map[string]usagePart{}
	for line := range bytes.Lines(data) {
		var r usagePart
		must(t, json.Unmarshal(line, &r))
		before := last[r.Part]
		if r.Final && before.Final && r != before {
			t.Errorf("two last records of a part: %+v and %+v", before, r)
		}
		if r.Final || !before.Final {
			last[r.Part] = r
		}
	}
	users = map[string]*usageOf{}
	for _, p := range last {
		if !p.Final {
			t.Errorf("no last record: %+v", p)
		}
		u := users[p.User]
		if u == nil {
			u = &usageOf{sessions: map[string]bool{}, reasons: map[string]int{}}
			users[p.User] = u
		}
		u.sessions[p.Session] = true
		u.reasons[p.Reason]++
		u.sent.add(p.Sent)
		u.received.add(p.Received)
	}
	return users, len(last)
}

// TestUsageOfARollingUpdate: the usage of 1,000 users equals the traffic of each of their clients. One of the
// three pods was killed and has continued its sessions. Then all pods were replaced one after another. The kernel
// forwards the media of clients whose datagrams arrive at the pod with their session.
func TestUsageOfARollingUpdate(t *testing.T) {
	const count, every, size = 1000, 2 * time.Second, 200
	g := newGateway(t)
	g.net.Peers.Do(func() { g.peer = harnesstest.Peer(t, g.net.Peer(0)[0], ice.Serve) })
	g.config.Auth = harnesstest.Ephemeral("a secret of the applications")
	g.config.Admin.OffloadEngine, g.config.Admin.MetricsEndpoint = "TC", "http://0.0.0.0:8080/metrics"
	g.discovery.Publish(g.config)
	authority := g.config.Auth.Authority()
	file := filepath.Join(t.TempDir(), "usage.jsonl") // all pods append to it
	start := func(p *pod) { p.start("--usage-records", file, "--drain-timeout", "30s") }
	var pods []*pod
	add := func() *pod {
		p := g.pod()
		start(p)
		pods = append(pods, p)
		return p
	}
	for range 3 {
		add()
	}
	g.awaitPeers(pods...)

	calls, users := make([]*client, count), make([]string, count)
	for i := range calls {
		users[i] = fmt.Sprintf("user%d", i)
		minted, err := authority.Mint(users[i], time.Hour, time.Now())
		must(t, err)
		g.checks = ice.NewSession(i)
		calls[i] = g.dialAs(minted.Username, string(minted.Password), pods[i%3], every)
	}
	awaitMore(t, calls, 2)
	killed := pods[0]
	killed.await("the kernel forwards the media of its calls", func(context.Context) error {
		if kernel := killed.inKernel(); kernel < count/3 {
			return fmt.Errorf("the kernel has forwarded %v packets of %d calls", kernel, count/3)
		}
		return nil
	})

	// A pod may not count packets at the instant of the kill, so the calls pause before.
	pausing, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for _, c := range calls {
		_ = c.Pause(pausing) // an echo that has not arrived is lost
	}
	killed.quiet()
	kernel := killed.inKernel()
	sessions := len(killed.sessions())
	must(t, killed.process.Kill())
	start(killed)
	killed.await("the sessions are restored", func(context.Context) error {
		if got := len(killed.sessions()); got != sessions {
			return fmt.Errorf("%d sessions, want %d", got, sessions)
		}
		return nil
	})
	for _, c := range calls {
		c.Resume()
		must(t, c.AwaitMore(t.Context(), 1)) // the calls resume one after another
	}

	for _, old := range pods[:3:3] {
		next := add()
		g.awaitPeers(pods[len(pods)-3:]...)
		kernel += old.inKernel()
		must(t, old.process.Signal(syscall.SIGTERM))
		old.await("its calls move", func(context.Context) error {
			if d := old.drain(); d.Moved == 0 || len(old.sessions()) > 0 {
				return fmt.Errorf("%s, %d sessions", d, len(old.sessions()))
			}
			return nil
		})
		for _, c := range calls {
			if c.at == old {
				c.move(next)
			}
		}
		awaitExit(t, old)
		awaitMore(t, calls, 1)
	}
	stats := make([]call.Stats, count)
	var ending sync.WaitGroup
	for i, c := range calls {
		ending.Go(func() { stats[i] = c.End(5 * time.Second) })
	}
	ending.Wait()
	for _, p := range pods[3:] {
		kernel += p.inKernel()
		must(t, p.process.Signal(syscall.SIGTERM))
	}
	awaitExit(t, pods[3:]...)

	byUser, parts := bill(t, file)
	if len(byUser) != count {
		t.Errorf("%d users, want %d", len(byUser), count)
	}
	// Besides media, there are checks of the client and answers of the peer. Each kind has one size, so the number of
	// media datagrams can be computed exactly.
	check, answer := len(ice.NewSession(count-1).Check()), 64
	var total usageCount
	lossy := 0
	for i, s := range stats {
		u := byUser[users[i]]
		if u == nil {
			t.Errorf("%s has no usage: %s", users[i], s)
			continue
		}
		// The client library does not repeat its last request with a new nonce, so the end of the pod may end the
		// session.
		if len(u.sessions) != 1 || u.reasons["moved"] == 0 || u.reasons["client"]+u.reasons["shutdown"] != 1 ||
			len(u.reasons) != 2 {
			t.Errorf("%s: %d sessions with parts that ended with %v", users[i], len(u.sessions), u.reasons)
		}
		sent, whole := u.sent.media(size, check)
		received, wholeToo := u.received.media(size, answer)
		// A datagram that is lost on a busy machine may have been relayed. All others are counted exactly once.
		if !whole || !wholeToo || sent > s.Sent || sent < s.Received || received > sent || received < s.Received {
			t.Errorf("%s: %d datagrams sent and %d received; the client has %s", users[i], sent, received, s)
		}
		if s.Lost > 0 {
			lossy++
		}
		total.add(u.sent)
		total.add(u.received)
	}
	if lossy > count/10 {
		t.Errorf("%d calls have lost datagrams, so their usage is known with this accuracy only", lossy)
	}
	t.Logf("%d users, %d parts: %d packets and %d bytes in both directions; the kernel has forwarded %v packets; "+
		"%d calls have lost a datagram", len(byUser), parts, total.Packets, total.Bytes, kernel, lossy)
}

// inKernel returns how many packets the kernel has forwarded.
func (p *pod) inKernel() float64 {
	p.t.Helper()
	n, err := harness.Metric(p.t.Context(), fmt.Sprintf("http://%s:8080/metrics", p.addr.Addr()),
		telemetry.OffloadPackets)
	must(p.t, err)
	return n
}

// quiet waits until nothing is counted between two readings.
func (p *pod) quiet() {
	p.t.Helper()
	sum := func() (total inspection.Stats) {
		for _, s := range p.sessions() {
			total.Rx.Packets += s.Stats.Rx.Packets
			total.Tx.Packets += s.Stats.Tx.Packets
		}
		return total
	}
	before := sum()
	p.await("no packets", func(context.Context) error {
		now := sum()
		defer func() { before = now }()
		if now != before {
			return fmt.Errorf("%+v", now)
		}
		return nil
	})
}
