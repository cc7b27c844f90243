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

// the connection to the discovery server is cut again and again, for many dataplanes at once.
func TestR04Reconnects(t *testing.T) {
	t.Parallel()
	const (
		clients = 200
		cutting = 8 * time.Second
		// burst is how many may be due within a second when the server is back. Without jitter all would.
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
	b.within(time.Minute, "all are synchronised", crowd.all)
	applied := b.metric("stunner_config_applied_total")

	// Whoever comes is let in and cut off at once.
	began := time.Now()
	h.refuse(true)
	h.cut()
	<-time.After(cutting)
	attempts := h.accepted(began)
	// The shortest pauses that jitter leaves, 0.1 s, 0.2 s, …, allow for seven of them.
	if most := 7 * (clients + 1); len(attempts) > most || len(attempts) < 2*clients {
		t.Errorf("%d attempts in %s, want %d to %d", len(attempts), cutting, 2*clients, most)
	}

	// The server restarts.
	h.down()
	crowd.forget()
	h.refuse(false)
	began = time.Now()
	h.up()
	took := b.within(15*time.Second, "all are synchronised again", crowd.all)
	most := busiest(h.accepted(began), b.pulse.Stalled)
	if most > burst {
		t.Errorf("%d connections in one second after a restart, want at most %d", most, burst)
	}
	t.Logf("%d attempts in %s; all %d back after %s, at most %d a second; the machine stood still for up to %s",
		len(attempts), cutting, clients, took, most, b.pulse.Worst())
	b.await("the dataplane hears its source", func(ctx context.Context) error {
		st, err := b.look(ctx)
		if err == nil && st.Lost != "" {
			err = fmt.Errorf("lost: %s", st.Lost)
		}
		return err
	})
	if n := crowd.configs.Load(); n != clients {
		t.Errorf("%d configs delivered to %d clients: an unchanged one is none", n, clients)
	}
	if got := b.metric("stunner_config_applied_total"); got != applied {
		t.Errorf("%g configs put in force, want %g: nothing has changed", got, applied)
	}
	b.unharmed(live, patience) // the crowd shares this process with the clients: silence says nothing here, loss does
}

// busiest is the greatest number of times that were due within a second. After a stall comes at once what was due during it, so that the stall
// is a part of the second.
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
	configs atomic.Int64 // that were delivered to any of them
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

// hear notes an event. After a reconnect the server sends its config before anything else, and what is known is not delivered again.
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

// all is the condition that every client has what the server has.
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
		return fmt.Errorf("%d of %d clients are away, %d configs", away, len(c.synced), c.configs.Load())
	}
	return nil
}

// packets to and from the discovery server vanish, and no reset tells.
func TestR05HalfOpen(t *testing.T) {
	t.Parallel()
	if !netns.Isolated(t) {
		return
	}
	const address = "198.18.5.5"
	ip(t, "rule add pref 10 lookup local") // so that there can be a rule before it
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
	took := b.within(30*time.Second, "the loss is noticed", func(ctx context.Context) error {
		st, err := b.look(ctx)
		switch {
		case err == nil && st.Revision != b.config.Revision():
			t.Fatalf("revision %s runs while nothing can be heard", st.Revision)
		case err == nil && st.Lost == "":
			err = fmt.Errorf("the source counts as there")
		}
		return err
	})
	if b.status().Revision != b.config.Revision() {
		t.Error("the last good config does not run")
	}
	b.goOn(live)
	ip(t, "rule del pref 5")
	ip(t, "rule del pref 6")
	back := b.within(15*time.Second, "the newest config arrives", b.runs(next))
	t.Logf("noticed after %s, back after %s", took, back)
	b.unharmed(live, silence)
}

func ip(t *testing.T, command string) {
	t.Helper()
	if out, err := exec.Command("ip", strings.Fields(command)...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v: %s", command, err, out)
	}
}

