package abuse

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/call"
)

const (
	// closing is the limit for the lifetime of a connection without a complete request.
	closing = 12 * time.Second
	// busy is the additional time on a busy machine.
	busy = 3 * time.Second
	// young is the age below which no connection is closed for its age.
	young = closing - busy
	// withoutSession is the limit of connections without a session, handshakes is the limit of connections in a
	// handshake.
	withoutSession, handshakes = 4096, 1024
)

var everyNetwork = []call.Network{call.UDP, call.TCP, call.TLS, call.DTLS}

// T-14: many silent connections do not delay a well-behaved client.
func TestSilentConnectionsDelayNoClient(t *testing.T) {
	const silent = 5000
	for _, c := range []struct {
		network call.Network
		most    int
	}{{call.TCP, withoutSession}, {call.TLS, handshakes}} {
		t.Run(string(c.network), func(t *testing.T) {
			t.Parallel()
			d := start(t)
			for _, n := range everyNetwork {
				d.good(t, n)
			}
			memory, began := d.warm(t), time.Now()
			conns := d.connect(t, c.network, silent, nil)
			t.Logf("%d connections after %s", silent, time.Since(began))
			if time.Since(began) < young { // all connections are still open, or were closed to make room
				d.await(t, busy, d.atMost(c.network, c.most))
			}
			for _, n := range everyNetwork {
				took := d.good(t, n)
				t.Logf("with them, first echo over %s: %s", n, took)
				if took > 5*time.Second {
					t.Errorf("good client over %s waited for %s", n, took)
				}
			}
			t.Logf("they use %d kB", (d.rss(t)-memory)>>10)
			awaitClosed(t, conns, closing+busy)
			if d.dropped(t, "crowded") == 0 {
				t.Error("no connection was closed to make room")
			}
		})
	}
}

// T-14: a connection without a complete request is closed, even if it sends other data.
func TestIncompleteConnectionsAreClosed(t *testing.T) {
	t.Parallel()
	d := start(t)
	for name, c := range map[string]struct {
		network call.Network
		first   []byte
		drip    bool
	}{
		"silent":                  {network: call.TCP},
		"half a header":           {network: call.TCP, first: []byte{0, 3, 0, 8, 0x21, 0x12}},
		"a byte a second":         {network: call.TCP, first: []byte{0, 3, 0, 200}, drip: true},
		"silent, TLS":             {network: call.TLS},
		"half a ClientHello":      {network: call.TLS, first: []byte{22, 3, 1, 2, 0, 1, 0, 1, 0xFC, 3, 3}},
		"ClientHello by the byte": {network: call.TLS, first: []byte{22, 3, 1, 2, 0}, drip: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conns := d.connect(t, c.network, 20, c.first)
			if c.drip {
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				go drip(ctx, conns)
			}
			began := time.Now()
			awaitClosed(t, conns, closing+busy)
			t.Logf("closed after %s", time.Since(began))
		})
	}
}

// T-15: the size of messages of a client without a session is limited, and so is the memory for them.
func TestLargeFramesCostLittle(t *testing.T) {
	const clients, growth = 1000, 10_000_000
	long := binary.BigEndian.AppendUint16([]byte{0, 3}, 65_000)      // an Allocate request of 64 kB
	channel := binary.BigEndian.AppendUint16([]byte{0x40, 0}, 65535) // ChannelData of maximum length
	fits := append([]byte{0, 3, 3, 232, 0x21, 0x12, 0xA4, 0x42}, make([]byte, 900)...)
	for _, c := range []struct {
		name  string
		first []byte
		over  bool
	}{
		{"64 kB body", append(long, make([]byte, 1020)...), true},
		{"64 kB of ChannelData", append(channel, make([]byte, 1020)...), true},
		{"most of 1,024 bytes, then a byte a second", fits, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := start(t)
			d.good(t, call.TCP)
			memory := d.warm(t)
			conns := d.connect(t, call.TCP, clients, c.first)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			go drip(ctx, conns)
			if c.over {
				awaitClosed(t, conns, young)
			} else {
				d.await(t, young, d.connected(call.TCP, clients, clients))
			}
			grown := d.rss(t) - memory
			t.Logf("%d clients: %+d kB", clients, grown>>10)
			if grown > growth {
				t.Errorf("memory has grown by %d kB", grown>>10)
			}
			if n := d.dropped(t, "malformed"); c.over && n != clients {
				t.Errorf("%d frames counted, want %d", n, clients)
			}
			awaitClosed(t, conns, closing+busy)
		})
	}
}

// connect opens connections from enough sources to stay below the limit per source, and sends the same bytes on each.
func (d *target) connect(t *testing.T, n call.Network, count int, first []byte) []net.Conn {
	t.Helper()
	conns := make([]net.Conn, count)
	for i := range conns {
		source := netip.AddrFrom4([4]byte{127, 2, byte(i / 60 >> 8), byte(i/60) + 1})
		dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(source, 0)), Timeout: timeout}
		conn, err := dialer.DialContext(t.Context(), "tcp4", d.at(loopback, n).String())
		must(t, err)
		t.Cleanup(func() { conn.Close() })
		if _, err := conn.Write(first); err != nil {
			t.Fatal(err)
		}
		conns[i] = conn
	}
	return conns
}

// drip sends one byte per second on each connection.
func drip(ctx context.Context, conns []net.Conn) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		for _, c := range conns {
			_, _ = c.Write([]byte{0}) // the caller waits for the close
		}
	}
}

// awaitClosed waits until the server has closed all connections.
func awaitClosed(t *testing.T, conns []net.Conn, timeout time.Duration) {
	t.Helper()
	late := time.Now().Add(timeout)
	open := 0
	for _, c := range conns {
		_ = c.SetReadDeadline(late)
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			open++
		}
	}
	if open > 0 {
		t.Errorf("%d of %d connections are open after %s", open, len(conns), timeout)
	}
}

// atMost returns the condition that a listener has at most this many connections.
func (d *target) atMost(n call.Network, most int) func(context.Context) error {
	return d.connected(n, 0, most)
}

// connected returns the condition that the number of connections of a listener is in a range.
func (d *target) connected(n call.Network, least, most int) func(context.Context) error {
	return func(ctx context.Context) error {
		open, err := d.read(ctx, series(n))
		if err == nil && (int(open) < least || int(open) > most) {
			err = fmt.Errorf("%v connections are open", open)
		}
		return err
	}
}
