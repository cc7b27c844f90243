// Package call makes relayed calls through a gateway. A TURN client sends numbered datagrams to an echo peer and counts
// the echoes. A call runs in the background while a test changes the gateway.
package call

import (
	"context"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/pion/logging"
	"github.com/pion/transport/v3"
	"github.com/pion/transport/v3/stdnet"
	"github.com/pion/turn/v3"

	"github.com/stunner-gateway/stunner/e2e/internal/ice"
)

// Network is the transport between client and gateway.
type Network string

// The transports.
const (
	UDP  Network = "udp"
	TCP  Network = "tcp"
	TLS  Network = "tls"
	DTLS Network = "dtls"
)

// Options are the parameters of a call.
type Options struct {
	Gateway  netip.AddrPort // listener of the gateway
	Network  Network
	Local    netip.AddrPort // of the client; the zero AddrPort lets the kernel select
	Do       func(func())   // opens the socket in a network namespace; nil means the namespace of the process
	Balancer *Balancer      // selects the pod over UDP; nil means that Gateway is the only one
	Roots    *x509.CertPool // verify the gateway's certificate over TLS and DTLS
	Username string
	Password string
	Peer     netip.AddrPort // a UDP echo server
	Interval time.Duration  // between two datagrams; 0 means 10 ms
	Size     int            // of a datagram, in bytes; 0 means 160, which is 20 ms of G.711
	Checks   *ice.Session   // sends connectivity checks to the peer like a browser; nil means that the peer does not use ICE
}

const (
	defaultInterval = 10 * time.Millisecond
	defaultSize     = 160
	headerSize      = 8       // a sequence number
	rtp             = 2 << 62 // added to a sequence number: datagrams begin like RTP packets (RFC 3550 §5.1)
	setupTimeout    = 10 * time.Second
	readBuffer      = 64 << 10
	readTimeout     = 100 * time.Millisecond
)

// ErrRefused wraps the error response of a gateway to Allocate or CreatePermission. Its text holds the STUN error code.
var ErrRefused = errors.New("gateway refused")

// Call is an allocation with a stream of datagrams to the echo peer and back.
type Call struct {
	peer   net.Addr
	conn   net.PacketConn // socket to the gateway
	client *turn.Client
	relay  net.PacketConn // relayed transport address

	stop    context.CancelFunc
	workers sync.WaitGroup
	tally   tally
	sending sync.Mutex // held during the sending of a datagram and during a pause
}

// Start creates an allocation and a permission, and begins to send. ctx bounds both the set-up and the call.
func Start(ctx context.Context, o Options) (*Call, error) {
	if o.Interval == 0 {
		o.Interval = defaultInterval
	}
	if o.Size < headerSize {
		o.Size = defaultSize
	}
	c, err := open(ctx, o)
	if err != nil {
		return nil, err
	}
	ctx, c.stop = context.WithCancel(ctx)
	c.workers.Go(func() { c.receive(ctx) })
	c.workers.Go(func() { c.send(ctx, o) })
	return c, nil
}

// open creates the allocation and the permission. The client library takes no context, so the end of ctx closes the
// socket.
func open(ctx context.Context, o Options) (*Call, error) {
	ctx, cancel := context.WithTimeout(ctx, setupTimeout)
	defer cancel()
	conn, err := Dial(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("connect to gateway %s/%s: %w", o.Gateway, o.Network, err)
	}
	release := context.AfterFunc(ctx, func() { conn.Close() })
	defer release()
	c := &Call{peer: net.UDPAddrFromAddrPort(o.Peer), conn: conn}
	if err := c.allocate(ctx, o); err != nil {
		c.hangUp()
		return nil, errors.Join(err, ctx.Err())
	}
	return c, nil
}

func (c *Call) allocate(ctx context.Context, o Options) (err error) {
	quiet := logging.NewDefaultLoggerFactory()
	quiet.DefaultLogLevel = logging.LogLevelDisabled
	network, err := stdnet.NewNet()
	if err != nil {
		return fmt.Errorf("set up client: %w", err)
	}
	c.client, err = turn.NewClient(&turn.ClientConfig{
		Net:            anyFamily{network},
		TURNServerAddr: o.Gateway.String(),
		Username:       o.Username,
		Password:       o.Password,
		Conn:           c.conn,
		LoggerFactory:  quiet,
	})
	if err != nil {
		return fmt.Errorf("set up client: %w", err)
	}
	if err := c.client.Listen(); err != nil {
		return fmt.Errorf("set up client: %w", err)
	}
	defer context.AfterFunc(ctx, c.client.Close)() // over TCP, a request has no timeout
	if c.relay, err = c.client.Allocate(); err != nil {
		return fmt.Errorf("allocate at %s/%s: %w: %w", o.Gateway, o.Network, ErrRefused, err)
	}
	return c.Permit(c.peer)
}

// anyFamily resolves addresses of both families, although the client library requests udp4.
type anyFamily struct{ transport.Net }

