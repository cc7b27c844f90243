package offload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/api/telemetry"
)

// gateway is a running stunnerd.
type gateway struct {
	*network
	*harnesstest.Dataplane
	t       *testing.T
	objects objects // BPF objects of the process
	udp     *messages
	journal string // folder of the journal of sessions
	// user and password are the credential of new allocations.
	user, password string
}

// messages counts the datagrams between the clients of path and the UDP listener.
type messages struct{ rx, tx atomic.Int64 }

// start starts stunnerd until the test ends.
func (n *network) start(t *testing.T, change ...func(*config.Config)) *gateway {
	t.Helper()
	c := config.Config{
		Admin: config.Admin{OffloadEngine: n.engine}, Auth: harnesstest.Static(user, password),
		Listeners: harnesstest.Listeners(config.DefaultAddress),
	}
	for i, peers := range [][]string{
		{v4.peer.String()}, {v6.peer.String()}, {harness.Loopback}, {v4.client.String(), v6.client.String()},
	} {
		name := "test/" + strconv.Itoa(i)
		c.Clusters = append(c.Clusters, config.Cluster{Name: name, Type: config.Static, Endpoints: peers})
	}
	for _, f := range change {
		f(&c)
	}
	g := &gateway{network: n, t: t, udp: new(messages), journal: t.TempDir(), user: user, password: password}
	g.Dataplane = harnesstest.StartDataplane(t, n.programs, c, []netip.Addr{v4.relay, v6.relay, v4.gateway, v6.gateway},
		"--watch", "--icmp-indications", "--state-dir", g.journal)
	g.await("metrics", harness.Answers(g.Metrics, http.StatusOK))
	if s, engine := g.status(), c.Admin.OffloadEngine; engine != "None" && s.Offload.Mechanism == "None" ||
		engine == "XDP" && s.Offload.Mechanism != "XDP" {
		t.Fatalf("engine %s is not used: %+v", engine, s.Offload)
	}
	g.objects = objectsOf(t, g.PID())
	return g
}

// as returns the gateway for allocations with caveats. It needs ephemeral credentials.
func (g *gateway) as(c credential.Caveats) *gateway {
	g.t.Helper()
	minted, err := g.Config.Auth.Authority().MintWith(c, user, time.Hour, time.Now())
	harnesstest.NoError(g.t, err)
	limited := *g
	limited.user, limited.password = minted.Username, string(minted.Password)
	return &limited
}

// in returns the gateway for a subtest.
func (g *gateway) in(t *testing.T) *gateway {
	sub := *g
	sub.t = t
	return &sub
}

// await waits for a condition while stunnerd runs.
func (g *gateway) await(what string, cond func(context.Context) error) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), timeout)
	defer cancel()
	if err := g.Until(ctx, cond); err != nil {
		g.t.Fatalf("%s: %v", what, err)
	}
}

// apply puts a changed config in force. It returns when the file was written and when the status had the revision.
func (g *gateway) apply(change func(*config.Config)) (written, applied time.Time) {
	g.t.Helper()
	c, before := g.Config.Clone(), g.status().Revision
	change(&c)
	written = time.Now()
	g.Replace(g.t, c)
	for g.status().Revision == before {
		if time.Since(written) > timeout {
			g.t.Fatal("the config is not in force")
		}
		time.Sleep(time.Millisecond) // between two requests
	}
	return written, time.Now()
}

// status is the part of the status of a dataplane that the tests read.
type status struct {
	Status   string `json:"status"`
	Revision string `json:"revision"`
	Admin    struct {
		Offload string `json:"offload"`
	} `json:"admin"`
	Offload struct {
		Mechanism  string   `json:"mechanism"`
		Reason     string   `json:"reason"`
		Interfaces []string `json:"interfaces"`
		Bindings   int      `json:"bindings"`
	} `json:"offload"`
}

func (g *gateway) status() (s status) {
	g.t.Helper()
	g.get("/status", &s)
	return s
}

func (g *gateway) get(path string, into any) {
	g.t.Helper()
	code, body, err := harness.Get(g.t.Context(), g.Health+path)
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("code %d", code)
	}
	if err == nil {
		err = json.Unmarshal(body, into)
	}
	if err != nil {
		g.t.Fatalf("get %s: %v", path, err)
	}
}

// flow counts packets and bytes.
type flow struct {
	Packets int `json:"pkts"`
	Bytes   int `json:"bytes"`
}

func (f flow) minus(g flow) flow { return flow{f.Packets - g.Packets, f.Bytes - g.Bytes} }

