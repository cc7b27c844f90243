package forward

import (
	"errors"
	"math"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
)

// socketBuffer is the size of the receive buffer. After a load balancer has redistributed the clients, the datagrams of
// many clients arrive at one socket. The kernel grants at most net.core.rmem_max.
const socketBuffer = 4 << 20

// socket is the socket that receives the frames of other pods, and its reader. The sockets that send to one pod each
// have the same address and port, because other pods accept frames from that address only.
type socket struct {
	conn     *net.UDPConn
	port     uint16
	sender   *datagram.Sender
	receiver *datagram.Receiver
	// steered reports whether this socket receives all frames although other sockets have its port. If it is false,
	// this socket sends to all pods. most is Options.Descriptors.
	steered bool
	most    int
	// received and handled are the numbers of frames of the current batch.
	received, handled int
}

// listen opens a socket on the address of the pod.
func listen(local netip.Addr, most int) (*socket, error) {
	if !validAddress(netip.AddrPortFrom(local, 1)) {
		return nil, errors.New("the address of the pod is not one to which other pods can send")
	}
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(local.Unmap(), 0)))
	if err != nil {
		return nil, err
	}
	_ = conn.SetReadBuffer(socketBuffer) // a smaller buffer is acceptable
	_ = conn.SetWriteBuffer(socketBuffer)
	sender, err := datagram.NewSender(conn)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	receiver, err := datagram.NewReceiver()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	port := conn.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	return &socket{
		conn: conn, port: port, sender: sender, receiver: receiver, steered: steer(sender) == nil, most: most,
	}, nil
}

// steer makes a socket receive all frames although other sockets have its port. The program of Steer can be attached
// only to a group of sockets. The sockets of a port become a group when the first one joins.
func steer(s *datagram.Sender) error {
	if err := s.Share(); err != nil {
		return err
	}
	second, err := s.Join(math.MaxInt)
	if err != nil {
		return err
	}
	return errors.Join(s.Steer(1), second.Close())
}

// connect implements wire.
func (s *socket) connect() (_ sender, shared bool) {
	if s.steered {
		if own, err := s.sender.Join(s.most); err == nil {
			_ = own.EnlargeBuffer() // a smaller buffer is acceptable
			return own, false
		}
	}
	return s.sender, true
}

// Close implements wire.
func (s *socket) Close() error { return s.sender.Close() }

// read reads until the socket is closed. A panic ends the handling of one frame only.
func (s *socket) read(f *Forwarder) {
	defer s.receiver.Close()
	for !s.readUntilPanic(f) {
		if f.task.Working() {
			f.task.End()
		}
	}
}

func (s *socket) readUntilPanic(f *Forwarder) (closed bool) {
	defer f.meter.RecoverPanic("read a frame of another pod")
	raw, err := s.conn.SyscallConn()
	if err != nil {
		return true
	}
	attempt := s.receive // a new method value for each batch would allocate
	f.task.Begin()
	s.handle(f) // the rest of the batch after a panic
	f.task.End()
	for raw.Read(attempt) == nil {
		f.task.Begin()
		s.handle(f)
		f.task.End()
	}
	return true
}

// receive receives a batch without waiting. It reports false if there is no frame.
func (s *socket) receive(fd uintptr) bool {
	var errno syscall.Errno
	s.received, errno = s.receiver.Receive(int(fd))
	s.handled = 0
	return errno != unix.EAGAIN
}

// handle handles the frames of a batch.
func (s *socket) handle(f *Forwarder) {
	now := time.Now()
	for s.handled < s.received {
		i := s.handled
		s.handled++
		f.receive(s.receiver.From(i), s.receiver.Payload(i), now)
	}
	f.flush(now)
}
