package server

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pion/dtls/v3"
	"github.com/pion/logging"
	"github.com/pion/stun/v2"
	"github.com/pion/turn/v3"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/forward"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
)

// transports are the transports of listeners that forward.
var transports = []string{"udp", "dtls"}

// pods returns two servers that forward to each other. Both have a UDP and a DTLS listener. In a cluster, the listeners
// have the same ports in all pods. The routes lead to the echo peer of the first server, or to peers at some addresses.
func pods(t *testing.T, peers ...string) (pods [2]*fixture) {
	t.Helper()
	local := func(o *Options) { o.Forward, o.Copies = netip.MustParseAddr("127.0.0.1"), true }
	list := forward.Peers{Generation: 1, Keys: []forward.Key{{ID: 1}}}
	for i := range pods {
		b := newEmptyFixture(t, local)
		c := b.config
		c.Listeners = []config.Listener{c.Listeners[0], c.Listeners[3]}
		if i > 0 {
			b.peer, c.Clusters = pods[0].peer, pods[0].config.Clusters
		} else if len(peers) > 0 {
			c.Clusters = slices.Clone(c.Clusters)
			c.Clusters[0].Endpoints = peers
		}
		b.config = c
		b.apply(c)
		pods[i] = b
		self := b.Peer()
		self.Pod = fmt.Sprint("pod", i)
		list.Pods = append(list.Pods, self)
	}
	for i, b := range pods {
		other := pods[1-i]
		ports := maps.Clone(*b.forwardPorts.Load())
		for _, transport := range transports {
			ports[uint16(other.port(transport))] = ports[uint16(b.port(transport))]
		}
		b.forwardPorts.Store(&ports)
		b.SetPeers(list, "")
	}
	return pods
}

// movable is a connection of a client. A load balancer sends the datagrams of the client to any of the pods. The client
// sees one address.
type movable struct {
	net.PacketConn
	transport string
	seen      net.Addr
	to        atomic.Pointer[net.UDPAddr]
}

func (m *movable) move(to *fixture) {
	m.to.Store(net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(to.port(m.transport)))))
}

func (m *movable) WriteTo(b []byte, _ net.Addr) (int, error) {
	return m.PacketConn.WriteTo(b, m.to.Load())
}

// ReadFrom returns datagrams of the pod to which the client sends. It drops datagrams of other pods, as a NAT does.
func (m *movable) ReadFrom(b []byte) (int, net.Addr, error) {
	for {
		n, from, err := m.PacketConn.ReadFrom(b)
		if err != nil || from.String() == m.to.Load().String() {
			return n, m.seen, err
		}
	}
}

// outgoing records what a client sends.
type outgoing struct {
	net.PacketConn
	// allocate is the latest Allocate request.
	allocate atomic.Pointer[[]byte]
	// channelData reports whether the latest message is ChannelData.
	channelData atomic.Bool
}

func (o *outgoing) WriteTo(b []byte, to net.Addr) (int, error) {
	if len(b) > 2 && b[0] == 0 && b[1] == 3 {
		o.allocate.Store(new(slices.Clone(b)))
	}
	o.channelData.Store(len(b) > 0 && b[0]&0xC0 == 0x40)
	return o.PacketConn.WriteTo(b, to)
}

// mobile is a call over a movable connection.
type mobile struct {
	call
	conn     *movable
	outgoing *outgoing
	sent     int
}

func dialMobile(t *testing.T, at *fixture, transport string) *mobile {
	t.Helper()
	conn, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	m := &movable{PacketConn: conn, transport: transport}
	m.move(at)
	m.seen = m.to.Load()
	conn = m
	if transport == "dtls" {
		secure, err := dtls.ClientWithOptions(m, m.seen, dtls.WithInsecureSkipVerify(true))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = secure.Close() })
		conn = turn.NewSTUNConn(secure)
	}
	out := &outgoing{PacketConn: conn}
	client, err := turn.NewClient(&turn.ClientConfig{
		STUNServerAddr: m.seen.String(), TURNServerAddr: m.seen.String(), Conn: out, Username: "ann", Password: "first",
		LoggerFactory: logging.NewDefaultLoggerFactory(),
	})
	if err == nil {
		err = client.Listen()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	relay, err := client.Allocate()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = relay.Close() })
	return &mobile{call: call{t: t, client: client, relay: relay, peer: at.peer}, conn: m, outgoing: out}
}

