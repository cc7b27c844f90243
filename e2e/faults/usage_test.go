package faults

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/e2e/internal/ask"
)

type usageCount struct{ Bytes, Packets uint64 }

func (c *usageCount) add(d usageCount) {
	c.Bytes += d.Bytes
	c.Packets += d.Packets
}

// usageRecord is the part of a usage record that is used for billing.
type usageRecord struct {
	Session, Part, Gateway, User, Reason string
	Final                                bool
	Sent, Received                       usageCount
	Routes                               []struct {
		Route          string
		Sent, Received usageCount
	}
}

// bill returns the usage of each session in a file of records, by the rule of docs/operate/usage.md.
func bill(t *testing.T, file string) map[string]usageRecord {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	parts := map[string]usageRecord{}
	for line := range bytes.Lines(data) {
		var r usageRecord
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		key := r.Session + r.Part
		if before := parts[key]; r.Sent.Packets >= before.Sent.Packets && (r.Final || !before.Final) {
			parts[key] = r
		}
	}
	sessions := map[string]usageRecord{}
	for _, p := range parts {
		sum := sessions[p.Session]
		p.Sent.add(sum.Sent)
		p.Received.add(sum.Received)
		sessions[p.Session] = p
	}
	return sessions
}

// TestUsageIsExact: the usage of 1,000 sessions equals the traffic of their clients, although the process was
// killed once, and once left its sessions to another process.
func TestUsageIsExact(t *testing.T) {
	const count, echoes = 1000, 4
	dir := t.TempDir()
	file := filepath.Join(dir, "usage.jsonl")
	flags := []string{"--state-dir", filepath.Join(dir, "state"), "--usage-records", file, "--hand-over"}
	d := running(t, flags...)
	all := d.newSessions(count) // with the first echo of each
	streams := d.calls("tcp")
	d.awaitEchoes(streams...)
	echo := func() {
		t.Helper()
		for _, s := range all {
			d.echo(s.Client)
		}
	}
	echo()
	streams[0].End(time.Second)
	d.await("the session over TCP ends", d.sessions(count))
	d.kill()
	d.again(flags...)
	d.await("the sessions are restored", d.sessions(count))
	echo()
	d.signal(syscall.SIGTERM)
	d.awaitEnd()
	d.again(flags...)
	d.await("the sessions are restored", d.sessions(count))
	echo()
	for _, s := range all {
		d.must(s.Client, stun.MethodRefresh, ask.Lifetime(0))
	}
	d.signal(syscall.SIGTERM)
	d.awaitEnd()

	var total usageCount
	sessions := bill(t, file)
	for id, r := range sessions {
		if r.Gateway != gateway || r.User != user || !r.Final || r.Reason != "client" || len(r.Routes) != 1 ||
			r.Routes[0].Route != "faults/echo" || r.Routes[0].Sent != r.Sent || r.Routes[0].Received != r.Received {
			t.Errorf("session %s: %+v", id, r)
		}
		if want := (usageCount{echoes * uint64(len("ping")), echoes}); r.Sent == want && r.Received == want {
			total.add(r.Sent)
			total.add(r.Received)
		} else if sent := uint64(streams[0].Stats().Sent); r.Sent.Packets != sent || r.Received.Packets != sent {
			t.Errorf("session %s: sent %+v and received %+v, want %+v", id, r.Sent, r.Received, want)
		}
	}
	if len(sessions) != count+1 || total.Packets != 2*count*echoes {
		t.Errorf("%d sessions, %d packets; want %d and %d", len(sessions), total.Packets, count+1, 2*count*echoes)
	}
	t.Logf("%d sessions: %d packets and %d bytes in both directions", len(sessions), total.Packets, total.Bytes)
}
