package abuse

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pion/dtls/v3"
	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/e2e/internal/ask"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
)

// trigger prepares the activity of a neighbour.
type trigger func(t *testing.T, s *stage) harm

// harm runs the activity until the context ends. The note describes it. An error means that the activity did not take
// place, so that the round is not valid.
type harm func(ctx context.Context) (note string, err error)

// nothing is the trigger of the quiet round.
func nothing(*testing.T, *stage) harm {
	return func(ctx context.Context) (string, error) { <-ctx.Done(); return "", nil }
}

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
func forged(perSecond, port int, datagram func() []byte) trigger {
	return func(t *testing.T, s *stage) harm {
		var raw int
		var err error
		s.lan.Do(func() { raw, err = syscall.Socket(syscall.AF_INET, syscall.SOCK_RAW, syscall.IPPROTO_RAW) })
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { syscall.Close(raw) })
		return func(ctx context.Context) (string, error) {
			var failed error
			sent := pace(ctx, perSecond, func(int) {
				from := host(lan, 0x8000|uint16(rand.Uint32()))
				packet := ipv4(from, uint16(10000+rand.IntN(50000)), serverAddr, uint16(port), datagram())
				if err := syscall.Sendto(raw, packet, 0, &syscall.SockaddrInet4{Addr: serverAddr.As4()}); err != nil {
					failed = err
				}
			})
			dead := unresolved(t, "lan")
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

// firstHello returns a ClientHello without cookie.
func firstHello() []byte { return clientHello(random(), 0, nil) }

// unresolved returns the number of next hops of an interface that do not resolve.
func unresolved(t *testing.T, device string) (entries int) {
	t.Helper()
	for line := range strings.Lines(netns.Run(t, "ip neigh show dev "+device+" nud all")) {
		if strings.Contains(line, "INCOMPLETE") || strings.Contains(line, "FAILED") {
			entries++
		}
	}
	return entries
}

// abuser returns a client with an allocation and channels to peers, from 0x4000 on, and its relayed address.
func abuser(
	t *testing.T, s *stage, in *netns.Space, from netip.Addr, over call.Network, peers ...netip.AddrPort,
) (*turnClient, netip.AddrPort) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := s.connect(ctx, in, from, over)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.hangUp)
	relayed, err := c.allocate(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for i, peer := range peers {
		if err := c.bind(ctx, channel+uint16(i), peer); err != nil {
			t.Fatal(err)
		}
	}
	return c, relayed
}

var abuserAddr = host(farClients, 5000)

// media makes one user send to several peers that do not exist, through channels or by Send indications.
func media(perSecond, size int, indications bool, peers ...netip.AddrPort) trigger {
	return func(t *testing.T, s *stage) harm {
		send := sender(t, s, perSecond, size, indications, peers)
		return func(ctx context.Context) (string, error) {
			sent := send(ctx)
			dead := unresolved(t, "peers")
			if dead != len(peers) {
				return "", fmt.Errorf("%d of %d peers do not answer neighbour solicitation", dead, len(peers))
			}
			return fmt.Sprintf("%d × %d B; %d next hops do not answer", sent, size, dead), nil
		}
	}
}

// sender returns a function that sends to peers in turn until its context ends, and returns the number of datagrams.
func sender(
	t *testing.T, s *stage, perSecond, size int, indications bool, peers []netip.AddrPort,
) func(context.Context) int {
	t.Helper()
	c, _ := abuser(t, s, s.far, abuserAddr, call.UDP, peers...)
	go discard(c.conn)
	payload := make([]byte, size)
	return func(ctx context.Context) int {
		return pace(ctx, perSecond, func(i int) {
			at := i % len(peers)
			frame := ask.ChannelData(channel+uint16(at), payload)
			if indications {
				frame = indication(peers[at], payload)
			}
			_, _ = c.conn.Write(frame)
		})
	}
}

// discard reads and discards until the connection is closed.
func discard(conn net.Conn) {
	_ = conn.SetReadDeadline(time.Time{})
	buf := make([]byte, 2048)
	for {
		if _, err := conn.Read(buf); errors.Is(err, net.ErrClosed) {
			return
		}
	}
}

// silentPeers are addresses with a route that do not exist.
var silentPeers = []netip.AddrPort{
	netip.AddrPortFrom(host(peerNet, 0x9001), 9), netip.AddrPortFrom(host(peerNet, 0x9002), 9),
	netip.AddrPortFrom(host(peerNet, 0x9003), 9),
}

// slowPeer is behind the slow link.
var slowPeer = netip.AddrPortFrom(host(slowNet, 2), 9)

// toSlowPeer makes one user send more data to a peer than its link can carry.
func toSlowPeer(t *testing.T, s *stage) harm {
	conn := socket(t, s.slow, slowPeer)
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
	send := sender(t, s, 600, 1000, false, []netip.AddrPort{slowPeer})
	return func(ctx context.Context) (string, error) {
		sent := send(ctx)
		// Datagrams that the kernel forwards stay in the send buffer of the user until they leave the slow link, so it can
		// send no more than arrives.
		if got, most := arrived.Load()/1000, int64(window.Seconds()*1000/8); got < most*4/5 {
			return "", fmt.Errorf("%d of %d kB have arrived: the link is not saturated", got, most)
		}
		return fmt.Sprintf("%d × 1,000 B, of which %d kB have arrived", sent, arrived.Load()/1000), nil
	}
}

// vanishing removes the addresses of three LAN clients while a peer sends to them.
func vanishing(t *testing.T, s *stage) harm {
	source := socket(t, s.peers, netip.AddrPortFrom(host(peerNet, 2), 0))
	peer := source.LocalAddr().(*net.UDPAddr).AddrPort()
	var relays []netip.AddrPort
	var gone []string
	for i := range uint16(3) {
		a := host(lan, 11+i)
		s.lan.Run(t, fmt.Sprintf("ip address add %s/%d dev eth0", a, lan.Bits()))
		c, relayed := abuser(t, s, s.lan, a, call.UDP, peer)
		go discard(c.conn)
		relays, gone = append(relays, relayed), append(gone, a.String())
	}
	return func(ctx context.Context) (string, error) {
		for _, a := range gone {
			s.lan.Run(t, fmt.Sprintf("ip address del %s/%d dev eth0", a, lan.Bits()))
			netns.Run(t, fmt.Sprintf("ip neigh flush to %s dev lan", a))
		}
		payload := make([]byte, 1000)
		sent := pace(ctx, 3*250, func(i int) { _, _ = source.WriteToUDPAddrPort(payload, relays[i%3]) })
		if dead := unresolved(t, "lan"); dead != len(gone) {
			return "", fmt.Errorf("%d of %d clients are unreachable", dead, len(gone))
		}
		return fmt.Sprintf("%d × 1,000 B", sent), nil
	}
}

// deafReader sends 4 Mbit/s to a TCP client that does not read.
func deafReader(t *testing.T, s *stage) harm {
	source := socket(t, s.peers, netip.AddrPortFrom(host(peerNet, 2), 0))
	_, relayed := abuser(t, s, s.far, abuserAddr, call.TCP, source.LocalAddr().(*net.UDPAddr).AddrPort())
	return func(ctx context.Context) (string, error) {
		payload := make([]byte, 1000)
		sent := pace(ctx, 500, func(int) { _, _ = source.WriteToUDPAddrPort(payload, relayed) })
		return fmt.Sprintf("%d × 1,000 B", sent), nil
	}
}

// slowReader sends 4 Mbit/s to a TCP client behind the slow link that reads everything.
func slowReader(t *testing.T, s *stage) harm {
	source := socket(t, s.peers, netip.AddrPortFrom(host(peerNet, 2), 0))
	c, relayed := abuser(t, s, s.slow, slowPeer.Addr(), call.TCP, source.LocalAddr().(*net.UDPAddr).AddrPort())
	_ = c.conn.SetReadDeadline(time.Time{})
	var lock sync.Mutex
	var ages []time.Duration
	go func() {
		for buf := make([]byte, 2048); ; {
			n, err := c.conn.Read(buf)
			if err != nil {
				return
			}
			if n >= 12 && binary.BigEndian.Uint16(buf) == channel {
				lock.Lock()
				ages = append(ages, time.Since(epoch)-time.Duration(binary.BigEndian.Uint64(buf[4:])))
				lock.Unlock()
			}
		}
	}()
	return func(ctx context.Context) (string, error) {
		payload := make([]byte, 1000)
		sent := pace(ctx, 500, func(int) {
			binary.BigEndian.PutUint64(payload, uint64(time.Since(epoch)))
			_, _ = source.WriteToUDPAddrPort(payload, relayed)
		})
		lock.Lock()
		defer lock.Unlock()
		slices.Sort(ages)
		if len(ages) == 0 {
			return "", fmt.Errorf("none of %d × 1,000 B has arrived", sent)
		}
		return fmt.Sprintf("%d of %d × 1,000 B have arrived, aged p50 %s p99 %s",
			len(ages), sent, short(ages[len(ages)/2]), short(ages[len(ages)*99/100])), nil
	}
}

// halfHandshakes sends garbage from one address, and starts DTLS handshakes that it does not continue after the
// HelloVerifyRequest.
func halfHandshakes(t *testing.T, s *stage) harm {
	const garbage, hellos = 2000, 200
	at := host(lan, 2)
	var answered atomic.Int64
	var group sync.WaitGroup
	return func(ctx context.Context) (string, error) {
		noise := socket(t, s.lan, netip.AddrPortFrom(at, 0))
		to := net.UDPAddrFromAddrPort(netip.AddrPortFrom(serverAddr, dtlsPort))
		group.Go(func() {
			pace(ctx, garbage, func(i int) {
				record := binary.BigEndian.AppendUint64([]byte{byte(20 + i%5), 0xFE, 0xFD}, rand.Uint64())
				record = append(append(record, 0, 64), make([]byte, 64)...)
				_, _ = noise.WriteTo(record, to)
			})
		})
		began := pace(ctx, hellos, func(int) {
			group.Go(func() {
				if s.halfHandshake(ctx, at) {
					answered.Add(1)
				}
			})
		})
		group.Wait()
		if answered.Load() == 0 {
			return "", fmt.Errorf("none of %d handshakes got further than the cookie", began)
		}
		return fmt.Sprintf("%d handshakes begun, %d answered with a certificate", began, answered.Load()), nil
	}
}

// halfHandshake starts a handshake, and reports whether the server responded with its certificate.
func (s *stage) halfHandshake(ctx context.Context, from netip.Addr) bool {
	ctx, cancel := context.WithTimeout(ctx, 900*time.Millisecond) // before the first flight is retransmitted
	defer cancel()
	var line *net.UDPConn
	var err error
	s.lan.Do(func() { line, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0))) })
	if err != nil {
		return false
	}
	half := &halfDeaf{UDPConn: line}
	conn, err := dtls.ClientWithOptions(
		half, net.UDPAddrFromAddrPort(netip.AddrPortFrom(serverAddr, dtlsPort)), dtls.WithInsecureSkipVerify(true),
	)
	if err != nil {
		line.Close()
		return false
	}
	_ = conn.HandshakeContext(ctx) // cannot succeed
	_ = conn.Close()
	line.Close()
	return half.heard.Load()
}