// next sends a number to the peer, and waits until it is echoed. Earlier numbers may arrive twice: while the path of
// the client is not certain, data is sent on both paths.
func (c *mobile) next() error {
	c.sent++
	want := fmt.Sprint("number ", c.sent)
	if _, err := c.relay.WriteTo([]byte(want), net.UDPAddrFromAddrPort(c.peer)); err != nil {
		return err
	}
	buf := make([]byte, 100)
	for {
		if err := c.relay.SetReadDeadline(time.Now().Add(2 * time.Second)); err != nil {
			return err
		}
		n, _, err := c.relay.ReadFrom(buf)
		if err != nil {
			return fmt.Errorf("%s: %w", want, err)
		}
		if string(buf[:n]) == want {
			return nil
		}
	}
}

// pods search for the sessions of private addresses, which may be those of nodes, only if they see the addresses
// of clients.
func TestAmbiguousAddresses(t *testing.T) {
	var s Server
	for _, seen := range []bool{false, true} {
		s.clientAddresses.Store(seen)
		for text, private := range map[string]bool{
			"10.1.2.3": true, "100.64.0.9": true, "fd00::1": true, "203.0.113.9": false, "2001:db8::1": false,
		} {
			if got := s.ambiguous(netip.MustParseAddr(text)); got != (private && !seen) {
				t.Errorf("%s, addresses of clients are seen %t: ambiguous %t", text, seen, got)
			}
		}
	}
}

// TestCallsBetweenPods: the datagrams of clients arrive at one pod, then at the other one, and at the first one
// again. Meanwhile the clients send requests, and retransmit their Allocate request to both. No datagram is lost.
func TestCallsBetweenPods(t *testing.T) {
	pods := pods(t)
	var group sync.WaitGroup
	for i := range 8 {
		c := dialMobile(t, pods[i%2], transports[i/2%2])
		group.Go(func() {
			dice := rand.New(rand.NewPCG(uint64(i), 1))
			for n := range 120 {
				if n%10 == 5 {
					c.conn.move(pods[dice.IntN(2)])
				}
				err := c.next()
				switch n % 20 {
				case 9:
					err = errors.Join(err, c.client.CreatePermission(net.UDPAddrFromAddrPort(c.peer)))
				case 19:
					if c.conn.transport == "dtls" {
						break
					}
					for _, p := range pods {
						to := net.JoinHostPort("127.0.0.1", fmt.Sprint(p.port("udp")))
						addr, _ := net.ResolveUDPAddr("udp4", to)
						_, sent := c.conn.PacketConn.WriteTo(*c.outgoing.allocate.Load(), addr)
						err = errors.Join(err, sent)
					}
				}
				if err != nil {
					t.Errorf("client %d, step %d: %v", i, n, err)
					return
				}
			}
		})
	}
	group.Wait()
	for i, b := range pods {
		if n := b.Sessions().Len(); n != 4 {
			t.Errorf("pod %d has %d sessions, want 4", i, n)
		}
		if f := b.Forwarding(); f.Passed == 0 || f.Answered == 0 || f.Delivered == 0 || f.Replied == 0 || len(f.Refused) != 0 {
			t.Errorf("pod %d: %+v", i, f)
		}
	}
}

// TestNonceOfAnotherPod: the last Refresh of a client ends its session, even if it arrives at another pod than
// the pod that made its nonce, and even if that pod has lost its list of pods meanwhile. Nothing repeats this Refresh.
func TestNonceOfAnotherPod(t *testing.T) {
	pods := pods(t)
	client, now := netip.MustParseAddr("192.0.2.1"), time.Now()
	nonce := pods[0].nonces.Make(client, now)
	pods[1].SetPeers(forward.Peers{}, "the list is lost")
	if !pods[1].nonces.Valid(nonce, client, now) {
		t.Error("a pod refuses the nonce of another one")
	}
}

// sendToClient makes a peer send datagrams to a client, one after the other, and returns how many have not arrived.
// After each, it calls between.
func (c *mobile) sendToClient(peer net.PacketConn, number int, between func()) (lost int) {
	c.t.Helper()
	for n := range number {
		if _, err := peer.WriteTo([]byte(fmt.Sprint("from the peer ", n)), c.relay.LocalAddr()); err != nil {
			c.t.Fatal(err)
		}
		buf := make([]byte, 100)
		if err := c.relay.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			c.t.Fatal(err)
		}
		if _, _, err := c.relay.ReadFrom(buf); err != nil {
			lost++
		}
		between()
	}
	return lost
}

// reach sends data to a peer, and waits until it has arrived.
func (c *mobile) reach(peer net.PacketConn, payload []byte) {
	c.t.Helper()
	_, err := c.relay.WriteTo(payload, peer.LocalAddr())
	if err == nil {
		err = peer.SetReadDeadline(time.Now().Add(5 * time.Second))
	}
	if err == nil {
		_, _, err = peer.ReadFrom(make([]byte, 1000))
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// quiet returns a call that sends to a peer once and then nothing more, and the peer. All requests of the call are
// answered, because a retransmitted request would move the client.
func quiet(t *testing.T, pods [2]*fixture, transport string) (*mobile, net.PacketConn) {
	t.Helper()
	peer, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = peer.Close() })
	c := dialMobile(t, pods[0], transport)
	within(t, "the client sends ChannelData", func() bool {
		c.reach(peer, []byte("media"))
		return c.outgoing.channelData.Load()
	})
	return c, peer
}

