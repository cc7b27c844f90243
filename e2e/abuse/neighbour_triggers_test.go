package abuse

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/e2e/internal/ask"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
)

// neighbour describes an activity of a client, a peer or an unauthenticated source during the calls of others.
type neighbour struct {
	sentence string
	over     call.Network // transport of the running and of the new calls
	growth   int          // the largest growth of the server's memory in MiB, including memory for new calls
	trigger  trigger
}

// usualGrowth includes garbage that the collector has not freed yet, and the keys and buffers of DTLS clients and of
// started handshakes.
const usualGrowth = 16

// neighbours are the clients, peers and unauthenticated sources that could disturb the calls of others.
var neighbours = []neighbour{
	{"300 first requests a second come from addresses of the LAN that do not exist", call.UDP, usualGrowth,
		forged(300, turnServer, firstRequest)},
	{"500 first requests a second come from addresses of the LAN that do not exist", call.UDP, usualGrowth,
		forged(500, turnServer, firstRequest)},
	{"400 ClientHellos a second come from addresses of the LAN that do not exist", call.DTLS, 2 * usualGrowth,
		forged(400, dtlsServer, func() []byte { return clientHello(random(), 0, nil) })},
	{mostChannels, call.UDP, usualGrowth, media(false)},
	{"a user sends by indications to peers that do not exist", call.UDP, usualGrowth, media(true)},
	{"a user sends 4.8 Mbit a second to a peer behind a link of 1 Mbit", call.UDP, usualGrowth, toSlowPeer},
	{"three clients of the LAN vanish while 2 Mbit a second go to each", call.UDP, usualGrowth, vanishing},
	{"a client over TCP does not read", call.UDP, usualGrowth, silentReader},
	{"a client over TCP is behind a slow link", call.UDP, usualGrowth, slowReader},
	{"one address begins 200 DTLS handshakes a second and ends none", call.DTLS, 6 * usualGrowth, handshakesOf(200, 2000, helloDTLS)},
	{"64 DTLS clients of one address send 40 fragments of 8 kB a second each, and end no handshake", call.DTLS, 2 * usualGrowth, fragments},
	{"4,000 records in plain text a second have the addresses of DTLS clients", call.DTLS, 2 * usualGrowth, plaintext},
	{"one address begins 600 TLS handshakes a second and ends none", call.UDP, 6 * usualGrowth, handshakesOf(600, 0, helloTLS)},
	{"a user sends 2,000 datagrams a second to closed ports", call.UDP, usualGrowth, closedPorts},
}

// trigger prepares the activity of a neighbour.
type trigger func(t *testing.T, h *hosts) harm

// harm runs the activity until the context ends. The note describes it. An error means that the activity did not take
// place, so that the round is not valid.
type harm func(ctx context.Context) (note string, err error)

// pace calls f at a rate until the context ends, and returns the number of calls. It does not catch up after a stall of
// the machine.
func pace(ctx context.Context, perSecond int, f func(i int)) (done int) {
	const step = 5 * time.Millisecond
	tick := time.NewTicker(step)
	defer tick.Stop()
	for due := 0.0; ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return done
		}
		for due += float64(perSecond) * step.Seconds(); due >= 1; due-- {
			f(done)
			done++
		}
	}
}

// forged sends datagrams with source addresses in the server's LAN that do not exist. Responses then wait in the kernel
// for the resolution of their next hop.
func forged(perSecond int, to netip.AddrPort, datagram func() []byte) trigger {
	return func(t *testing.T, h *hosts) harm {
		var raw netns.RawSocket
		h.lan.Do(func() { raw = netns.NewRawSocket(t) })
		return func(ctx context.Context) (string, error) {
			var failed error
			sent := pace(ctx, perSecond, func(int) {
				from := netip.AddrPortFrom(host(lan, 0x8000|uint16(rand.Uint32())), uint16(10000+rand.IntN(50000)))
				failed = errors.Join(failed, raw.Send(from, to, datagram()))
			})
			dead := h.unresolved(t, "lan")
			if dead == 0 && failed == nil {
				failed = errors.New("no response waits for its next hop")
			}
			return fmt.Sprintf("%d forged datagrams; %d next hops do not answer", sent, dead), failed
		}
	}
}

// firstRequest returns an Allocate request without credentials.
func firstRequest() []byte {
	return stun.MustBuild(stun.TransactionID, stun.NewType(stun.MethodAllocate, stun.ClassRequest), ask.UDP()).Raw
}

