package listener

import (
	"encoding/binary"
	"errors"
	"io"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/stunmsg"
)

// framer splits a byte stream into STUN messages and ChannelData frames (RFC 8656 §2.1, §12.5). One read may return
// several frames, but framer never waits for more bytes than the current frame needs. Its buffer does not grow beyond
// twice the limit of next.
type framer struct {
	from io.Reader
	buf  []byte
	// buf[read:write] contains the received bytes that were not returned yet.
	read, write int
}

var (
	errNotTURN  = errors.New("neither STUN nor ChannelData")
	errTooLarge = errors.New("frame is longer than allowed")
)

const (
	// firstBuffer is the buffer size of a new connection. The buffer has room for any frame of a client without a
	// session.
	firstBuffer = unauthenticatedLimit
	// smallBuffer is the minimum size of the buffer of a client with a session.
	smallBuffer = 4096
	// frameHeader is the number of bytes that are needed to compute the length of a frame.
	frameHeader = 4
)

func newFramer(from io.Reader) *framer {
	return &framer{from: from, buf: make([]byte, firstBuffer)}
}

// next returns the next whole frame with its padding. The frame is valid until the next call. If a frame is longer than
// limit, next returns an error, and the stream cannot be used any more.
func (f *framer) next(limit int) ([]byte, error) {
	if limit > firstBuffer && len(f.buf) < smallBuffer {
		f.compact(smallBuffer)
	}
	if err := f.fill(frameHeader); err != nil {
		return nil, err
	}
	size, err := frameSize(f.buf[f.read:])
	if err != nil {
		return nil, err
	}
	if size > limit {
		return nil, errTooLarge
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

// fill reads until n bytes are buffered.
func (f *framer) fill(n int) error {
	if f.write-f.read >= n {
		return nil
	}
	if f.read+n > len(f.buf) {
		f.compact(n)
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

// compact moves the buffered bytes to the start of the buffer, and enlarges it to n bytes if needed.
func (f *framer) compact(n int) {
	to := f.buf
	if n > len(to) {
		to = make([]byte, max(n, 2*len(f.buf)))
	}
	f.write = copy(to, f.buf[f.read:f.write])
	f.read, f.buf = 0, to
}
