package offload

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// attrTypeMask selects the kind of an attribute, without the flags of linux/netlink.h.
const attrTypeMask = 0x3fff

func word(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// attribute returns a struct rtattr with its padding.
func attribute(kind uint16, value []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(unix.SizeofRtAttr+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	return append(b, make([]byte, -len(b)&3)...)
}

// attributes iterates over the kinds and values of attributes.
func attributes(b []byte) func(func(uint16, []byte) bool) {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.SizeofRtAttr {
			n := int(binary.NativeEndian.Uint16(b))
			if n < unix.SizeofRtAttr || n > len(b) {
				return
			}
			kind := binary.NativeEndian.Uint16(b[2:]) & attrTypeMask
			if !yield(kind, b[unix.SizeofRtAttr:n]) {
				return
			}
			b = b[min(len(b), (n+3)&^3):]
		}
	}
}

// conn is a netlink socket for requests (rtnetlink(7)).
type conn int

func dial() (conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return -1, fmt.Errorf("open netlink socket: %w", err)
	}
	timeout := unix.NsecToTimeval(int64(answerTimeout))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return -1, errors.Join(fmt.Errorf("set timeout of netlink socket: %w", err), unix.Close(fd))
	}
	return conn(fd), nil
}

// answerTimeout bounds the wait for the answer of the kernel, which answers within the system call.
const answerTimeout = 5 * time.Second

func (c conn) close() { _ = unix.Close(int(c)) }

// request sends a request and returns its error.
func (c conn) request(kind uint16, flags uint16, parts ...[]byte) error {
	return c.call(kind, flags|unix.NLM_F_ACK, nil, parts...)
}

// call sends a request and calls each with the payload of every message of the answer.
func (c conn) call(kind, flags uint16, each func([]byte), parts ...[]byte) error {
	b := make([]byte, unix.SizeofNlMsghdr)
	for _, p := range parts {
		b = append(b, p...)
	}
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	binary.NativeEndian.PutUint16(b[4:], kind)
	binary.NativeEndian.PutUint16(b[6:], flags|unix.NLM_F_REQUEST)
	if err := unix.Sendto(int(c), b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("send netlink request: %w", err)
	}
	answer := make([]byte, 1<<16)
	for {
		n, _, err := unix.Recvfrom(int(c), answer, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("receive netlink answer: %w", err)
		}
		for rest := answer[:n]; len(rest) >= unix.SizeofNlMsghdr; {
			length := int(binary.NativeEndian.Uint32(rest))
			if length < unix.SizeofNlMsghdr || length > len(rest) {
				return errors.New("receive netlink answer: message is truncated")
			}
			payload := rest[unix.SizeofNlMsghdr:length]
			switch binary.NativeEndian.Uint16(rest[4:]) {
			case unix.NLMSG_DONE:
				return nil
			case unix.NLMSG_ERROR:
				if len(payload) < 4 {
					return errors.New("receive netlink answer: message is truncated")
				}
				if code := int32(binary.NativeEndian.Uint32(payload)); code != 0 {
					return unix.Errno(-code)
				}
				return nil
			default:
				if each != nil {
					each(payload)
				}
			}
			rest = rest[min(len(rest), (length+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1)):]
		}
	}
}
