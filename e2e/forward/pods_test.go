// Package forward tests UDP calls whose datagrams arrive at a pod without the session. The pods are stunnerd processes
// in network namespaces. The test acts as the operator and as the load balancer.
//
//	pods_test.go    the pods, config discovery, and the clients
//	move_test.go    clients that move to other pods, updates, scale-in, pods that are killed
//	handover_test.go sessions of a pod that gets SIGTERM
//	adopt_test.go   sessions whose datagrams arrive at another pod
//	lost_test.go    sessions of pods that are cut off
//	restart_test.go a restart of the process with the session
//	quota_test.go   quotas of users over all pods
//	flood_test.go   forged source addresses
//	neighbour_test.go one client that uses several pods, and relays to other pods
//	browser_test.go a browser
//	moves_test.go   pairs of ICE agents of which one moves
//	agents_test.go  ICE agents of pion, aioice and libnice
//	page_test.go    a browser that calls an ICE agent
//	janus_test.go   a browser that calls Janus
package forward

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/harness"
	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
	"github.com/stunner-gateway/stunner/e2e/internal/ice"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
	"github.com/stunner-gateway/stunner/e2e/internal/topology"
	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/api/inspection"
)

const (
	user, password = "ann", "opens-the-door"
	gatewayID      = "media/edge"
	port           = 3478
	// limit is the longest time that an event may take. A busy machine needs it.
	limit = time.Minute
)

func TestMain(m *testing.M) {
	harnesstest.Parallel(4)
	os.Exit(netns.Main(m.Run))
}

// gateway is a Gateway with its pods.
type gateway struct {
	t             *testing.T
	net           *topology.Network
	service, peer netip.AddrPort
	program, url  string
	config        config.Config
	discovery     *discovery.Server

	mu       sync.Mutex
	created  int
	nextPort uint16                    // port of the next client
	checks   *ice.Session              // for the next client; nil means that its peer does not use ICE
	reported map[string]discovery.Peer // pods that report an address for forwarded datagrams, by name
}

// networks is the number of networks of this process.
var networks atomic.Int32

// newGateway makes a Gateway without pods and an echo peer.
func newGateway(t *testing.T) *gateway {
	t.Helper()
	network, err := topology.New(topology.Options{Number: int(networks.Add(1)), Nodes: 1})
	must(t, err)
	t.Cleanup(func() {
		if err := network.Close(); err != nil {
			t.Error(err)
		}
	})
	balancer, _, err := network.AddBalancer(false)
	must(t, err)
	g := &gateway{
		t: t, net: network, service: netip.AddrPortFrom(balancer[0], port),
		program:  filepath.Join(harnesstest.Build(t, harness.Stunnerd), "stunnerd"),
		reported: map[string]discovery.Peer{},
	}
	network.Peers.Do(func() { g.peer = harnesstest.Echo(t, network.Peer(0)[0]) })
	health := "http://0.0.0.0:8086"
	g.config = config.Config{
		Version: config.Version,
		Admin:   config.Admin{Name: gatewayID, LogLevel: "all:INFO", HealthcheckEndpoint: &health, ClientAddresses: true},
		Auth: config.Auth{Type: config.AuthStatic, Realm: "media.example.org", Credentials: map[string]credential.Secret{
			config.KeyUsername: user, config.KeyPassword: password,
		}},
		Listeners: []config.Listener{{
			Name: "media/edge/udp", Protocol: config.TURNUDP, Port: port, Routes: []string{"media/peers"},
		}},
		Clusters: []config.Cluster{{
			Name: "media/peers", Type: config.Static, Protocol: "UDP", Endpoints: []string{g.peer.Addr().String()},
		}},
	}
	g.config.Default()
	g.serve()
	return g
}