// K-17: TestForgedDatagramsTakeNothingFromAQuietClient: a client that only receives gets all data while forged
// datagrams with its address arrive at another pod. The control has no forged datagrams.
func TestForgedDatagramsTakeNothingFromAQuietClient(t *testing.T) {
	forged := map[string][]byte{
		"udp":  append([]byte{0x40, 0, 0, 4}, "data"...),
		"dtls": append([]byte{23, 0xFE, 0xFD, 0, 1, 0, 0, 0, 0, 0xFF, 0xFF, 0, 40}, make([]byte, 40)...),
	}
	pods := pods(t, "127.0.0.1")
	for _, transport := range transports {
		t.Run(transport, func(t *testing.T) {
			c, peer := quiet(t, pods, transport)
			pace := func() { time.Sleep(25 * time.Millisecond) } // the interval of the peer and of the attacker
			if lost := c.sendToClient(peer, 20, pace); lost != 0 {
				t.Errorf("control: %d datagrams lost", lost)
			}
			other := pods[1]
			at := net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(other.port(transport))))
			passed := other.Forwarding().Passed
			const number = 60
			if lost := c.sendToClient(peer, number, func() {
				pace()
				if _, err := c.conn.PacketConn.WriteTo(forged[transport], at); err != nil {
					t.Fatal(err)
				}
			}); lost != 0 {
				t.Errorf("%d of %d datagrams lost while another forges", lost, number)
			}
			within(t, "the forged datagrams are forwarded", func() bool { return other.Forwarding().Passed >= passed+number/2 })
		})
	}
}

// TestQuietClientMoves: a client that sends one datagram with data at another pod, and then nothing more, gets
// all data there, even if forged datagrams with its address have arrived at that pod before.
func TestQuietClientMoves(t *testing.T) {
	pods := pods(t, "127.0.0.1")
	for _, transport := range transports {
		t.Run(transport, func(t *testing.T) {
			c, peer := quiet(t, pods, transport)
			c.conn.move(pods[1])
			answered := pods[1].Forwarding().Answered
			c.reach(peer, []byte("media"))
			before := net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(pods[0].port(transport))))
			if lost := c.sendToClient(peer, 60, func() {
				if _, err := c.conn.PacketConn.WriteTo([]byte{0x40, 0, 0, 0}, before); err != nil {
					t.Fatal(err)
				}
				time.Sleep(25 * time.Millisecond) // the interval of the peer and of the attacker
			}); lost != 0 {
				t.Errorf("%d datagrams lost", lost)
			}
			if pods[1].Forwarding().Answered < answered+60 {
				t.Error("the data was not forwarded")
			}
		})
	}
}

// TestAnsweredCheckDecidesThePath: a client that has moved gets its data on one path after its peer has answered
// a connectivity check.
func TestAnsweredCheckDecidesThePath(t *testing.T) {
	pods := pods(t, "127.0.0.1")
	c, peer := quiet(t, pods, "udp")
	client := pods[0].Sessions().List()[0].Client.(session.Movable)
	key := stun.NewShortTermIntegrity("an ICE password")
	for _, at := range []int{1, 0, 1} {
		c.conn.move(pods[at])
		check := stun.MustBuild(stun.TransactionID, stun.BindingRequest, key)
		c.reach(peer, check.Raw)
		if client.Front().IsValid() == (at == 1) {
			t.Errorf("pod %d: a check without an answer has moved the client", at)
		}
		answer := stun.MustBuild(stun.NewTransactionIDSetter(check.TransactionID), stun.BindingSuccess, key)
		if _, err := peer.WriteTo(answer.Raw, c.relay.LocalAddr()); err != nil {
			t.Fatal(err)
		}
		within(t, "the client has moved", func() bool { return client.Front().IsValid() == (at == 1) })
	}
}