// halfDeaf is a socket that receives only HelloVerifyRequest.
type halfDeaf struct {
	*net.UDPConn
	heard atomic.Bool // another message has arrived: the server has computed its part of the handshake
}

// ReadFrom implements net.PacketConn.
func (d *halfDeaf) ReadFrom(b []byte) (int, net.Addr, error) {
	for {
		n, from, err := d.UDPConn.ReadFrom(b)
		if err != nil || n > recordHeader && b[0] == recordHandshake && b[recordHeader] == helloVerifyRequest {
			return n, from, err
		}
		d.heard.Store(true)
	}
}

// tlsHandshakes starts TLS handshakes from one address at no CPU cost of its own: it always sends the same recorded
// ClientHello and closes after the response.
func tlsHandshakes(t *testing.T, s *stage) harm {
	const perSecond = 600
	hello := tlsHello(t)
	return func(ctx context.Context) (string, error) {
		var answered atomic.Int64
		var group sync.WaitGroup
		began := pace(ctx, perSecond, func(int) {
			group.Go(func() {
				if s.answersTLS(ctx, hello) {
					answered.Add(1)
				}
			})
		})
		if group.Wait(); answered.Load() == 0 {
			return "", errors.New("no TLS handshake is answered")
		}
		return fmt.Sprintf("%d handshakes begun, %d answered", began, answered.Load()), nil
	}
}