// indication encodes a Send indication.
func indication(peer netip.AddrPort, payload []byte) []byte {
	return stun.MustBuild(stun.TransactionID, stun.NewType(stun.MethodSend, stun.ClassIndication), ask.Peer(peer),
		stun.RawAttribute{Type: stun.AttrData, Value: payload}).Raw
}

// channel is the channel number that a client binds first.
const channel = 0x4000

// abuser returns a client with an allocation and channels to peers, from the first on, and its relayed address.
func (h *hosts) abuser(t *testing.T, in *netns.Space, from netip.Addr, peers ...netip.AddrPort) (*ask.Client, netip.AddrPort) {
	t.Helper()
	var c *ask.Client
	var err error
	in.Do(func() { c, err = ask.Dial(from, turnServer, user, password) })
	must(t, err)
	t.Cleanup(c.Close)
	answer := request(t, c, stun.MethodAllocate, ask.UDP())
	relayed, err := ask.Relayed(answer)
	must(t, err)
	for i, peer := range peers {
		if code := ask.Code(request(t, c, stun.MethodChannelBind, ask.Channel(channel+uint16(i)), ask.Peer(peer))); code != 0 {
			t.Fatalf("bind a channel: error %d", code)
		}
	}
	return c, relayed
}

var abuserAddr = host(farClients, 5000)

// media makes one user send to three peers that do not exist, through channels or by Send indications.
func media(indications bool) trigger {
	var peers []netip.AddrPort
	for i := range uint16(3) {
		peers = append(peers, netip.AddrPortFrom(host(peerNet, 0x9001+i), 9))
	}
	return func(t *testing.T, h *hosts) harm {
		send := h.sender(t, 300, indications, peers...)
		return func(ctx context.Context) (string, error) {
			sent := send(ctx)
			dead := h.unresolved(t, "peers")
			if dead != len(peers) {
				return "", fmt.Errorf("%d of %d peers do not answer neighbour solicitation", dead, len(peers))
			}
			return fmt.Sprintf("%d × 1,000 B; %d next hops do not answer", sent, dead), nil
		}
	}
}

// sender returns a function that sends 1,000 bytes to peers in turn until its context ends, and returns how often.
func (h *hosts) sender(t *testing.T, perSecond int, indications bool, peers ...netip.AddrPort) func(context.Context) int {
	t.Helper()
	c, _ := h.abuser(t, h.far, abuserAddr, peers...)
	payload := make([]byte, 1000)
	return func(ctx context.Context) int {
		return pace(ctx, perSecond, func(i int) {
			at := i % len(peers)
			frame := ask.ChannelData(channel+uint16(at), payload)
			if indications {
				frame = indication(peers[at], payload)
			}
			_ = c.Send(frame)
		})
	}
}

// slowAddr is an address on the slow link.
var slowAddr = host(slowNet, 2)