// Forwarding a datagram to another pod, and answering a client of another pod, does not allocate.
func TestForwardedDatagramsAllocateNothing(t *testing.T) {
	pods := pods(t)
	pods[0].apply(pods[0].changed(func(c *config.Config) { c.Clusters[0].Endpoints = []string{"127.0.0.1"} }))
	silent, err := net.ListenPacket("udp4", "127.0.0.1:0") // a peer, and a client, that does nothing
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	c := dialMobile(t, pods[0], "udp")
	if _, err := c.relay.WriteTo([]byte("data"), silent.LocalAddr()); err != nil {
		t.Fatal(err)
	}
	within(t, "the client has a channel", func() bool { return pods[0].Sessions().List()[0].Channels() == 1 })
	for _, b := range pods { // the test takes the place of the reader
		if err := b.forwarder.Close(); err != nil {
			t.Fatal(err)
		}
	}
	owner, front, now := forwarding{pods[0].Server}, forwarding{pods[1].Server}, time.Now()
	client := forward.Client{
		Addr: c.conn.LocalAddr().(*net.UDPAddr).AddrPort(), Port: uint16(pods[0].port("udp")),
	}
	unread := forward.Client{Addr: silent.LocalAddr().(*net.UDPAddr).AddrPort(), Port: uint16(pods[1].port("udp"))}
	frame, source := append([]byte{0x40, 0, 0, 4}, "data"...), &datagram.Source{}
	for name, run := range map[string]func() bool{
		"Deliver": func() bool { return owner.Deliver(client, frame, forward.ReturnPath{}, now) },
		"Answer":  func() bool { return front.Answer(unread, frame, source) },
	} {
		done := true
		if n := testing.AllocsPerRun(100, func() {
			now = now.Add(time.Millisecond)
			done = run() && done
			owner.Flush(now)
			front.Flush(now)
		}); n != 0 || !done {
			t.Errorf("%s: %g allocations, done %t", name, n, done)
		}
	}
}

// T-03: TestForwardingPortsAreDeniedAsPeers: no route leads to the port at which a pod of the Gateway receives
// forwarded datagrams, also if it leads to the address of the pod.
func TestForwardingPortsAreDeniedAsPeers(t *testing.T) {
	pods := pods(t)
	pods[0].apply(pods[0].changed(func(c *config.Config) { c.Clusters[0].Endpoints = []string{"127.0.0.1"} }))
	c := pods[0].mustDial("udp", "ann", "first")
	if err := c.echo("before"); err != nil {
		t.Fatal(err)
	}
	for _, b := range pods {
		port := net.UDPAddrFromAddrPort(b.Peer().Address)
		if err := c.client.CreatePermission(port); err == nil || !strings.Contains(err.Error(), "403") {
			t.Errorf("permission for %s: %v, want 403", port, err)
		}
		denied := pods[0].Meter().Drops()["port_denied"]
		if _, err := c.relay.WriteTo([]byte("data"), port); err != nil {
			t.Fatal(err)
		}
		within(t, "data to "+port.String()+" is dropped", func() bool { return pods[0].Meter().Drops()["port_denied"] > denied })
	}
	if err := c.echo("after"); err != nil {
		t.Error(err)
	}
}

// T-03: TestListenersOfOtherPodsAreDeniedAsPeers: no allocation can be nested in an allocation of another pod of the
// Gateway, in either family. The relays of the other pod are peers: two clients of a Gateway may call each other.
func TestListenersOfOtherPodsAreDeniedAsPeers(t *testing.T) {
	b := newFixture(t)
	b.apply(b.openToAll(func(*config.Listener) {}))
	c := b.mustDial("udp", "ann", "first")
	at := func(addr string, port int) *net.UDPAddr { return &net.UDPAddr{IP: net.ParseIP(addr), Port: port} }
	const v4, v6 = "203.0.113.9", "2001:db8::9"
	if err := c.client.CreatePermission(at(v4, b.port("udp"))); err != nil {
		t.Fatalf("before the pod is known: %v", err)
	}
	for _, pod := range []forward.Peer{
		{Pod: "other", Address: netip.MustParseAddrPort(v4 + ":7"), Sender: [8]byte{1}},
		{Pod: "other", Address: netip.MustParseAddrPort("[" + v6 + "]:7"), Other: netip.MustParseAddr(v4), Sender: [8]byte{1}},
	} {
		b.SetPeers(forward.Peers{Generation: 1, Keys: []forward.Key{{ID: 1}}, Pods: []forward.Peer{pod}}, "")
		b.SetPeers(forward.Peers{}, "the list is lost")
		for _, transport := range []string{"udp", "tcp"} {
			err := c.client.CreatePermission(at(v4, b.port(transport)))
			if err == nil || !strings.Contains(err.Error(), "403") {
				t.Errorf("pod at %s and %s: permission for its %s listener: %v, want 403", pod.Address, pod.Other, transport, err)
			}
		}
		if err := c.client.CreatePermission(at(v4, 40000)); err != nil {
			t.Errorf("pod at %s and %s: permission for a relay: %v", pod.Address, pod.Other, err)
		}
	}
}
