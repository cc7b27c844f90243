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

	"github.com/pion/stun/v2"

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
	for name, payload := range map[string][]byte{"ChannelData": channelData(), "Refresh requests": refresh(t)} {
		t.Run(name, func(t *testing.T) {
			c := w.dial(owner, voice, 200)
			awaitAll(t, []*client{c}, 50)
			w.send(c, front)
			awaitAll(t, []*client{c}, 100)
			before, limited := c.Stats(), front.forwarding().Limited

			const rate, length = 100_000, 10 * time.Second
			begun, cpu := time.Now(), []time.Duration{owner.cpu(), home.cpu()}
			sent := w.flood(netip.AddrPortFrom(front.addr, port), payload, rate, length)
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
			t.Logf("%d forged datagrams, %.0f a second; front %+v; call %s", sent, float64(sent)/took.Seconds(), f, after)
			if lost, of := after.Lost-before.Lost, after.Sent-before.Sent; 100*lost > of {
				t.Errorf("the call lost %d of %d datagrams", lost, of)
			}
			if f.Limited == limited { // the machine decides how much of the rate is reached
				t.Error("the forged datagrams are fewer than the limit of the front: nothing was proved")
			}
		})
	}
}

// K-17: TestForgedDatagramsMoveNoClient: datagrams with the source address of a client that arrive at another pod do
// not move the client there: neither a client that sends media, nor one that sends a report a second.
func TestForgedDatagramsMoveNoClient(t *testing.T) {
	if !netns.Isolated(t) {
		return
	}
	w := newWorld(t, true)
	owner, other := w.add(1), w.add(2)
	owner.awaitPeers(1)
	other.awaitPeers(1)
	for _, every := range []time.Duration{voice, time.Second} {
		t.Run(every.String(), func(t *testing.T) {
			c := w.dial(owner, every, 200)
			awaitAll(t, []*client{c}, 4)
			passed := other.forwarding().Passed
			const forged = 1000
			w.clients.Do(func() {
				raw, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_RAW, syscall.IPPROTO_RAW)
				if err != nil {
					t.Error(err)
					return
				}
				defer syscall.Close(raw)
				to := netip.AddrPortFrom(other.addr, port)
				packet := ipv4(netip.AddrPortFrom(clientAddr, c.port), to, channelData())
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
			if n := other.forwarding().Passed - passed; n < forged/2 {
				t.Errorf("%d forged datagrams have reached the owner", n)
			}
			if s := c.End(patience); s.Lost != 0 {
				t.Errorf("the call: %s", s)
			}
		})
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

// channelData returns a frame with 20 bytes of data.
func channelData() []byte { return append([]byte{0x40, 0x00, 0x00, 0x14}, make([]byte, 20)...) }

// refresh returns a Refresh request of a client that has no session anywhere. It is not signed, because the pods decide
// who answers it before they look at the signature.
func refresh(t *testing.T) []byte {
	t.Helper()
	m, err := stun.Build(stun.TransactionID, stun.NewType(stun.MethodRefresh, stun.ClassRequest))
	if err != nil {
		t.Fatal(err)
	}
	return m.Raw
}

// ipv4 returns an IPv4 packet. The kernel sets the IP checksum.
func ipv4(from, to netip.AddrPort, payload []byte) []byte {
	packet := append(make([]byte, 20+8), payload...)
	packet[0], packet[8], packet[9] = 0x45, 64, syscall.IPPROTO_UDP
	copy(packet[12:], from.Addr().AsSlice())
	copy(packet[16:], to.Addr().AsSlice())
	binary.BigEndian.PutUint16(packet[20:], from.Port())
	binary.BigEndian.PutUint16(packet[22:], to.Port())
	binary.BigEndian.PutUint16(packet[24:], uint16(len(packet)-20))
	return packet
}

// flood sends datagrams from random source addresses, and returns how many.
func (w *world) flood(to netip.AddrPort, payload []byte, rate int, length time.Duration) (sent int) {
	w.t.Helper()
	w.clients.Do(func() {
		raw, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_RAW, syscall.IPPROTO_RAW)
		if err != nil {
			w.t.Error(err)
			return
		}
		defer syscall.Close(raw)
		dice := rand.New(rand.NewPCG(3, 4))
		packet := ipv4(netip.AddrPortFrom(clientAddr, 0), to, payload)
		name := &syscall.SockaddrInet4{Addr: to.Addr().As4()}
		tried := 0
		for begun := time.Now(); time.Since(begun) < length; {
			for due := int(time.Since(begun).Seconds() * float64(rate)); tried < due; tried++ {
				binary.BigEndian.PutUint32(packet[12:], 0x0B000000|dice.Uint32()>>8) // 11.0.0.0/8
				binary.BigEndian.PutUint16(packet[20:], uint16(1024+dice.IntN(60000)))
				if syscall.Sendto(raw, packet, 0, name) == nil {
					sent++
				}
			}
			time.Sleep(time.Millisecond) // the pace of the flood
		}
	})
	return sent
}