// toSlowPeer makes one user send more data to a peer than its link can carry.
func toSlowPeer(t *testing.T, h *hosts) harm {
	peer := netip.AddrPortFrom(slowAddr, 9)
	conn := socket(t, h.slow, peer)
	var arrived atomic.Int64
	go func() {
		buf := make([]byte, 2048)
		for {
			n, err := conn.Read(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			arrived.Add(int64(n))
		}
	}()
	send := h.sender(t, 600, false, peer)
	return func(ctx context.Context) (string, error) {
		sent := send(ctx)
		// Datagrams that the kernel forwards stay in the send buffer of the user until they have passed the slow link,
		// so the user cannot send more than arrives.
		if got, most := arrived.Load()/1000, int64(window.Seconds()*1000/8); got < most*4/5 {
			return "", fmt.Errorf("%d of %d kB have arrived: the link is not saturated", got, most)
		}
		return fmt.Sprintf("%d × 1,000 B, of which %d kB have arrived", sent, arrived.Load()/1000), nil
	}
}

// vanishing removes the addresses of three LAN clients while a peer sends to them.
func vanishing(t *testing.T, h *hosts) harm {
	source := socket(t, h.peers, netip.AddrPortFrom(host(peerNet, 2), 0))
	peer := source.LocalAddr().(*net.UDPAddr).AddrPort()
	var relays []netip.AddrPort
	var gone []string
	for i := range uint16(3) {
		a := host(lan, 11+i)
		h.lan.Run(t, fmt.Sprintf("ip address add %s/%d dev eth0", a, lan.Bits()))
		_, relayed := h.abuser(t, h.lan, a, peer)
		relays, gone = append(relays, relayed), append(gone, a.String())
	}
	return func(ctx context.Context) (string, error) {
		for _, a := range gone {
			h.lan.Run(t, fmt.Sprintf("ip address del %s/%d dev eth0", a, lan.Bits()))
			h.server.Run(t, fmt.Sprintf("ip neigh flush to %s dev lan", a))
		}
		sent := pour(ctx, 3*250, source, relays...)
		if dead := h.unresolved(t, "lan"); dead != len(gone) {
			return "", fmt.Errorf("%d of %d clients are unreachable", dead, len(gone))
		}
		return fmt.Sprintf("%d × 1,000 B", sent), nil
	}
}

// pour sends 1,000 bytes to relays in turn until the context ends. It returns the number of datagrams.
func pour(ctx context.Context, perSecond int, source *net.UDPConn, relays ...netip.AddrPort) int {
	payload := make([]byte, 1000)
	return pace(ctx, perSecond, func(i int) { _, _ = source.WriteToUDPAddrPort(payload, relays[i%len(relays)]) })
}

// silentReader sends 4 Mbit/s to a TCP client that does not read.
func silentReader(t *testing.T, h *hosts) harm {
	source := socket(t, h.peers, netip.AddrPortFrom(host(peerNet, 2), 0))
	var conn net.Conn
	var err error
	h.far.Do(func() {
		dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(abuserAddr, 0)), Timeout: timeout}
		conn, err = dialer.Dial("tcp", turnServer.String())
	})
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	c := ask.Client{Username: user, Password: password} // c only encodes requests
	exchange := func(method stun.Method, attrs ...stun.Setter) *stun.Message {
		t.Helper()
		_, err := conn.Write(c.Request(method, attrs...))
		must(t, err)
		buf := make([]byte, 2048)
		n, err := conn.Read(buf) // a response is written at once
		must(t, err)
		m := &stun.Message{Raw: buf[:n]}
		must(t, m.Decode())
		return m
	}
	c.Learn(exchange(stun.MethodAllocate, ask.UDP()))
	relayed, err := ask.Relayed(exchange(stun.MethodAllocate, ask.UDP()))
	must(t, err)
	exchange(stun.MethodChannelBind, ask.Channel(channel), ask.Peer(source.LocalAddr().(*net.UDPAddr).AddrPort()))
	return func(ctx context.Context) (string, error) {
		return fmt.Sprintf("%d × 1,000 B", pour(ctx, 500, source, relayed)), nil
	}
}

// slowReader sends 4 Mbit/s to a TCP client behind the slow link that reads everything.
func slowReader(t *testing.T, h *hosts) harm {
	o := h.options(call.TCP, 0)
	o.Do, o.Local = h.slow.Do, netip.AddrPortFrom(slowAddr, 0)
	c, err := call.Start(t.Context(), o)
	must(t, err)
	t.Cleanup(func() { c.End(0) })
	source := socket(t, h.peers, netip.AddrPortFrom(o.Peer.Addr(), 0)) // the permission of the call is for any port
	return func(ctx context.Context) (string, error) {
		began := c.Stats().Received
		sent := pour(ctx, 500, source, netip.MustParseAddrPort(c.Relay().String()))
		s := c.Stats()
		if s.Received == began {
			return "", fmt.Errorf("the client behind the slow link has received nothing beside %d × 1,000 B", sent)
		}
		return fmt.Sprintf("%d × 1,000 B beside a call: %s", sent, s), nil
	}
}

// handshakesOf begins handshakes of TLS or DTLS from one address. It needs little CPU time, because it does not
// continue a handshake after the server has computed its part. Invalid data over UDP comes from the same address.
func handshakesOf(perSecond, garbage int, hello func(context.Context, func(func()), netip.Addr, netip.AddrPort) bool) trigger {
	return func(t *testing.T, h *hosts) harm {
		at := host(lan, 2)
		noise := socket(t, h.lan, netip.AddrPortFrom(at, 0))
		return func(ctx context.Context) (string, error) {
			var answered atomic.Int64
			var group sync.WaitGroup
			group.Go(func() {
				pace(ctx, garbage, func(i int) {
					record := append([]byte{byte(20 + i%5), 0xFE, 0xFD, 8: byte(i), 11: 64}, make([]byte, 65)...)
					_, _ = noise.WriteToUDPAddrPort(record, dtlsServer)
				})
			})
			began := pace(ctx, perSecond, func(int) {
				group.Go(func() {
					if hello(ctx, h.lan.Do, at, dtlsServer) {
						answered.Add(1)
					}
				})
			})
			if group.Wait(); answered.Load() == 0 {
				return "", fmt.Errorf("none of %d handshakes got a certificate", began)
			}
			return fmt.Sprintf("%d handshakes begun, %d answered with a certificate", began, answered.Load()), nil
		}
	}
}

