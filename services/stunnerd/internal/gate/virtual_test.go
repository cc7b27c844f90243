package gate

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pion/stun/v2"

	"github.com/stunner-gateway/stunner/services/api/config"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/engine/pionturn"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/limit"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/meter"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/nonce"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay/relaytest"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/session"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/stunmsg"
)

// virtual is a gate in virtual time. The peers of its relays are in memory.
type virtual struct {
	fixture
	net   *relaytest.Network
	began time.Time
}

// virtually runs a test in virtual time. At the end it waits until all lifetimes are over, and checks that no session,
// allocation, socket or goroutine is left. synctest waits for the goroutines.
func virtually(t *testing.T, test func(v *virtual)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		v := newVirtual(t)
		test(v)
		time.Sleep(time.Hour + time.Second)
		synctest.Wait()
		if a, b, c, d := v.table.Len(), v.engine.Allocations(), v.Sessions(), v.net.Len(); a+b+c+d != 0 {
			t.Errorf("left behind: %d sessions in the table, %d allocations, %d flows, %d relay sockets", a, b, c, d)
		}
	})
}

func newVirtual(t *testing.T) *virtual {
	// The time of a bubble starts in 2000. The expiry in an ephemeral user name must have ten digits. Times since 1970
	// in seconds have ten digits from September 2001 on.
	time.Sleep(time.Until(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)))
	return anotherVirtual(t, time.Now())
}

// anotherVirtual returns a second gate that shares the virtual clock of a running test.
func anotherVirtual(t *testing.T, began time.Time) *virtual {
	log := slog.New(slog.DiscardHandler)
	engine, err := pionturn.New(2, log)
	if err != nil {
		t.Fatal(err)
	}
	nonces, err := nonce.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	v := &virtual{net: &relaytest.Network{}, began: began}
	v.fixture = fixture{t: t, Gate: New("test", config.TURNUDP, Shared{
		Engine: engine, Nonces: nonces, Network: v.net, Reservations: relay.NewReservations(),
		Limits: limit.NewProcess(), Table: session.NewTable(), Meter: meter.New(), Log: log,
	})}
	v.Update(policy(), routes("127.0.0.1:<4000-4999>"))
	t.Cleanup(func() {
		v.Gate.Close()
		if err := errors.Join(v.reservations.Close(), engine.Close()); err != nil {
			t.Error(err)
		}
	})
	return v
}

// at waits until a duration since the start of the test has passed.
func (v *virtual) at(moment time.Duration) {
	time.Sleep(time.Until(v.began.Add(moment)))
	synctest.Wait()
}

// ask makes a request with the credential of the policy and returns the code of the answer.
func (v *virtual) ask(c *client, method stun.Method, attrs ...stun.Setter) stun.ErrorCode {
	v.t.Helper()
	return codeOf(v.send(c, v.signed(c, username, password, method, attrs...)))
}

// must makes a request that has to succeed.
func (v *virtual) must(c *client, method stun.Method, attrs ...stun.Setter) {
	v.t.Helper()
	if code := v.ask(c, method, attrs...); code != 0 {
		v.t.Fatalf("%s: %d", method, code)
	}
}

// expect makes a request that has to get a code.
func (v *virtual) expect(want stun.ErrorCode, c *client, method stun.Method, attrs ...stun.Setter) {
	v.t.Helper()
	if code := v.ask(c, method, attrs...); code != want {
		v.t.Errorf("%s after %s: %d, want %d", method, time.Since(v.began), code, want)
	}
}

// guest returns a client with an allocation, and its relayed address. The lifetime is in seconds; 0 means the default.
func (v *virtual) guest(seconds uint32) (*client, netip.AddrPort) {
	v.t.Helper()
	c := newClient("192.0.2.1:1000")
	attrs := []stun.Setter{udp}
	if seconds != 0 {
		attrs = append(attrs, lifetime(seconds))
	}
	v.must(c, stun.MethodAllocate, attrs...)
	return c, v.Relay(c.addr).Session().Relay
}

func lifetime(seconds uint32) stunmsg.Number { return number(stun.AttrLifetime, seconds) }

// ways are the directions in which data is relayed.
type ways struct{ toPeer, toClient bool }

var (
	both    = ways{true, true}
	neither = ways{}
)

func (w ways) String() string {
	return fmt.Sprintf("to the peer %t, to the client %t", w.toPeer, w.toClient)
}

// indications sends a Send indication, and data of the peer.
func (v *virtual) indications(c *client, via netip.AddrPort, peer relaytest.Peer) (w ways) {
	v.t.Helper()
	at := addressAttr(stun.AttrXORPeerAddress, peer.Addr())
	v.Receive(v.build(stun.NewType(stun.MethodSend, stun.ClassIndication), at, data("there")), c)
	w.toPeer = v.arrived(via, peer)
	m := &stun.Message{Raw: v.answer(c, via, peer)}
	var from stun.XORMappedAddress
	if m.Raw != nil && m.Decode() == nil && from.GetFromAs(m, stun.AttrXORPeerAddress) == nil {
		payload, err := m.Get(stun.AttrData)
		w.toClient = err == nil && string(payload) == "back" && from.String() == peer.Addr().String() &&
			m.Type == stun.NewType(stun.MethodData, stun.ClassIndication)
	}
	return w
}

// channel sends ChannelData on channel 0x4000, and data of the peer.
func (v *virtual) channel(c *client, via netip.AddrPort, peer relaytest.Peer) (w ways) {
	v.t.Helper()
	if r := v.Relay(c.addr); r != nil {
		r.FromClient([]byte("\x40\x00\x00\x05there"))
	}
	w.toPeer = v.arrived(via, peer)
	w.toClient = string(v.answer(c, via, peer)) == "\x40\x00\x00\x04back"
	return w
}

func data(payload string) stun.RawAttribute {
	return stun.RawAttribute{Type: stun.AttrData, Value: []byte(payload)}
}

// arrived reports whether the peer has received the data.
func (v *virtual) arrived(via netip.AddrPort, peer relaytest.Peer) bool {
	synctest.Wait()
	got := peer.Got()
	return len(got) == 1 && got[0].From == via && got[0].Payload == "there"
}

// answer sends data of the peer, and returns what the client receives, or nil.
func (v *virtual) answer(c *client, via netip.AddrPort, peer relaytest.Peer) []byte {
	peer.Send(via, "back")
	synctest.Wait()
	select {
	case frame := <-c.frames:
		return frame
	default:
		return nil
	}
}

// carries checks in which directions data is relayed.
func (v *virtual) carries(what string, got, want ways) {
	v.t.Helper()
	if got != want {
		v.t.Errorf("%s after %s: %s; want %s", what, time.Since(v.began), got, want)
	}
}

func (v *virtual) peer(addr string) relaytest.Peer { return v.net.Peer(netip.MustParseAddrPort(addr)) }
