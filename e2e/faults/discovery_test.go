package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/discovery"
)

// the connections of many dataplanes to the discovery server are cut repeatedly.
func TestR04Reconnects(t *testing.T) {
	t.Parallel()
	const (
		clients = 200
		cutting = 8 * time.Second
		// burst is the maximum number of reconnects within a second after a restart of the server. Without jitter it
		// would be all clients.
		burst = clients * 3 / 4
	)
	b := newBench(t)
	h, source := serving(t, b.config)
	b.start(h.url())
	b.inForce(b.config)
	live := b.calls(1)
	small := b.changed(func(c *config.Config) { c.Admin.Name, c.Listeners = "faults/crowd", c.Listeners[:1] })
	source.Publish(small)
	crowd := newCrowd(t, h.url(), small.Admin.Name, clients)
	b.within(time.Minute, "all clients are synchronised", crowd.all)
	applied := b.metric("stunner_config_applied_total")

	// New connections are accepted and closed at once.
	began := time.Now()
	h.refuse(true)
	h.cut()
	<-time.After(cutting)
	attempts := h.accepted(began)
	// The shortest back-offs with jitter, 0.1 s, 0.2 s, …, allow seven attempts.
	if most := 7 * (clients + 1); len(attempts) > most || len(attempts) < 2*clients {
		t.Errorf("%d attempts in %s, want %d to %d", len(attempts), cutting, 2*clients, most)
	}

	// The server restarts.
	h.down()
	crowd.forget()
	h.refuse(false)
	began = time.Now()
	h.up()
	took := b.within(15*time.Second, "all clients are synchronised again", crowd.all)
	most := busiest(h.accepted(began), b.pulse.Stalled)
	if most > burst {
		t.Errorf("%d connections in one second after a restart, want at most %d", most, burst)
	}
	t.Logf("%d attempts in %s; all %d reconnected after %s, at most %d per second; longest stall of the machine %s",
		len(attempts), cutting, clients, took, most, b.pulse.Worst())
	b.await("the dataplane is connected", func(ctx context.Context) error {
		st, err := b.look(ctx)
		if err == nil && st.Lost != "" {
			err = fmt.Errorf("lost: %s", st.Lost)
		}
		return err
	})
	if n := crowd.configs.Load(); n != clients {
		t.Errorf("%d unchanged configs delivered to %d clients", n, clients)
	}
	if got := b.metric("stunner_config_applied_total"); got != applied {
		t.Errorf("%g configs applied, want %g: the config has not changed", got, applied)
	}
	b.unharmed(live, patience) // the crowd runs in this process too: only loss is meaningful here, not gaps
}

// busiest returns the maximum number of times within a second. Events that were due during a stall occur together after
// it, so stalls extend the second.
func busiest(times []time.Time, stalled func(from, to time.Time) time.Duration) (most int) {
	slices.SortFunc(times, time.Time.Compare)
	for i, first := range times {
		end := first.Add(time.Second)
		n, _ := slices.BinarySearchFunc(times, end.Add(-stalled(first.Add(-time.Second), end)), time.Time.Compare)
		most = max(most, n-i)
	}
	return most
}

// crowd is many clients of one discovery server.
type crowd struct {
	configs atomic.Int64 // delivered to all clients together
	mu      sync.Mutex
	synced  []bool
}

func newCrowd(t *testing.T, origin, id string, n int) *crowd {
	t.Helper()
	c := &crowd{synced: make([]bool, n)}
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	t.Cleanup(func() { cancel(); watching.Wait() })
	for i := range n {
		source, err := discovery.Open(origin, discovery.Options{ID: id})
		if err != nil {
			t.Fatal(err)
		}
		watching.Go(func() {
			for e := range source.Watch(ctx) {
				c.hear(i, e)
			}
		})
	}
	return c
}

// hear records an event. After a reconnect the server sends the current config first, and the client does not deliver a
// known config again.
func (c *crowd) hear(i int, e discovery.Event) {
	if e.Err == nil && !e.Connected {
		c.configs.Add(1)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.synced[i] = e.Err == nil
}

func (c *crowd) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.synced)
}

// all is the condition that every client is connected and has the current config.
func (c *crowd) all(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	away := 0
	for _, s := range c.synced {
		if !s {
			away++
		}
	}
	if away > 0 || c.configs.Load() < int64(len(c.synced)) {
		return fmt.Errorf("%d of %d clients are not synchronised, %d configs", away, len(c.synced), c.configs.Load())
	}
	return nil
}

