package media

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/harnesstest"
)

const (
	header  = 4  // bytes of a ChannelData message before its payload
	stamp   = 28 // bytes of a payload before its text: number, send time, client, and their sum
	giveUp  = 50 * time.Millisecond
	drained = 20 * time.Millisecond
)

// text is the source of the rest of a payload, which starts at an offset that depends on the number of the datagram.
var text = func() []byte {
	text := make([]byte, 4096)
	random := rand.NewChaCha8([32]byte{})
	_, _ = random.Read(text)
	return text
}()

// generator sends and receives for the clients and peers of one server, on the goroutine of the caller.
type generator struct {
	clients, peers *socket
	// sink receives instead of a server. It is nil if there is a server.
	sink *socket
	all  []*client
	load load
	turn int
	count
	arrived, spoilt atomic.Uint64 // messages over streams, since the last await
}

// count is the traffic since the start of saturate or pace. Datagrams with changed contents, or at a wrong address, are
// wrong. All others that have arrived are received.
type count struct {
	sent, received, wrong uint64
	wall                  time.Duration
	busy, idle            time.Duration // CPU time of the generator; idle is the CPU time of polls that find nothing
}

// lost returns the share of datagrams that did not arrive, in percent.
func (c count) lost() float64 { return 100 * float64(c.sent-min(c.sent, c.received)) / float64(c.sent) }

// newGenerator returns the generator for a server. Its sockets have the given options (see open).
func (s *stage) newGenerator(t *testing.T, what server, l load, options ...int) *generator {
	t.Helper()
	g := &generator{clients: open(t, s.clients, options...), peers: open(t, s.peers, options...), load: l}
	g.all = newClients(turnServer, l.clients, max(l.peers, 1))
	if what.command == nil {
		g.sink = open(t, nil, options...)
		for _, c := range g.all {
			c.server = sockaddr(relays[0].As4(), anyPort)
			c.relay = c.server
		}
		return g
	}
	if l.network != "" {
		g.connect(t, s)
	} else if err := g.clients.run(g.all, setUp); err != nil {
		t.Fatalf("%s: %v", what.name, err)
	}
	return g
}

// put queues one burst from the next client to its peer, or back.
func (g *generator) put(up bool) {
	c := g.all[g.turn%len(g.all)]
	g.turn++
	s, from, to, prefix := g.clients, c.ip, c.server, header
	if !up {
		s, from, to, prefix = g.peers, c.peer, c.relay, 0
	}
	size := prefix + g.load.size
	now := time.Now().UnixNano()
	for room := s.put(from, to, size*g.load.burst, size); len(room) > 0; room = room[size:] {
		frame(room[:prefix], g.load.size)
		payload(room[prefix:size], g.sent, now, c.number)
		g.sent++
	}
}

// frame writes the header of a ChannelData message (RFC 8656 §12.4), if there is room for it.
func frame(room []byte, size int) {
	if len(room) == header {
		binary.BigEndian.PutUint16(room, channel)
		binary.BigEndian.PutUint16(room[2:], uint16(size))
	}
}

// payload writes a payload that begins like an RTP packet (RFC 3550 §5.1): the kernel does not forward STUN messages.
func payload(room []byte, number uint64, now int64, client uint32) {
	number |= 2 << 62
	binary.BigEndian.PutUint64(room, number)
	binary.LittleEndian.PutUint64(room[8:], uint64(now))
	binary.LittleEndian.PutUint32(room[16:], client)
	binary.LittleEndian.PutUint64(room[20:], number^uint64(now)^uint64(client))
	copy(room[stamp:], text[number%1024:])
}

// check verifies a received message and returns its client and the time at which it was sent.
func (g *generator) check(data []byte, prefix int) (c *client, sent int64, ok bool) {
	var want [header]byte
	frame(want[:prefix], g.load.size)
	if len(data) != prefix+g.load.size || !bytes.Equal(data[:prefix], want[:prefix]) {
		return nil, 0, false
	}
	data = data[prefix:]
	number, now := binary.BigEndian.Uint64(data), binary.LittleEndian.Uint64(data[8:])
	client, sum := binary.LittleEndian.Uint32(data[16:]), binary.LittleEndian.Uint64(data[20:])
	if int(client) >= len(g.all) || sum != number^now^uint64(client) ||
		!bytes.Equal(data[stamp:], text[number%1024:][:len(data)-stamp]) {
		return nil, 0, false
	}
	return g.all[client], int64(now), true
}

// arrival is called with the direction of a right datagram, and the times at which it was sent and received, in
// nanoseconds since 1970.
type arrival func(up bool, sent, at int64)

