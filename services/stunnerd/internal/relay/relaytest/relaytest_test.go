package relaytest_test

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

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
	if err := s.Send([]byte("out"), one.Addr()); err != nil {
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
	if b, err := s.Receive(); err != nil || b == nil {
		t.Errorf("received %v, %v", b, err)
	}
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
func TestClockGoesOnWhileARelayWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n relaytest.Network
		s, err := n.Open(host, 0)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error)
		go func() {
			_, err := s.Receive()
			ended <- err
		}()
		time.Sleep(time.Hour)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, net.ErrClosed) {
			t.Errorf("receive: %v", err)
		}
		if err := s.Send(nil, n.Peer(netip.AddrPort{}).Addr()); !errors.Is(err, net.ErrClosed) || n.Len() != 0 {
			t.Errorf("send after close: %v, %d sockets", err, n.Len())
		}
	})
}
