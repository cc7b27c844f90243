package forward

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/bedtest"
	"github.com/stunner-gateway/stunner/e2e/internal/ice"
)

// usageCount is a count of a usage record.
type usageCount struct{ Bytes, Packets int }

func (c *usageCount) add(d usageCount) {
	c.Bytes += d.Bytes
	c.Packets += d.Packets
}

// usagePart is the last record of a part of a session.
type usagePart struct {
	Session, Part, Reason string
	Final                 bool
	Sent, Received        usageCount
}

// TestUsageOfMovedSessions: the usage of 40 sessions that move from pod to pod in a rolling update is what their
// clients have sent and received, and each has one last record by pod.
func TestUsageOfMovedSessions(t *testing.T) {
	g := newGateway(t)
	g.net.Peers.Do(func() { g.peer = bedtest.Peer(t, g.net.Peer(0)[0], ice.Serve) })
	file := filepath.Join(t.TempDir(), "usage.jsonl") // all pods append to it
	add := func() *pod {
		p := g.pod()
		p.start("--usage-records", file, "--drain-timeout", "30s")
		g.awaitPeers(p)
		return p
	}
	const count, every, size = 40, 100 * time.Millisecond, 200
	at := add()
	pods := []*pod{at}
	calls := g.dialICE(count, every, at)
	for range 2 {
		next := add()
		settle(t, calls[:1])
		must(t, at.process.Signal(syscall.SIGTERM))
		for _, c := range calls {
			c.move(next)
		}
		awaitExit(t, at)
		awaitMore(t, calls, 5)
		at, pods = next, append(pods, next)
	}
	var ending sync.WaitGroup
	for _, c := range calls {
		ending.Go(func() { c.End(5 * time.Second) })
	}
	ending.Wait()
	var sentMedia, receivedMedia usageCount
	for _, c := range calls {
		s := c.Stats()
		sentMedia.add(usageCount{size * s.Sent, s.Sent})
		// What two pods have sent to the client is one datagram of the session.
		receivedMedia.add(usageCount{size * s.Received, s.Received})
	}
	must(t, at.process.Signal(syscall.SIGTERM))
	awaitExit(t, at)

	data, err := os.ReadFile(file)
	must(t, err)
	parts, sessions := map[string]usagePart{}, map[string]map[string]int{}
	for line := range bytes.Lines(data) {
		var r usagePart
		must(t, json.Unmarshal(line, &r))
		if before := parts[r.Part]; r.Final || !before.Final {
			parts[r.Part] = r
		}
	}
	var sent, received usageCount
	for _, p := range parts {
		if !p.Final {
			t.Errorf("no last record: %+v", p)
		}
		if sessions[p.Session] == nil {
			sessions[p.Session] = map[string]int{}
		}
		sessions[p.Session][p.Reason]++
		sent.add(p.Sent)
		received.add(p.Received)
	}
	for id, reasons := range sessions {
		// The client library does not repeat its last request with a new nonce, so the end of the pod may end the session.
		if reasons["moved"] != len(pods)-1 || reasons["client"]+reasons["shutdown"] != 1 || len(reasons) != 2 {
			t.Errorf("session %s: parts that ended with %v", id, reasons)
		}
	}
	if len(sessions) != count {
		t.Errorf("%d sessions, want %d", len(sessions), count)
	}
	t.Logf("%d sessions, %d parts: %+v sent, %+v received; media of the clients: %+v and %+v",
		len(sessions), len(parts), sent, received, sentMedia, receivedMedia)
	// What is not media is the checks of the clients and the answers of the peer. Each kind has one size, which is not that
	// of media, so one datagram that is lost or doubled is found.
	check := len(ice.NewSession(10).Check())
	const answer = 64
	for what, got := range map[string]usageCount{
		"sent":     {sent.Bytes - sentMedia.Bytes, sent.Packets - sentMedia.Packets},
		"received": {received.Bytes - receivedMedia.Bytes, received.Packets - receivedMedia.Packets},
	} {
		each := map[string]int{"sent": check, "received": answer}[what]
		if got.Packets <= 0 || got.Bytes != each*got.Packets {
			t.Errorf("%s: %+v besides the media, want STUN messages of %d bytes", what, got, each)
		}
	}
}