// packets to and from the discovery server are dropped silently, without TCP reset.
func TestR05HalfOpen(t *testing.T) {
	t.Parallel()
	if !netns.Isolated(t) {
		return
	}
	const address = "198.18.5.5"
	ip(t, "rule add pref 10 lookup local") // makes room for a rule before it
	ip(t, "rule del pref 0")
	b := newBench(t)
	source := discovery.NewServer(discovery.ServerOptions{})
	source.Publish(b.config)
	h := newHubAt(t, address, source)
	b.start(h.url())
	b.inForce(b.config)
	live := b.calls(1)

	ip(t, "rule add pref 5 to "+address+" blackhole")
	ip(t, "rule add pref 6 from "+address+" blackhole")
	next := b.changed(func(c *config.Config) { c.Auth.Realm = "other.example.org" })
	source.Publish(next)
	took := b.within(30*time.Second, "the status reports the loss", func(ctx context.Context) error {
		st, err := b.look(ctx)
		switch {
		case err == nil && st.Revision != b.config.Revision():
			t.Fatalf("revision %s is in force although the server is unreachable", st.Revision)
		case err == nil && st.Lost == "":
			err = fmt.Errorf("the status reports a connected source")
		}
		return err
	})
	if b.status().Revision != b.config.Revision() {
		t.Error("the last good config is not in force")
	}
	b.goOn(live)
	ip(t, "rule del pref 5")
	ip(t, "rule del pref 6")
	back := b.within(15*time.Second, "the newest config arrives", b.runs(next))
	t.Logf("detected after %s, reconnected after %s", took, back)
	b.unharmed(live, silence)
}

func ip(t *testing.T, command string) {
	t.Helper()
	if out, err := exec.Command("ip", strings.Fields(command)...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v: %s", command, err, out)
	}
}

// after an invalid config of any kind, the previous config stays in force.
func TestR10BadConfigs(t *testing.T) {
	b := newBench(t)
	p := &pusher{t: t}
	h := newHub(t, p)
	b.start(h.url())
	p.push(b.config.Canonical())
	b.inForce(b.config)
	live := b.calls(1)
	for name, c := range map[string]struct {
		document []byte
		reason   string
		problem  string
	}{
		"invalid JSON": {[]byte(`{"version":"v1","admin":`), "unreadable", "parse config"},
		"unknown version": {
			bytes.Replace(b.config.Canonical(), []byte(`"version":"v1"`), []byte(`"version":"v9"`), 1), "invalid",
			"version",
		},
		"duplicate listener": {
			b.spoiled(func(c *config.Config) { c.Listeners[1].Name = c.Listeners[0].Name }), "invalid",
			"listeners[1].name",
		},
		"duplicate socket": {
			b.spoiled(func(c *config.Config) { c.Listeners[3].Port = c.Listeners[0].Port }), "invalid",
			"listeners[3].port",
		},
		"broken certificate": {
			b.spoiled(func(c *config.Config) { c.Listeners[2].Cert, _ = b.certificate() }), "invalid", "listeners[2]",
		},
		"empty secret": {
			b.spoiled(func(c *config.Config) { delete(c.Auth.Credentials, config.KeySecret) }), "invalid",
			"auth.credentials.secret",
		},
		"another's config": {
			b.spoiled(func(c *config.Config) { c.Admin.Name = "faults/window" }), "unreadable", "faults/window",
		},
		"10 MB": {bytes.Repeat([]byte(" "), 10<<20), "unreadable", "bytes"},
		"5 MB":  {bytes.Repeat([]byte(" "), 5<<20), "unreadable", ""},
		"too many clusters": {
			b.spoiled(func(c *config.Config) { c.Clusters = manyClusters(10_001) }), "invalid", "clusters",
		},
	} {
		t.Run(name, func(t *testing.T) {
			before, rejected, connections := b.inside(), b.metric("stunner_config_rejected_total"), p.connections()
			reason := b.rejected(c.reason)
			p.push(c.document)
			b.await("the error is counted and reported", func(ctx context.Context) error {
				st, err := b.look(ctx)
				if err == nil && (st.Problem == "" || !strings.Contains(st.Problem, c.problem)) {
					err = fmt.Errorf("problem %q, want one with %q", st.Problem, c.problem)
				}
				return err
			})
			if n, r := b.metric("stunner_config_rejected_total"), b.rejected(c.reason); n != rejected+1 ||
				r != reason+1 {
				t.Errorf(
					"%g configs rejected, %g of them %s; want one more than %g, %g", n, r, c.reason, rejected, reason,
				)
			}
			if after := b.inside(); after != before {
				t.Errorf("the running config has changed:\n%s\n%s", before, after)
			}
			b.goOn(live)
			if len(c.document) > tooLarge {
				b.await("the dataplane reconnects", func(context.Context) error {
					if p.connections() == connections {
						return fmt.Errorf("%d connections", connections)
					}
					return nil
				})
			}
			p.push(b.config.Canonical())
			b.await("a valid config clears the problem", func(ctx context.Context) error {
				st, err := b.look(ctx)
				if err == nil && st.Problem != "" {
					err = fmt.Errorf("problem %q", st.Problem)
				}
				return err
			})
		})
	}
	b.unharmed(live, silence)
}

