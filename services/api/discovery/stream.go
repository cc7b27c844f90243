package discovery

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
)

// pulse is the rhythm of a WebSocket: who hears nothing for as long as silence gives the connection up.
type pulse struct {
	ping, silence, write time.Duration
}

// The client's rhythm is part of the protocol. A server is more patient: its clients ping.
var (
	clientPulse = pulse{ping: 5 * time.Second, silence: 8 * time.Second, write: 2 * time.Second}
	serverPulse = pulse{ping: 10 * time.Second, silence: 30 * time.Second, write: 10 * time.Second}
)

var errSilent = errors.New("nothing was heard from the other side")

// stream is a WebSocket that notices when the other side is gone.
type stream struct {
	conn  *websocket.Conn
	pulse pulse
	// ctx ends with the stream; its cause says why.
	ctx    context.Context
	cancel context.CancelCauseFunc
	// watchdog ends the stream unless it is put off by whatever is heard.
	watchdog *time.Timer
	// listens says that the other side pings. This side pings when it has heard nothing for as long as pulse.ping, and needs no goroutine for that.
	listens bool
	// open says that there is a connection.
	open atomic.Bool
	// pinged says that this side has pinged and has heard nothing since.
	pinged atomic.Bool
}

// newStream returns a stream that is not open yet: use opens it.
func newStream(ctx context.Context, p pulse) *stream {
	s := &stream{pulse: p}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	s.watchdog = time.AfterFunc(p.silence, s.silent)
	return s
}

// heard puts the watchdog off.
func (s *stream) heard() {
	s.pinged.Store(false)
	if s.listens {
		s.watchdog.Reset(s.pulse.ping)
	} else {
		s.watchdog.Reset(s.pulse.silence)
	}
}

// silent is what the watchdog does.
func (s *stream) silent() {
	if !s.open.Load() || !s.listens || s.pinged.Swap(true) {
		s.cancel(errSilent)
		return
	}
	s.watchdog.Reset(s.pulse.silence - s.pulse.ping)
	_ = s.conn.Ping(s.ctx) // an answer is heard; without one the watchdog ends the stream
}

// onPing and onPong have the types of websocket.AcceptOptions.
func (s *stream) onPing(context.Context, []byte) bool { s.heard(); return true }
func (s *stream) onPong(context.Context, []byte)      { s.heard() }

// use starts to use the connection.
func (s *stream) use(conn *websocket.Conn, limit int64) {
	conn.SetReadLimit(limit)
	s.conn = conn
	s.open.Store(true)
	s.heard()
}

// keepAlive pings until the stream ends. A ping waits for its pong; whether something else is heard meanwhile decides the
// watchdog.
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

// cause prefers the reason for which the stream was ended to the error that the end made.
func (s *stream) cause(err error) error {
	if cause := context.Cause(s.ctx); cause != nil {
		return cause
	}
	return err
}

// close ends the stream. Whoever is on the other side notices without a farewell.
func (s *stream) close() {
	s.watchdog.Stop()
	s.cancel(context.Canceled)
	if s.conn != nil {
		_ = s.conn.CloseNow()
	}
}
