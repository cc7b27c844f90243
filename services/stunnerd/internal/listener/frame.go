package listener

import (
	"encoding/binary"
	"errors"
	"io"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/stunmsg"
)

// framer splits a byte stream into STUN messages and ChannelData frames (RFC 8656 §2.1, §12.5). One read may return
// several frames, but framer never waits for more bytes than the current frame needs. A frame that is longer than
// smallBuffer has a large buffer, for which the session is charged, only until the frame is used.
type framer struct {
	from io.Reader
	buf  []byte
	// buf[read:write] contains the received bytes that next has not returned yet.
	read, write int
	// large is the large buffer, and buf a slice of it. large is nil if buf is a small buffer.
	large *[largeBuffer]byte
	// small is the small buffer while large is in use.
	small []byte
	// begun reports whether the first frame was found.
	begun bool
	// charge returns a claim of the session for the large buffer. memory is the claim while large is in use.
	charge func() session.Claim
	memory session.Claim
}

var (
	errNotTURN  = errors.New("neither STUN nor ChannelData")
	errTooLarge = errors.New("frame is longer than allowed")
	// errNoMemory means that a frame was discarded, because the process has no memory for the large buffer. The next
	// frame can be read.
	errNoMemory = errors.New("no memory for a long frame")
)

// largeBuffers are large buffers that are not in use.
var largeBuffers datagram.Pool[[largeBuffer]byte]

const (
	// firstBuffer is the buffer size of a new connection. The buffer has room for any frame of a client without a
	// session.
	firstBuffer = unauthenticatedLimit
	// smallBuffer is the minimum size of the buffer of a client with a session.
	smallBuffer = 4096
	// largeBuffer is the size of the buffer for a longer frame. It has room for any frame.
	largeBuffer = (sessionLimit + 3) &^ 3
	// frameHeader is the number of bytes that are needed to compute the length of a frame.
	frameHeader = 4
)

// The price of a long frame covers its buffer.
var _ [session.PriceFrame - largeBuffer]struct{}

func newFramer(from io.Reader, charge func() session.Claim) *framer {
	return &framer{from: from, buf: make([]byte, firstBuffer), charge: charge}
}

// next returns the next whole frame with its padding. The frame is valid until the next call. If a frame is longer than
// limit, next returns an error, and the stream cannot be used any more, except after errNoMemory.
func (f *framer) next(limit int) ([]byte, error) {
	switch {
	case f.large != nil && f.write-f.read <= len(f.small):
		f.shrink()
	case limit > firstBuffer && len(f.buf) < smallBuffer:
		f.move(make([]byte, smallBuffer))
	}
	if err := f.fill(frameHeader); err != nil {
		return nil, err
	}
	if !f.begun && beginsProxyHeader(f.buf[f.read:f.write]) {
		return nil, errUnexpectedProxyHeader
	}
	f.begun = true
	size, err := frameSize(f.buf[f.read:])
	if err != nil {
		return nil, err
	}
	if size > limit {
		return nil, errTooLarge
	}
	if size > len(f.buf) && !f.enlarge() {
		if err := f.discard(size); err != nil {
			return nil, err
		}
		return nil, errNoMemory
	}
	if err := f.fill(size); err != nil {
		return nil, err
	}
	frame := f.buf[f.read : f.read+size]
	f.read += size
	return frame, nil
}

// frameSize returns the length of a frame with its padding.
func frameSize(header []byte) (int, error) {
	length := int(binary.BigEndian.Uint16(header[2:]))
	switch first := header[0]; {
	case first < 4:
		if length%4 != 0 {
			return 0, errNotTURN
		}
		return stunmsg.HeaderSize + length, nil
	case isChannelData(first):
		return frameHeader + (length+3)&^3, nil
	}
	return 0, errNotTURN
}

// fill reads until n bytes are buffered. The buffer has room for n.
func (f *framer) fill(n int) error {
	if f.write-f.read >= n {
		return nil
	}
	if f.read+n > len(f.buf) {
		f.move(f.buf)
	}
	for f.write-f.read < n {
		m, err := f.from.Read(f.buf[f.write:])
		f.write += m
		if err != nil && f.write-f.read < n {
			if err == io.EOF && f.write > f.read {
				return io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}

// move moves the buffered bytes to the start of a buffer, which may be the current one.
func (f *framer) move(to []byte) {
	f.write = copy(to, f.buf[f.read:f.write])
	f.read, f.buf = 0, to
}

// enlarge replaces the small buffer by a large one. It reports false if there is no memory for it, or no session that
// can be charged: the session may have ended while the client was silent.
func (f *framer) enlarge() bool {
	f.memory = f.charge()
	if f.memory.Set(session.PriceFrame) != nil || f.memory.Held() == 0 {
		return false
	}
	f.small, f.large = f.buf, largeBuffers.Get()
	f.move(f.large[:])
	return true
}

// shrink replaces the large buffer by the small one, which has room for the buffered bytes.
func (f *framer) shrink() {
	f.move(f.small)
	f.close()
}

// close returns the large buffer to the pool. The framer must not be used afterwards, unless move has replaced the
// buffer.
func (f *framer) close() {
	if f.large != nil {
		largeBuffers.Put(f.large)
		f.memory.Release()
		f.large, f.small = nil, nil
	}
}

// discard reads and discards a frame of n bytes.
func (f *framer) discard(n int) error {
	for {
		have := min(n, f.write-f.read)
		f.read += have
		if n -= have; n == 0 {
			return nil
		}
		if err := f.fill(1); err != nil {
			return err
		}
	}
}
