package forward

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/e2e/internal/ask"
	"github.com/stunner-gateway/stunner/e2e/internal/netns"
)

// channelData is a frame with 20 bytes of data.
var channelData = ask.ChannelData(0x4000, make([]byte, 20))

// K-17: TestForgedSourcesAtAFront: a flood of datagrams with forged sources at one pod causes little work at other
// pods. A call whose datagrams the flooded pod forwards continues.
func TestForgedSourcesAtAFront(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	pods := g.add(3)
	owner, front, home := pods[0], pods[1], pods[2]
	attacker, err := g.net.Nodes[0].AddPod()
	must(t, err)
	// The Refresh request is not signed, because the pods find the owner of a client before they check a signature.
	refresh := stun.MustBuild(stun.TransactionID, stun.NewType(stun.MethodRefresh, stun.ClassRequest)).Raw
	for name, payload := range map[string][]byte{"ChannelData": channelData, "Refresh requests": refresh} {
		t.Run(name, func(t *testing.T) {
			calls := g.dialEach(1, voice, owner)
			calls[0].move(front)
			awaitMore(t, calls, 20)
			before, limited := calls[0].Stats(), front.forwarding().Limited
			const rate, length = 20_000, 3 * time.Second
			begun, ofOwner, ofHome := time.Now(), cpu(owner), cpu(home)
			sent := flood(t, attacker.Space, front.addr, payload, rate, length)
			took := time.Since(begun)
			ofOwner, ofHome = cpu(owner)-ofOwner, cpu(home)-ofHome
			if ofOwner > took/10 || ofHome > took/10 {
				t.Errorf("owner and another pod used %s and %s of CPU in %s", ofOwner, ofHome, took)
			}
			after := calls[0].End(time.Second)
			t.Logf("%.0f forged datagrams a second; CPU %s and %s; call %s", float64(sent)/took.Seconds(), ofOwner, ofHome, after)
			if lost, of := after.Lost-before.Lost, after.Sent-before.Sent; 20*lost > of {
				t.Errorf("the call lost %d of %d datagrams", lost, of)
			}
			if front.forwarding().Limited == limited { // the reached rate depends on the machine
				t.Error("the forged datagrams are fewer than the limit of the front: nothing was proved")
			}
		})
	}
}

// K-17: TestForgedDatagramsMoveNoClient: forged datagrams with the source address of a client at another pod do not
// move the client there, whether the client sends voice or one datagram a second.
func TestForgedDatagramsMoveNoClient(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	pods := g.add(2)
	owner, other := pods[0], pods[1]
	calls := []*client{g.dial(owner, voice), g.dial(owner, time.Second)}
	awaitMore(t, calls, 4)
	passed := other.forwarding().Passed
	const forged = 1000
	raw := netns.NewRawSocket(t)
	for range forged {
		for _, c := range calls {
			if err := raw.Send(c.local, other.addr, channelData); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(2 * time.Millisecond) // the interval of the attacker
		for _, s := range owner.sessions() {
			if s.Front != "" {
				t.Fatalf("a client has moved to %s", s.Front)
			}
		}
	}
	if n := other.forwarding().Passed - passed; n < forged {
		t.Errorf("%d of %d forged datagrams have reached the owner", n, len(calls)*forged)
	}
	end(t, calls...)
}

// flood sends datagrams from random source addresses, and returns their number.
func flood(t *testing.T, in *netns.Space, to netip.AddrPort, payload []byte, rate int, length time.Duration) (sent int) {
	t.Helper()
	var raw netns.RawSocket
	in.Do(func() { raw = netns.NewRawSocket(t) })
	dice := rand.New(rand.NewPCG(3, 4))
	tried := 0
	for begun := time.Now(); time.Since(begun) < length; {
		for due := int(time.Since(begun).Seconds() * float64(rate)); tried < due; tried++ {
			from := netip.AddrFrom4([4]byte{11, byte(dice.Uint32()), byte(dice.Uint32()), byte(dice.Uint32())})
			if raw.Send(netip.AddrPortFrom(from, uint16(1024+dice.IntN(60000))), to, payload) == nil {
				sent++
			}
		}
		time.Sleep(time.Millisecond) // the interval of the flood
	}
	return sent
}
