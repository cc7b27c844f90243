// Package offload tests media that the kernel forwards: stunnerd with the offload engines TC and XDP, its clients and its
// peers, each in a network namespace of its own. The wrong packets and the contents under all offloads of network interfaces
// are tests of the package services/stunnerd/internal/offload.
//
// # Files
//
//	world_test.go   the namespaces; engine XDP behind one interface: e2e/internal/netns/switch.go
//	path_test.go    one channel
//	change_test.go  a stream of datagrams
//	bpf_test.go     objects of the kernel
//
// Other users of the network: e2e/abuse/neighbour_test.go; the flag -paths selects all of them.
package offload

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/bedtest"
	"github.com/stunner-gateway/stunner/e2e/internal/bpf"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/api/telemetry"
)

const (
	user, password = "ann", "opens-the-door"
	health         = "http://127.0.0.1:8086"
	metrics        = "http://127.0.0.1:8080/metrics"
	patience       = 10 * time.Second // for an event
)

// family is the addresses of one address family.
type family struct {
	name                         string
	gateway, client, relay, peer netip.Addr // the gateway has an interface to clients and one to peers
}

var (
	v4 = family{
		"IPv4", netip.MustParseAddr("10.78.1.1"), netip.MustParseAddr("10.78.1.2"), netip.MustParseAddr("10.78.2.1"),
		netip.MustParseAddr("10.78.2.2"),
	}
	v6 = family{
		"IPv6", netip.MustParseAddr("fd78:1::1"), netip.MustParseAddr("fd78:1::2"), netip.MustParseAddr("fd78:2::1"),
		netip.MustParseAddr("fd78:2::2"),
	}
	families = []family{v4, v6}
)

var ports = map[call.Network]int{call.UDP: 3478, call.TCP: 3478, call.TLS: 5349, call.DTLS: 5349}

// world has the gateway in the network namespace of this process.
type world struct {
	clients, peers *netns.Space
	engine         string // of the config
	programs       string
	cert           []byte // of the gateway, in PEM
	config         config.Config
}

// newWorld returns a world in which the gateway has the interface clients and the interface peers. With engine XDP, these
// are two names of one interface: XDP forwards only packets that leave by the interface at which they arrive.
func newWorld(t *testing.T, engine string) *world {
	t.Helper()
	w := &world{engine: engine, programs: bedtest.Build(t, bed.Stunnerd, "e2e/turnprobe")}
	// An interface announces its link-local address after a second, which makes the programs learn again.
	netns.Run(t, "sysctl -q -w net.ipv6.conf.default.addr_gen_mode=1 net.ipv4.ip_forward=0")
	bpf.Statistics(t)
	var lan *netns.Switch
	if engine == "XDP" {
		lan = netns.NewSwitch(t, "lan")
	}
	w.clients, w.peers = lan.New(t, "clients"), lan.New(t, "peers")
	w.clients.Link(t, netip.PrefixFrom(v4.gateway, 24), netip.PrefixFrom(v4.client, 24))
	linkSix(t, w.clients, "clients", v6.gateway, v6.client)
	w.linkPeers(t)
	chain, private, err := bed.Certificate(v4.gateway, v6.gateway)
	if err != nil {
		t.Fatal(err)
	}
	w.cert = chain
	w.config = w.configure(base64.StdEncoding.EncodeToString(chain), base64.StdEncoding.EncodeToString(private))
	return w
}

func (w *world) linkPeers(t *testing.T) {
	t.Helper()
	w.peers.Link(t, netip.PrefixFrom(v4.relay, 24), netip.PrefixFrom(v4.peer, 24))
	linkSix(t, w.peers, "peers", v6.relay, v6.peer)
}

// linkSix adds IPv6 to a link.
func linkSix(t *testing.T, s *netns.Space, name string, here, there netip.Addr) {
	t.Helper()
	netns.Run(t, fmt.Sprintf("ip address add %s/64 dev %s nodad", here, name))
	s.Run(t, fmt.Sprintf("ip address add %s/64 dev eth0 nodad", there))
	s.Run(t, fmt.Sprintf("ip route add default via %s", here))
}

func (w *world) configure(cert, key string) config.Config {
	url := health
	c := config.Config{
		Version: config.Version,
		Admin: config.Admin{
			Name: "media/edge", LogLevel: "all:INFO", HealthcheckEndpoint: &url, MetricsEndpoint: metrics,
			OffloadEngine: w.engine,
		},
		Auth: config.Auth{Type: config.AuthStatic, Realm: "media.example.org", Credentials: map[string]credential.Secret{
			config.KeyUsername: user, config.KeyPassword: password,
		}},
	}
	var routes []string
	for _, peers := range [][]string{
		{v4.peer.String()}, {v6.peer.String()}, {"127.0.0.1"}, {v4.client.String(), v6.client.String()},
	} {
		name := "media/" + strconv.Itoa(len(c.Clusters))
		routes = append(routes, name)
		c.Clusters = append(c.Clusters, config.Cluster{Name: name, Type: config.Static, Protocol: "UDP", Endpoints: peers})
	}
	for _, n := range []call.Network{call.UDP, call.TCP, call.TLS, call.DTLS} {
		l := config.Listener{
			Name: "media/edge/" + string(n), Protocol: config.Protocol("TURN-" + strings.ToUpper(string(n))), Port: ports[n],
			Routes: routes,
		}
		if l.Protocol.Secure() {
			l.Cert, l.Key = cert, credential.Secret(key)
		}
		c.Listeners = append(c.Listeners, l)
	}
	c.Default()
	return c
}