// traffic is seen from its object: a listener receives from clients, and a cluster or session from peers.
type traffic struct {
	Rx flow `json:"rx"`
	Tx flow `json:"tx"`
}

func (t traffic) minus(u traffic) traffic { return traffic{t.Rx.minus(u.Rx), t.Tx.minus(u.Tx)} }

// counters are the counters of the UDP listener, the sums of all clusters and live sessions, and the packets that the
// kernel forwarded.
type counters struct {
	listener, cluster, session traffic
	kernel                     struct{ up, down int }
}

func (c counters) minus(d counters) counters {
	c.listener, c.cluster, c.session = c.listener.minus(d.listener), c.cluster.minus(d.cluster), c.session.minus(d.session)
	c.kernel.up -= d.kernel.up
	c.kernel.down -= d.kernel.down
	return c
}

func (g *gateway) counters() (c counters) {
	g.t.Helper()
	_, page, err := harness.Get(g.t.Context(), g.Metrics)
	harnesstest.NoError(g.t, err)
	fields := map[string]*int{
		telemetry.ListenerPackets + " rx": &c.listener.Rx.Packets, telemetry.ListenerPackets + " tx": &c.listener.Tx.Packets,
		telemetry.ListenerBytes + " rx": &c.listener.Rx.Bytes, telemetry.ListenerBytes + " tx": &c.listener.Tx.Bytes,
		telemetry.ClusterPackets + " rx": &c.cluster.Rx.Packets, telemetry.ClusterPackets + " tx": &c.cluster.Tx.Packets,
		telemetry.ClusterBytes + " rx": &c.cluster.Rx.Bytes, telemetry.ClusterBytes + " tx": &c.cluster.Tx.Bytes,
		telemetry.OffloadPackets + " rx": &c.kernel.down, telemetry.OffloadPackets + " tx": &c.kernel.up,
	}
	for line := range strings.Lines(string(page)) {
		series, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		name, labels, _ := strings.Cut(series, "{")
		direction := " tx"
		if strings.Contains(labels, `direction="rx"`) {
			direction = " rx"
		}
		of := fields[name+direction]
		another := strings.HasPrefix(name, "stunner_listener") && !strings.Contains(labels, `"test/dataplane/turn-udp"`)
		if of == nil || another {
			continue
		}
		n, err := strconv.ParseFloat(text, 64)
		harnesstest.NoError(g.t, err)
		*of += int(n)
	}
	var sessions struct {
		Sessions []struct {
			Stats traffic `json:"stats"`
		} `json:"sessions"`
	}
	g.get("/sessions", &sessions)
	for _, s := range sessions.Sessions {
		c.session.Rx.Packets += s.Stats.Rx.Packets
		c.session.Rx.Bytes += s.Stats.Rx.Bytes
		c.session.Tx.Packets += s.Stats.Tx.Packets
		c.session.Tx.Bytes += s.Stats.Tx.Bytes
	}
	return c
}

// settled returns the counters when they include all messages of the clients: a listener counts a request after it has
// sent the answer.
func (g *gateway) settled() (c counters) {
	g.t.Helper()
	g.await("counters of the listener", func(context.Context) error {
		c = g.counters()
		if rx, tx := int(g.udp.rx.Load()), int(g.udp.tx.Load()); c.listener.Rx.Packets < rx || c.listener.Tx.Packets < tx {
			return fmt.Errorf("%+v, want %d and %d packets", c.listener, rx, tx)
		}
		return nil
	})
	return c
}

// dropped returns the number of datagrams that stunnerd dropped.
func (g *gateway) dropped() int {
	g.t.Helper()
	n, err := harness.Metric(g.t.Context(), g.Metrics, telemetry.Dropped)
	if err != nil && !errors.Is(err, harness.ErrNoMetric) {
		g.t.Fatal(err)
	}
	return int(n)
}

// frames adds the headers of ChannelData without padding.
func frames(payloads flow) flow { return flow{payloads.Packets, payloads.Bytes + 4*payloads.Packets} }

// counted waits until the counters have grown by exactly the payloads up and down, in ChannelData without padding.
func (g *gateway) counted(before counters, up, down flow) (kernel struct{ up, down int }) {
	g.t.Helper()
	var grown counters
	g.await("counters", func(context.Context) error {
		grown = g.counters().minus(before)
		want := counters{
			listener: traffic{Rx: frames(up), Tx: frames(down)},
			cluster:  traffic{Rx: down, Tx: up}, session: traffic{Rx: down, Tx: up}, kernel: grown.kernel,
		}
		if grown != want {
			return fmt.Errorf("the counters have grown by %+v, want %+v", grown, want)
		}
		return nil
	})
	return grown.kernel
}
