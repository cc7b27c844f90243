package relay

import (
	"encoding/binary"
	"net/netip"
	"sync"
)

// Buffer holds what a relay socket has received: one datagram of any size, or word that one did not arrive. It has room for a ChannelData
// header before the payload and for padding behind it, so that a frame is made without a copy.
type Buffer struct {
	bytes [headerSize + maxDatagram + 3]byte
	n     int
	peer  netip.AddrPort
	icmp  ICMP
}

// maxDatagram is the longest UDP payload.
const maxDatagram = 65535

// ICMP says why a datagram to a peer did not arrive. The zero ICMP says nothing.
type ICMP struct {
	Type, Code uint8
	// Data is what RFC 8656 §18.13 calls error data: the MTU of the next hop, where the type tells of one.
	Data uint32
}

// buffers are shared by all relays: a relay that waits for a datagram holds none, so that an idle allocation costs no buffer.
var buffers = sync.Pool{New: func() any { return new(Buffer) }}

// NewBuffer returns a buffer with a datagram of a peer in it, the way a Socket other than the kernel's delivers one.
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

// channelData returns the ChannelData frame around the payload.
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