// whatever is wrong with a config, the one before runs on.
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
		"invalid JSON":       {[]byte(`{"version":"v1","admin":`), "unreadable", "parse config"},
		"unknown version":    {bytes.Replace(b.config.Canonical(), []byte(`"version":"v1"`), []byte(`"version":"v9"`), 1), "invalid", "version"},
		"duplicate listener": {b.spoiled(func(c *config.Config) { c.Listeners[1].Name = c.Listeners[0].Name }), "invalid", "listeners[1].name"},
		"duplicate socket":   {b.spoiled(func(c *config.Config) { c.Listeners[3].Port = c.Listeners[0].Port }), "invalid", "listeners[3].port"},
		"broken certificate": {b.spoiled(func(c *config.Config) { c.Listeners[2].Cert, _ = b.certificate() }), "invalid", "listeners[2]"},
		"empty secret":       {b.spoiled(func(c *config.Config) { delete(c.Auth.Credentials, config.KeySecret) }), "invalid", "auth.credentials.secret"},
		"another's config":   {b.spoiled(func(c *config.Config) { c.Admin.Name = "faults/window" }), "unreadable", "faults/window"},
		"10 MB":              {bytes.Repeat([]byte(" "), 10<<20), "unreadable", "bytes"},
		"5 MB":               {bytes.Repeat([]byte(" "), 5<<20), "unreadable", ""},
		"too many clusters":  {b.spoiled(func(c *config.Config) { c.Clusters = manyClusters(10_001) }), "invalid", "clusters"},
	} {
		t.Run(name, func(t *testing.T) {
			before, rejected, connections := b.inside(), b.metric("stunner_config_rejected_total"), p.connections()
			reason := b.rejected(c.reason)
			p.push(c.document)
			b.await("it is counted and told", func(ctx context.Context) error {
				st, err := b.look(ctx)
				if err == nil && (st.Problem == "" || !strings.Contains(st.Problem, c.problem)) {
					err = fmt.Errorf("problem %q, want one with %q", st.Problem, c.problem)
				}
				return err
			})
			if n, r := b.metric("stunner_config_rejected_total"), b.rejected(c.reason); n != rejected+1 || r != reason+1 {
				t.Errorf("%g configs rejected, %g of them %s; want one more than %g, %g", n, r, c.reason, rejected, reason)
			}
			if after := b.inside(); after != before {
				t.Errorf("what runs has changed:\n%s\n%s", before, after)
			}
			b.goOn(live)
			if len(c.document) > tooLarge {
				b.await("the dataplane connects again", func(context.Context) error {
					if p.connections() == connections {
						return fmt.Errorf("%d connections", connections)
					}
					return nil
				})
			}
			p.push(b.config.Canonical())
			b.await("the good one clears the problem", func(ctx context.Context) error {
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

// the largest config that is allowed is no fault, and no call notices how much there is to read.
func TestR10LargestConfig(t *testing.T) {
	b := newBench(t)
	h, source := serving(t, b.config)
	b.start(h.url())
	b.inForce(b.config)
	live := b.calls(1)
	next := b.changed(func(c *config.Config) { c.Clusters = append(c.Clusters, manyClusters(9_999)...) })
	source.Publish(next)
	t.Logf("%d clusters, %d bytes, in force after %s", len(next.Clusters), len(next.Canonical()), b.within(patience, "in force", b.runs(next)))
	b.unharmed(live, silence)
}

func manyClusters(n int) (all []config.Cluster) {
	for i := range n {
		all = append(all, config.Cluster{Name: fmt.Sprintf("faults/many-%d", i), Type: config.Static, Protocol: "UDP",
			Endpoints: []string{fmt.Sprintf("10.%d.%d.1", i/250, i%250)}})
	}
	return all
}

// spoiled is the document of a changed config.
func (b *bench) spoiled(change func(*config.Config)) []byte { return b.changed(change).Canonical() }

// inside is the running config as the status has it, without what counts.
func (b *bench) inside() string {
	b.t.Helper()
	st := b.status()
	text, err := json.Marshal([]any{st.Status, st.Revision, st.Auth, st.Listeners, st.Clusters})
	if err != nil {
		b.t.Fatal(err)
	}
	return string(text)
}

// rejected is how many configs were kept out for a reason.
func (b *bench) rejected(reason string) float64 {
	b.t.Helper()
	_, page, err := bed.Get(b.t.Context(), b.config.Admin.MetricsEndpoint)
	if err != nil {
		b.t.Fatal(err)
	}
	var n float64
	for line := range strings.Lines(string(page)) {
		if value, ok := strings.CutPrefix(line, fmt.Sprintf("stunner_config_rejected_total{reason=%q} ", reason)); ok {
			if _, err := fmt.Sscan(value, &n); err != nil {
				b.t.Fatal(err)
			}
		}
	}
	return n
}

// pusher is a discovery server that says what it is told to, be it a config or not.
type pusher struct {
	t     *testing.T
	mu    sync.Mutex
	conn  *websocket.Conn // nil while there is none
	count int
}

func (p *pusher) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	conn, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	p.set(conn)
	for err == nil { // reports and pings
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

// connections is how many there were.
func (p *pusher) connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count
}

// push sends a document to the dataplane that is connected, or comes.
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
		// Once only: whoever finds a document too long leaves in the midst of it.
		if err := conn.Write(ctx, websocket.MessageText, document); err != nil && len(document) < tooLarge {
			p.t.Errorf("send document: %v", err)
		}
		return nil
	})
	if err != nil {
		p.t.Fatal(err)
	}
}

// tooLarge is the size of a document that costs the connection.
const tooLarge = 8 << 20
