package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// IsChannelData reports whether a message is ChannelData, by its first byte (RFC 7983 §7).
func IsChannelData(b []byte) bool { return len(b) > 0 && b[0]&0xC0 == 0x40 }

// ChannelData encodes a ChannelData message (RFC 8656 §12.4). Over streams it must be padded.
func ChannelData(channel uint16, payload []byte, padded bool) []byte {
	b := binary.BigEndian.AppendUint16(nil, channel)
	b = binary.BigEndian.AppendUint16(b, uint16(len(payload)))
	b = append(b, payload...)
	if padded {
		b = append(b, make([]byte, pad(len(payload)))...)
	}
	return b
}

// ParseChannelData decodes a ChannelData message. Padding is allowed.
func ParseChannelData(b []byte) (channel uint16, payload []byte, err error) {
	if len(b) < 4 || !IsChannelData(b) {
		return 0, nil, fmt.Errorf("parse ChannelData: no header: % x", b[:min(len(b), 8)])
	}
	n := int(binary.BigEndian.Uint16(b[2:]))
	if rest := len(b) - 4 - n; rest < 0 || rest > pad(n) {
		return 0, nil, fmt.Errorf("parse ChannelData: length %d in the header, %d bytes follow", n, len(b)-4)
	}
	return binary.BigEndian.Uint16(b), b[4 : 4+n], nil
}

var errFrame = errors.New("neither STUN nor ChannelData")

// ReadFrame reads one message from a stream, including padding (RFC 8656 §12.5).
func ReadFrame(r io.Reader) ([]byte, error) {
	head := make([]byte, 4)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, fmt.Errorf("read frame: %w", err)
	}
	n := int(binary.BigEndian.Uint16(head[2:]))
	switch {
	case IsChannelData(head):
		n += pad(n)
	case head[0]&0xC0 == 0:
		n += headerSize - 4
	default:
		return nil, fmt.Errorf("read frame: %w: % x", errFrame, head)
	}
	frame := append(head, make([]byte, n)...)
	if _, err := io.ReadFull(r, frame[4:]); err != nil {
		return nil, fmt.Errorf("read frame: %w", err)
	}
	return frame, nil
}