// a config of the maximum size is applied, and calls are not disturbed while it is read.
func TestR10LargestConfig(t *testing.T) {
	b := newBench(t)
	h, source := serving(t, b.config)
	b.start(h.url())
	b.inForce(b.config)
	live := b.calls(1)
	next := b.changed(func(c *config.Config) { c.Clusters = append(c.Clusters, manyClusters(9_999)...) })
	source.Publish(next)
	t.Logf(
		"%d clusters, %d bytes, in force after %s", len(next.Clusters), len(next.Canonical()),
		b.within(patience, "in force", b.runs(next)),
	)
	b.unharmed(live, silence)
}

func manyClusters(n int) (all []config.Cluster) {
	for i := range n {
		all = append(all, config.Cluster{Name: fmt.Sprintf("faults/many-%d", i), Type: config.Static, Protocol: "UDP",
			Endpoints: []string{fmt.Sprintf("10.%d.%d.1", i/250, i%250)}})
	}
	return all
}

// spoiled returns the encoding of a changed config.
func (b *bench) spoiled(change func(*config.Config)) []byte { return b.changed(change).Canonical() }

// inside returns the running config from the status, without counters.
func (b *bench) inside() string {
	b.t.Helper()
	st := b.status()
	text, err := json.Marshal([]any{st.Status, st.Revision, st.Auth, st.Listeners, st.Clusters})
	if err != nil {
		b.t.Fatal(err)
	}
	return string(text)
}

// rejected returns the number of configs rejected for a reason.
func (b *bench) rejected(reason string) float64 {
	b.t.Helper()
	return b.byReason("stunner_config_rejected_total", reason)
}

// byReason returns the value of a metric for a reason.
func (b *bench) byReason(metric, reason string) float64 {
	b.t.Helper()
	_, page, err := bed.Get(b.t.Context(), b.config.Admin.MetricsEndpoint)
	if err != nil {
		b.t.Fatal(err)
	}
	var n float64
	for line := range strings.Lines(string(page)) {
		if value, ok := strings.CutPrefix(line, fmt.Sprintf("%s{reason=%q} ", metric, reason)); ok {
			if _, err := fmt.Sscan(value, &n); err != nil {
				b.t.Fatal(err)
			}
		}
	}
	return n
}

// pusher is a discovery server that sends arbitrary documents, valid or not.
type pusher struct {
	t     *testing.T
	mu    sync.Mutex
	conn  *websocket.Conn // nil while no dataplane is connected
	count int
}

func (p *pusher) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	conn, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	p.set(conn)
	for err == nil { // reads reports and pings
		_, _, err = conn.Read(r.Context())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn == conn {
		p.conn = nil
	}
}

func (p *pusher) set(conn *websocket.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conn, p.count = conn, p.count+1
}

// connections returns the number of connections so far.
func (p *pusher) connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count
}

// push sends a document to the connected dataplane, or waits for one.
func (p *pusher) push(document []byte) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	err := bed.Until(ctx, func(ctx context.Context) error {
		p.mu.Lock()
		conn := p.conn
		p.mu.Unlock()
		if conn == nil {
			return fmt.Errorf("no dataplane is connected")
		}
		// Sent once only: the dataplane closes the connection while it reads a document that is too long.
		if err := conn.Write(ctx, websocket.MessageText, document); err != nil && len(document) < tooLarge {
			p.t.Errorf("send document: %v", err)
		}
		return nil
	})
	if err != nil {
		p.t.Fatal(err)
	}
}

// tooLarge is the size above which the dataplane closes the connection.
const tooLarge = 8 << 20
