package relay

import (
	"encoding/binary"
	"net/netip"
	"sync"
)

// Buffer holds one received datagram of any size, or an ICMP message. There is room for a ChannelData header before the
// payload and for padding behind it, so that a frame is made without a copy.
type Buffer struct {
	bytes [headerSize + maxDatagram + 3]byte
	n     int
	peer  netip.AddrPort
	icmp  ICMP
}

// maxDatagram is the longest UDP payload.
const maxDatagram = 65535

// ICMP is an ICMP message that reports that a datagram to a peer was not delivered. The zero ICMP means that there is
// none.
type ICMP struct {
	Type, Code uint8
	// Data is the error data of RFC 8656 §18.13: the MTU of the next hop for the types that have one.
	Data uint32
}

// buffers are shared by all relays. A relay that waits for a datagram holds no buffer, so idle relays need little
// memory.
var buffers = sync.Pool{New: func() any { return new(Buffer) }}

// NewBuffer returns a buffer with a datagram of a peer, for implementations of Socket.
func NewBuffer(payload []byte, peer netip.AddrPort) *Buffer {
	b := newBuffer()
	b.n, b.peer = copy(b.bytes[headerSize:headerSize+maxDatagram], payload), peer
	return b
}

func newBuffer() *Buffer {
	b := buffers.Get().(*Buffer)
	b.icmp = ICMP{}
	return b
}

func (b *Buffer) release() { buffers.Put(b) }

func (b *Buffer) payload() []byte { return b.bytes[headerSize : headerSize+b.n] }

// channelData returns the payload as a ChannelData frame.
func (b *Buffer) channelData(number uint16, pad bool) []byte {
	binary.BigEndian.PutUint16(b.bytes[0:], number)
	binary.BigEndian.PutUint16(b.bytes[2:], uint16(b.n))
	end := headerSize + b.n
	if pad {
		for ; end%4 != 0; end++ {
			b.bytes[end] = 0
		}
	}
	return b.bytes[:end]
}
