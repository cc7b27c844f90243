package discovery

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
)

// keepalive contains the times for the detection of lost connections of a WebSocket.
type keepalive struct {
	ping    time.Duration // interval of pings
	silence time.Duration // time without a received frame after which the connection is lost
	write   time.Duration // timeout of a write
}

// The times of the client are part of the protocol. Those of the server are longer, because clients ping.
var (
	clientKeepalive = keepalive{ping: 5 * time.Second, silence: 8 * time.Second, write: 2 * time.Second}
	serverKeepalive = keepalive{ping: 10 * time.Second, silence: 30 * time.Second, write: 10 * time.Second}
)

var errSilent = errors.New("nothing was received from the peer")

// stream is a WebSocket that ends when nothing was received for too long.
type stream struct {
	conn      *websocket.Conn
	keepalive keepalive
	// ctx ends with the stream. Its cause is the reason for the end.
	ctx    context.Context
	cancel context.CancelCauseFunc
	// watchdog ends the stream after a time of silence. Each received frame resets it.
	watchdog *time.Timer
	// peerPings is set if the peer sends pings periodically. Then the function of the watchdog sends a ping only after
	// keepalive.ping of silence, and no goroutine for pings is needed.
	peerPings bool
	// open is set once there is a connection.
	open atomic.Bool
	// pinged is set if this side has sent a ping and has received nothing since.
	pinged atomic.Bool
	// large limits how many streams have a frame of more than smallFrame in memory at the same time; nil if nothing
	// limits it. A stream that waits for others does not read, and its peer waits.
	large chan struct{}
	// frame is the memory of the last frame while the stream counts in large. Only the reading goroutine uses it.
	frame *largeFrame
	// unreported is Grant.Unreported of the reader at the last review. It is guarded by the mutex of the limiter.
	unreported bool
}

// smallFrame is the maximum size in bytes of a frame that can be read without a slot in large.
const smallFrame = 8 << 10

// largeFrame is memory for a frame of up to responseFrameLimit bytes, and for the body of the answer in it.
type largeFrame struct {
	data *bytes.Buffer
	body []byte
}

// largeMemory are the largeFrames that no stream uses.
var largeMemory = sync.Pool{New: func() any {
	return &largeFrame{
		data: bytes.NewBuffer(make([]byte, 0, responseFrameLimit+bytes.MinRead)), // ReadFrom never grows the buffer
		body: make([]byte, 0, responseFrameLimit),
	}
}}

// newStream returns a stream without a connection; use sets it.
func newStream(ctx context.Context, p keepalive) *stream {
	s := &stream{keepalive: p}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	s.watchdog = time.AfterFunc(p.silence, s.onSilence)
	return s
}

// resetWatchdog resets the watchdog after a received frame.
func (s *stream) resetWatchdog() {
	s.pinged.Store(false)
	if s.peerPings {
		s.watchdog.Reset(s.keepalive.ping)
	} else {
		s.watchdog.Reset(s.keepalive.silence)
	}
}

// onSilence is called by the watchdog. If peerPings is set, onSilence sends one ping. If peerPings is not set, or if
// that ping was not answered, onSilence ends the stream.
func (s *stream) onSilence() {
	if !s.open.Load() || !s.peerPings || s.pinged.Swap(true) {
		s.cancel(errSilent)
		return
	}
	s.watchdog.Reset(s.keepalive.silence - s.keepalive.ping)
	_ = s.conn.Ping(s.ctx) // the pong resets the watchdog; without it the watchdog ends the stream
}

// onPing and onPong are called by package websocket for received pings and pongs.
func (s *stream) onPing(context.Context, []byte) bool { s.resetWatchdog(); return true }
func (s *stream) onPong(context.Context, []byte)      { s.resetWatchdog() }

// use sets the connection of the stream. limit is the maximum size of a frame in bytes.
func (s *stream) use(conn *websocket.Conn, limit int64) {
	conn.SetReadLimit(limit)
	s.conn = conn
	s.open.Store(true)
	s.resetWatchdog()
}

// keepAlive sends pings periodically until the stream ends. Ping waits for the pong.
func (s *stream) keepAlive() error {
	tick := time.NewTicker(s.keepalive.ping)
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

// read returns the next text frame. The frame before must not be used any more.
func (s *stream) read() ([]byte, error) {
	s.yield()
	for {
		kind, r, err := s.conn.Reader(s.ctx)
		if err != nil {
			return nil, s.cause(err)
		}
		data, err := io.ReadAll(io.LimitReader(r, smallFrame))
		if err == nil && len(data) == smallFrame {
			data, err = s.readRest(r, data)
		}
		if err != nil {
			return nil, s.cause(err)
		}
		s.resetWatchdog()
		if kind == websocket.MessageText {
			return data, nil
		}
		s.yield()
	}
}

// readRest reads the rest of a large frame. It waits until the limit of large frames allows it.
func (s *stream) readRest(r io.Reader, begin []byte) ([]byte, error) {
	if s.large == nil {
		rest, err := io.ReadAll(r)
		return append(begin, rest...), err
	}
	select {
	case s.large <- struct{}{}:
		s.frame = largeMemory.Get().(*largeFrame)
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	}
	s.frame.data.Reset()
	s.frame.data.Write(begin) // Buffer.Write returns no errors
	_, err := s.frame.data.ReadFrom(r)
	return s.frame.data.Bytes(), err
}

// scratch returns memory for the body of an answer in the last frame, which is valid as long as the frame; nil if the
// frame is small.
func (s *stream) scratch() []byte {
	if s.frame == nil {
		return nil
	}
	return s.frame.body
}

// yield ends the reservation of memory for a large frame, so that another stream can read one.
func (s *stream) yield() {
	if s.frame != nil {
		largeMemory.Put(s.frame)
		s.frame = nil
		<-s.large
	}
}

// send writes a text frame.
func (s *stream) send(data []byte) error {
	ctx, cancel := context.WithTimeout(s.ctx, s.keepalive.write)
	defer cancel()
	if err := s.conn.Write(ctx, websocket.MessageText, data); err != nil {
		return s.cause(err)
	}
	return nil
}

// cause returns the reason for the end of the stream, or err if the stream has not ended. A frame beyond the limit is
// itself the reason: the peer may close the connection first, and then pings and reports fail before the read does.
func (s *stream) cause(err error) error {
	if cause := context.Cause(s.ctx); cause != nil && !errors.Is(err, websocket.ErrMessageTooBig) {
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
