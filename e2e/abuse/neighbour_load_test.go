package abuse

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pion/dtls/v3"
	"github.com/pion/stun/v2"
	"github.com/pion/turn/v3"

	"github.com/stunner-gateway/stunner/e2e/internal/ask"
	"github.com/stunner-gateway/stunner/e2e/internal/call"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
	"github.com/stunner-gateway/stunner/e2e/internal/stall"
)

// turnClient is a client for any transport that sends only the requests of the test.
type turnClient struct {
	// conn returns one message per read.
	conn net.Conn
	// requests is not connected. It encodes requests and stores the challenge.
	requests ask.Client
	// reliable is false if requests must be retransmitted.
	reliable bool
}

// connect opens a client at an address of a namespace, on a port that the kernel chooses.
func (s *stage) connect(ctx context.Context, in *netns.Space, from netip.Addr, over call.Network) (*turnClient, error) {
	c := &turnClient{requests: ask.Client{Username: user, Password: password}, reliable: over == call.TCP}
	var err error
	turnServer := netip.AddrPortFrom(serverAddr, turnPort)
	switch over {
	case call.UDP:
		in.Do(func() {
			c.conn, err = net.DialUDP(
				"udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0)), net.UDPAddrFromAddrPort(turnServer),
			)
		})
	case call.TCP:
		var conn net.Conn
		in.Do(func() {
			dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))}
			conn, err = dialer.DialContext(ctx, "tcp4", turnServer.String())
		})
		if err == nil {
			c.conn = framedConn{conn, turn.NewSTUNConn(conn)}
		}
	case call.DTLS:
		c.conn, err = s.shakeHands(ctx, in, from)
	default:
		err = fmt.Errorf("unknown transport: %s", over)
	}
	return c, err
}

// framedConn is a stream from which Read returns one message.
type framedConn struct {
	net.Conn
	framed *turn.STUNConn
}

func (c framedConn) Read(b []byte) (int, error) {
	n, _, err := c.framed.ReadFrom(b)
	return n, err
}

func (s *stage) shakeHands(ctx context.Context, in *netns.Space, from netip.Addr) (net.Conn, error) {
	var line *net.UDPConn
	var err error
	in.Do(func() { line, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0))) })
	if err != nil {
		return nil, err
	}
	conn, err := dtls.ClientWithOptions(line, net.UDPAddrFromAddrPort(netip.AddrPortFrom(serverAddr, dtlsPort)),
		dtls.WithRootCAs(s.roots), dtls.WithServerName(serverAddr.String()))
	if err != nil {
		return nil, errors.Join(err, line.Close())
	}
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, line.Close())
	}
	return conn, nil
}

// do sends a request with the credential. It returns an error unless the response is a success.
func (c *turnClient) do(ctx context.Context, method stun.Method, attrs ...stun.Setter) (*stun.Message, error) {
	for {
		answer, err := c.exchange(ctx, c.requests.Request(method, attrs...))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", method, err)
		}
		code := ask.Code(answer)
		if code == 0 {
			return answer, nil
		}
		if !c.requests.Learn(answer) {
			return nil, fmt.Errorf("%s: error %d", method, code)
		}
	}
}