// answersTLS starts a handshake, and reports whether the server responds with a handshake message.
func (s *stage) answersTLS(ctx context.Context, hello []byte) bool {
	var conn net.Conn
	var err error
	s.lan.Do(func() {
		dialer := net.Dialer{
			LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(host(lan, 2), 0)), Timeout: time.Second,
		}
		conn, err = dialer.DialContext(ctx, "tcp4", netip.AddrPortFrom(serverAddr, dtlsPort).String())
	})
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.(*net.TCPConn).SetLinger(0) // so that no port stays in TIME_WAIT
	_ = conn.SetDeadline(time.Now().Add(2 * time.Second))
	record := make([]byte, 5)
	if _, err := conn.Write(hello); err != nil {
		return false
	}
	_, err = io.ReadFull(conn, record)
	return err == nil && record[0] == recordHandshake
}

// tlsHello returns a ClientHello of TLS.
func tlsHello(t *testing.T) []byte {
	t.Helper()
	client, server := net.Pipe()
	go func() { _ = tls.Client(client, &tls.Config{InsecureSkipVerify: true}).HandshakeContext(t.Context()) }()
	defer client.Close()
	hello := make([]byte, 5)
	if _, err := io.ReadFull(server, hello); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, binary.BigEndian.Uint16(hello[3:]))
	if _, err := io.ReadFull(server, body); err != nil {
		t.Fatal(err)
	}
	return append(hello, body...)
}

