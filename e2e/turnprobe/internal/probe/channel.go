package probe

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/stunner-gateway/stunner/e2e/turnprobe/internal/wire"
)

var channel = []Check{
	{ID: "C-01 first", RFC: "8656 §12.2", Says: "channel 0x4000 can be bound",
		Run: func(t *Trial) { binds(t, 0x4000) }},
	{ID: "C-01 last", RFC: "8656 §12.2", Says: "channel 0x4FFE can be bound", Run: func(t *Trial) { binds(t, 0x4FFE) }},
	{ID: "C-01 0x0000", RFC: "8656 §12.2", Says: "channel 0x0000 gives 400", Run: func(t *Trial) { noChannel(t, 0) }},
	{ID: "C-01 0x3FFF", RFC: "8656 §12.2", Says: "channel 0x3FFF gives 400",
		Run: func(t *Trial) { noChannel(t, 0x3FFF) }},
	{ID: "C-01 0x8000", RFC: "8656 §12.2", Says: "channel 0x8000 gives 400",
		Run: func(t *Trial) { noChannel(t, 0x8000) }},
	{ID: "C-01 0xFFFF", RFC: "8656 §12.2", Says: "channel 0xFFFF gives 400",
		Run: func(t *Trial) { noChannel(t, 0xFFFF) }},
	{ID: "C-01 0x5000", RFC: "5766 §11", Says: "a channel of RFC 5766 above 0x4FFF works, or gives 400",
		Run: func(t *Trial) {
			c, p := t.Allocated(), t.Peer()
			if a := c.Bind(0x5000, p.addr); a.Class != wire.Success {
				a.Refused(400)
				return
			}
			echoes(c, p, 0x5000, []byte("old client"))
		}},
	{ID: "C-02 number taken", RFC: "8656 §12.2",
		Says: "a ChannelBind for a channel that is bound to another peer gives 400, and the binding stays",
		Run: func(t *Trial) {
			c, p := t.Bound()
			c.Bind(0x4000, t.Peer().addr).Refused(400)
			echoes(c, p, 0x4000, []byte("as before"))
		}},
	{ID: "C-02 peer taken", RFC: "8656 §12.2",
		Says: "a ChannelBind for a peer that is bound to another channel gives 400, and the binding stays",
		Run: func(t *Trial) {
			c, p := t.Bound()
			c.Bind(0x4001, p.addr).Refused(400)
			echoes(c, p, 0x4000, []byte("as before"))
		}},
	{ID: "C-02 again", RFC: "8656 §12.2", Says: "the same channel can be bound to the same peer again",
		Run: func(t *Trial) {
			c, p := t.Bound()
			c.Bind(0x4000, p.addr).OK()
			echoes(c, p, 0x4000, []byte("again"))
		}},
	{ID: "C-02 two allocations", RFC: "8656 §12", Says: "channel numbers of different allocations are independent",
		Run: func(t *Trial) {
			a, b, p, q := t.Allocated(), t.Allocated(), t.Peer(), t.Peer()
			a.Bind(0x4000, p.addr).OK()
			b.Bind(0x4000, q.addr).OK()
			echoes(a, p, 0x4000, []byte("to the one"))
			echoes(b, q, 0x4000, []byte("to the other"))
		}},
	{ID: "C-03 no peer", RFC: "8656 §12.2", Says: "a ChannelBind without XOR-PEER-ADDRESS gives 400",
		Run: func(t *Trial) { t.Allocated().Do(wire.ChannelBind, wire.Channel(0x4000)).Refused(400) }},
	{ID: "C-03 no number", RFC: "8656 §12.2", Says: "a ChannelBind without CHANNEL-NUMBER gives 400",
		Run: func(t *Trial) {
			t.Allocated().Do(wire.ChannelBind, wire.Address(wire.XORPeerAddress, t.Peer().addr)).Refused(400)
		}},
	{ID: "C-04 ChannelData", RFC: "8656 §12.5", Says: "datagrams of a bound peer arrive as ChannelData",
		Run: func(t *Trial) {
			c, p := t.Bound()
			p.Send(c.relay, []byte("on a channel"))
			c.GetsOn(0x4000, []byte("on a channel"))
		}},
	{ID: "C-04 permission", RFC: "8656 §12.1",
		Says: "a channel installs a permission: datagrams from other ports of the peer arrive as Data indications",
		Run: func(t *Trial) {
			c, p, neighbour := t.Allocated(), t.Peer(), t.Peer()
			c.Bind(0x4000, p.addr).OK()
			neighbour.Send(c.relay, []byte("other port"))
			c.GetsData(neighbour.addr, []byte("other port"))
		}},
	{ID: "C-04 Send", RFC: "8656 §12.5", Says: "a Send indication to a peer with a channel is relayed",
		Run: func(t *Trial) {
			c, p := t.Bound()
			c.SendTo(p.addr, []byte("as you like"))
			p.Gets(c.relay, []byte("as you like"))
		}},
	{ID: "C-05 unbound", RFC: "8656 §12.6", Says: "ChannelData on a channel that is not bound is dropped",
		Run: func(t *Trial) { bound(t, func(c *Client) { c.SendOn(0x4001, []byte("unbound")) }) }},
	{ID: "C-05 short", RFC: "8656 §12.6", On: datagrams,
		Says: "ChannelData that is shorter than its length field is dropped",
		Run: func(t *Trial) {
			bound(
				t,
				func(c *Client) { c.transmit(append(wire.ChannelData(0x4000, nil, false)[:2], 0, 50, 'c', 'u', 't')) },
			)
		}},
	{ID: "C-05 half a header", RFC: "8656 §12.6", On: datagrams,
		Says: "a datagram of one to three bytes of ChannelData is dropped",
		Run: func(t *Trial) {
			bound(t, func(c *Client) {
				for n := 1; n < 4; n++ {
					c.transmit(wire.ChannelData(0x4000, nil, false)[:n])
				}
			})
		}},
	{ID: "C-05 trailing bytes", RFC: "8656 §12.5", On: datagrams,
		Says: "bytes after the ChannelData of a datagram are ignored",
		Run: func(t *Trial) {
			c, p := t.Bound()
			c.transmit(append(wire.ChannelData(0x4000, []byte("five!"), true), "more"...))
			p.Gets(c.relay, []byte("five!"))
		}},
	{ID: "C-05 other client", RFC: "8656 §12", Says: "a client cannot use the channel of another client",
		Run: func(t *Trial) {
			c, thief, p := t.Allocated(), t.Allocated(), t.Peer()
			c.Bind(0x4000, p.addr).OK()
			thief.SendOn(0x4000, []byte("stolen"))
			p.Quiet("ChannelData on the channel of another client")
		}},
	{ID: "C-06 empty", RFC: "8656 §12.6", Says: "empty ChannelData is relayed as an empty datagram, and the reverse",
		Run: func(t *Trial) { carries(t, 0) }},
	{ID: "C-06 small", RFC: "8656 §12.6", Says: "payloads of 1 to 9 bytes are relayed unchanged, both ways",
		Run: func(t *Trial) { carries(t, 1, 2, 3, 4, 5, 6, 7, 8, 9) }},
	{ID: "C-06 Ethernet", RFC: "8656 §12.6", Says: "payloads up to the Ethernet MTU are relayed unchanged, both ways",
		Run: func(t *Trial) { carries(t, 160, 1200, 1452, 1472) }},
	{ID: "C-06 1600", RFC: "8656 §12.6", Says: "payloads of 1,590 to 1,610 bytes are relayed unchanged, both ways",
		Run: func(t *Trial) { carries(t, 1590, 1596, 1599, 1600, 1601, 1610) }},
	{ID: "C-06 large", RFC: "8656 §12.6", On: []Transport{UDP, TCP, TLS},
		Says: "payloads up to 16,000 bytes are relayed unchanged, both ways",
		Run:  func(t *Trial) { carries(t, 2048, 4096, 9000, 16000) }},
	{ID: "C-06 large records", RFC: "8656 §12.6", On: onlyDTLS,
		Says: "payloads up to 8,000 bytes are relayed unchanged over DTLS, both ways",
		Run:  func(t *Trial) { carries(t, 2048, 4096, 8000) }},
	{ID: "C-06 largest to the peer", RFC: "8656 §12.6", On: []Transport{UDP, TCP, TLS},
		Says: "the largest payloads reach the peer unchanged or not at all", Run: largestToPeer},
	{ID: "C-06 largest from the peer", RFC: "8656 §12.7",
		Says: "the largest datagrams of a peer reach the client unchanged or not at all", Run: largestFromPeer},
	{ID: "C-06 Send", RFC: "8656 §11.2", Says: "Send indications carry up to 8,000 bytes unchanged", Run: largeSend},
	{ID: "C-06 Data", RFC: "8656 §11.3", Says: "Data indications carry up to 8,000 bytes unchanged", Run: largeData},
	{ID: "C-11 to the peer", RFC: "policy", Pace: Measuring,
		Says: "1,000 messages of 500 bytes reach the peer in order, none lost", Run: orderToPeer},
	{ID: "C-11 from the peer", RFC: "policy", Pace: Measuring,
		Says: "1,000 datagrams of 500 bytes reach the client in order, none lost", Run: orderFromPeer},
	{ID: "P-06 channel expiry", RFC: "8656 §12", Pace: Long,
		Says: "a channel expires after 600 s, even if data is sent on it", Run: channelExpiry},
}

