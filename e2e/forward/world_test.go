// Package forward tests calls whose datagrams arrive at another pod than the one with the session: dataplane pods,
// clients and peers are network namespaces, and an address translation with conntrack takes the place of kube-proxy.
//
// # Files
//
//	world_test.go    the namespaces
//	browser_test.go  a browser
//	move_test.go restart_test.go flood_test.go affinity_test.go  disturbances
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
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/bed"
	"github.com/stunner-gateway/stunner/e2e/internal/bedtest"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/api/discovery"
	"github.com/stunner-gateway/stunner/services/api/inspection"
)

const (
	user, password = "ann", "opens-the-door"
	gatewayID      = "media/edge"
	port           = 3478
	patience       = 20 * time.Second // for an event
)

var (
	service    = netip.MustParseAddrPort("10.96.0.10:3478") // the address of the Service
	clientAddr = netip.MustParseAddr("10.80.100.2")
	peerAddr   = netip.MustParseAddrPort("10.80.200.2:7000")
)

// world is a node: it routes between pods, clients and peers, translates the address of the Service to pods, and serves
// config discovery.
type world struct {
	t              *testing.T
	programs       string
	clients, peers *netns.Space
	discovery      *discovery.Server
	url            string

	next uint16 // port of a client
	// returnable makes the node forget what a pod has sent to a client after the node had sent the client elsewhere. The
	// node tracks such a datagram without address translation. A client that returns to this pod gets another port as
	// long as the entry exists, by default for 30 s.
	returnable bool

	mu sync.Mutex
	// reported are the pods that report an address for forwarded datagrams, by name.
	reported map[string]discovery.Peer
}

// pod is a running stunnerd in a network namespace.
type pod struct {
	world   *world
	name    string
	program string // path of stunnerd
	addr    netip.Addr
	space   *netns.Space
	process *bed.Process
	state   string
}

// newWorld makes the node, and announces pods to each other if forwarding is set.
func newWorld(t *testing.T, forwarding bool) *world {
	t.Helper()
	w := &world{
		t: t, programs: bedtest.Build(t, bed.Stunnerd), reported: map[string]discovery.Peer{},
		clients: netns.New(t, "clients"), peers: netns.New(t, "peers"),
	}
	netns.Run(t, "sysctl -q -w net.ipv4.ip_forward=1")
	link(t, w.clients, 100)
	link(t, w.peers, 200)
	nft(t, `
table ip service {
	map owners { type inet_service : ipv4_addr; }
	chain prerouting {
		type nat hook prerouting priority dstnat;
		ip daddr 10.96.0.10 udp dport 3478 dnat to udp sport map @owners
	}
	chain returning { type filter hook forward priority mangle; }
	chain rest { type nat hook prerouting priority dstnat + 1; }
}`)
	w.echo()
	w.serve(forwarding)
	return w
}

func link(t *testing.T, s *netns.Space, subnet byte) {
	t.Helper()
	s.Link(t, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 80, subnet, 1}), 24),
		netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 80, subnet, 2}), 24))
}

func nft(t *testing.T, rules string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "rules.nft")
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	netns.Run(t, "nft -f "+file)
}

// echo starts a peer that returns every datagram.
func (w *world) echo() {
	var conn *net.UDPConn
	var err error
	w.peers.Do(func() { conn, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(peerAddr)) })
	if err != nil {
		w.t.Fatal(err)
	}
	_ = conn.SetReadBuffer(4 << 20)
	w.t.Cleanup(func() { conn.Close() })
	go func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			_, _ = conn.WriteToUDPAddrPort(buf[:n], from)
		}
	}()
}

// serve starts config discovery. The bearer token of a pod is its name.
func (w *world) serve(forwarding bool) {
	w.discovery = discovery.NewServer(discovery.ServerOptions{
		Authorize: func(r *http.Request) (discovery.Grant, error) {
			name, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
			if !ok {
				return discovery.Grant{}, errors.New("no token")
			}
			return discovery.Grant{ID: gatewayID, Pod: name}, nil
		},
		OnReport: func(r discovery.Report) {
			if p, err := r.AsPeer(); err == nil && forwarding {
				w.report(p)
			}
		},
	})
	w.discovery.Publish(w.config())
	listener, err := net.Listen("tcp", "10.80.100.1:13478")
	if err != nil {
		w.t.Fatal(err)
	}
	server := &http.Server{Handler: w.discovery, ReadHeaderTimeout: time.Second}
	go server.Serve(listener)
	w.t.Cleanup(func() { server.Close() })
	w.url = "http://" + listener.Addr().String()
}