// record returns a DTLS record of epoch 0, which is not encrypted, with a sequence number.
func record(kind byte, number int, payload []byte) []byte {
	head := []byte{kind, 0xFE, 0xFD, 0, 0, 0, 0, byte(number >> 24), byte(number >> 16), byte(number >> 8), byte(number),
		byte(len(payload) >> 8), byte(len(payload))}
	return append(head, payload...)
}

// fragments sends records that each contain a small fragment of a handshake message, and useless bytes after it. A
// server that keeps whole records until the message is complete runs out of memory.
func fragments(t *testing.T, h *hosts) harm {
	const clients, perSecond, size = 64, 40, 8000
	return func(ctx context.Context) (string, error) {
		var answered, sent atomic.Int64
		var group sync.WaitGroup
		for range clients {
			conn, err := dialDTLS(h.lan.Do, host(lan, 2), dtlsServer)
			if err != nil {
				return "", err
			}
			defer conn.Close()
			group.Go(func() {
				soon, cancel := context.WithTimeout(ctx, window/4)
				defer cancel()
				if beginDTLS(soon, conn) {
					answered.Add(1)
				}
				_ = conn.SetDeadline(time.Time{})
				sent.Add(int64(pace(ctx, perSecond, func(i int) {
					_, _ = conn.Write(oneByte(i, size))
				})))
			})
		}
		group.Wait()
		if answered.Load() == 0 {
			return "", errors.New("no handshake is answered with a certificate")
		}
		return fmt.Sprintf("%d fragments of %d bytes, %d handshakes answered with a certificate", sent.Load(), size, answered.Load()), nil
	}
}

// plaintext forges unencrypted records with the addresses of running calls: alerts, which end a session, application
// data and handshakes.
func plaintext(t *testing.T, h *hosts) harm {
	var raw netns.RawSocket
	h.lan.Do(func() { raw = netns.NewRawSocket(t) })
	kinds := [][]byte{{21, 2, 40}, {21, 1, 0}, {23, 0}, {24, 1}, {recordHandshake, 1}, {20, 1}, {25, 0}}
	return func(ctx context.Context) (string, error) {
		var failed error
		sent := pace(ctx, 4000, func(i int) {
			kind := kinds[i/runningCalls%len(kinds)]
			caller := h.options(call.DTLS, uint16(1+i%runningCalls)).Local
			failed = errors.Join(failed, raw.Send(caller, dtlsServer, record(kind[0], i, kind[1:])))
		})
		return fmt.Sprintf("%d forged records", sent), failed
	}
}

// closedPorts makes one user send to closed ports of a peer, which causes ICMP errors.
func closedPorts(t *testing.T, h *hosts) harm {
	const ports = 200
	peer := host(peerNet, 2)
	c, _ := h.abuser(t, h.far, abuserAddr, netip.AddrPortFrom(peer, 9))
	return func(ctx context.Context) (string, error) {
		before := h.unreachables(t)
		payload := make([]byte, 100)
		sent := pace(ctx, 2000, func(i int) {
			_ = c.Send(indication(netip.AddrPortFrom(peer, uint16(20000+i%ports)), payload))
		})
		failed := h.unreachables(t) - before
		if failed < sent/10 {
			return "", fmt.Errorf("%d ICMP errors for %d datagrams", failed, sent)
		}
		return fmt.Sprintf("%d datagrams, %d ICMP errors", sent, failed), nil
	}
}

// unreachables returns the number of ICMP errors that the peers have sent.
func (h *hosts) unreachables(t *testing.T) int {
	t.Helper()
	return counter(t, h.peers, "Icmp:", "OutDestUnreachs")
}

// counter returns a counter of a protocol of the kernel in a network namespace (RFC 4022, RFC 4113, RFC 4293).
func counter(t *testing.T, in *netns.Space, protocol, name string) (n int) {
	t.Helper()
	var names, values []string
	for line := range strings.Lines(in.Run(t, "cat /proc/self/net/snmp")) {
		if strings.HasPrefix(line, protocol) {
			names, values = values, strings.Fields(line)
		}
	}
	_, err := fmt.Sscan(values[slices.Index(names, name)], &n)
	must(t, err)
	return n
}
