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
	// closing is how long a connection may last that gets nowhere.
	closing = 12 * time.Second
	// busy is what a busy machine may add to any time.
	busy = 3 * time.Second
	// young is how long no connection is closed for its age.
	young = closing - busy
	// strangers and handshakes are how many connections there may be without a session, and in the midst of a handshake.
	strangers, handshakes = 4096, 1024
)

var everyNetwork = []call.Network{call.UDP, call.TCP, call.TLS, call.DTLS}

// TestGoodClient: a client that behaves is served over every transport.
func TestGoodClient(t *testing.T) {
	d := start(t)
	for _, n := range everyNetwork {
		t.Logf("%s: first echo after %s", n, d.good(t, n))
	}
	t.Logf("rss %d kB, cpu %s, %d goroutines, %d threads", d.rss(t)>>10, d.cpu(t), d.goroutines(t), d.threads(t))
}

// T-14: however many clients connect and say nothing, one that behaves is served at once.
func TestSilenceKeepsNobodyOut(t *testing.T) {
	const silent = 5000
	for _, c := range []struct {
		network call.Network
		most    int
	}{{call.TCP, strangers}, {call.TLS, handshakes}} {
		t.Run(string(c.network), func(t *testing.T) {
			d := start(t)
			for _, n := range everyNetwork {
				d.good(t, n)
			}
			memory, began := d.warm(t), time.Now()
			conns := d.connect(t, c.network, silent, nil)
			t.Logf("%d connections after %s", silent, time.Since(began))
			if time.Since(began) < young { // those of the beginning are there yet, or had to go
				d.await(t, busy, d.atMost(c.network, c.most))
			}
			for _, n := range everyNetwork {
				took := d.good(t, n)
				t.Logf("beside them, first echo over %s: %s", n, took)
				if took > 5*time.Second {
					t.Errorf("good client over %s waits for %s", n, took)
				}
			}
			t.Logf("they cost %d kB", (d.rss(t)-memory)>>10)
			awaitClosed(t, conns, closing+busy)
			if d.dropped(t, "crowded") == 0 {
				t.Error("nobody had to make room")
			}
		})
	}
}

// T-14: a connection that gets nowhere is closed, whatever it does instead.
func TestConnectionsThatGetNowhereAreClosed(t *testing.T) {
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

// T-15: what a client may send before it has a session is bounded, and so is what is kept of it.
func TestLargeFramesCostLittle(t *testing.T) {
	const clients, growth = 1000, 10_000_000
	long := binary.BigEndian.AppendUint16([]byte{0, 3}, 65_000)      // an Allocate request of 64 kB
	channel := binary.BigEndian.AppendUint16([]byte{0x40, 0}, 65535) // ChannelData as long as can be
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
				d.await(t, young, d.atLeast(call.TCP, clients))
			}
			grown := d.rss(t) - memory
			t.Logf("%d clients: %+d kB", clients, grown>>10)
			if grown > growth {
				t.Errorf("memory has grown by %d kB", grown>>10)
			}
			if n := d.dropped(t, "malformed"); c.over && n != clients {
				t.Errorf("%d frames are counted, want %d", n, clients)
			}
			awaitClosed(t, conns, closing+busy)
		})
	}
}

// connect opens connections, from as many sources as are needed for none to be of too many, and sends the same on each.
func (d *target) connect(t *testing.T, n call.Network, count int, first []byte) []net.Conn {
	t.Helper()
	conns := make([]net.Conn, count)
	for i := range conns {
		source := netip.AddrFrom4([4]byte{127, 2, byte(i / 60 >> 8), byte(i/60) + 1})
		dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(source, 0)), Timeout: patience}
		conn, err := dialer.DialContext(t.Context(), "tcp4", d.address(n).String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if _, err := conn.Write(first); err != nil {
			t.Fatal(err)
		}
		conns[i] = conn
	}
	return conns
}

// drip sends a byte a second on each connection.
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
			_, _ = c.Write([]byte{0}) // that it is closed is what is waited for
		}
	}
}

// awaitClosed waits until the other side has closed all connections.
func awaitClosed(t *testing.T, conns []net.Conn, patience time.Duration) {
	t.Helper()
	late := time.Now().Add(patience)
	open := 0
	for _, c := range conns {
		_ = c.SetReadDeadline(late)
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			open++
		}
	}
	if open > 0 {
		t.Errorf("%d of %d connections are open after %s", open, len(conns), patience)
	}
}

// atMost is the condition that a listener has no more connections.
func (d *target) atMost(n call.Network, most int) func(context.Context) error {
	return d.connected(n, func(open int) bool { return open <= most })
}

// atLeast is the condition that a listener has so many connections.
func (d *target) atLeast(n call.Network, least int) func(context.Context) error {
	return d.connected(n, func(open int) bool { return open >= least })
}

func (d *target) connected(n call.Network, enough func(int) bool) func(context.Context) error {
	return func(ctx context.Context) error {
		open, err := d.read(ctx, series(n))
		if err == nil && !enough(int(open)) {
			err = fmt.Errorf("%v connections are open", open)
		}
		return err
	}
}