func (w *world) config() config.Config {
	health := "http://0.0.0.0:8086"
	c := config.Config{
		Version: config.Version,
		Admin:   config.Admin{Name: gatewayID, LogLevel: "all:INFO", HealthcheckEndpoint: &health},
		Auth: config.Auth{Type: config.AuthStatic, Realm: "media.example.org", Credentials: map[string]credential.Secret{
			config.KeyUsername: user, config.KeyPassword: password,
		}},
		Listeners: []config.Listener{{
			Name: "media/edge/udp", Protocol: config.TURNUDP, Port: port, Routes: []string{"media/peers"},
		}},
		Clusters: []config.Cluster{{
			Name: "media/peers", Type: config.Static, Protocol: "UDP", Endpoints: []string{peerAddr.Addr().String()},
		}},
	}
	c.Default()
	return c
}

// report adds a pod to the list of peers.
func (w *world) report(p discovery.Peer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.reported[p.Pod] == p {
		return
	}
	w.reported[p.Pod] = p
	w.announce()
}

// forget removes a pod from the list of peers, as the operator does when its reports end.
func (w *world) forget(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.reported, name)
	w.announce()
}

func (w *world) announce() {
	list := &discovery.Peers{
		Generation: uint64(time.Now().UnixMilli()), Keys: []discovery.PeerKey{{ID: 1, Secret: discovery.PeerSecret{1}}},
	}
	for _, p := range w.reported {
		list.Pods = append(list.Pods, p)
	}
	slices.SortFunc(list.Pods, func(a, b discovery.Peer) int { return strings.Compare(a.Pod, b.Pod) })
	if err := w.discovery.SetPeers(gatewayID, list); err != nil {
		w.t.Error(err)
	}
}

// add makes a pod and starts its stunnerd.
func (w *world) add(number byte) *pod {
	w.t.Helper()
	p := w.pod(number)
	p.start()
	return p
}

// addOf makes a pod and starts a given stunnerd in it.
func (w *world) addOf(number byte, program string) *pod {
	w.t.Helper()
	p := w.pod(number)
	p.program = program
	p.start()
	return p
}

// pod makes a pod.
func (w *world) pod(number byte) *pod {
	w.t.Helper()
	p := &pod{
		world: w, name: fmt.Sprintf("pod%d", number), program: filepath.Join(w.programs, "stunnerd"),
		space: netns.New(w.t, fmt.Sprintf("pod%d", number)),
		addr:  netip.AddrFrom4([4]byte{10, 80, number, 2}), state: w.t.TempDir(),
	}
	link(w.t, p.space, number)
	if err := os.WriteFile(p.token(), []byte(p.name), 0o600); err != nil {
		w.t.Fatal(err)
	}
	return p
}

func (p *pod) token() string { return filepath.Join(p.state, "token") }

