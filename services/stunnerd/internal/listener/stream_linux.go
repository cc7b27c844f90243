package listener

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// unsent is how many bytes the kernel takes for a connection beyond what it has sent (TCP_NOTSENT_LOWAT). What waits in the kernel cannot be
// dropped when newer media arrives, so little may wait there.
const unsent = 16 << 10

// backlogLimit bounds the bytes of a frame that did not fit, and of the records that TLS itself sends behind it.
const backlogLimit = 128 << 10

var errBacklog = errors.New("the client reads nothing, and causes answers that it has to read")

// stream is a TCP connection. After unblock, Write never waits: it takes all the bytes, and keeps as backlog what the kernel does not take.
// TLS writes to it too, so a record that has begun is always completed.
type stream struct {
	*net.TCPConn
	socket  syscall.RawConn
	attempt func(fd uintptr) bool

	mu        sync.Mutex
	unblocked bool
	backlog   []byte
	flushing  bool
	// room is what adapt has set, 0 before. It belongs to the holder of the outlet's lock.
	room int

	// Arguments and results of attempt. They belong to the holder of mu.
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
	// Without the option, which a sandbox may not have, more bytes wait in the kernel. That is no reason to refuse the client.
	_ = socket.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsent) })
	return s, nil
}

// unblock makes Write return at once from now on. A handshake is written before.
func (s *stream) unblock() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unblocked = true
}

// Write is part of net.Conn.
func (s *stream) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.unblocked {
		return s.TCPConn.Write(b)
	}
	sent := 0
	if len(s.backlog) == 0 && !s.flushing {
		var err error
		if sent, err = s.send(b); err != nil {
			return sent, err
		}
	}
	if len(s.backlog)+len(b)-sent > backlogLimit {
		return sent, errBacklog
	}
	s.backlog = append(s.backlog, b[sent:]...)
	return len(b), nil
}

// send sends as many bytes as there is room for.
func (s *stream) send(b []byte) (int, error) {
	s.bytes, s.sent, s.errno = b, 0, 0
	err := s.socket.Write(s.attempt)
	s.bytes = nil
	if err == nil && s.errno != 0 && s.errno != unix.EAGAIN {
		err = s.errno
	}
	return s.sent, err
}

// trySend always returns true: there is nothing to wait for.
func (s *stream) trySend(fd uintptr) bool {
	n, _, errno := syscall.RawSyscall6(unix.SYS_SENDTO, fd, uintptr(unsafe.Pointer(unsafe.SliceData(s.bytes))), uintptr(len(s.bytes)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	if s.errno = errno; errno == 0 {
		s.sent = int(n)
	}
	return true
}

// behind tells whether there is a backlog.
func (s *stream) behind() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.backlog) > 0 || s.flushing
}

const (
	// standing is by how much the round-trip time may exceed the shortest one before it shows that our own bytes fill a queue on the way.
	standing = 2 * maxAge
	// leastRoom and mostRoom bound the bytes that may be on their way, or wait to be, to a client whose link has a long queue.
	leastRoom = 16 << 10
	mostRoom  = 4 << 20
)

// adapt bounds the bytes on their way to a client to what its link delivers within one round trip and maxAge. TCP by itself sends until a queue on
// the way overflows, and such a queue may hold seconds of media. The bound is the size of the send buffer, which holds what is not
// acknowledged; it grows again when the queue is gone. adapt is called while the client is behind, every adaptPause. Where the kernel does not
// tell, the bound stays as it is.
func (s *stream) adapt() {
	_ = s.socket.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return
		}
		if room := s.roomFor(info); room != s.room {
			s.room = room
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, room/2) // the kernel doubles it
		}
	})
}

// roomFor returns the room that a connection is to have, 0 for what the kernel chooses.
func (s *stream) roomFor(info *unix.TCPInfo) int {
	const perSecond = uint64(time.Second / time.Microsecond)
	queue := time.Duration(int64(info.Rtt)-int64(info.Min_rtt)) * time.Microsecond
	switch {
	case queue > standing:
		window := uint64(info.Min_rtt) + uint64(maxAge/time.Microsecond)
		return int(min(max(info.Delivery_rate*window/perSecond, leastRoom), mostRoom))
	case s.room > 0 && queue < standing/2:
		return min(2*s.room, mostRoom)
	}
	return s.room
}

// flush sends the backlog, and waits for room as long as the write deadline allows.
func (s *stream) flush() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.backlog) > 0 {
		chunk := s.backlog
		s.backlog, s.flushing = nil, true
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