// gateway is a running stunnerd.
type gateway struct {
	*world
	t       *testing.T
	file    string
	process *bed.Process
	config  config.Config
	objects objects // in the kernel
	udp     *messages
}

// messages counts the datagrams between the clients of path and the UDP listener.
type messages struct{ rx, tx atomic.Int64 }

// start starts stunnerd until the test ends, and waits until it forwards in the kernel.
func (w *world) start(t *testing.T, change ...func(*config.Config)) *gateway {
	t.Helper()
	g := &gateway{
		world: w, t: t, file: filepath.Join(t.TempDir(), "config.json"), config: w.config.Clone(), udp: new(messages),
	}
	for _, f := range change {
		f(&g.config)
	}
	g.write(g.config)
	http.DefaultClient.CloseIdleConnections() // to a stunnerd that has ended
	p, err := bed.Start(bed.Command{
		Name: "stunnerd", Path: filepath.Join(w.programs, "stunnerd"), Args: []string{
			"--watch", "--icmp-indications", "--config", g.file, "--healthcheck-endpoint", health,
			"--state-dir", g.journal(),
		},
		Env: []string{fmt.Sprintf("STUNNER_ADDRS=%s,%s", v4.relay, v6.relay)}, Logs: t.TempDir(),
	})
	if err != nil {
		t.Fatal(err)
	}
	g.process = p
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("last log lines of stunnerd:\n%s", strings.Join(p.Tail(30), "\n"))
		}
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
	})
	for _, url := range []string{health + "/ready", metrics} {
		g.await("ready", bed.Answers(url, http.StatusOK))
	}
	if s := g.status(); g.config.Admin.OffloadEngine != "None" && s.Offload.Mechanism == "None" ||
		g.config.Admin.OffloadEngine == "XDP" && s.Offload.Mechanism != "XDP" {
		t.Fatalf("engine %s is not used: %+v", g.config.Admin.OffloadEngine, s.Offload)
	}
	g.objects = objectsOf(t, p.PID())
	return g
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
	ctx, cancel := context.WithTimeout(g.t.Context(), patience)
	defer cancel()
	if err := g.process.Until(ctx, cond); err != nil {
		g.t.Fatalf("%s: %v", what, err)
	}
}

// write replaces the config file atomically.
func (g *gateway) write(c config.Config) {
	g.t.Helper()
	if err := os.WriteFile(g.file+".new", c.Canonical(), 0o600); err != nil {
		g.t.Fatal(err)
	}
	if err := os.Rename(g.file+".new", g.file); err != nil {
		g.t.Fatal(err)
	}
}

// apply puts a changed config in force. It returns when the file was written and when the status had the revision.
func (g *gateway) apply(change func(*config.Config)) (written, applied time.Time) {
	g.t.Helper()
	c, before := g.config.Clone(), g.status().Revision
	change(&c)
	written = time.Now()
	g.write(c)
	for g.status().Revision == before {
		if time.Since(written) > patience {
			g.t.Fatal("the config is not in force")
		}
		time.Sleep(time.Millisecond) // between two requests
	}
	applied = time.Now()
	g.config = c
	return written, applied
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
	code, body, err := bed.Get(g.t.Context(), health+path)
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

// counters are those of the UDP listener, the sums of all clusters and live sessions, and the packets that the kernel
// forwarded.
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
	_, page, err := bed.Get(g.t.Context(), metrics)
	if err != nil {
		g.t.Fatal(err)
	}
	for line := range strings.Lines(string(page)) {
		series, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		name, labels, _ := strings.Cut(series, "{")
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			continue
		}
		n, rx := int(value), strings.Contains(labels, `direction="rx"`)
		count := func(t *traffic, field func(*flow) *int) {
			f := &t.Tx
			if rx {
				f = &t.Rx
			}
			*field(f) += n
		}
		packets, bytes := func(f *flow) *int { return &f.Packets }, func(f *flow) *int { return &f.Bytes }
		if strings.HasPrefix(name, "stunner_listener") && !strings.Contains(labels, `"media/edge/udp"`) {
			continue
		}
		switch name {
		case telemetry.ListenerPackets:
			count(&c.listener, packets)
		case telemetry.ListenerBytes:
			count(&c.listener, bytes)
		case telemetry.ClusterPackets:
			count(&c.cluster, packets)
		case telemetry.ClusterBytes:
			count(&c.cluster, bytes)
		case telemetry.OffloadPackets:
			if rx {
				c.kernel.down = n
			} else {
				c.kernel.up = n
			}
		}
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
	n, err := bed.Metric(g.t.Context(), metrics, telemetry.Dropped)
	if err != nil && !errors.Is(err, bed.ErrNoMetric) {
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

// socket opens a UDP socket in a namespace.
func socket(t *testing.T, s *netns.Space, at netip.Addr) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	var err error
	open := func() { c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at, 0))) }
	if s == nil {
		open()
	} else {
		s.Do(open)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}
