package listener

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxUnsent is how many unsent bytes the kernel accepts for a connection (TCP_NOTSENT_LOWAT). It is small because data
// in the kernel cannot be dropped when newer media arrives.
const maxUnsent = 16 << 10

const (
	// backlogLimit bounds the backlog of a stream: the rest of a frame that the kernel did not accept, and records that
	// TLS sends by itself.
	backlogLimit = 128 << 10
	// ownRecords bounds the records that TLS sends by itself: answers to KeyUpdate (RFC 8446 §4.6.3), and alerts. No
	// session is charged for them, and a client without a session can request them.
	ownRecords = 4 << 10
)

var errBacklog = errors.New("the client does not read the answers to its requests")

// stream is a TCP connection. After unblock, Write never waits: it stores the bytes that the kernel does not accept as
// backlog, and fails if the backlog would exceed backlogLimit. crypto/tls writes to a stream too. Its records are never
// sent in part, because a stream never drops a part of a write without an error.
type stream struct {
	*net.TCPConn
	socket  syscall.RawConn
	attempt func(fd uintptr) bool

	mu        sync.Mutex
	unblocked bool
	backlog   []byte
	flushing  bool
	// own is how many bytes of the backlog are records that TLS sends by itself.
	own int
	// queued is set during a write of the sendQueue.
	queued atomic.Bool
	// held are the bytes that Write has stored since hold. It is nil if hold was not called.
	held []byte
	// sendBuffer is the size that adapt has set for the send buffer, or 0 if it has not set any. It is guarded by the
	// mutex of the sendQueue.
	sendBuffer int

	// Arguments and results of attempt, guarded by mu.
	bytes []byte
	sent  int
	errno syscall.Errno
}

func newStream(conn *net.TCPConn) (*stream, error) {
	socket, err := conn.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("get descriptor of connection: %w", err)
	}
	s := &stream{TCPConn: conn, socket: socket}
	s.attempt = s.trySend
	// A sandbox may not support TCP_NOTSENT_LOWAT. The kernel then holds more unsent bytes, but the client is served.
	_ = socket.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, maxUnsent)
	})
	return s, nil
}

// unblock makes Write return without waiting from now on. It is called after the handshake.
func (s *stream) unblock() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unblocked = true
}

// Write implements net.Conn.
func (s *stream) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.unblocked {
		return s.TCPConn.Write(b)
	}
	if s.held != nil {
		s.held = append(s.held, b...)
		return len(b), nil
	}
	return s.write(b)
}

// hold makes Write store its bytes until release is called, so that several writes are one system call. buffer is the
// memory for the bytes. It must not be nil.
func (s *stream) hold(buffer []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = buffer
}

// release writes the bytes that Write has stored since hold.
func (s *stream) release() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := s.held
	s.held = nil
	_, err := s.write(held)
	return err
}

// write sends bytes, and stores the bytes that the kernel does not accept as backlog. The caller holds mu.
func (s *stream) write(b []byte) (int, error) {
	sent := 0
	if len(s.backlog) == 0 && !s.flushing {
		var err error
		if sent, err = s.send(b); err != nil {
			return sent, err
		}
	}
	if !s.queued.Load() {
		s.own += len(b) - sent
	}
	if len(s.backlog)+len(b)-sent > backlogLimit || s.own > ownRecords {
		return sent, errBacklog
	}
	s.backlog = append(s.backlog, b[sent:]...)
	return len(b), nil
}

// send sends as many bytes as the kernel accepts.
func (s *stream) send(b []byte) (int, error) {
	s.bytes, s.sent, s.errno = b, 0, 0
	err := s.socket.Write(s.attempt)
	s.bytes = nil
	if err == nil && s.errno != 0 && s.errno != unix.EAGAIN {
		err = s.errno
	}
	return s.sent, err
}

// trySend tries once to send. It always returns true, so that RawConn.Write does not call it again when the send buffer
// has space.
func (s *stream) trySend(fd uintptr) bool {
	n, _, errno := syscall.RawSyscall6(unix.SYS_SENDTO, fd,
		uintptr(unsafe.Pointer(unsafe.SliceData(s.bytes))), uintptr(len(s.bytes)),
		unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	if s.errno = errno; errno == 0 {
		s.sent = int(n)
	}
	return true
}

// waiting returns the size of the memory of the backlog.
func (s *stream) waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return cap(s.backlog)
}

// behind reports whether the stream has a backlog.
func (s *stream) behind() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.backlog) > 0 || s.flushing
}

const (
	// queueThreshold is the difference between the current and the shortest round-trip time of a connection above which
	// its bytes are assumed to fill a queue on the path.
	queueThreshold = 2 * maxAge
	// minSendBuffer and maxSendBuffer bound the size of the send buffer that adapt sets.
	minSendBuffer = 16 << 10
	maxSendBuffer = 4 << 20
)

// adapt bounds the bytes in flight to a client to the amount that its link delivers in one round trip and maxAge. TCP
// by itself sends until a queue on the path overflows, and such a queue may hold seconds of media. The bound is the
// size of the send buffer, which holds unacknowledged data. It grows again when the queue on the path is empty. adapt
// is called when a frame is queued, at most once every adaptPause. If the kernel does not report TCP_INFO, the bound
// stays.
func (s *stream) adapt() {
	_ = s.socket.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return
		}
		if size := s.sendBufferFor(info); size != s.sendBuffer {
			s.sendBuffer = size
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, size/2) // the kernel doubles it
		}
	})
}

// sendBufferFor returns the size of the send buffer that a connection should have, or 0 for the default of the kernel.
func (s *stream) sendBufferFor(info *unix.TCPInfo) int {
	const perSecond = uint64(time.Second / time.Microsecond)
	queue := time.Duration(int64(info.Rtt)-int64(info.Min_rtt)) * time.Microsecond
	switch {
	case queue > queueThreshold:
		window := uint64(info.Min_rtt) + uint64(maxAge/time.Microsecond)
		return int(min(max(info.Delivery_rate*window/perSecond, minSendBuffer), maxSendBuffer))
	case s.sendBuffer > 0 && queue < queueThreshold/2:
		return min(2*s.sendBuffer, maxSendBuffer)
	}
	return s.sendBuffer
}

// flush writes the backlog to the connection. It waits for space in the send buffer, but not longer than the write
// deadline.
func (s *stream) flush() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.backlog) > 0 {
		chunk := s.backlog
		s.backlog, s.own, s.flushing = nil, 0, true
		s.mu.Unlock()
		_, err := s.TCPConn.Write(chunk)
		s.mu.Lock()
		s.flushing = false
		if err != nil {
			return err
		}
	}
	return nil
}