func binds(t *Trial, n uint16) {
	c, p := t.Allocated(), t.Peer()
	c.Bind(n, p.addr).OK()
	echoes(c, p, n, []byte("there and back"))
}

func noChannel(t *Trial, n uint16) { t.Allocated().Bind(n, t.Peer().addr).Refused(400) }

// echoes sends data to the peer and back on a channel.
func echoes(c *Client, p *Peer, channel uint16, data []byte) {
	c.SendOn(channel, data)
	p.Gets(c.relay, data)
	p.Send(c.relay, data)
	c.GetsOn(channel, data)
}

// bound runs an action of a client with a bound channel that must have no effect: the first message that the peer
// receives must be the message after the action.
func bound(t *Trial, act func(*Client)) {
	c, p := t.Bound()
	act(c)
	echoes(c, p, 0x4000, []byte("the first to arrive"))
}

func carries(t *Trial, sizes ...int) {
	c, p := t.Bound()
	for _, n := range sizes {
		echoes(c, p, 0x4000, pattern(n))
	}
}

// pattern returns data without repetitions.
func pattern(n int) []byte {
	b := make([]byte, 0, n+8)
	for i := uint32(0); len(b) < n; i++ {
		b = binary.BigEndian.AppendUint32(b, i*2654435761)
	}
	return b[:n]
}