// start starts stunnerd and waits until it is ready.
func (p *pod) start(flags ...string) {
	t := p.world.t
	t.Helper()
	var err error
	p.space.Do(func() {
		p.process, err = bed.Start(bed.Command{
			Name: p.name, Path: p.program, Args: append([]string{
				"--watch", "--config", p.world.url, "--id", gatewayID, "--discovery-token-file", p.token(), "--pod", p.name,
				"--state-dir", p.state, "--sessions-from", "any", "--healthcheck-endpoint", "http://0.0.0.0:8086",
			}, flags...),
			Env: []string{"STUNNER_ADDRS=" + p.addr.String()}, Logs: p.state,
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	process := p.process
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("last log lines of %s:\n%s", p.name, strings.Join(process.Tail(30), "\n"))
		}
		if err := process.Kill(); err != nil {
			t.Error(err)
		}
	})
	p.await("ready", func(context.Context) error { _, err := p.get("ready"); return err })
}

func (p *pod) await(what string, cond func(context.Context) error) {
	p.world.t.Helper()
	ctx, cancel := context.WithTimeout(p.world.t.Context(), patience)
	defer cancel()
	if err := p.process.Until(ctx, cond); err != nil {
		p.world.t.Fatalf("%s: %s: %v", p.name, what, err)
	}
}

// get returns the JSON document of a path, or nil for /ready.
func (p *pod) get(path string) (body json.RawMessage, err error) {
	client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Get(fmt.Sprintf("http://%s:8086/%s", p.addr, path))
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	switch {
	case r.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s: %s", path, r.Status)
	case path == "ready":
		return nil, nil
	}
	err = json.NewDecoder(r.Body).Decode(&body)
	return body, err
}

// forwarding returns the field forwarding of the status.
func (p *pod) forwarding() (f inspection.ForwardingStatus) {
	p.world.t.Helper()
	body, err := p.get("status")
	var st inspection.Status
	if err = errors.Join(err, json.Unmarshal(body, &st)); err != nil || st.Forwarding == nil {
		p.world.t.Fatalf("%s: status without forwarding: %v", p.name, err)
	}
	return *st.Forwarding
}

// awaitPeers waits until the pod has a number of other pods in its list.
func (p *pod) awaitPeers(n int) {
	p.world.t.Helper()
	p.await("list of peers", func(context.Context) error {
		if f := p.forwarding(); f.Peers != n || f.Problem != "" {
			return fmt.Errorf("%d peers, want %d; problem %q", f.Peers, n, f.Problem)
		}
		return nil
	})
}

// client is a call, and the pod to which the node sends the datagrams of the client.
type client struct {
	*call.Call
	port uint16
	at   *pod
}

// dial starts a call of a client whose datagrams go to a pod.
func (w *world) dial(at *pod, every time.Duration, size int) *client {
	w.t.Helper()
	c := w.client()
	w.send(c, at)
	w.start(c, every, size)
	return c
}

// client returns a client without a call.
func (w *world) client() *client {
	w.next++
	return &client{port: 20000 + w.next}
}

// start starts the call of a client.
func (w *world) start(c *client, every time.Duration, size int) {
	w.t.Helper()
	var err error
	w.clients.Do(func() {
		c.Call, err = call.Start(w.t.Context(), call.Options{
			Gateway: service, Network: call.UDP, Username: user, Password: password, Peer: peerAddr, Interval: every,
			Size: size, Local: netip.AddrPortFrom(clientAddr, c.port),
		})
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// send makes the node send the datagrams of a client to a pod from now on.
func (w *world) send(c *client, to *pod) {
	w.t.Helper()
	if w.returnable {
		w.forgetFlows(fmt.Sprintf("--orig-src %s --orig-dst %s --orig-port-dst %d", to.addr, clientAddr, c.port))
	}
	if c.Call != nil {
		nft(w.t, fmt.Sprintf("delete element ip service owners { %d }\nadd element ip service owners { %d : %s }", c.port,
			c.port, to.addr))
		netns.Run(w.t, fmt.Sprintf("conntrack -D -p udp --orig-src %s --orig-port-src %d", clientAddr, c.port))
	} else {
		nft(w.t, fmt.Sprintf("add element ip service owners { %d : %s }", c.port, to.addr))
	}
	c.at = to
}

// sendRest makes the node send the datagrams of all clients that send was not called for to a pod from now on.
func (w *world) sendRest(to *pod) {
	w.t.Helper()
	w.balance(to.addr.String())
	w.forgetFlows("--orig-dst " + service.Addr().String())
}

// balance sets the expression of nftables that selects the pods of new flows of these clients.
func (w *world) balance(pods string) {
	w.t.Helper()
	nft(w.t, fmt.Sprintf("flush chain ip service rest\nadd rule ip service rest ip daddr %s udp dport %d dnat to %s",
		service.Addr(), port, pods))
}

// loseFlows makes the node forget to which pod it sends each client. Nothing that pods send reaches the clients meanwhile:
// the node would track it without address translation, and a client that stays with its pod would get another port.
func (w *world) loseFlows() {
	w.t.Helper()
	nft(w.t, "add rule ip service returning ip daddr "+clientAddr.String()+" udp sport "+strconv.Itoa(port)+" drop")
	w.forgetFlows("--orig-dst " + service.Addr().String())
	nft(w.t, "flush chain ip service returning")
}

// forgetFlows deletes conntrack entries of UDP. It returns how many there were.
func (w *world) forgetFlows(which string) (deleted int) {
	w.t.Helper()
	if deleted = strings.Count(netns.Run(w.t, "conntrack -L -p udp "+which), "dport="+strconv.Itoa(port)); deleted > 0 {
		netns.Run(w.t, "conntrack -D -p udp "+which)
	}
	return deleted
}

// cpu returns the CPU time that the process has used, of all its threads.
func (p *pod) cpu() (used time.Duration) {
	p.world.t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", p.process.PID()))
	if err != nil || len(threads) == 0 {
		p.world.t.Fatalf("%s has no threads: %v", p.name, err)
	}
	for _, t := range threads {
		var onCPU time.Duration // in nanoseconds, Documentation/scheduler/sched-stats.rst
		raw, err := os.ReadFile(t)
		if _, scanned := fmt.Sscan(string(raw), (*int64)(&onCPU)); errors.Join(err, scanned) != nil {
			p.world.t.Fatalf("%s: %v", p.name, errors.Join(err, scanned))
		}
		used += onCPU
	}
	return used
}