// closedPorts makes one user send to closed ports of a peer, which causes ICMP errors.
func closedPorts(t *testing.T, s *stage) harm {
	const ports = 200
	victim := host(peerNet, 2)
	c, _ := abuser(t, s, s.far, abuserAddr, call.UDP, netip.AddrPortFrom(victim, 9))
	go discard(c.conn)
	return func(ctx context.Context) (string, error) {
		before := s.unreachables(t)
		payload := make([]byte, 100)
		sent := pace(ctx, 2000, func(i int) {
			_, _ = c.conn.Write(indication(netip.AddrPortFrom(victim, uint16(20000+i%ports)), payload))
		})
		failed := s.unreachables(t) - before
		if failed < sent/10 {
			return "", fmt.Errorf("%d ICMP errors for %d datagrams", failed, sent)
		}
		return fmt.Sprintf("%d datagrams, %d ICMP errors", sent, failed), nil
	}
}

// unreachables returns the number of ICMP errors that the peers have sent.
func (s *stage) unreachables(t *testing.T) (n int) {
	t.Helper()
	var names, values []string
	for line := range strings.Lines(s.peers.Run(t, "cat /proc/self/net/snmp")) {
		if strings.HasPrefix(line, "Icmp:") {
			names, values = values, strings.Fields(line)
		}
	}
	_, _ = fmt.Sscan(values[slices.Index(names, "OutDestUnreachs")], &n)
	return n
}