// largest are sizes around the largest UDP datagram over IPv4, with and without the ChannelData header.
var largest = []int{32768, 60000, 65499, 65503, 65507, 65531, 65535}

// largestToPeer and largestFromPeer send a small message after each large one, to test that the server still relays.
// UDP does not keep their order, and a server may have a faster path for small messages.
func largestToPeer(t *Trial) {
	c, p := t.Bound()
	for i, n := range largest {
		mark := []byte(fmt.Sprintf("after %d", n))
		c.SendOn(0x4000, pattern(n))
		c.SendOn(0x4000, mark)
		for {
			got, _, ok := p.receive(t.Answer)
			if !ok {
				t.Failf("after a message of %d bytes, the next one does not arrive", n)
			}
			if bytes.Equal(got, mark) {
				break
			}
			if !sent(got, largest[:i+1]) {
				t.Failf("up to %d bytes sent, %d arrive", n, len(got))
			}
		}
	}
}

func largestFromPeer(t *Trial) {
	c, p := t.Bound()
	for i, n := range largest {
		if n > 65507 {
			break // UDP has no larger datagrams
		}
		mark := []byte(fmt.Sprintf("after %d", n))
		p.Send(c.relay, pattern(n))
		p.Send(c.relay, mark)
		for {
			frame, ok := c.take(t.Answer, anything)
			_, got, err := wire.ParseChannelData(frame)
			if ok && err == nil && bytes.Equal(got, mark) {
				break
			}
			if !ok || err != nil || !sent(got, largest[:i+1]) {
				t.Failf("%d bytes sent, and a small datagram: got %s%s", n, describe(frame), c.whyOver())
			}
		}
	}
}

// sent reports whether data is the pattern of one of the sizes.
func sent(data []byte, sizes []int) bool {
	return slices.Contains(sizes, len(data)) && bytes.Equal(data, pattern(len(data)))
}

var indicated = []int{1200, 1472, 1600, 1601, 4096, 7900}

func largeSend(t *Trial) {
	c, p := t.Permitted()
	for _, n := range indicated {
		c.SendTo(p.addr, pattern(n))
		p.Gets(c.relay, pattern(n))
	}
}

func largeData(t *Trial) {
	c, p := t.Permitted()
	for _, n := range indicated {
		p.Send(c.relay, pattern(n))
		frame, ok := c.take(t.Answer, anything)
		if m, err := wire.Parse(frame); !ok || err != nil || !bytes.Equal(m.Value(wire.DataAttr), pattern(n)) {
			t.Failf("%d bytes from a peer: no Data indication within %s", n, t.Answer)
		}
	}
}

// Number and spacing of the messages. Small groups keep the rate below the capacity of a slow machine.
const (
	messages = 1000
	group    = 10
)

func numbered(i int) []byte { return binary.BigEndian.AppendUint32(pattern(496), uint32(i)) }

// inUse returns a channel after its first messages, one at a time. Afterwards a server may use a faster path, and
// messages on that path overtake earlier messages.
func inUse(t *Trial) (*Client, *Peer) {
	c, p := t.Bound()
	for range 10 {
		echoes(c, p, 0x4000, []byte("first messages"))
	}
	return c, p
}

func orderToPeer(t *Trial) {
	c, p := inUse(t)
	for i := 0; i < messages; i += group {
		for j := range group {
			c.SendOn(0x4000, numbered(i+j))
		}
		for j := range group {
			p.Gets(c.relay, numbered(i+j))
		}
	}
}

func orderFromPeer(t *Trial) {
	c, p := inUse(t)
	for i := 0; i < messages; i += group {
		for j := range group {
			p.Send(c.relay, numbered(i+j))
		}
		for j := range group {
			c.GetsOn(0x4000, numbered(i+j))
		}
	}
}

// channelExpiry lets a channel expire while data is sent on it. The permission is refreshed, so that later data arrives
// in Data indications.
func channelExpiry(t *Trial) {
	c, p := t.Allocated(wire.Uint32(wire.Lifetime, 1800)), t.Peer()
	c.Bind(0x4000, p.addr).OK()
	for range 2 {
		t.pause(295 * time.Second)
		c.Permit(p.addr).OK()
		echoes(c, p, 0x4000, []byte("in time"))
	}
	t.pause(16 * time.Second)
	p.Send(c.relay, []byte("606"))
	c.GetsData(p.addr, []byte("606"))
}
