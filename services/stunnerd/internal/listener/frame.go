package listener

import (
	"encoding/binary"
	"errors"
	"io"
)

// framer cuts a byte stream into STUN messages and ChannelData frames (RFC 8656 §2.1, §12.5). It reads ahead, never waits for more than
// the frame at hand, and grows its buffer only up to the limit that is in force.
type framer struct {
	from io.Reader
	buf  []byte
	// read and write delimit what has been received and not yet handed out.
	read, write int
}

var (
	errNotTURN  = errors.New("neither STUN nor ChannelData")
	errTooLarge = errors.New("frame is longer than allowed")
)

const (
	// firstBuffer has room for any frame of a client without a session; smallBuffer is what one with a session begins with.
	firstBuffer = unknownLimit
	smallBuffer = 4096
	// frameHeader is as much as is needed to know a frame's length.
	frameHeader = 4
	stunHeader  = 20
)

func newFramer(from io.Reader) *framer {
	return &framer{from: from, buf: make([]byte, firstBuffer)}
}

// next returns the next whole frame, its padding included. It is valid until the next call. A frame of more than limit bytes is an
// error: the stream cannot be trusted any more, so nothing of it is looked at.
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

// frameSize reads a frame's length, padding included, from its first four bytes.
func frameSize(header []byte) (int, error) {
	length := int(binary.BigEndian.Uint16(header[2:]))
	switch first := header[0]; {
	case first < 4:
		if length%4 != 0 {
			return 0, errNotTURN
		}
		return stunHeader + length, nil
	case isChannelData(first):
		return frameHeader + (length+3)&^3, nil
	}
	return 0, errNotTURN
}

// fill makes sure that n bytes are there.
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

// compact moves what is left to the front, of a larger buffer if n bytes need one.
func (f *framer) compact(n int) {
	to := f.buf
	if n > len(to) {
		to = make([]byte, max(n, 2*len(f.buf)))
	}
	f.write = copy(to, f.buf[f.read:f.write])
	f.read, f.buf = 0, to
}
