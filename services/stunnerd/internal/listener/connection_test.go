package listener

import (
	"bytes"
	"log/slog"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
)

// exhausted is a listening socket of a process that has no descriptor left.
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

// T-19: clients that hold every descriptor do not write the log.
func TestAcceptingThatFailsIsLoggedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		m := meter.New()
		ln := exhausted{make(chan struct{})}
		l := newConnections(ln, transport{stream: true}, nil, m.Listener("test"), Options{Meter: m, Log: slog.New(slog.NewTextHandler(&log, nil))})
		l.serving.Go(func() { l.accept(ln) })
		time.Sleep(2*acceptWarning + time.Second)
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if n := bytes.Count(log.Bytes(), []byte("\n")); n != 3 {
			t.Errorf("%d lines in two minutes, want 3:\n%s", n, log.Bytes())
		}
	})
}
