package relaytest_test

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/datagram"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay/relaytest"
)

var _ relay.Network = (*relaytest.Network)(nil)

var host = netip.MustParseAddr("203.0.113.1")

func TestDatagramsArriveWhereTheyAreSent(t *testing.T) {
	var n relaytest.Network
	s, err := n.Open(host, 0)
	if err != nil {
		t.Fatal(err)
	}
	at := netip.AddrPortFrom(host, s.Port())
	one, other := n.Peer(netip.MustParseAddrPort("192.0.2.1:1")), n.Peer(netip.MustParseAddrPort("192.0.2.1:2"))
	if err := send(s, "out", one.Addr()); err != nil {
		t.Fatal(err)
	}
	if got := other.Got(); len(got) != 0 {
		t.Errorf("another peer got %v", got)
	}
	if got := one.Got(); len(got) != 1 || got[0] != (relaytest.Datagram{From: at, To: one.Addr(), Payload: "out"}) {
		t.Errorf("the peer got %v", got)
	}
	if rest := n.Sent(); len(rest) != 0 {
		t.Errorf("left: %v", rest)
	}
	one.Send(netip.AddrPortFrom(host, at.Port()+1), "nobody there")
	one.Send(at, "in")
	in := make(inbox)
	if err := s.Start(in); err != nil {
		t.Fatal(err)
	}
	if n := <-in; n != 1 {
		t.Errorf("received %d datagrams", n)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// inbox is a receiver that passes on the sizes of batches.
type inbox chan int

func (i inbox) ReceiveBatch(batch []relay.Datagram, _ time.Time) { i <- len(batch) }

func (i inbox) Unreachable(netip.AddrPort) {}

func send(s relay.Socket, payload string, to netip.AddrPort) error {
	packets := []datagram.Packet{{Payload: []byte(payload), To: to}}
	s.Send(packets)
	return packets[0].Err
}

func TestPairsOfPorts(t *testing.T) {
	var n relaytest.Network
	for range 3 {
		even, odd, err := relay.OpenEven(&n, host, true)
		if err != nil || even.Port()%2 != 0 || odd.Port() != even.Port()+1 {
			t.Fatalf("pair %v, %v, %v", even, odd, err)
		}
		if _, err := n.Open(host, odd.Port()); err == nil {
			t.Error("a port is open twice")
		}
	}
	if n.Len() != 6 {
		t.Errorf("%d sockets, want 6", n.Len())
	}
}

// A relay that waits does not stop the clock, and Close ends the wait.
func TestClockAdvancesWhileARelayWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n relaytest.Network
		s, err := n.Open(host, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Start(make(inbox)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := send(s, "", n.Peer(netip.AddrPort{}).Addr()); !errors.Is(err, net.ErrClosed) || n.Len() != 0 {
			t.Errorf("send after close: %v, %d sockets", err, n.Len())
		}
	})
}
