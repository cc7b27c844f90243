package discovery

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
)

// pulse holds the keepalive times of a WebSocket: the interval of pings, the silence after which the connection counts
// as lost, and the timeout of a write.
type pulse struct {
	ping, silence, write time.Duration
}

// The times of the client are part of the protocol. Those of the server are longer, because clients ping.
var (
	clientPulse = pulse{ping: 5 * time.Second, silence: 8 * time.Second, write: 2 * time.Second}
	serverPulse = pulse{ping: 10 * time.Second, silence: 30 * time.Second, write: 10 * time.Second}
)

var errSilent = errors.New("nothing was received from the peer")

// stream is a WebSocket that ends when its peer is silent for too long.
type stream struct {
	conn  *websocket.Conn
	pulse pulse
	// ctx ends with the stream. Its cause is the reason.
	ctx    context.Context
	cancel context.CancelCauseFunc
	// watchdog ends the stream unless each received frame resets it.
	watchdog *time.Timer
	// peerPings is set if the peer pings. This side then pings only from the watchdog, after pulse.ping of silence, and
	// needs no goroutine for it.
	peerPings bool
	// open is set once there is a connection.
	open atomic.Bool
	// pinged is set if this side has pinged and has received nothing since.
	pinged atomic.Bool
}

// newStream returns a stream without a connection; use sets it.
func newStream(ctx context.Context, p pulse) *stream {
	s := &stream{pulse: p}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	s.watchdog = time.AfterFunc(p.silence, s.onSilence)
	return s
}

// heard resets the watchdog after a received frame.
func (s *stream) heard() {
	s.pinged.Store(false)
	if s.peerPings {
		s.watchdog.Reset(s.pulse.ping)
	} else {
		s.watchdog.Reset(s.pulse.silence)
	}
}

// onSilence is the function of the watchdog. It pings once if the peer usually pings, and ends the stream otherwise.
func (s *stream) onSilence() {
	if !s.open.Load() || !s.peerPings || s.pinged.Swap(true) {
		s.cancel(errSilent)
		return
	}
	s.watchdog.Reset(s.pulse.silence - s.pulse.ping)
	_ = s.conn.Ping(s.ctx) // the pong resets the watchdog; without it the watchdog ends the stream
}

// onPing and onPong have the types of websocket.AcceptOptions.
func (s *stream) onPing(context.Context, []byte) bool { s.heard(); return true }
func (s *stream) onPong(context.Context, []byte)      { s.heard() }

// use sets the connection of the stream. limit is the maximum size of a frame in bytes.
func (s *stream) use(conn *websocket.Conn, limit int64) {
	conn.SetReadLimit(limit)
	s.conn = conn
	s.open.Store(true)
	s.heard()
}

// keepAlive pings until the stream ends. Ping waits for the pong.
func (s *stream) keepAlive() error {
	tick := time.NewTicker(s.pulse.ping)
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		case <-tick.C:
			if err := s.conn.Ping(s.ctx); err != nil {
				return s.cause(err)
			}
		}
	}
}

// read returns the next text frame.
func (s *stream) read() ([]byte, error) {
	for {
		kind, data, err := s.conn.Read(s.ctx)
		if err != nil {
			return nil, s.cause(err)
		}
		s.heard()
		if kind == websocket.MessageText {
			return data, nil
		}
	}
}

// send writes a text frame.
func (s *stream) send(data []byte) error {
	ctx, cancel := context.WithTimeout(s.ctx, s.pulse.write)
	defer cancel()
	if err := s.conn.Write(ctx, websocket.MessageText, data); err != nil {
		return s.cause(err)
	}
	return nil
}

// cause returns the reason why the stream ended, or err if it has not.
func (s *stream) cause(err error) error {
	if cause := context.Cause(s.ctx); cause != nil {
		return cause
	}
	return err
}

// close ends the stream without a closing handshake.
func (s *stream) close() {
	s.watchdog.Stop()
	s.cancel(context.Canceled)
	if s.conn != nil {
		_ = s.conn.CloseNow()
	}
}