// receive reads up to one batch from each socket of the load, without waiting, and returns the number of datagrams. It
// calls each, if it is not nil, for every right datagram.
func (g *generator) receive(each arrival) (n int) {
	switch {
	case g.load.network != "":
		return g.await()
	case g.sink == nil:
		if g.load.up {
			n += g.take(g.peers, true, 0, each)
		}
		if g.load.down {
			n += g.take(g.clients, false, header, each)
		}
	case g.load.up && g.load.down: // at the sink, the length shows the direction
		n += g.sink.receive(func(d datagram) {
			prefix := len(d.data) - g.load.size
			if prefix != 0 && prefix != header {
				g.wrong++
			} else if _, sent, ok := g.check(d.data, prefix); ok {
				g.received++
				if each != nil {
					each(prefix == header, sent, d.at)
				}
			}
		})
	case g.load.up:
		n += g.take(g.sink, true, header, each)
	default:
		n += g.take(g.sink, false, 0, each)
	}
	return n
}

// take reads one batch of a direction from a socket. It counts datagrams with other contents, or at another address, as
// wrong.
func (g *generator) take(s *socket, up bool, prefix int, each arrival) int {
	return s.receive(func(d datagram) {
		c, sent, ok := g.check(d.data, prefix)
		if ok && g.sink == nil && (up && d.from != c.relay || !up && d.to != c.ip) {
			ok = false
		}
		if !ok {
			g.wrong++
			return
		}
		g.received++
		if each != nil {
			each(up, sent, d.at)
		}
	})
}

// window returns the maximum number of datagrams in flight, and the number that is sent at once. All of them fit into
// one receive buffer of the default size, 212,992 B, in which a datagram uses more memory than its size.
func (l load) window() (all, some int) {
	if l.size > 600 {
		return 80, 24 // a datagram takes 2,304 B of the buffer
	}
	return 192, batch // a datagram takes at most 1,024 B of the buffer
}

// saturate keeps a window of datagrams in flight for a time, and at least until one arrives. It returns the traffic.
func (g *generator) saturate(t *testing.T, d time.Duration) count {
	t.Helper()
	g.count = count{}
	var lost uint64         // datagrams in flight when none had arrived for giveUp
	var found time.Duration // CPU time after the first poll that found nothing, or 0
	began, cpu := time.Now(), threadCPU()
	last := began // time of the last poll that found something
	all, some := g.load.window()
	arrives := func() bool { return g.received+g.wrong > 0 } // a busy machine may need longer than d
	for now := began; now.Sub(began) < d || !arrives() && now.Sub(began) < timeout; now = time.Now() {
		if g.sent+uint64(some) <= g.received+g.wrong+lost+uint64(all) {
			up := g.load.up && (!g.load.down || g.turn/(some/g.load.burst)%2 == 0)
			for range some / g.load.burst {
				g.put(up)
			}
			g.flush(t)
		}
		switch moved := g.receive(nil) > 0; {
		case moved && found != 0:
			g.idle += threadCPU() - found
			fallthrough
		case moved:
			last, found = now, 0
		case found == 0:
			found = threadCPU()
		case now.Sub(last) > giveUp:
			lost, last = g.sent-min(g.sent, g.received+g.wrong), now
		}
	}
	g.wall, g.busy = time.Since(began), threadCPU()-cpu-g.idle
	total := g.count
	for last := time.Now(); g.received+g.wrong < g.sent && time.Since(last) < giveUp; {
		if g.receive(nil) > 0 {
			last = time.Now()
		}
	}
	total.received, total.wrong = g.received, g.wrong
	return total
}

// pace sends a number of datagrams a second in each direction for a time, and passes each to receive. It does not catch
// up after a pause of the generator, because a burst is another load.
func (g *generator) pace(t *testing.T, rate int, d time.Duration, each arrival) {
	t.Helper()
	g.count = count{}
	began, interval := time.Now(), time.Second/time.Duration(2*rate)
	next := interval
	for i := 0; ; {
		now := time.Since(began)
		if now > d+drained {
			return
		}
		if now < d && now >= next {
			g.put((i+i/len(g.all))%2 == 0) // so that each client sends and receives
			g.flush(t)
			i++
			if next += interval; now-next > 10*interval {
				next = now
			}
		}
		g.receive(each)
	}
}

func (g *generator) flush(t *testing.T) {
	t.Helper()
	for _, s := range []*socket{g.clients, g.peers} {
		harnesstest.NoError(t, s.flush())
	}
}

// A datagram with one changed bit is wrong.
func TestCheck(t *testing.T) {
	g := &generator{load: load{size: 160}, all: newClients(turnServer, 4, 1)}
	data := make([]byte, header+g.load.size)
	frame(data[:header], g.load.size)
	payload(data[header:], 7, time.Now().UnixNano(), 2)
	if c, _, ok := g.check(data, header); !ok || c != g.all[2] {
		t.Fatal("an unchanged datagram is wrong")
	}
	for i := range data {
		data[i] ^= 1
		if _, _, ok := g.check(data, header); ok {
			t.Errorf("byte %d may change", i)
		}
		data[i] ^= 1
	}
	if _, _, ok := g.check(data[:len(data)-1], header); ok {
		t.Error("the last byte may be missing")
	}
}
