package forward

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stunner-gateway/stunner/e2e/internal/netns"
	"github.com/stunner-gateway/stunner/services/api/inspection"
)

// K-17: TestForgedSourcesAtAFront: a flood of datagrams with forged sources at one pod costs the other pods little, and
// the call whose datagrams that pod forwards goes on.
func TestForgedSourcesAtAFront(t *testing.T) {
	if !netns.Isolated(t) {
		return
	}
	w := newWorld(t, true)
	owner, front, home := w.add(1), w.add(2), w.add(3)
	for _, p := range []*pod{owner, front, home} {
		p.awaitPeers(2)
	}
	c := w.dial(owner, voice, 200)
	awaitAll(t, []*client{c}, 50)
	w.send(c, front)
	awaitAll(t, []*client{c}, 100)
	before := c.Stats()

	const rate, length = 100_000, 10 * time.Second
	begun, cpu := time.Now(), []time.Duration{owner.cpu(), home.cpu()}
	sent := w.flood(netip.AddrPortFrom(front.addr, port), rate, length)
	took := time.Since(begun)
	for i, p := range []*pod{owner, home} {
		used := p.cpu() - cpu[i]
		t.Logf("%s: %.1f %% of a core", p.name, 100*used.Seconds()/took.Seconds())
		if used > took/10 {
			t.Errorf("%s used %s of CPU in %s", p.name, used, took)
		}
	}
	f := front.forwarding()
	after := c.End(patience)
	t.Logf("%d forged datagrams in %s; front %+v; call %s", sent, took, f, after)
	if lost, of := after.Lost-before.Lost, after.Sent-before.Sent; 100*lost > of {
		t.Errorf("the call lost %d of %d datagrams", lost, of)
	}
	if f.Unknown+f.Limited == 0 {
		t.Error("no forged datagram reached the front")
	}
}

// K-17: TestForgedDatagramsMoveNoClient: datagrams with the source address of a client that arrive at another pod do
// not move the client there.
func TestForgedDatagramsMoveNoClient(t *testing.T) {
	if !netns.Isolated(t) {
		return
	}
	w := newWorld(t, true)
	owner, other := w.add(1), w.add(2)
	owner.awaitPeers(1)
	other.awaitPeers(1)
	c := w.dial(owner, voice, 200)
	awaitAll(t, []*client{c}, 50)
	const forged = 500
	w.clients.Do(func() {
		raw, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_RAW, syscall.IPPROTO_RAW)
		if err != nil {
			t.Error(err)
			return
		}
		defer syscall.Close(raw)
		to := netip.AddrPortFrom(other.addr, port)
		packet := channelData(netip.AddrPortFrom(clientAddr, c.port), to)
		for range forged {
			if err := syscall.Sendto(raw, packet, 0, &syscall.SockaddrInet4{Addr: to.Addr().As4()}); err != nil {
				t.Error(err)
			}
			time.Sleep(4 * time.Millisecond) // the pace of the attack
			if front := owner.front(); front != "" {
				t.Errorf("the client has moved to %s", front)
				return
			}
		}
	})
	if f := other.forwarding(); f.Passed < forged/2 {
		t.Errorf("few forged datagrams have reached the owner: %+v", f)
	}
	if s := c.End(patience); s.Lost != 0 {
		t.Errorf("the call: %s", s)
	}
}

// front returns the field front of the only session.
func (p *pod) front() string {
	p.world.t.Helper()
	body, err := p.get("sessions")
	var list inspection.SessionList
	if err = errors.Join(err, json.Unmarshal(body, &list)); err != nil || len(list.Sessions) != 1 {
		p.world.t.Fatalf("%s has %d sessions: %v", p.name, len(list.Sessions), err)
	}
	return list.Sessions[0].Front
}

// channelData returns an IPv4 packet with ChannelData of 20 bytes. The kernel sets the IP checksum.
func channelData(from, to netip.AddrPort) []byte {
	packet := make([]byte, 20+8+24)
	packet[0], packet[8], packet[9] = 0x45, 64, syscall.IPPROTO_UDP
	copy(packet[12:], from.Addr().AsSlice())
	copy(packet[16:], to.Addr().AsSlice())
	binary.BigEndian.PutUint16(packet[20:], from.Port())
	binary.BigEndian.PutUint16(packet[22:], to.Port())
	binary.BigEndian.PutUint16(packet[24:], uint16(len(packet)-20))
	binary.BigEndian.PutUint32(packet[28:], 0x40000014)
	return packet
}

// flood sends ChannelData from random source addresses, and returns the number of datagrams.
func (w *world) flood(to netip.AddrPort, rate int, length time.Duration) (sent int) {
	w.t.Helper()
	w.clients.Do(func() {
		raw, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_RAW, syscall.IPPROTO_RAW)
		if err != nil {
			w.t.Error(err)
			return
		}
		defer syscall.Close(raw)
		dice := rand.New(rand.NewPCG(3, 4))
		packet := channelData(netip.AddrPortFrom(clientAddr, 0), to)
		name := &syscall.SockaddrInet4{Addr: to.Addr().As4()}
		for begun := time.Now(); time.Since(begun) < length; {
			for due := int(time.Since(begun).Seconds() * float64(rate)); sent < due; sent++ {
				binary.BigEndian.PutUint32(packet[12:], 0x0B000000|dice.Uint32()>>8) // 11.0.0.0/8
				binary.BigEndian.PutUint16(packet[20:], uint16(1024+dice.IntN(60000)))
				_ = syscall.Sendto(raw, packet, 0, name)
			}
			time.Sleep(time.Millisecond) // the pace of the flood
		}
	})
	return sent
}
