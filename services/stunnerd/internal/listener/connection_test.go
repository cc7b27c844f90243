package listener

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pion/logging"
	"github.com/pion/turn/v3"
	"golang.org/x/sys/unix"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/api/credential"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/cluster"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/gate"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
)

// exhausted is the listening socket of a process without free descriptors.
type exhausted struct{ closed chan struct{} }

func (e exhausted) Accept() (net.Conn, error) {
	select {
	case <-e.closed:
		return nil, net.ErrClosed
	default:
		return nil, syscall.EMFILE
	}
}

func (e exhausted) Close() error   { close(e.closed); return nil }
func (e exhausted) Addr() net.Addr { return &net.TCPAddr{} }

// T-19: when all descriptors are in use, failing accepts are logged once a minute only.
func TestAcceptingThatFailsIsLoggedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		m := meter.New()
		m.LogRefusals(slog.New(slog.NewTextHandler(&log, nil)))
		ln := exhausted{make(chan struct{})}
		l := newConnections(
			ln, transport{stream: true}, nil, m.Listener("test"),
			Options{Meter: m, Log: slog.New(slog.NewTextHandler(&log, nil))},
		)
		l.serving.Go(func() { l.accept(ln) })
		time.Sleep(2*acceptWarning + time.Second)
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		synctest.Wait() // until the last line is written
		if n := bytes.Count(log.Bytes(), []byte(" reason=no_descriptor ")); n != 3 {
			t.Errorf("%d lines in two minutes, want 3:\n%s", n, log.Bytes())
		}
		if n := m.Drops()["no_descriptor"]; n < uint64(2*acceptWarning/acceptPause) {
			t.Errorf("%d attempts are counted", n)
		}
	})
}

// allocate opens a TCP listener with a number of slots for unauthenticated clients, and a session on it.
func allocate(t *testing.T, unauthenticated int) (l *connections, server, client *net.TCPAddr) {
	t.Helper()
	l, addr := openSecure(t, config.Listener{Protocol: config.TURNTCP})
	l.opt.Limits.unauthenticated.mu.Lock()
	l.opt.Limits.unauthenticated.most = unauthenticated
	l.opt.Limits.unauthenticated.mu.Unlock()
	l.gate.Update(&gate.Policy{
		Authority:  credential.Authority{Realm: "test.example", Username: "ann", Password: "first"},
		RelayAddrs: []netip.Addr{netip.MustParseAddr("127.0.0.1")},
	}, cluster.NewView(nil, nil))
	server = &net.TCPAddr{IP: addr.IP, Port: addr.Port}
	conn := dialFrom(t, nil, server)
	c, err := turn.NewClient(&turn.ClientConfig{
		TURNServerAddr: server.String(), Conn: turn.NewSTUNConn(conn), Username: "ann", Password: "first",
		LoggerFactory: logging.NewDefaultLoggerFactory(),
	})
	if err == nil {
		err = c.Listen()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	relayed, err := c.Allocate()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = relayed.Close() })
	return l, server, conn.LocalAddr().(*net.TCPAddr)
}

// dialFrom opens a connection from an address that other connections may use too.
func dialFrom(t *testing.T, client, server *net.TCPAddr) net.Conn {
	t.Helper()
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(
			c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) }),
			err,
		)
	}}
	if client != nil {
		d.LocalAddr = client
	}
	conn, err := d.Dial("tcp4", server.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// gone waits until a listener serves at most the given number of connections.
func gone(t *testing.T, l *connections, left int) {
	t.Helper()
	for range 200 {
		l.mu.Lock()
		n := len(l.open)
		l.mu.Unlock()
		if n <= left {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("more than %d connections are left", left)
}

// T-17: a panic while the queue of a client is sent ends the connection, and not the process.
func TestPanicWhileSendingEndsTheConnection(t *testing.T) {
	l, _, _ := allocate(t, 8)
	l.mu.Lock()
	for c := range l.open {
		c.run(func() { panic("a fault") })
	}
	l.mu.Unlock()
	gone(t, l, 0)
	if n := l.opt.Meter.Panics.Load(); n != 1 || l.gate.Sessions() != 0 {
		t.Errorf("%d panics are counted, and %d sessions are left", n, l.gate.Sessions())
	}
}

// A connection neither uses nor ends the session of another connection from the same address and port to another
// address of this host.
func TestConnectionEndsItsOwnSessionOnly(t *testing.T) {
	l, server, client := allocate(t, 8)
	other := dialFrom(t, client, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2), Port: server.Port})
	if err := binding(t, other); err != nil {
		t.Fatal(err)
	}
	l.mu.Lock()
	for c := range l.open {
		if own := c.conn.LocalAddr().(*net.TCPAddr).IP.Equal(server.IP); own != (c.session() != nil) {
			t.Errorf("the connection to %s has a session: %t", c.conn.LocalAddr(), !own)
		}
	}
	l.mu.Unlock()
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	gone(t, l, 1)
	if n := l.gate.Sessions(); n != 1 {
		t.Errorf("%d sessions, want 1", n)
	}
}

// T-14: a connection whose slot is taken away while it gets a session stays open.
func TestConnectionThatGetsASessionIsNotEvicted(t *testing.T) {
	l, server, _ := allocate(t, 1)
	var own *connection
	l.mu.Lock()
	for c := range l.open {
		own = c
	}
	l.mu.Unlock()
	own.slot.enter() // as between the Allocate request and settle
	if err := binding(t, dialFrom(t, nil, server)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond) // an evicted connection would be closed by now
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, serves := l.open[own]; !serves || l.gate.Sessions() != 1 {
		t.Errorf("the connection is there: %t, %d sessions", serves, l.gate.Sessions())
	}
}