// serve starts config discovery. The bearer token of a pod is its name.
func (g *gateway) serve() {
	g.discovery = discovery.NewServer(discovery.ServerOptions{
		Authorize: func(r *http.Request) (discovery.Grant, error) {
			name, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
			if !ok {
				return discovery.Grant{}, errors.New("no token")
			}
			return discovery.Grant{ID: gatewayID, Pod: name}, nil
		},
		OnReport: func(r discovery.Report) {
			if p, err := r.AsPeer(); err == nil {
				g.announce(func() { g.reported[p.Pod] = p })
			}
		},
	})
	g.discovery.Publish(g.config)
	listener, err := net.Listen("tcp", netip.AddrPortFrom(g.net.Home[0], 0).String())
	must(g.t, err)
	server := &http.Server{Handler: g.discovery, ReadHeaderTimeout: limit}
	go server.Serve(listener)
	g.t.Cleanup(func() { server.Close() })
	g.url = "http://" + listener.Addr().String()
}

// announce changes the set of pods that have reported, and sends the list to all pods.
func (g *gateway) announce(change func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	list := &discovery.Peers{Keys: []discovery.PeerKey{{ID: 1, Secret: discovery.PeerSecret{1}}}}
	pods := func() (all []discovery.Peer) {
		for _, p := range g.reported {
			all = append(all, p)
		}
		slices.SortFunc(all, func(a, b discovery.Peer) int { return strings.Compare(a.Pod, b.Pod) })
		return all
	}
	before := pods()
	change()
	if list.Pods = pods(); slices.Equal(list.Pods, before) {
		return
	}
	list.Generation = uint64(time.Now().UnixMilli())
	if err := g.discovery.SetPeers(gatewayID, list); err != nil {
		g.t.Error(err)
	}
}

// pod is a running stunnerd in a network namespace.
type pod struct {
	*gateway
	name, dir string
	net       *topology.Pod
	addr      netip.AddrPort // address of the listener
	process   *harness.Process
}

// pod makes a pod without a process.
func (g *gateway) pod() *pod {
	g.t.Helper()
	network, err := g.net.Nodes[0].AddPod()
	must(g.t, err)
	g.created++
	p := &pod{
		gateway: g, name: fmt.Sprintf("pod%d", g.created), dir: g.t.TempDir(), net: network,
		addr: netip.AddrPortFrom(network.Addrs[0], port),
	}
	must(g.t, os.WriteFile(p.token(), []byte(p.name), 0o600))
	return p
}

func (p *pod) token() string { return filepath.Join(p.dir, "token") }

// add makes pods, starts them, and waits until all pods have all others in their lists.
func (g *gateway) add(count int) (pods []*pod) {
	g.t.Helper()
	for range count {
		p := g.pod()
		p.start()
		pods = append(pods, p)
	}
	g.awaitPeers(pods...)
	return pods
}

// awaitPeers waits until pods have all others in their lists.
func (g *gateway) awaitPeers(pods ...*pod) {
	g.t.Helper()
	for _, p := range pods {
		p.await("list of peers", func(context.Context) error {
			g.mu.Lock()
			want := len(g.reported) - 1
			_, reported := g.reported[p.name]
			g.mu.Unlock()
			if f := p.forwarding(); !reported || f.Peers != want || f.Problem != "" {
				return fmt.Errorf("%d peers, want %d; problem %q", f.Peers, want, f.Problem)
			}
			return nil
		})
	}
}

// start starts stunnerd and waits until it is ready.
func (p *pod) start(flags ...string) {
	p.t.Helper()
	args := append([]string{
		"--watch", "--config", p.url, "--id", gatewayID, "--discovery-token-file", p.token(), "--pod", p.name,
		"--state-dir", p.dir, "--sessions-from", "any", "--healthcheck-endpoint", "http://0.0.0.0:8086",
	}, flags...)
	p.net.Do(func() {
		p.process = harnesstest.Start(p.t, harness.Command{
			Name: p.name, Path: p.program, Args: args, Env: []string{"STUNNER_ADDRS=" + p.addr.Addr().String()}, Logs: p.dir,
		}, func(context.Context) error { return nil })
	})
	p.await("ready", harness.Answers(p.admin("ready"), http.StatusOK))
}