// exchange sends a request until its response arrives, with the retransmissions of RFC 8489 §6.2.1, until the context
// ends.
func (c *turnClient) exchange(ctx context.Context, request []byte) (*stun.Message, error) {
	buf := make([]byte, 2048)
	for pause := 500 * time.Millisecond; ; pause *= 2 {
		if _, err := c.conn.Write(request); err != nil {
			return nil, err
		}
		until := time.Now().Add(pause)
		if end, ok := ctx.Deadline(); ok && (c.reliable || end.Before(until)) {
			until = end
		}
		_ = c.conn.SetReadDeadline(until) // cannot fail while the connection is open
		for {
			n, err := c.conn.Read(buf)
			if isTimeout(err) {
				break
			}
			if err != nil {
				return nil, err
			}
			m := &stun.Message{Raw: slices.Clone(buf[:n])}
			if stun.IsMessage(m.Raw) && m.Decode() == nil &&
				m.TransactionID == [stun.TransactionIDSize]byte(request[8:20]) {
				return m, nil
			}
		}
		if ctx.Err() != nil || !time.Now().Before(deadlineOf(ctx)) {
			return nil, ask.ErrSilence
		}
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}

func deadlineOf(ctx context.Context) time.Time {
	if end, ok := ctx.Deadline(); ok {
		return end
	}
	return time.Now().Add(time.Hour)
}

// allocate creates an allocation and returns its relayed address.
func (c *turnClient) allocate(ctx context.Context) (netip.AddrPort, error) {
	answer, err := c.do(ctx, stun.MethodAllocate, ask.UDP())
	if err != nil {
		return netip.AddrPort{}, err
	}
	return ask.Relayed(answer)
}

// bind binds a channel, which also installs a permission.
func (c *turnClient) bind(ctx context.Context, channel uint16, peer netip.AddrPort) error {
	_, err := c.do(ctx, stun.MethodChannelBind, ask.Channel(channel), ask.Peer(peer))
	return err
}

// hangUp sends a request to delete the allocation, without waiting for the response.
func (c *turnClient) hangUp() {
	_, _ = c.conn.Write(c.requests.Request(stun.MethodRefresh, ask.Lifetime(0)))
	if d, ok := c.conn.(*dtls.Conn); ok {
		_ = d.SetDeadline(time.Now().Add(100 * time.Millisecond)) // for the close alert
	}
	c.conn.Close()
}

// indication encodes a Send indication.
func indication(peer netip.AddrPort, payload []byte) []byte {
	return stun.MustBuild(stun.TransactionID, stun.NewType(stun.MethodSend, stun.ClassIndication), ask.Peer(peer),
		stun.RawAttribute{Type: stun.AttrData, Value: payload}).Raw
}

const (
	runningCalls = 8
	callInterval = 20 * time.Millisecond
	callPayload  = 160 // bytes: 20 ms of G.711
	newCalls     = 40
	// newCallDeadline is the limit for the time to the first echo of a new call.
	newCallDeadline = 5 * time.Second
)

// epoch is the base of send times, so that they fit into a payload.
var epoch = time.Now()

// flow is a running call: numbered datagrams to an echo peer and back.
type flow struct {
	client *turnClient
	sent   atomic.Int64
	ages   map[uint64]age // by sequence number
	end    chan struct{}  // closed to stop sending
	work   sync.WaitGroup
}

// age is the round trip time of a datagram.
type age struct {
	sent time.Time
	took time.Duration
}

// startFlow sets up a call and starts to send.
func (s *stage) startFlow(t *testing.T, number int) *flow {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := s.connect(ctx, s.far, host(farClients, uint16(number)), call.UDP)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.allocate(ctx); err != nil {
		t.Fatalf("running call: %v", err)
	}
	if err := c.bind(ctx, channel, s.echo[number%len(s.echo)]); err != nil {
		t.Fatalf("running call: %v", err)
	}
	f := &flow{client: c, ages: map[uint64]age{}, end: make(chan struct{})}
	f.work.Go(f.receive)
	return f
}

// channel is the channel number that each client binds first.
const channel = 0x4000

// send sends a datagram every interval until the call ends.
func (f *flow) send() {
	tick := time.NewTicker(callInterval)
	defer tick.Stop()
	payload := make([]byte, callPayload)
	// The payloads begin like RTP packets (RFC 3550 §5.1): the kernel does not forward STUN messages.
	for seq := uint64(2 << 62); ; seq++ {
		binary.BigEndian.PutUint64(payload, seq)
		binary.BigEndian.PutUint64(payload[8:], uint64(time.Since(epoch)))
		if _, err := f.client.conn.Write(ask.ChannelData(channel, payload)); err == nil {
			f.sent.Add(1)
		}
		select {
		case <-tick.C:
		case <-f.end:
			return
		}
	}
}

// receive records the age of echoes until the socket is closed.
func (f *flow) receive() {
	buf := make([]byte, 2048)
	for {
		n, err := f.client.conn.Read(buf)
		now := time.Now()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || n < 4+callPayload || binary.BigEndian.Uint16(buf) != channel {
			if isTimeout(err) {
				_ = f.client.conn.SetReadDeadline(time.Time{})
			}
			continue
		}
		seq, sent := binary.BigEndian.Uint64(buf[4:]), epoch.Add(time.Duration(binary.BigEndian.Uint64(buf[12:])))
		if _, twice := f.ages[seq]; !twice {
			f.ages[seq] = age{sent, now.Sub(sent)}
		}
	}
}

// figures are the results of a round.
type figures struct {
	sent, lost int
	p50, p99   time.Duration
	made       int           // new calls with an echo in time
	slowest    time.Duration // of these
	errs       []error       // of the others
	stalled    time.Duration // of the machine
	note       string        // of the trigger
}

func (f figures) lostPercent() float64 { return 100 * float64(f.lost) / float64(max(f.sent, 1)) }

// grace is the time for the last datagrams of a round to arrive.
const grace = time.Second

// count ends the running calls and computes the figures. Stalls of the machine are subtracted from ages.
func (f *figures) count(flows []*flow, machine *stall.Monitor) {
	time.Sleep(grace) // later echoes count as lost
	var ages []time.Duration
	for _, c := range flows {
		c.client.hangUp()
		c.work.Wait()
		f.sent += int(c.sent.Load())
		f.lost += int(c.sent.Load()) - len(c.ages)
		for _, a := range c.ages {
			if a.took > callInterval {
				a.took -= machine.Stalled(a.sent, a.sent.Add(a.took))
			}
			ages = append(ages, a.took)
		}
	}
	if slices.Sort(ages); len(ages) > 0 {
		f.p50, f.p99 = ages[len(ages)/2], ages[len(ages)*99/100]
	}
}

// newcomer makes a new call up to its first echo, within its deadline.
func (s *stage) newcomer(ctx context.Context, number int, over call.Network) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, newCallDeadline)
	defer cancel()
	began := time.Now()
	c, err := s.connect(ctx, s.far, host(farClients, uint16(1000+number)), over)
	if err != nil {
		return 0, fmt.Errorf("connect over %s: %w", over, err)
	}
	defer c.hangUp()
	if _, err := c.allocate(ctx); err != nil {
		return 0, err
	}
	peer := s.echo[number%len(s.echo)]
	if _, err := c.do(ctx, stun.MethodCreatePermission, ask.Peer(peer)); err != nil {
		return 0, err
	}
	for ctx.Err() == nil {
		if _, err := c.conn.Write(indication(peer, []byte(rand.Text()))); err != nil {
			return 0, err
		}
		if c.receivesData(200 * time.Millisecond) {
			return time.Since(began), nil
		}
	}
	return 0, errors.New("no echo")
}

// receivesData reports whether a Data indication arrives in time.
func (c *turnClient) receivesData(patience time.Duration) bool {
	_ = c.conn.SetReadDeadline(time.Now().Add(patience)) // cannot fail while the connection is open
	buf := make([]byte, 2048)
	for {
		n, err := c.conn.Read(buf)
		if err != nil {
			return false
		}
		m := &stun.Message{Raw: buf[:n]}
		if stun.IsMessage(m.Raw) && m.Decode() == nil && m.Type.Method == stun.MethodData {
			return true
		}
	}
}

// join starts new calls one after the other and waits for all of them.
func (s *stage) join(ctx context.Context, over call.Network) (f figures) {
	var lock sync.Mutex
	var group sync.WaitGroup
	tick := time.NewTicker(joining / newCalls)
	defer tick.Stop()
	for i := range newCalls {
		<-tick.C
		group.Go(func() {
			took, err := s.newcomer(ctx, i, over)
			lock.Lock()
			defer lock.Unlock()
			if err != nil {
				f.errs = append(f.errs, err)
				return
			}
			f.made++
			f.slowest = max(f.slowest, took)
		})
	}
	group.Wait()
	return f
}