// ResolveUDPAddr implements transport.Net.
func (anyFamily) ResolveUDPAddr(_, address string) (*net.UDPAddr, error) {
	return net.ResolveUDPAddr("udp", address)
}

// staleNonce is the error text of the client library for the error response 438. The library has stored the new nonce,
// and leaves it to the caller to repeat the request (RFC 8489 §9.2.5).
const staleNonce = "try again"

// Permit sends a CreatePermission request.
func (c *Call) Permit(peer net.Addr) error {
	err := c.client.CreatePermission(peer)
	if err != nil && err.Error() == staleNonce {
		err = c.client.CreatePermission(peer)
	}
	if err != nil {
		return fmt.Errorf("create permission for %s: %w: %w", peer, ErrRefused, err)
	}
	return nil
}

// Peer returns the address of the echo peer.
func (c *Call) Peer() netip.AddrPort { return c.peer.(*net.UDPAddr).AddrPort() }

// Renew refreshes the permission for the echo peer.
func (c *Call) Renew() error { return c.Permit(c.peer) }

// SendTo sends one datagram to another peer, after a CreatePermission request for it.
func (c *Call) SendTo(at netip.AddrPort) error {
	if _, err := c.relay.WriteTo(make([]byte, headerSize), net.UDPAddrFromAddrPort(at)); err != nil {
		return fmt.Errorf("send to %s: %w", at, err)
	}
	return nil
}

// Relay returns the relayed transport address of the allocation.
func (c *Call) Relay() net.Addr { return c.relay.LocalAddr() }

// send sends a datagram every interval. The client library binds a channel when the first datagram is sent.
func (c *Call) send(ctx context.Context, o Options) {
	buf := make([]byte, o.Size)
	tick := time.NewTicker(o.Interval)
	defer tick.Stop()
	var checked time.Time
	for seq := uint64(0); ; seq++ {
		c.sending.Lock()
		if o.Checks != nil && time.Since(checked) >= ice.Interval {
			checked = time.Now()
			if _, err := c.relay.WriteTo(o.Checks.Check(), c.peer); err != nil {
				c.tally.fail(err)
			}
		}
		binary.BigEndian.PutUint64(buf, rtp|seq)
		if !c.tally.sent(seq, time.Now()) {
			c.sending.Unlock()
			return
		}
		if _, err := c.relay.WriteTo(buf, c.peer); err != nil {
			c.tally.fail(err)
		}
		c.sending.Unlock()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// receive counts echoes until the call ends.
func (c *Call) receive(ctx context.Context) {
	buf := make([]byte, readBuffer)
	for ctx.Err() == nil {
		_ = c.relay.SetReadDeadline(time.Now().Add(readTimeout)) // cannot fail
		n, from, err := c.relay.ReadFrom(buf)
		switch {
		case err != nil:
			if timeout, ok := err.(interface{ Timeout() bool }); !ok || !timeout.Timeout() {
				c.tally.fail(err)
				return
			}
		case n >= headerSize && buf[0] >= rtp>>56 && from.String() == c.peer.String():
			c.tally.received(binary.BigEndian.Uint64(buf)&^rtp, time.Now())
		}
	}
}

// Stats returns the current statistics. Datagrams without an echo so far count as lost.
func (c *Call) Stats() Stats { return c.tally.stats(time.Now()) }

// Lap returns the longest time without an echo since the last call of Lap, or since the start of the call.
func (c *Call) Lap() time.Duration { return c.tally.nextLap(time.Now()) }

// LastEcho returns when the last echo arrived, or the zero time if none has.
func (c *Call) LastEcho() time.Time { return c.tally.lastEcho() }

// Await waits until n echoes have arrived since the start of the call.
func (c *Call) Await(ctx context.Context, n int) error {
	return c.tally.await(ctx, func(s *tally) bool { return s.echoes >= n })
}

// AwaitMore waits until n more echoes have arrived.
func (c *Call) AwaitMore(ctx context.Context, n int) error {
	return c.Await(ctx, c.Stats().Received+n)
}

// Pause sends nothing until Resume, and waits until all echoes have arrived.
func (c *Call) Pause(ctx context.Context) error {
	c.sending.Lock()
	return c.tally.await(ctx, func(t *tally) bool { return len(t.flying) == 0 })
}

// Resume continues after Pause.
func (c *Call) Resume() { c.sending.Unlock() }

// End stops sending, waits up to grace for outstanding echoes, deletes the allocation and returns the statistics.
func (c *Call) End(grace time.Duration) Stats {
	// Freezing the tally stops the sender, while the receiver still collects the last echoes.
	c.tally.freeze()
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	_ = c.tally.await(ctx, func(t *tally) bool { return len(t.flying) == 0 }) // datagrams without an echo count as lost
	stats := c.Stats()
	c.stop()
	c.workers.Wait()
	c.hangUp()
	return stats
}

// hangUp releases the allocation, the client and the socket.
func (c *Call) hangUp() {
	if c.relay != nil {
		c.relay.Close() // sends Refresh with lifetime 0
	}
	if c.client != nil {
		c.client.Close()
	}
	c.conn.Close()
}