func (p *pod) await(what string, cond func(context.Context) error) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), limit)
	defer cancel()
	if err := p.process.Until(ctx, cond); err != nil {
		p.t.Fatalf("%s: %s: %v", p.name, what, err)
	}
}

func (p *pod) admin(path string) string { return fmt.Sprintf("http://%s:8086/%s", p.addr.Addr(), path) }

// read decodes the JSON document of a path.
func (p *pod) read(path string, into any) {
	p.t.Helper()
	_, body, err := harness.Get(p.t.Context(), p.admin(path))
	if err = errors.Join(err, json.Unmarshal(body, into)); err != nil {
		p.t.Fatalf("%s: %s: %v", p.name, path, err)
	}
}

// forwarding returns the field forwarding of the status.
func (p *pod) forwarding() (f inspection.ForwardingStatus) {
	p.t.Helper()
	var status inspection.Status
	if p.read("status", &status); status.Forwarding == nil {
		p.t.Fatalf("%s: status without forwarding", p.name)
	}
	return *status.Forwarding
}

func (p *pod) sessions() []inspection.Session {
	p.t.Helper()
	var list inspection.SessionList
	p.read("sessions", &list)
	return list.Sessions
}

// cpu returns the CPU time that pods have used.
func cpu(pods ...*pod) (total time.Duration) {
	for _, p := range pods {
		used, err := p.process.CPU()
		must(p.t, err)
		total += used
	}
	return total
}

// voice is the interval of the datagrams of a call.
const voice = 20 * time.Millisecond

// client is a call of a client whose datagrams go to a pod.
type client struct {
	*call.Call
	local    netip.AddrPort
	balancer call.Balancer
	at       *pod
}

// dial starts a call.
func (g *gateway) dial(at *pod, every time.Duration) *client {
	g.t.Helper()
	return g.dialAs(user, password, at, every)
}

// dialAs starts a call of a user.
func (g *gateway) dialAs(user, password string, at *pod, every time.Duration) *client {
	g.t.Helper()
	c, err := g.tryDialAs(user, password, at, every)
	must(g.t, err)
	return c
}

// tryDialAs is dialAs for a call that may be refused.
func (g *gateway) tryDialAs(user, password string, at *pod, every time.Duration) (*client, error) {
	g.nextPort++
	c := &client{local: netip.AddrPortFrom(g.net.Home[0], 20_000+g.nextPort)}
	c.move(at)
	var err error
	c.Call, err = call.Start(g.t.Context(), call.Options{
		Gateway: g.service, Network: call.UDP, Username: user, Password: password, Peer: g.peer, Interval: every, Size: 200,
		Local: c.local, Balancer: &c.balancer, Checks: g.checks,
	})
	return c, err
}

// dialEach starts a number of calls at each of some pods, and waits until they work.
func (g *gateway) dialEach(number int, every time.Duration, pods ...*pod) (calls []*client) {
	g.t.Helper()
	for range number {
		for _, p := range pods {
			calls = append(calls, g.dial(p, every))
		}
	}
	awaitMore(g.t, calls, 20)
	return calls
}

// move makes the datagrams of the client go to a pod from now on.
func (c *client) move(to *pod) {
	c.at = to
	c.balancer.Select(to.addr)
}

// awaitMore waits until every call has received more echoes.
func awaitMore(t *testing.T, calls []*client, echoes int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var waiting sync.WaitGroup
	for i, c := range calls {
		waiting.Go(func() {
			if err := c.AwaitMore(ctx, echoes); err != nil {
				t.Errorf("call %d: %v", i, err)
			}
		})
	}
	if waiting.Wait(); t.Failed() {
		t.FailNow()
	}
}

// end ends calls that must have lost no datagram.
func end(t *testing.T, calls ...*client) {
	t.Helper()
	var ending sync.WaitGroup
	for i, c := range calls {
		ending.Go(func() {
			if s := c.End(limit); s.Lost != 0 {
				t.Errorf("call %d: %s", i, s)
			}
		})
	}
	ending.Wait()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
