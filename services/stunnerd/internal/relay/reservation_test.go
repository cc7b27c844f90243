package relay_test

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay"
	"github.com/stunner-gateway/stunner/services/stunnerd/internal/relay/relaytest"
)

// T-A7, T-12: the number of reserved ports is bounded. A reservation ends after 30 s, or with its use.
func TestReservationsAreBoundedAndEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 256
		var network relaytest.Network
		addr, held := netip.MustParseAddr("203.0.113.1"), relay.NewReservations()
		hold := func() (relay.Token, error) {
			s, err := network.Open(addr, 0)
			if err != nil {
				t.Fatal(err)
			}
			return held.Hold(relay.Reserved{Socket: s, Advertised: addr, User: "ann"})
		}
		tokens := make([]relay.Token, most)
		for i := range tokens {
			var err error
			if tokens[i], err = hold(); err != nil {
				t.Fatalf("port %d: %v", i, err)
			}
		}
		if _, err := hold(); err == nil || network.Len() != most {
			t.Errorf("one more: %v, %d sockets", err, network.Len())
		}
		time.Sleep(29 * time.Second)
		if _, ok := held.Take(tokens[7], "eve"); ok {
			t.Error("another user takes a port")
		}
		taken, ok := held.Take(tokens[7], "ann")
		if !ok {
			t.Fatal("a port is gone after 29 s")
		}
		if _, err := hold(); err != nil {
			t.Errorf("a port that was taken makes no room: %v", err)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if _, ok := held.Take(tokens[0], "ann"); ok || network.Len() != 2 {
			t.Errorf(
				"after 31 s: a token still good: %t; %d sockets, want the taken one and the young one", ok,
				network.Len(),
			)
		}
		if err := held.Close(); err != nil || network.Len() != 1 {
			t.Errorf("close: %v, %d sockets", err, network.Len())
		}
		if err := taken.Close(); err != nil {
			t.Errorf("the taken port was closed: %v", err)
		}
	})
}
